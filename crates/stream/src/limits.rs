//! What a server grants its clients, and how it is told to end.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use thiserror::Error;

use crate::plan::{Direction, Pace, Plan, Until, Work};

/// The shortest period of which a server tells.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(10);
/// Memory of one period of one flow, about: counters, and the state of a TCP connection.
const INTERVAL_BYTES: u64 = 1024;

/// What a client may ask of a server. The same limits hold for every protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest run, with what is omitted before it counts.
    pub duration: Duration,
    /// Bits of payload that one client may have moved in a second; `None`: as much as goes. A plan without a pace is then
    /// refused, since nothing else would keep it.
    pub bits_per_second: Option<u64>,
    /// Memory that one client may make this process take for its buffers and socket buffers, bytes.
    pub memory_bytes: u64,
    /// Clients at once, over all protocols. One more is told so and closed.
    pub clients: u32,
    /// Flows of one client, both directions together.
    pub flows: u32,
    /// A client that says nothing, and moves nothing, for this long has vanished.
    pub idle: Duration,
    /// From where clients may come; empty: from anywhere.
    pub allow: Vec<Net>,
}

impl Default for Limits {
    /// An hour, 256 MiB, 16 clients, 1024 flows, 10 s of silence, from loopback only.
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(3600),
            bits_per_second: None,
            memory_bytes: 256 << 20,
            clients: 16,
            flows: 1024,
            idle: Duration::from_secs(10),
            allow: Net::loopback(),
        }
    }
}

impl Limits {
    /// Whether a client may come from this address.
    #[must_use]
    pub fn permits(&self, ip: IpAddr) -> bool {
        self.allow.is_empty() || self.allow.iter().any(|net| net.contains(ip))
    }

    /// Whether a plan is within the limits. How long it may last is checked for a time only: what ends after bytes or
    /// units is ended by the server when [`Limits::duration`] is over.
    ///
    /// # Errors
    /// The first limit that it exceeds, as a sentence for the client.
    pub fn check(&self, plan: &Plan) -> Result<(), LimitError> {
        let both = matches!(plan.work, Work::Bulk { direction: Direction::Both, .. });
        let flows = u64::from(plan.flows) * if both { 2 } else { 1 };
        if flows == 0 || flows > u64::from(self.flows) {
            return Err(LimitError::Flows { asked: flows, limit: self.flows });
        }
        let length = match plan.until {
            Until::Time(time) => time.saturating_add(plan.omit),
            Until::Bytes(_) | Until::Units(_) => plan.omit,
        };
        if length > self.duration {
            return Err(LimitError::Duration { asked: length, limit: self.duration });
        }
        self.check_rate(plan, flows)?;
        let memory = memory_of(plan).saturating_mul(flows);
        if memory > self.memory_bytes {
            return Err(LimitError::Memory { asked: memory, limit: self.memory_bytes });
        }
        Ok(())
    }

    /// Whether the periods that are asked for can be kept until the end: each of them takes some memory for each flow.
    ///
    /// # Errors
    /// They are too many, or too short.
    pub fn check_intervals(&self, plan: &Plan, interval: Option<Duration>) -> Result<(), LimitError> {
        let Some(interval) = interval else { return Ok(()) };
        if interval < SHORTEST_INTERVAL {
            return Err(LimitError::Interval { asked: interval });
        }
        let length = match plan.until {
            Until::Time(time) => time.saturating_add(plan.omit),
            Until::Bytes(_) | Until::Units(_) => self.duration,
        };
        let count = length.as_nanos().div_ceil(interval.as_nanos()).saturating_mul(u128::from(plan.flows));
        let asked = u64::try_from(count).unwrap_or(u64::MAX).saturating_mul(INTERVAL_BYTES);
        if asked > self.memory_bytes {
            return Err(LimitError::Memory { asked, limit: self.memory_bytes });
        }
        Ok(())
    }

