//! What an end counted in the words of results, and what the other end told as a [`Side`].

use super::results::{More, Results, StreamResults};
use super::wire::stream_id;
use crate::outcome::{Cpu, Datagrams, Flow, Moved, Side, Tcp};
use crate::plan::{Direction, Plan, Transport, Work};

/// Nanoseconds of a second.
const SECOND: f64 = 1e9;

/// Total, user and system time of the process, in percent of one CPU: iperf3's figures.
pub(super) fn process(cpu: &Cpu) -> [f64; 3] {
    let share = |ns: u64| if cpu.wall_ns > 0 { ns as f64 * 100.0 / cpu.wall_ns as f64 } else { 0.0 };
    let (user, system) = (share(cpu.process_user_ns), share(cpu.process_system_ns));
    [user + system, user, system]
}

/// Whether the stream of an index is sent by the client: of a test of both directions, the first half is.
pub(super) fn client_sends(plan: &Plan, index: usize) -> bool {
    match plan.work {
        Work::Bulk { direction: Direction::ToClient, .. } => false,
        Work::Bulk { direction: Direction::Both, .. } => index < plan.flows as usize,
        _ => true,
    }
}

/// How many streams a plan has, of both directions.
pub(super) fn stream_count(plan: &Plan) -> usize {
    let both = matches!(plan.work, Work::Bulk { direction: Direction::Both, .. });
    plan.flows as usize * if both { 2 } else { 1 }
}

/// What an end tells. `apart` says whether the other end knows `omitted_errors` and `omitted_packets`.
pub(super) fn results(side: &Side, plan: &Plan, sends: bool, apart: bool) -> Results {
    let udp = plan.transport == Transport::Udp;
    Results {
        cpu_percent: side.cpu.as_ref().map_or([0.0; 3], process),
        has_retransmits: if !sends { -1 } else { i64::from(!udp) },
        congestion: side.flows.iter().find_map(|flow| flow.tcp.as_ref()?.congestion.clone()),
        server_output: None,
        streams: (0..side.flows.len()).map(|index| stream(side, index, plan, apart)).collect(),
        more: Some(More {
            cpu: side.cpu.clone(),
            datagrams: side.flows.iter().map(|flow| flow.datagrams).collect(),
        }),
    }
}

fn stream(side: &Side, index: usize, plan: &Plan, apart: bool) -> StreamResults {
    let flow = &side.flows[index];
    let seconds = flow.wall_ns as f64 / SECOND;
    let mut told = StreamResults {
        id: stream_id(index),
        bytes: flow.sent.or(flow.received).map_or(0, |moved| moved.bytes),
        retransmits: flow.sent.and(flow.tcp.as_ref()).and_then(|tcp| tcp.retransmits),
        times: Some((0.0, seconds)),
        ..StreamResults::default()
    };
    if plan.transport != Transport::Udp {
        // Absent in 3.12, and zero in later versions.
        told.omitted = apart.then_some((0, 0));
        return told;
    }
    let (errors, counted, numbered) = match (flow.sent, flow.datagrams) {
        (Some(sent), _) => (0, sent.messages, flow.numbered),
        (None, Some(seen)) => {
            told.jitter = seen.jitter_ns.map_or(0.0, |ns| ns as f64 / SECOND);
            let tail = seen.tail_lost.unwrap_or(0);
            (
                seen.lost + tail,
                seen.received + seen.lost + tail,
                flow.numbered.map(|numbered| numbered + tail),
            )
        }
        (None, None) => (0, flow.received.map_or(0, |moved| moved.messages), None),
    };
    told.packets = numbered.map_or(counted, |numbered| numbered.max(counted));
    // An older client takes all errors as of what was counted, but its own count of omitted packets from all of them. What was
    // lost while omitting is not told, so that nobody can count it.
    told.errors = errors;
    told.omitted = apart.then_some((0, told.packets - counted));
    told
}

/// What the other end told, as a side. `own` is what this end counted: it says how many datagrams the other end could have
/// received, and tells streams that are sent from others.
///
/// # Errors
/// A stream that is not of this test.
pub(super) fn side(told: &Results, plan: &Plan, own: &Side, other_is_server: bool) -> Result<Side, String> {
    let count = stream_count(plan);
    let mut flows = vec![Flow::default(); count];
    for stream in &told.streams {
        let Some(index) = (0..count).find(|&index| stream_id(index) == stream.id) else {
            return Err(format!("results are of stream {}, which is not of this test", stream.id));
        };
        let sends = client_sends(plan, index) != other_is_server;
        let more = told.more.as_ref().and_then(|more| more.datagrams.get(index).copied().flatten());
        flows[index] = flow(stream, told, plan, sends, more, own.flows.get(index));
    }
    let wall_ns = flows.iter().map(|flow| flow.wall_ns).max().unwrap_or_default();
    let cpu = told.more.as_ref().and_then(|more| more.cpu.clone()).or_else(|| process_only(told, wall_ns));
    Ok(Side { wall_ns, flows, cpu, ..Side::default() })
}

