//! A run as the record has it.

use measure::delay::Delays;
use measure::record::{CpuUse, FlowCount, FlowReceiver, FlowRun, FlowSender};

use super::arena::Blueprint;
use super::receivers::{Place, Streams, Tally};
use super::setting;
use crate::trial::Trial;
use crate::trial::sender::Offered;

/// What became of a trial, with what each socket's reader counted and what the CPUs did meanwhile.
pub(super) fn run(
    blueprint: &Blueprint,
    trial: &Trial,
    offered: &Offered,
    tallies: &[(Place, Tally)],
    cpus: Vec<CpuUse>,
) -> FlowRun {
    let stamped = blueprint.stamp;
    let flows = flow_counts(blueprint, trial.sent, tallies);
    let delays = tallies.iter().fold(Delays::new(), |mut all, (_, tally)| {
        all.add(&tally.delays);
        all
    });
    FlowRun {
        asked_pps: trial.load.pps,
        packets: trial.load.packets,
        sent: trial.sent,
        wall_ns: trial.wall_ns,
        is_offered: trial.is_offered(),
        refused: trial.refused,
        received: trial.received,
        reordered: stamped.then(|| flows.iter().filter_map(|flow| flow.reordered).sum()),
        flows,
        receivers: tallies.iter().map(|(place, tally)| receiver_row(place, tally)).collect(),
        cpus,
        sender: FlowSender {
            cpu: blueprint.sender_cpu as u32,
            cpu_ns: offered.cpu_ns,
            grain: offered.grain,
            gaps: trial.gaps.as_ref().map(|gaps| gaps.values().collect()),
            ..FlowSender::default()
        },
        delays: stamped.then(|| delays.values().collect()),
        unstamped: stamped.then(|| tallies.iter().map(|(_, tally)| tally.unstamped).sum()),
        ..FlowRun::default()
    }
}

/// What was received of each flow; of each port where packets have no stamps.
fn flow_counts(blueprint: &Blueprint, sent: u64, tallies: &[(Place, Tally)]) -> Vec<FlowCount> {
    let (stamped, streams) = (blueprint.stamp, Streams::of(&blueprint.setting));
    let count = if stamped { streams.streams } else { streams.ports };
    let share = |flow: u32| {
        let count = u64::from(count);
        sent / count + u64::from(u64::from(flow) < sent % count)
    };
    let mut flows: Vec<FlowCount> = (0..count)
        .map(|flow| FlowCount {
            flow,
            port: setting::port(flow % streams.ports),
            sent: share(flow),
            reordered: stamped.then_some(0),
            ..FlowCount::default()
        })
        .collect();
    for (place, tally) in tallies {
        if !stamped {
            flows[place.port as usize].received += tally.packets;
            continue;
        }
        for (local, counted) in tally.flows.iter().enumerate() {
            let flow = &mut flows[streams.flow(place.port, local) as usize];
            flow.received += counted.received;
            flow.reordered = flow.reordered.map(|reordered| reordered + counted.reordered);
        }
    }
    flows
}

fn receiver_row(place: &Place, tally: &Tally) -> FlowReceiver {
    FlowReceiver {
        port: setting::port(place.port),
        socket: place.socket,
        cpu: place.cpu as u32,
        packets: tally.packets,
        drops: tally.drops,
        cpu_ns: tally.cpu_ns,
        calls: tally.calls,
        buffer_bytes: place.buffer_bytes.map(|bytes| bytes as u64),
        ..FlowReceiver::default()
    }
}
