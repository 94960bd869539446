//! The device under test in user space as what flows are sent into: it delivers to a queue for each port, and deals flows out to
//! backlogs of CPUs before that where it steers.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use lab::Lab;
use lab::counters::{Key, Place as Counted, Reader, Snapshot, diff};
use linux::clock;
use measure::ledger::{Count, Ledger};
use template::CheckedFrame;
use traffic::BackendKind;

use super::arena::{self, Blueprint, FlowTrial};
use super::receivers::{Place, Streams, Tally};
use super::setting::{self, FlowSetting, OFF};
use super::{account, rows};
use crate::device::{DeviceWord, ReadQueue, RxMode, Standing, Standings};
use crate::ledger::{self, Grown};
use crate::paths::{GEN, INGRESS, INGRESS_PEER, SYS};
use crate::rig::kernel::seen_by;
use crate::scenario::{
    DATAPATH_JOB, Datapath, Devices, Network, Receiving, Running, SCHEMA, StageName, Steering, UdpQueues,
};
use crate::stop::{Deadline, Stop};
use crate::trial::sender::{Handover, Offered, Sender};
use crate::trial::{Load, Trial};

/// Packets that wait for a receiver at most, and in a backlog where nothing is said: as in `perpacket datapath`, and as the
/// kernel has it.
const QUEUE_LIMIT: usize = 1_024;
const BACKLOG: u32 = 1_000;

/// A lab with a device in user space, into which flows are sent.
pub(crate) struct UserArena {
    blueprint: Blueprint,
    backend: BackendKind,
    frame: CheckedFrame,
    device: Standing,
    tallies: Arc<Mutex<Vec<Tally>>>,
    counters: Vec<(&'static str, Reader)>,
    // Last, so that sockets go before the namespaces that they are in.
    lab: Lab,
}

/// Why a setting means nothing to the device in user space; none where all of it does.
pub(crate) fn refusal(own: &FlowSetting) -> Option<String> {
    let usual = FlowSetting::default();
    let kept = FlowSetting {
        backend: own.backend,
        rate: own.rate.clone(),
        frame: own.frame,
        flows: own.flows,
        ports: own.ports,
        sources: own.sources,
        batch: own.batch,
        rps: own.rps.clone(),
        flow_limit: own.flow_limit.clone(),
        backlog: own.backlog,
        ..usual
    };
    let (name, value) = own.changed().into_iter().find(|pair| !kept.changed().contains(pair))?;
    Some(format!(
        "{name} = {value} with dut = datapath: the device in user space has no sockets and no settings of the kernel; it takes rps, \
         flow-limit, backlog and batch"
    ))
}

/// The device's own steering: backlogs of the CPUs of the mask.
fn steering(setting: &FlowSetting) -> Result<Option<Steering>> {
    if setting.rps == OFF {
        return Ok(None);
    }
    let mask: lab::steering::CpuMask = setting.rps.parse().with_context(|| {
        format!("rps = {}: the device in user space has one queue, and takes one mask", setting.rps)
    })?;
    let cpus: Vec<usize> = mask.cpus().collect();
    let flow_limit = !setting.flow_limit_mask()?.is_empty();
    let backlog = setting.backlog.unwrap_or(BACKLOG) as usize;
    Ok((!cpus.is_empty()).then_some(Steering { cpus, backlog, flow_limit }))
}

/// What the device does, as `perpacket datapath udp` would run it in the system under test.
fn scenario(blueprint: &Blueprint) -> Datapath {
    let setting = &blueprint.setting;
    let ports = setting.port_count() - blueprint.closed_ports;
    let last = setting::port(ports.max(1) - 1);
    Datapath {
        schema: SCHEMA.into(),
        job: DATAPATH_JOB.into(),
        stage: StageName::Udp,
        drop: vec![],
        fault: None,
        capture: None,
        devices: Devices {
            rx: Some(DeviceWord::AfXdp { name: INGRESS.into(), queue: Some(0) }),
            allow: vec![INGRESS.into()],
            ..Devices::default()
        },
        frames: None,
        receive: Receiving {
            mode: RxMode::default(),
            alloc: RxMode::default().copies().then(Default::default),
            budget: setting.batch as usize,
            busy: true,
        },
        run: Running {
            threads: 1,
            cpus: vec![blueprint.receiver_cpus[0]],
            count: None,
            time_s: None,
            seed: 0,
        },
        network: Network::default(),
        udp: Some(UdpQueues { ports: format!("{}-{last}", setting::port(0)), limit: QUEUE_LIMIT }),
        steer: None,
    }
}

/// Counts what is read from the queues, as the readers of sockets do.
fn counting(tallies: &Arc<Mutex<Vec<Tally>>>, streams: Streams) -> ReadQueue {
    let tallies = Arc::clone(tallies);
    Box::new(move |queue, packets| {
        let mut tallies = tallies.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(tally) = tallies.get_mut(queue) else { return packets.for_each(drop) };
        let now = clock::monotonic_ns();
        for packet in packets {
            tally.note(packet.data(), now, streams);
            tally.packets += 1;
        }
        tally.calls += 1;
    })
}

impl UserArena {
    /// Builds the lab, and starts the device in it.
    ///
    /// # Errors
    /// What could not be made, and why.
    pub(crate) fn build(blueprint: &Blueprint) -> Result<Self> {
        let setting = &blueprint.setting;
        let backend = setting.backend.context("the backend is not resolved")?;
        let frame = blueprint.frame().check()?;
        // What the kernel of the lab would do with its own steering: nothing.
        let bare = FlowSetting { rps: OFF.into(), ..setting.clone() };
        let bare = Blueprint { setting: bare, napi: false, ..blueprint.clone() };
        let lab = Lab::build(&bare.plan()?).context("build the lab for flows")?;
        let streams = Streams::of(setting);
        let tallies = Arc::new(Mutex::new(vec![Tally::new(streams); setting.port_count() as usize]));
        let what = "start the device in user space";
        let scenario = scenario(blueprint).checked().context(what)?;
        let steer = steering(setting)?;
        let device = lab
            .netns(SYS)
            .run(|| Standing::start(&scenario, steer.as_ref(), counting(&tallies, streams)))?
            .context(what)?;
        let open = |role| Ok((role, Reader::open(&lab, role, &[])?));
        let counters = [GEN, SYS].map(open).into_iter().collect::<Result<_>>()?;
        Ok(Self { blueprint: blueprint.clone(), backend, frame, device, tallies, counters, lab })
    }