/// iperf3 tells of its process only, in percent.
fn process_only(told: &Results, wall_ns: u64) -> Option<Cpu> {
    let share = |percent: f64| (percent.max(0.0) / 100.0 * wall_ns as f64) as u64;
    let [_, user, system] = told.cpu_percent;
    (wall_ns > 0).then(|| Cpu {
        wall_ns,
        process_user_ns: share(user),
        process_system_ns: share(system),
        ..Cpu::default()
    })
}

fn flow(
    stream: &StreamResults,
    told: &Results,
    plan: &Plan,
    sends: bool,
    more: Option<Datagrams>,
    own: Option<&Flow>,
) -> Flow {
    let udp = plan.transport == Transport::Udp;
    let wall_ns = stream.times.map_or(0.0, |(start, end)| ((end - start).max(0.0) * SECOND).min(1e18)) as u64;
    let (_, omitted_packets) = stream.omitted.unwrap_or((0, 0));
    let length = u64::from(plan.send_bytes.max(1));
    // Calls of a stream are not told; datagrams are, of the receiver by its bytes.
    let messages = match (udp, sends) {
        (false, _) => 0,
        (true, true) => sent_packets(stream, length, omitted_packets),
        (true, false) => stream.bytes / length,
    };
    let moved = Moved { bytes: stream.bytes, messages, refused: 0 };
    let tcp = (!udp).then(|| Tcp {
        retransmits: stream.retransmits.filter(|_| sends),
        congestion: told.congestion.clone(),
        ..Tcp::default()
    });
    Flow {
        wall_ns,
        sent: sends.then_some(moved),
        received: (!sends).then_some(moved),
        datagrams: (udp && !sends).then(|| more.unwrap_or_else(|| datagrams(stream, plan, messages, own))),
        tcp,
        ..Flow::default()
    }
}

/// Datagrams of a sender without those that were omitted: by its bytes, which are told exactly, where every datagram is whole.
fn sent_packets(stream: &StreamResults, length: u64, omitted_packets: u64) -> u64 {
    if stream.bytes > 0 && stream.bytes.is_multiple_of(length) {
        stream.bytes / length
    } else {
        stream.packets.saturating_sub(omitted_packets)
    }
}

/// Datagrams as iperf3 tells of them: the highest number, and the gaps below it.
fn datagrams(stream: &StreamResults, plan: &Plan, received: u64, own: Option<&Flow>) -> Datagrams {
    let counted_sent = own.and_then(|flow| flow.sent).map(|moved| moved.messages);
    let lost = match (stream.omitted, counted_sent) {
        (Some((errors, _)), _) => stream.errors.saturating_sub(errors),
        // Before 3.14 what was lost while omitting is among the errors: no more can count than did not arrive.
        (None, Some(sent)) if !plan.omit.is_zero() => stream.errors.min(sent.saturating_sub(received)),
        _ => stream.errors,
    };
    Datagrams {
        received,
        lost,
        // Beyond the highest number that came.
        tail_lost: own.and_then(|flow| flow.numbered).map(|all| all.saturating_sub(stream.packets)),
        jitter_ns: Some((stream.jitter.max(0.0) * SECOND).min(1e18) as u64),
        ..Datagrams::default()
    }
}