    fn check_rate(&self, plan: &Plan, flows: u64) -> Result<(), LimitError> {
        let Some(limit) = self.bits_per_second else { return Ok(()) };
        let each = match plan.pace {
            Some(
                Pace::Kernel { bits_per_second }
                | Pace::DepartureTimes { bits_per_second }
                | Pace::Spread { bits_per_second },
            ) => bits_per_second,
            Some(Pace::Schedule { per_second }) => {
                let bytes = match plan.work {
                    Work::Bulk { .. } => u64::from(plan.send_bytes),
                    Work::Transactions { request_bytes, response_bytes, .. } => {
                        u64::from(request_bytes.max(response_bytes))
                    }
                    Work::Connections { exchange } => {
                        exchange.map_or(0, |(request, response)| u64::from(request.max(response)))
                    }
                };
                // A rate that is no number is refused as too high.
                if per_second.is_finite() && per_second >= 0.0 {
                    (per_second * bytes as f64 * 8.0) as u64
                } else {
                    u64::MAX
                }
            }
            None => return Err(LimitError::NoRate { limit }),
        };
        let asked = each.saturating_mul(flows);
        if asked > limit { Err(LimitError::Rate { asked, limit }) } else { Ok(()) }
    }
}

/// Memory that one flow of a plan takes at the server: what is read or written in one call, and its socket buffers, which
/// the kernel makes twice as large as asked for (`__sock_set_rcvbuf`, net/core/sock.c, 6.18).
fn memory_of(plan: &Plan) -> u64 {
    let batch = u64::from(plan.options.server.batch.unwrap_or(1).max(1));
    let calls = match plan.work {
        Work::Bulk { .. } => {
            (u64::from(plan.send_bytes).max(u64::from(plan.receive_bytes))).saturating_mul(batch)
        }
        Work::Transactions { request_bytes, response_bytes, outstanding } => (u64::from(request_bytes)
            + u64::from(response_bytes))
        .saturating_mul(u64::from(outstanding).max(1)),
        Work::Connections { exchange } => {
            exchange.map_or(0, |(request, response)| u64::from(request) + u64::from(response))
        }
    };
    let options = &plan.options.server;
    let buffers = u64::from(options.send_buffer_bytes.unwrap_or(0))
        + u64::from(options.receive_buffer_bytes.unwrap_or(0));
    calls.saturating_add(2 * buffers)
}

/// A limit of the server that a plan exceeds.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum LimitError {
    /// More flows than one client may have, or none.
    #[error(
        "{asked} flows were asked for, and this server takes 1 to {limit} of one client; ask for fewer, or start it with a higher --max-flows"
    )]
    Flows {
        /// Both directions together.
        asked: u64,
        /// What there may be.
        limit: u32,
    },
    /// Too long.
    #[error("a run of {} s was asked for, and this server ends one after {} s; ask for less, or start it with a longer --max-time", asked.as_secs_f64(), limit.as_secs_f64())]
    Duration {
        /// With what is omitted.
        asked: Duration,
        /// What there may be.
        limit: Duration,
    },
    /// Too fast.
    #[error(
        "{asked} bit/s were asked for, and this server allows {limit} bit/s to one client; ask for less, or start it with a higher --max-rate"
    )]
    Rate {
        /// All flows together.
        asked: u64,
        /// What there may be.
        limit: u64,
    },
    /// As fast as it goes, where there is a limit.
    #[error("this server allows {limit} bit/s to one client, and the run has no rate; give it one")]
    NoRate {
        /// What there may be.
        limit: u64,
    },
    /// Periods that are too short.
    #[error("periods of {} ms were asked for, and this server tells of no shorter ones than {} ms", asked.as_secs_f64() * 1e3, SHORTEST_INTERVAL.as_millis())]
    Interval {
        /// What was asked for.
        asked: Duration,
    },
    /// Too much memory.
    #[error(
        "the run would take {asked} bytes for buffers and results here, and this server allows {limit} to one client; ask for smaller messages, smaller socket buffers, longer periods or fewer flows, or start it with a higher --max-memory"
    )]
    Memory {
        /// All flows together.
        asked: u64,
        /// What there may be.
        limit: u64,
    },
}

/// Addresses with a common beginning: `192.0.2.0/24`, `2001:db8::/32`, or one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Net {
    address: IpAddr,
    prefix: u8,
}

