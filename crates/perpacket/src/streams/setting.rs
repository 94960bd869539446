//! What sockets, threads and the network between both ends are made of: the same for all rows.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use measure::wire::{Rate, parse_rate};
use serde::{Deserialize, Serialize};
use stream::plan::{
    Direction, Ends, Giving, Pace, Plan, SocketOptions, Taking, Threads, Transport, Until, Work,
};

use super::remote::{Protocol, Remote};
use super::work::{MAX_CALL_BYTES, MAX_DATAGRAM_BYTES, Row, Word};
use crate::cell::parse_switch;
use crate::scenario::StreamMeasurement;
use crate::words::nearest;

/// The most flows.
const MAX_FLOWS: u32 = 20_000;

/// See the options of `stream` and `rr`, which say what each field means.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct StreamSetting {
    pub(crate) over: Over,
    pub(crate) flows: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) threads: Option<u32>,
    /// CPUs of the threads of the end that asks; empty: any.
    pub(crate) local_cpus: Vec<usize>,
    /// CPUs of the threads of the end that answers.
    pub(crate) remote_cpus: Vec<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) recv: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sndbuf: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rcvbuf: Option<u32>,
    pub(crate) nodelay: bool,
    pub(crate) cork: bool,
    pub(crate) mptcp: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) congestion: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mss: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tos: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) priority: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) busy_poll: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gso: Option<u16>,
    pub(crate) gro: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) batch: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pacing: Option<String>,
    /// Transactions or messages in a second, each due at its time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rate: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) giving: Option<Giving>,
    pub(crate) taking: Taking,
    pub(crate) request: u32,
    pub(crate) response: u32,
    pub(crate) outstanding: u32,
    /// Where the other end is; none: on this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remote: Option<Remote>,
}

impl Default for StreamSetting {
    fn default() -> Self {
        Self {
            over: Over::Ipv4,
            flows: 1,
            threads: None,
            local_cpus: Vec::new(),
            remote_cpus: Vec::new(),
            recv: None,
            sndbuf: None,
            rcvbuf: None,
            nodelay: false,
            cork: false,
            mptcp: false,
            congestion: None,
            mss: None,
            tos: None,
            priority: None,
            busy_poll: None,
            gso: None,
            gro: false,
            batch: None,
            pacing: None,
            rate: None,
            giving: None,
            taking: Taking::Copy,
            request: 1,
            response: 1,
            outstanding: 1,
            remote: None,
        }
    }
}

/// What lies between both ends: where there is no host, on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Over {
    /// A veth pair between two namespaces, IPv4.
    Ipv4,
    /// The same, IPv6.
    Ipv6,
    /// Pairs of UNIX sockets.
    Unix,
}

impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipv4 => "a veth pair, IPv4",
            Self::Ipv6 => "a veth pair, IPv6",
            Self::Unix => "UNIX sockets",
        })
    }
}

impl StreamSetting {
    /// A setting in which everything is said: for the names that there are.
    pub(crate) fn whole() -> Self {
        Self {
            threads: Some(1),
            recv: Some(1),
            sndbuf: Some(1),
            rcvbuf: Some(1),
            congestion: Some(String::new()),
            mss: Some(1),
            tos: Some(0),
            priority: Some(0),
            busy_poll: Some(0),
            gso: Some(1),
            batch: Some(1),
            pacing: Some(String::new()),
            rate: Some(1.0),
            giving: Some(Giving::Copy),
            remote: Some(Remote {
                host: String::new(),
                protocol: Protocol::Own,
                key: Some("".into()),
                user: Some(String::new()),
                rsa_key: Some("".into()),
            }),
            ..Self::default()
        }
    }

    /// The same with another value of an option, by its name; `default` is what it is without the option.
    ///
    /// # Errors
    /// An option that there is not, that is a list or says where the other end is; or a value that it does not take.
    pub(crate) fn with(&self, name: &str, value: &str) -> Result<Self> {
        let key = name.replace('-', "_");
        let mut whole = toml::Table::try_from(Self::whole())?;
        whole.retain(|_, value| !value.is_array() && !value.is_table());
        let names: Vec<&str> = whole.keys().map(String::as_str).collect();
        let Some(kind) = whole.get(&key) else {
            bail!(nearest("option to vary", &key, names.iter().copied()));
        };
        let wrong = || format!("--vary {name}={value}: no value of it");
        let mut table = toml::Table::try_from(self)?;
        let parsed = match kind {
            _ if value == "default" => None,
            toml::Value::Boolean(_) => Some(toml::Value::Boolean(parse_switch(name, value)?)),
            toml::Value::Integer(_) => Some(toml::Value::Integer(value.parse().with_context(wrong)?)),
            toml::Value::Float(_) => Some(toml::Value::Float(value.parse().with_context(wrong)?)),
            _ => Some(toml::Value::String(value.into())),
        };
        match parsed {
            Some(parsed) => table.insert(key, parsed),
            None => table.remove(&key),
        };
        table.try_into().with_context(wrong)
    }

