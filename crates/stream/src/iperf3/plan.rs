//! A [`Plan`] in the words of iperf3's parameters, and back.

use std::time::Duration;

use super::error::Refusal;
use super::parameters::{Carrier, LENGTH_MAX, Parameters, STREAMS_MAX, UDP_LENGTH_MAX, UDP_LENGTH_MIN};
use crate::plan::{
    Direction, Ends, Giving, Pace, Plan, SocketOptions, Taking, Threads, Transport, Until, Work,
};

/// Bytes of a message over TCP where nothing is said (`DEFAULT_TCP_BLKSIZE`, iperf.h).
pub const TCP_LENGTH: u32 = 128 * 1024;
/// Bytes of a datagram where nothing is said (`DEFAULT_UDP_BLKSIZE`).
pub const UDP_LENGTH: u32 = 1460;
/// Datagrams that the kernel cuts from one buffer where GSO is asked for: 64 KiB is the most (3.21 fills as much).
const GSO_BYTES: u32 = 65_507;

/// What is told as the version: the iperf3 whose keys are used, and who uses them.
pub const VERSION: &str = concat!("3.17 perpacket ", env!("CARGO_PKG_VERSION"));

/// What iperf3 has no words for.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("iperf3's protocol cannot say this: {what}; {instead}")]
pub struct Unsaid {
    /// What was planned.
    pub what: &'static str,
    /// What can be done.
    pub instead: &'static str,
}

fn unsaid<T>(what: &'static str, instead: &'static str) -> Result<T, Unsaid> {
    Err(Unsaid { what, instead })
}

/// What is asked of a server, for a plan. What only the client's own end does needs no words.
pub fn parameters(plan: &Plan) -> Result<Parameters, Unsaid> {
    let Work::Bulk { direction, giving, taking } = plan.work else {
        return unsaid("transactions or connections", "use perpacket's own protocol or netperf's");
    };
    let server_sends = direction != Direction::ToServer;
    let server_receives = direction != Direction::ToClient;
    if server_sends && matches!(giving, Giving::Splice | Giving::ZeroCopy) {
        return unsaid(
            "a server that sends with splice or MSG_ZEROCOPY",
            "use sendfile, or perpacket's own protocol",
        );
    }
    if server_receives && taking == Taking::Splice {
        return unsaid(
            "a server that receives with splice",
            "receive with MSG_TRUNC, or use perpacket's own protocol",
        );
    }
    if !(1..=STREAMS_MAX).contains(&u64::from(plan.flows)) {
        return unsaid("no flow, or more than 128", "use perpacket's own protocol");
    }
    if plan.omit.subsec_nanos() != 0 {
        return unsaid("an omitted time that is not whole seconds", "omit whole seconds");
    }
    let carrier = match plan.transport {
        Transport::Tcp | Transport::Mptcp => Carrier::Tcp,
        Transport::Udp => Carrier::Udp,
        Transport::UnixStream | Transport::UnixDatagram => {
            return unsaid("UNIX sockets", "run both ends here");
        }
    };
    let length = u64::from(plan.send_bytes.max(1));
    match carrier {
        Carrier::Udp if !(UDP_LENGTH_MIN..=UDP_LENGTH_MAX).contains(&length) => {
            return unsaid(
                "datagrams of less than 16 or more than 65507 bytes",
                "use perpacket's own protocol",
            );
        }
        _ if length > LENGTH_MAX => return unsaid("messages of more than 1 MiB", "send less at once"),
        _ => {}
    }
    let mut asked = Parameters {
        carrier,
        omit: plan.omit.as_secs(),
        parallel: plan.flows.into(),
        reverse: direction == Direction::ToClient,
        bidirectional: direction == Direction::Both,
        mptcp: plan.transport == Transport::Mptcp,
        length,
        zero_copy: giving == Giving::Sendfile,
        skip_receive_copy: taking == Taking::Discard,
        server_affinity: server_cpu(&plan.threads)?,
        client_version: Some(VERSION.to_owned()),
        ..Parameters::default()
    };
    match plan.until {
        // The client ends the test: the server needs the time only to give up after it.
        Until::Time(time) => asked.time = time.as_secs() + u64::from(time.subsec_nanos() != 0),
        Until::Bytes(bytes) => asked.bytes = bytes,
        Until::Units(blocks) => asked.blocks = blocks,
    }
    pace(&mut asked, plan.pace, server_sends)?;
    options(&mut asked, &plan.options)?;
    Ok(asked)
}