impl Net {
    /// The addresses of which the first `prefix` bits are those of `address`. An IPv4 address written as IPv6
    /// (`::ffff:192.0.2.1`, which a socket for both families shows) is the IPv4 address.
    ///
    /// # Errors
    /// More bits than the address has.
    pub fn new(address: IpAddr, prefix: u8) -> Result<Self, NetError> {
        let most = width(address);
        if prefix > most {
            return Err(NetError::Prefix { prefix: u32::from(prefix), most });
        }
        Ok(Self { address, prefix })
    }

    /// This host itself: `127.0.0.0/8` and `::1`.
    #[must_use]
    pub fn loopback() -> Vec<Self> {
        vec![
            Self { address: IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), prefix: 8 },
            Self { address: IpAddr::V6(Ipv6Addr::LOCALHOST), prefix: 128 },
        ]
    }

    /// Whether an address is one of them.
    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        match (self.address, ip.to_canonical()) {
            (IpAddr::V4(net), IpAddr::V4(ip)) => {
                same_beginning(u128::from(net.to_bits()) << 96, u128::from(ip.to_bits()) << 96, self.prefix)
            }
            (IpAddr::V6(net), IpAddr::V6(ip)) => same_beginning(net.to_bits(), ip.to_bits(), self.prefix),
            _ => false,
        }
    }
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// Whether the highest `bits` bits are the same.
fn same_beginning(a: u128, b: u128, bits: u8) -> bool {
    (a ^ b).checked_shr(128 - u32::from(bits)).unwrap_or(0) == 0
}

impl FromStr for Net {
    type Err = NetError;

    fn from_str(text: &str) -> Result<Self, NetError> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let not_one = || NetError::Text { text: text.chars().take(64).collect() };
        let address: IpAddr = address.parse().map_err(|_| not_one())?;
        let most = width(address);
        let prefix = match prefix {
            None => u32::from(most),
            Some(digits) => digits.parse().map_err(|_| not_one())?,
        };
        match u8::try_from(prefix) {
            Ok(prefix) => Self::new(address, prefix),
            Err(_) => Err(NetError::Prefix { prefix, most }),
        }
    }
}

impl fmt::Display for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// Text that names no network.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum NetError {
    /// No address, or no number behind the slash.
    #[error("`{text}` is no network; write 192.0.2.0/24, 2001:db8::/32 or one address")]
    Text {
        /// What it was, at most 64 characters.
        text: String,
    },
    /// Too many bits.
    #[error("a prefix of {prefix} bits is longer than the address, which has {most}")]
    Prefix {
        /// What was asked for.
        prefix: u32,
        /// 32 or 128.
        most: u8,
    },
}

/// Says that the server is ending. All clones say the same.
#[derive(Clone, Debug, Default)]
pub struct Halt(Arc<AtomicBool>);

