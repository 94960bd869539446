//! What is done in a row of the table, by its word.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use stream::netperf::columns::Test;

use crate::words::nearest;

/// One row: the work, and the bytes of a message or call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Row {
    pub(crate) work: Word,
    /// Bytes given to a call that sends; none: what is usual.
    pub(crate) send_bytes: Option<u32>,
}

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Word {
    /// Bytes over TCP, copied (netperf's TCP_STREAM).
    Tcp,
    /// Bytes of a file over TCP (TCP_SENDFILE).
    Sendfile,
    /// The server sends (TCP_MAERTS, iperf3 -R).
    Maerts,
    /// Both send, each over flows of its own (iperf3 --bidir).
    Bidir,
    /// Datagrams (UDP_STREAM).
    Udp,
    /// Requests and responses over a connection (TCP_RR).
    TcpRr,
    /// The same as datagrams (UDP_RR).
    UdpRr,
    /// A connection for each request and response (TCP_CRR).
    Crr,
    /// Connections that are opened and closed (TCP_CC).
    Cc,
}

impl Word {
    /// Those of `stream`.
    pub(crate) const STREAM: [Self; 5] = [Self::Tcp, Self::Sendfile, Self::Maerts, Self::Bidir, Self::Udp];
    /// Those of `rr`.
    pub(crate) const RR: [Self; 4] = [Self::TcpRr, Self::UdpRr, Self::Crr, Self::Cc];

    /// What it is called on the command line, of the command that has it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tcp | Self::TcpRr => "tcp",
            Self::Sendfile => "sendfile",
            Self::Maerts => "maerts",
            Self::Bidir => "bidir",
            Self::Udp | Self::UdpRr => "udp",
            Self::Crr => "crr",
            Self::Cc => "cc",
        }
    }

    /// What a scenario calls it: the words of `rr` say so.
    fn whole_name(self) -> String {
        if self.is_rr() { format!("{}-rr", self.name()) } else { self.name().into() }
    }

    /// What netperf calls it, of what it has columns for.
    pub(crate) fn netperf(self) -> Option<Test> {
        Some(match self {
            Self::Tcp => Test::TcpStream,
            Self::Sendfile => Test::TcpSendfile,
            Self::Maerts => Test::TcpMaerts,
            Self::Udp => Test::UdpStream,
            Self::TcpRr => Test::TcpRr,
            Self::UdpRr => Test::UdpRr,
            Self::Crr => Test::TcpCrr,
            Self::Bidir | Self::Cc => return None,
        })
    }

    /// Whether something is answered, rather than bytes sent.
    pub(crate) fn is_rr(self) -> bool {
        Self::RR.contains(&self)
    }

    /// Whether datagrams carry it.
    pub(crate) fn is_udp(self) -> bool {
        matches!(self, Self::Udp | Self::UdpRr)
    }

    /// Bytes of a call that sends where nothing else is asked for: netperf's, which are those of a socket buffer of TCP at its
    /// start, and the longest datagram.
    pub(crate) fn usual_bytes(self) -> u32 {
        if self == Self::Udp { MAX_DATAGRAM_BYTES } else { 16_384 }
    }
}

/// The longest payload of a datagram over IPv4.
pub(crate) const MAX_DATAGRAM_BYTES: u32 = 65_507;
/// The most bytes of a call over a stream.
pub(crate) const MAX_CALL_BYTES: u32 = 1 << 26;

impl Row {
    /// Reads a word of `stream` or `rr`, as `udp@64`.
    ///
    /// # Errors
    /// A word that there is not, or bytes that cannot be sent at once.
    pub(crate) fn parse(text: &str, known: &[Word]) -> Result<Self, String> {
        let (name, bytes) = text.split_once('@').map_or((text, None), |(name, bytes)| (name, Some(bytes)));
        let work = known.iter().copied().find(|word| word.name() == name);
        let work = work.ok_or_else(|| nearest("work", name, known.iter().copied().map(Word::name)))?;
        Self { work, send_bytes: bytes.map(|bytes| parse_bytes(text, bytes)).transpose()? }.checked()
    }

    /// Bytes given to a call that sends.
    pub(crate) fn bytes(self) -> u32 {
        self.send_bytes.unwrap_or(self.work.usual_bytes())
    }

    fn checked(self) -> Result<Self, String> {
        let most = if self.work.is_udp() { MAX_DATAGRAM_BYTES } else { MAX_CALL_BYTES };
        match self.send_bytes {
            Some(_) if self.work.is_rr() => {
                Err(format!("{self}: sizes of requests and responses are --request and --response"))
            }
            Some(bytes) if bytes == 0 || bytes > most => {
                Err(format!("{self}: 1 to {most} bytes can be sent at once"))
            }
            _ => Ok(self),
        }
    }
}

fn parse_bytes(whole: &str, bytes: &str) -> Result<u32, String> {
    bytes.parse().map_err(|_| format!("{whole}: `{bytes}` is no number of bytes; write udp@64"))
}

/// As a person reads it: with the bytes that are sent.
impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.work.is_rr() {
            true => f.write_str(self.work.name()),
            false => write!(f, "{}@{}", self.work.name(), self.bytes()),
        }
    }
}

impl FromStr for Row {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (word, bytes) = text.split_at(text.find('@').unwrap_or(text.len()));
        match word.strip_suffix("-rr") {
            Some(name) => Self::parse(&format!("{name}{bytes}"), &Word::RR),
            None => Self::parse(text, &Word::STREAM),
        }
    }
}

impl TryFrom<String> for Row {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Row> for String {
    fn from(row: Row) -> Self {
        let name = row.work.whole_name();
        row.send_bytes.map_or(name.clone(), |bytes| format!("{name}@{bytes}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_and_written() {
        for text in ["tcp", "sendfile@16384", "udp@64", "bidir@1", "tcp-rr", "crr-rr"] {
            assert_eq!(String::from(text.parse::<Row>().unwrap()), text);
        }
        assert_eq!("udp".parse::<Row>().unwrap().to_string(), "udp@65507");
        assert_eq!("udp-rr".parse::<Row>().unwrap().to_string(), "udp");
    }

    #[test]
    fn what_cannot_be_sent_is_refused() {
        for (text, why) in [
            ("udp@65508", "1 to 65507 bytes"),
            ("tcp@0", "1 to 67108864 bytes"),
            ("tpc", "`tcp` is near"),
            ("tcp@x", "no number of bytes"),
            ("tcp-rr@64", "--request"),
            ("tcp@-1", "no number of bytes"),
        ] {
            let error = text.parse::<Row>().unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