/// Adds what was lost behind the last datagram that came to what this end counted: `told` says how many the other end sent.
pub(super) fn add_tail(side: &mut Side, told: &Results) {
    for index in 0..side.flows.len() {
        let flow = &mut side.flows[index];
        let (Some(counted), Some(numbered)) = (flow.datagrams.as_mut(), flow.numbered) else { continue };
        let Some(stream) = told.streams.iter().find(|stream| stream.id == stream_id(index)) else { continue };
        counted.tail_lost = Some(stream.packets.saturating_sub(numbered));
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::bulk;
    use super::*;
    use crate::plan::{Giving, Taking};
    use std::time::Duration;

    fn udp() -> Plan {
        Plan { transport: Transport::Udp, send_bytes: 1000, receive_bytes: 1000, ..bulk() }
    }

    fn sender(messages: u64) -> Flow {
        Flow {
            wall_ns: 2_000_000_000,
            sent: Some(Moved { bytes: messages * 1000, messages, refused: 0 }),
            numbered: Some(messages),
            ..Flow::default()
        }
    }

    fn receiver(datagrams: Datagrams) -> Flow {
        let messages = datagrams.received + datagrams.duplicate;
        Flow {
            received: Some(Moved { bytes: messages * 1000, messages, refused: 0 }),
            datagrams: Some(datagrams),
            numbered: Some(datagrams.received + datagrams.lost),
            ..sender(0)
        }
        .without_sent()
    }

    impl Flow {
        fn without_sent(mut self) -> Self {
            self.sent = None;
            self
        }
    }

    fn of(flows: Vec<Flow>) -> Side {
        Side { flows, ..Side::default() }
    }

    fn told(stream: StreamResults) -> Results {
        Results {
            streams: vec![StreamResults { id: 1, times: Some((0.0, 2.0)), ..stream }],
            ..Results::default()
        }
    }

    #[test]
    fn what_was_lost_behind_the_last_datagram_is_counted_once_the_sender_told() {
        // iperf3 counts gaps only: 10 of 100 missing at the end are no loss there.
        let mut side = of(vec![receiver(Datagrams { received: 88, lost: 2, ..Datagrams::default() })]);
        add_tail(
            &mut side,
            &told(StreamResults { packets: 100, bytes: 100_000, ..StreamResults::default() }),
        );
        assert_eq!(side.flows[0].datagrams.unwrap().tail_lost, Some(10));
        let results = results(&side, &udp(), false, true);
        assert_eq!((results.streams[0].errors, results.streams[0].packets), (12, 100));
    }

    #[test]
    fn a_client_counts_the_tail_that_iperf3_does_not_tell() {
        let own = of(vec![sender(100)]);
        let told = told(StreamResults {
            bytes: 88_000,
            errors: 2,
            packets: 90,
            jitter: 0.001,
            ..StreamResults::default()
        });
        let side = side(&told, &udp(), &own, true).unwrap();
        let datagrams = side.flows[0].datagrams.unwrap();
        assert_eq!((datagrams.received, datagrams.lost, datagrams.tail_lost), (88, 2, Some(10)));
        assert_eq!(datagrams.jitter_ns, Some(1_000_000));
        assert_eq!(side.flows[0].wall_ns, 2_000_000_000);
    }

    #[test]
    fn duplicates_do_not_lower_loss() {
        // iperf3 takes one from the losses for each datagram that came late or twice.
        let side =
            of(vec![receiver(Datagrams { received: 90, duplicate: 7, lost: 10, ..Datagrams::default() })]);
        let results = results(&side, &udp(), false, true);
        assert_eq!((results.streams[0].errors, results.streams[0].packets), (10, 100));
    }

    #[test]
    fn what_was_omitted_is_apart_for_those_who_know_it() {
        let mut side = of(vec![receiver(Datagrams { received: 90, lost: 10, ..Datagrams::default() })]);
        side.flows[0].numbered = Some(150);
        let new = results(&side, &udp(), false, true).streams[0];
        assert_eq!((new.errors, new.packets, new.omitted), (10, 150, Some((0, 50))));
        let old = results(&side, &udp(), false, false).streams[0];
        assert_eq!((old.errors, old.packets, old.omitted), (10, 150, None));
    }

    #[test]
    fn errors_of_an_old_server_while_omitting_are_not_loss() {
        let plan = Plan { omit: Duration::from_secs(1), ..udp() };
        let own = of(vec![sender(100)]);
        let told =
            told(StreamResults { bytes: 98_000, errors: 30, packets: 150, ..StreamResults::default() });
        let datagrams = side(&told, &plan, &own, true).unwrap().flows[0].datagrams.unwrap();
        assert_eq!(datagrams.lost, 2);
    }

    #[test]
    fn streams_of_both_directions_know_who_sends() {
        let both = Work::Bulk { direction: Direction::Both, giving: Giving::Copy, taking: Taking::Copy };
        let plan = Plan { work: both, flows: 2, ..udp() };
        assert_eq!(
            (0..4).map(|index| client_sends(&plan, index)).collect::<Vec<_>>(),
            [true, true, false, false]
        );
        let streams = [1, 3, 4, 5].map(|id| StreamResults {
            id,
            bytes: id * 1000,
            packets: id,
            ..StreamResults::default()
        });
        let told = Results { streams: streams.to_vec(), ..Results::default() };
        let side = side(&told, &plan, &Side::default(), true).unwrap();
        assert_eq!(side.flows[0].received.unwrap().bytes, 1000);
        assert_eq!(side.flows[3].sent.unwrap(), Moved { bytes: 5000, messages: 5, refused: 0 });
    }

    #[test]
    fn a_stream_of_another_test_is_refused() {
        let stray = Results {
            streams: vec![StreamResults { id: 2, ..StreamResults::default() }],
            ..Results::default()
        };
        assert!(side(&stray, &udp(), &Side::default(), true).is_err());
    }

    #[test]
    fn cpu_of_a_process_comes_through_as_percent() {
        let told = Results { cpu_percent: [30.0, 10.0, 20.0], ..told(StreamResults::default()) };
        let side = side(&told, &bulk(), &Side::default(), true).unwrap();
        let percent = process(side.cpu.as_ref().unwrap());
        assert!((percent[0] - 30.0).abs() < 0.001 && (percent[1] - 10.0).abs() < 0.001);
    }
}