fn server_cpu(threads: &Ends<Threads>) -> Result<Option<u64>, Unsaid> {
    match threads.server.cpus.as_slice() {
        [] => Ok(None),
        [cpu] => Ok(Some(*cpu as u64)),
        _ => unsaid("several CPUs of the server", "name one"),
    }
}

fn pace(asked: &mut Parameters, pace: Option<Pace>, server_sends: bool) -> Result<(), Unsaid> {
    match pace {
        None => {}
        Some(Pace::Spread { bits_per_second }) => asked.bandwidth = bits_per_second,
        Some(Pace::Kernel { bits_per_second }) => asked.fq_rate = bits_per_second,
        Some(Pace::DepartureTimes { .. } | Pace::Schedule { .. }) if server_sends => {
            return unsaid("a server that keeps departure times or a schedule", "give a rate");
        }
        Some(Pace::DepartureTimes { bits_per_second }) => asked.bandwidth = bits_per_second,
        Some(Pace::Schedule { .. }) => {}
    }
    Ok(())
}

fn options(asked: &mut Parameters, ends: &Ends<SocketOptions>) -> Result<(), Unsaid> {
    let client = &ends.client;
    if ends.server != SocketOptions::default() && ends.server != *client {
        return unsaid("socket options of the server that are not the client's", "give both ends the same");
    }
    asked.window = client.send_buffer_bytes.or(client.receive_buffer_bytes).unwrap_or(0).into();
    asked.mss = client.mss_bytes.unwrap_or(0).into();
    asked.no_delay = client.no_delay;
    asked.tos = client.tos.unwrap_or(0).into();
    asked.congestion.clone_from(&client.congestion);
    asked.gso = client.gso_segments.is_some_and(|segments| segments > 1);
    asked.gro = client.gro;
    Ok(())
}

/// What a server is to do for parameters that were checked. `without_end` is how long a test may last for which no time
/// was given.
pub fn plan(asked: &Parameters, without_end: Duration) -> Result<Plan, Refusal> {
    let udp = asked.carrier == Carrier::Udp;
    let bytes = match u32::try_from(asked.length).map_err(|_| Refusal::BlockSize)? {
        0 if udp => UDP_LENGTH,
        0 => TCP_LENGTH,
        length => length,
    };
    let direction = match (asked.reverse, asked.bidirectional) {
        (_, true) => Direction::Both,
        (true, false) => Direction::ToClient,
        (false, false) => Direction::ToServer,
    };
    let number = |value: u64| (value > 0).then_some(value);
    let both = server_options(asked, bytes)?;
    Ok(Plan {
        transport: match (udp, asked.mptcp) {
            (true, _) => Transport::Udp,
            (false, true) => Transport::Mptcp,
            (false, false) => Transport::Tcp,
        },
        work: Work::Bulk {
            direction,
            giving: if asked.zero_copy && !udp { Giving::Sendfile } else { Giving::Copy },
            taking: if asked.skip_receive_copy && !udp { Taking::Discard } else { Taking::Copy },
        },
        flows: u32::try_from(asked.parallel).map_err(|_| Refusal::Streams)?,
        until: match (number(asked.bytes), number(asked.blocks), number(asked.time)) {
            (Some(bytes), _, _) => Until::Bytes(bytes),
            (None, Some(blocks), _) => Until::Units(blocks),
            (None, None, Some(seconds)) => Until::Time(Duration::from_secs(seconds)),
            (None, None, None) => Until::Time(without_end),
        },
        omit: Duration::from_secs(asked.omit),
        send_bytes: bytes,
        receive_bytes: bytes,
        pace: match (number(asked.bandwidth), number(asked.fq_rate)) {
            (Some(bits_per_second), _) => Some(Pace::Spread { bits_per_second }),
            (None, Some(bits_per_second)) => Some(Pace::Kernel { bits_per_second }),
            (None, None) => None,
        },
        options: Ends { client: both.clone(), server: both },
        threads: Ends {
            client: Threads::default(),
            server: Threads {
                count: None,
                cpus: asked.server_affinity.and_then(|cpu| usize::try_from(cpu).ok()).into_iter().collect(),
            },
        },
    })
}