impl Halt {
    /// One that goes on.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// From now on everything ends: no new client, and those that are there within a second.
    pub fn halt(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether it is ending.
    #[must_use]
    pub fn is_halted(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Ends, Giving, Taking, Transport};
    use proptest::prelude::*;

    fn net(text: &str) -> Net {
        text.parse().unwrap()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn plan() -> Plan {
        Plan {
            transport: Transport::Tcp,
            work: Work::Bulk { direction: Direction::Both, giving: Giving::Copy, taking: Taking::Copy },
            flows: 2,
            until: Until::Time(Duration::from_secs(10)),
            omit: Duration::ZERO,
            send_bytes: 1 << 17,
            receive_bytes: 1 << 17,
            pace: None,
            options: Ends::default(),
            threads: Ends::default(),
        }
    }

    #[test]
    fn a_network_holds_the_addresses_with_its_beginning() {
        assert!(net("192.0.2.0/24").contains(ip("192.0.2.255")));
        assert!(!net("192.0.2.0/24").contains(ip("192.0.3.0")));
        assert!(net("192.0.2.77/24").contains(ip("192.0.2.1")));
        assert!(net("0.0.0.0/0").contains(ip("255.255.255.255")) && !net("0.0.0.0/0").contains(ip("::1")));
        assert!(net("2001:db8::/33").contains(ip("2001:db8:7fff::1")));
        assert!(!net("2001:db8::/33").contains(ip("2001:db8:8000::1")));
        assert!(net("::/0").contains(ip("fe80::1")));
        assert!(net("192.0.2.1").contains(ip("::ffff:192.0.2.1")));
        assert!(!net("192.0.2.1").contains(ip("192.0.2.2")));
    }

    #[test]
    fn a_network_that_is_none_is_refused() {
        for bad in [
            "",
            "/",
            "192.0.2.0/",
            "192.0.2.0/x",
            "192.0.2.0/33",
            "::/129",
            "192.0.2/24",
            "::/-1",
            "::/4294967296",
            "host",
        ] {
            assert!(bad.parse::<Net>().is_err(), "{bad}");
        }
        assert_eq!(net("2001:db8::/32").to_string(), "2001:db8::/32");
    }

    #[test]
    fn without_a_network_everybody_may_and_by_default_this_host_only() {
        assert!(Limits { allow: Vec::new(), ..Limits::default() }.permits(ip("203.0.113.9")));
        let limits = Limits::default();
        assert!(limits.permits(ip("127.9.9.9")) && limits.permits(ip("::1")));
        assert!(limits.permits(ip("::ffff:127.0.0.1")));
        assert!(!limits.permits(ip("203.0.113.9")) && !limits.permits(ip("2001:db8::1")));
    }

    #[test]
    fn a_plan_is_held_against_each_limit() {
        let limits = Limits { flows: 4, ..Limits::default() };
        assert_eq!(limits.check(&plan()), Ok(()));
        assert!(matches!(
            limits.check(&Plan { flows: 3, ..plan() }),
            Err(LimitError::Flows { asked: 6, limit: 4 })
        ));
        assert!(matches!(limits.check(&Plan { flows: 0, ..plan() }), Err(LimitError::Flows { .. })));
        assert!(matches!(limits.check(&Plan { flows: u32::MAX, ..plan() }), Err(LimitError::Flows { .. })));
        let long = Plan { omit: Duration::from_secs(3591), ..plan() };
        assert!(matches!(limits.check(&long), Err(LimitError::Duration { .. })));
        let long = Plan { until: Until::Time(Duration::MAX), omit: Duration::MAX, ..plan() };
        assert!(matches!(limits.check(&long), Err(LimitError::Duration { .. })));
        let large = Plan { receive_bytes: u32::MAX, ..plan() };
        assert!(matches!(limits.check(&large), Err(LimitError::Memory { .. })));
        let limited = Limits { bits_per_second: Some(1_000_000), ..limits };
        assert!(matches!(limited.check(&plan()), Err(LimitError::NoRate { .. })));
        let paced = |pace| Plan { pace: Some(pace), ..plan() };
        assert_eq!(limited.check(&paced(Pace::Spread { bits_per_second: 250_000 })), Ok(()));
        assert!(limited.check(&paced(Pace::Kernel { bits_per_second: 250_001 })).is_err());
        assert!(limited.check(&paced(Pace::Schedule { per_second: f64::NAN })).is_err());
        assert!(limited.check(&paced(Pace::Schedule { per_second: 1.0 })).is_err());
    }

    #[test]
    fn periods_must_fit_into_memory() {
        let limits = Limits::default();
        let check = |ms| limits.check_intervals(&plan(), ms);
        assert_eq!(check(None), Ok(()));
        assert_eq!(check(Some(Duration::from_secs(1))), Ok(()));
        assert!(matches!(check(Some(Duration::ZERO)), Err(LimitError::Interval { .. })));
        let endless = Plan { until: Until::Bytes(u64::MAX), flows: 1000, ..plan() };
        let refused = limits.check_intervals(&endless, Some(Duration::from_millis(10)));
        assert!(matches!(refused, Err(LimitError::Memory { .. })));
        let long = Plan { until: Until::Time(Duration::MAX), ..plan() };
        assert!(limits.check_intervals(&long, Some(Duration::from_millis(10))).is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_a_network_or_an_error(text in ".{0,80}") {
            if let Ok(net) = text.parse::<Net>() {
                prop_assert!(net.contains(net.address));
                prop_assert_eq!(net.to_string().parse::<Net>(), Ok(net));
            }
        }
    }
}