    /// Sends a load, waits for what is on its way, and counts.
    ///
    /// # Errors
    /// Where sending fails, the device does, or a counter cannot be read.
    pub(crate) fn run(&mut self, load: &Load, stop: &Stop, mut watch: impl FnMut(u64)) -> Result<FlowTrial> {
        drop(self.take_tallies());
        let standings = self.device.standings()?;
        let counters = self.read_counters()?;
        let cpus_before = arena::read_cpu_times();
        let streams = Streams::of(&self.blueprint.setting);
        let sender = Sender {
            kind: self.backend,
            frame: &self.frame,
            imix: None,
            turn: streams.turn,
            netns: Some(self.lab.netns(GEN)),
            ifindex: self.lab.device(GEN, INGRESS_PEER).ifindex,
            cpu: self.blueprint.sender_cpu,
            batch: None,
            handover: Handover::default(),
        };
        let offered = sender.send(load, stop, &mut watch)?;
        let ledger = self.drain(&offered, &standings, &counters)?;
        let refused = ledger::take_refusals(&mut self.grown(&counters, 0)?, self.way());
        let cpus = cpus_before.zip(arena::read_cpu_times()).map(|(then, now)| account::cpu_use(&then, &now));
        let trial = Trial {
            load: *load,
            sent: offered.packets,
            received: ledger.received_packets(),
            wall_ns: offered.wall_ns,
            gaps: offered.gaps.clone(),
            refused,
            ledger,
        };
        let tallies = self.take_tallies();
        let run = rows::run(&self.blueprint, &trial, &offered, &tallies, cpus.unwrap_or_default());
        Ok(FlowTrial { run, trial })
    }