    /// What lies between both ends, for a sentence.
    pub(crate) fn between(&self) -> String {
        let Some(remote) = &self.remote else { return self.over.to_string() };
        let network = if self.over == Over::Ipv6 { "IPv6" } else { "IPv4" };
        format!("{network} to {}, by {}", remote.host, remote.protocol.words())
    }

    /// The plan of a row.
    ///
    /// # Errors
    /// What does not go together.
    pub(crate) fn plan(&self, row: Row, measurement: &StreamMeasurement) -> Result<Plan> {
        let options = self.options(row)?;
        let threads = |cpus: &[usize]| Threads { count: self.threads, cpus: cpus.to_vec() };
        Ok(Plan {
            transport: self.transport(row.work)?,
            work: self.work(row.work)?,
            flows: self.flows,
            until: Until::Time(Duration::from_secs_f64(measurement.time_s)),
            omit: Duration::from_secs_f64(measurement.omit_s),
            send_bytes: row.bytes(),
            receive_bytes: self.recv.unwrap_or(if row.work.is_udp() { 65_536 } else { 131_072 }),
            pace: self.pace(row.work)?,
            options: Ends { client: options.clone(), server: options },
            threads: Ends { client: threads(&self.local_cpus), server: threads(&self.remote_cpus) },
        })
    }

    /// Refuses numbers that mean nothing.
    pub(crate) fn check(&self) -> Result<()> {
        ensure!(
            (1..=MAX_FLOWS).contains(&self.flows),
            "flows = {}: 1 to {MAX_FLOWS} are possible",
            self.flows
        );
        ensure!(self.threads != Some(0), "threads = 0: at least one is needed");
        if let Some(recv) = self.recv {
            ensure!((1..=MAX_CALL_BYTES).contains(&recv), "recv = {recv}: 1 to {MAX_CALL_BYTES} bytes");
        }
        for (name, bytes) in [("request", self.request), ("response", self.response)] {
            ensure!((1..=MAX_CALL_BYTES).contains(&bytes), "{name} = {bytes}: 1 to {MAX_CALL_BYTES} bytes");
        }
        ensure!((1..=10_000).contains(&self.outstanding), "outstanding = {}: 1 to 10000", self.outstanding);
        if let Some(gso) = self.gso {
            ensure!(
                (1..=128).contains(&gso),
                "gso = {gso}: 1 to 128 datagrams (UDP_MAX_SEGMENTS, Linux 6.18)"
            );
        }
        if let Some(batch) = self.batch {
            ensure!((1..=1024).contains(&batch), "batch = {batch}: 1 to 1024 messages (UIO_MAXIOV)");
        }
        if let Some(rate) = self.rate {
            ensure!(rate > 0.0 && rate <= 1e9, "rate = {rate}: more than 0 and at most 1e9 in a second");
        }
        ensure!(
            self.rate.is_none() || self.pacing.is_none(),
            "rate and pacing: one of them says how fast is sent"
        );
        Ok(())
    }

    fn options(&self, row: Row) -> Result<SocketOptions> {
        if let Some(gso) = self.gso.filter(|_| row.work == Word::Udp) {
            let bytes = u32::from(gso) * row.bytes();
            ensure!(
                bytes <= MAX_DATAGRAM_BYTES,
                "{row} with gso = {gso}: {bytes} bytes at once, and {MAX_DATAGRAM_BYTES} are possible"
            );
        }
        Ok(SocketOptions {
            send_buffer_bytes: self.sndbuf,
            receive_buffer_bytes: self.rcvbuf,
            no_delay: self.nodelay,
            cork: self.cork,
            congestion: self.congestion.clone(),
            mss_bytes: self.mss,
            tos: self.tos,
            priority: self.priority,
            busy_poll_us: self.busy_poll,
            gso_segments: self.gso.filter(|_| row.work == Word::Udp),
            gro: self.gro && row.work == Word::Udp,
            batch: self.batch,
        })
    }

    fn transport(&self, word: Word) -> Result<Transport> {
        Ok(match (self.over, word.is_udp()) {
            (Over::Unix, _) if matches!(word, Word::Crr | Word::Cc) => {
                bail!(
                    "{} over UNIX sockets: pairs of them are not opened and closed; leave --unix out",
                    word.name()
                )
            }
            (Over::Unix, true) => Transport::UnixDatagram,
            (Over::Unix, false) => Transport::UnixStream,
            (_, true) => Transport::Udp,
            (_, false) if self.mptcp => Transport::Mptcp,
            (_, false) => Transport::Tcp,
        })
    }