fn server_options(asked: &Parameters, bytes: u32) -> Result<SocketOptions, Refusal> {
    let window = (asked.window > 0)
        .then(|| u32::try_from(asked.window))
        .transpose()
        .map_err(|_| Refusal::BufferSize)?;
    Ok(SocketOptions {
        send_buffer_bytes: window,
        receive_buffer_bytes: window,
        no_delay: asked.no_delay,
        congestion: asked.congestion.clone(),
        mss_bytes: (asked.mss > 0).then(|| u16::try_from(asked.mss)).transpose().map_err(|_| Refusal::Mss)?,
        tos: (asked.tos > 0).then(|| u8::try_from(asked.tos)).transpose().map_err(|_| Refusal::Tos)?,
        // One thread may fill a buffer of the kernel's with messages before the next look at the clock.
        gso_segments: (asked.gso && bytes > 0)
            .then(|| u16::try_from((GSO_BYTES / bytes).clamp(1, 64)).unwrap_or(1))
            .filter(|&n| n > 1),
        gro: asked.gro,
        ..SocketOptions::default()
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Two seconds of TCP to the server.
    pub(in super::super) fn bulk() -> Plan {
        Plan {
            transport: Transport::Tcp,
            work: Work::Bulk { direction: Direction::ToServer, giving: Giving::Copy, taking: Taking::Copy },
            flows: 1,
            until: Until::Time(Duration::from_secs(2)),
            omit: Duration::ZERO,
            send_bytes: TCP_LENGTH,
            receive_bytes: TCP_LENGTH,
            pace: None,
            options: Ends::default(),
            threads: Ends::default(),
        }
    }

    #[test]
    fn a_plan_comes_back_from_its_parameters() {
        let options = SocketOptions {
            send_buffer_bytes: Some(400_000),
            receive_buffer_bytes: Some(400_000),
            no_delay: true,
            congestion: Some("cubic".into()),
            mss_bytes: Some(1000),
            tos: Some(16),
            ..SocketOptions::default()
        };
        let planned = Plan {
            work: Work::Bulk {
                direction: Direction::Both,
                giving: Giving::Sendfile,
                taking: Taking::Discard,
            },
            flows: 4,
            until: Until::Bytes(1 << 40),
            omit: Duration::from_secs(1),
            pace: Some(Pace::Spread { bits_per_second: 10_000_000_000 }),
            options: Ends { client: options.clone(), server: options },
            ..bulk()
        };
        let asked = parameters(&planned).unwrap();
        asked.check().unwrap();
        assert_eq!(plan(&asked, Duration::from_secs(60)).unwrap(), planned);
    }

    #[test]
    fn part_of_a_second_is_rounded_up_for_the_server() {
        let asked = parameters(&Plan { until: Until::Time(Duration::from_millis(1500)), ..bulk() }).unwrap();
        assert_eq!(asked.time, 2);
    }

    #[test]
    fn what_cannot_be_said_is_refused() {
        let work =
            |direction, giving, taking| Plan { work: Work::Bulk { direction, giving, taking }, ..bulk() };
        let refused = [
            Plan { work: Work::Connections { exchange: None }, ..bulk() },
            Plan { flows: 129, ..bulk() },
            Plan { omit: Duration::from_millis(500), ..bulk() },
            Plan { transport: Transport::UnixStream, ..bulk() },
            Plan { transport: Transport::Udp, send_bytes: 8, ..bulk() },
            work(Direction::ToClient, Giving::ZeroCopy, Taking::Copy),
            work(Direction::ToServer, Giving::Copy, Taking::Splice),
        ];
        for planned in refused {
            assert!(parameters(&planned).is_err(), "{planned:?}");
        }
        parameters(&work(Direction::ToServer, Giving::ZeroCopy, Taking::Copy)).unwrap();
    }

    #[test]
    fn nothing_said_is_iperf3s_defaults() {
        let asked = Parameters { parallel: 1, time: 10, ..Parameters::default() };
        let planned = plan(&asked, Duration::from_secs(60)).unwrap();
        assert_eq!((planned.send_bytes, planned.pace), (131_072, None));
        let forever = plan(&Parameters { time: 0, ..asked }, Duration::from_secs(60)).unwrap();
        assert_eq!(forever.until, Until::Time(Duration::from_secs(60)));
    }
}