    /// What was read from each queue since the last time, and where.
    fn take_tallies(&self) -> Vec<(Place, Tally)> {
        let streams = Streams::of(&self.blueprint.setting);
        let cpu = steering(&self.blueprint.setting)
            .ok()
            .flatten()
            .and_then(|steer| steer.cpus.first().copied())
            .unwrap_or(self.blueprint.receiver_cpus[0]);
        let mut tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        let take = |(port, tally): (usize, &mut Tally)| {
            let place = Place { port: port as u32, socket: 0, cpu, buffer_bytes: None };
            (place, std::mem::replace(tally, Tally::new(streams)))
        };
        tallies.iter_mut().enumerate().map(take).collect()
    }

    /// The device's sockets poll the veth.
    fn way(&self) -> ledger::WayIn {
        ledger::WayIn::by(self.backend, true)
    }

    fn read_counters(&mut self) -> Result<Vec<(&'static str, Snapshot)>> {
        self.counters.iter_mut().map(|(role, reader)| Ok((*role, reader.read()?))).collect()
    }

    /// Waits until every packet is accounted for, or nothing changes any more.
    fn drain(
        &mut self,
        offered: &Offered,
        before: &Standings,
        counters: &[(&'static str, Snapshot)],
    ) -> Result<Ledger> {
        let deadline = Deadline::after(arena::DRAIN);
        let (mut last, mut changed_at) = (None, Duration::ZERO);
        loop {
            let now = self.device.standings()?;
            let sent = Count { packets: offered.packets, seen_by: seen_by(self.backend).into() };
            let mut book = Ledger::new("flows", Some(self.blueprint.setting.frame), sent);
            let read = now.read - before.read;
            book.received.push(Count { packets: read, seen_by: "read from the device's queues".into() });
            book.drops.extend(now.losses_since(before, None));
            if !book.closes() {
                let mut grown = self.grown(counters, now.missed_since(before).unwrap_or(0))?;
                ledger::take_refusals(&mut grown, self.way());
                ledger::add_counters(&mut book, &grown, &[]);
            }
            let open = (read, book.unaccounted());
            if last != Some(open) {
                (last, changed_at) = (Some(open), deadline.elapsed());
            }
            if book.closes() || deadline.elapsed() - changed_at > arena::QUIET || deadline.passed() {
                return Ok(book);
            }
            thread::sleep(arena::LOOK);
        }
    }

    /// By how much the lab's counters grew, without the frames that the device missed, which stand in its account: a veth counts them
    /// as `rx_drops` of the queue, and so in its `rx_dropped` (drivers/net/veth.c, veth_xdp_rcv_one and
    /// veth_get_stats64: the first read in patches from 5.4 to 2025, the counts tried on 6.18).
    fn grown(&mut self, before: &[(&'static str, Snapshot)], missed: u64) -> Result<Grown> {
        let now = self.read_counters()?;
        let mut grown: Grown =
            before.iter().zip(&now).map(|((role, then), (_, now))| (*role, diff(then, now))).collect();
        let key = Key::new(Counted::Link(INGRESS.into()), "rx_dropped");
        for (_, counters) in grown.iter_mut().filter(|(role, _)| *role == SYS) {
            if let Some(dropped) = counters.get_mut(&key) {
                *dropped -= missed as i64;
            }
        }
        Ok(grown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_of_the_kernel_is_refused() {
        let usual = FlowSetting::default();
        assert_eq!(refusal(&usual), None);
        let steered = FlowSetting { rps: "0x3".into(), backlog: Some(500), batch: 32, ..usual.clone() };
        assert_eq!(refusal(&steered), None);
        let steer = steering(&steered).unwrap().unwrap();
        assert_eq!((steer.cpus, steer.backlog, steer.flow_limit), (vec![0, 1], 500, false));
        for other in [
            FlowSetting { gro: true, ..usual.clone() },
            FlowSetting { rfs: 4096, ..usual.clone() },
            FlowSetting { sockets_per_port: 2, ..usual.clone() },
            FlowSetting { rcvbuf: 1 << 20, ..usual.clone() },
        ] {
            assert!(refusal(&other).unwrap().contains("with dut = datapath"), "{other:?}");
        }
        assert!(steering(&FlowSetting { rps: "0x1/0x2".into(), ..usual }).is_err());
    }
}