    fn work(&self, word: Word) -> Result<Work> {
        let bulk = |direction, giving: Giving| Work::Bulk {
            direction,
            giving: self.giving.unwrap_or(giving),
            taking: self.taking,
        };
        let exchange = (self.request, self.response);
        Ok(match word {
            Word::Tcp => bulk(Direction::ToServer, Giving::Copy),
            Word::Sendfile => {
                ensure!(
                    self.giving.is_none_or(|giving| giving == Giving::Sendfile),
                    "sendfile with --giving: use tcp with --giving, which is the same without the name"
                );
                bulk(Direction::ToServer, Giving::Sendfile)
            }
            Word::Maerts => bulk(Direction::ToClient, Giving::Copy),
            Word::Bidir => bulk(Direction::Both, Giving::Copy),
            // Datagrams are copied: a file or a pipe has no messages.
            Word::Udp => {
                Work::Bulk { direction: Direction::ToServer, giving: Giving::Copy, taking: Taking::Copy }
            }
            Word::TcpRr | Word::UdpRr => {
                let bytes = self.request.max(self.response);
                ensure!(
                    !word.is_udp() || bytes <= MAX_DATAGRAM_BYTES,
                    "udp with requests or responses of {bytes} bytes: a datagram takes {MAX_DATAGRAM_BYTES}"
                );
                Work::Transactions {
                    request_bytes: self.request,
                    response_bytes: self.response,
                    outstanding: self.outstanding,
                }
            }
            Word::Crr => Work::Connections { exchange: Some(exchange) },
            Word::Cc => Work::Connections { exchange: None },
        })
    }

    fn pace(&self, word: Word) -> Result<Option<Pace>> {
        if let Some(per_second) = self.rate {
            return Ok(Some(Pace::Schedule { per_second }));
        }
        let Some(text) = &self.pacing else { return Ok(None) };
        let Pacing { bits_per_second, how } = text.parse()?;
        // A veth has no queueing discipline that would pace datagrams.
        let how = how.unwrap_or(if word.is_udp() { "spread" } else { "kernel" });
        Ok(Some(match how {
            "kernel" => Pace::Kernel { bits_per_second },
            "txtime" => Pace::DepartureTimes { bits_per_second },
            _ => Pace::Spread { bits_per_second },
        }))
    }
}

/// A rate of payload, and who keeps it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Pacing {
    bits_per_second: u64,
    how: Option<&'static str>,
}

impl FromStr for Pacing {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        const HOW: [&str; 3] = ["kernel", "txtime", "spread"];
        let (rate, how) = text.split_once(':').map_or((text, None), |(rate, how)| (rate, Some(how)));
        let how = match how {
            None => None,
            Some(word) => {
                let known = HOW.into_iter().find(|&how| how == word);
                Some(known.with_context(|| format!("pacing {text}: by kernel, txtime or spread"))?)
            }
        };
        let rate =
            parse_rate(rate).with_context(|| format!("pacing {text}: write 100Mbit or 1Gbit:spread"))?;
        match rate {
            Rate::BitPerS(bits) if (1.0..=1e13).contains(&bits) => {
                Ok(Self { bits_per_second: bits as u64, how })
            }
            Rate::BitPerS(bits) => bail!("pacing {text}: {bits} bit/s is not possible"),
            Rate::Pps(_) => {
                bail!("pacing {text}: bits of payload in a second; messages in a second are --rate")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_that_is_no_list_can_be_another() {
        let setting = StreamSetting::default();
        assert_eq!(
            setting.with("gro", "on").unwrap(),
            StreamSetting { gro: true, ..StreamSetting::default() }
        );
        assert_eq!(setting.with("busy-poll", "50").unwrap().busy_poll, Some(50));
        assert_eq!(setting.with("rate", "1000").unwrap().rate, Some(1000.0));
        assert_eq!(setting.with("over", "ipv6").unwrap().over, Over::Ipv6);
        assert_eq!(setting.with("giving", "zero-copy").unwrap().giving, Some(Giving::ZeroCopy));
        let small = StreamSetting { sndbuf: Some(9), ..StreamSetting::default() };
        assert_eq!(small.with("sndbuf", "default").unwrap(), setting);
        for (name, value, why) in [
            ("batsch", "1", "`batch` is near"),
            ("local_cpus", "1", "no option to vary"),
            ("remote", "default", "no option to vary"),
            ("protocol", "netperf", "no option to vary"),
            ("batch", "many", "no value of it"),
            ("batch", "70000", "no value of it"),
            ("over", "ipv5", "no value of it"),
            ("gro", "maybe", "gro"),
        ] {
            let error = format!("{:#}", setting.with(name, value).unwrap_err());
            assert!(error.contains(why), "{error}");
        }
    }
}
