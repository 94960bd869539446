//! What is to flow between two ends.
//!
//! One plan serves every protocol: each of them says as much of it as it has words for, and refuses what it has none for.
//! Directions are seen from the client, which is the end that asked.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// All that determines what a run moves, but for the addresses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// What carries it.
    pub transport: Transport,
    /// What is done over each flow.
    pub work: Work,
    /// How many connections, or pairs of UDP sockets, at once. With [`Direction::Both`], that many each way.
    pub flows: u32,
    /// When a run is over.
    pub until: Until,
    /// What is moved before counting begins. Nothing of it is in any figure.
    pub omit: Duration,
    /// Bytes given to one call that sends: a message of a datagram socket.
    pub send_bytes: u32,
    /// Bytes asked for by one call that receives.
    pub receive_bytes: u32,
    /// How the sending end keeps to a rate.
    pub pace: Option<Pace>,
    /// Options of the client's and of the server's data sockets.
    pub options: Ends<SocketOptions>,
    /// Where the threads of each end run.
    pub threads: Ends<Threads>,
}

/// One value for each end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ends<T> {
    /// The end that asked.
    pub client: T,
    /// The end that answers.
    pub server: T,
}

/// What carries the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// TCP.
    Tcp,
    /// Multipath TCP (RFC 8684), where the kernel has it.
    Mptcp,
    /// UDP.
    Udp,
    /// A connected pair of UNIX stream sockets: both ends on one host.
    UnixStream,
    /// UNIX datagram sockets: both ends on one host.
    UnixDatagram,
}

/// What is done over each flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// One end sends as fast as it may, the other takes and counts.
    Bulk {
        /// Who sends.
        direction: Direction,
        /// How bytes get from the sender's memory into the socket.
        giving: Giving,
        /// How they get out of it.
        taking: Taking,
    },
    /// A request is answered by a response, over one connection.
    Transactions {
        /// Bytes of a request.
        request_bytes: u32,
        /// Bytes of a response.
        response_bytes: u32,
        /// Requests that may wait for their response at once; 1 is the classic.
        outstanding: u32,
    },
    /// A connection each time: opened, and closed after one transaction if there is one.
    Connections {
        /// Bytes of request and response; `None` opens and closes only.
        exchange: Option<(u32, u32)>,
    },
}

/// Who sends in a bulk transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// The client sends (netperf's STREAM).
    ToServer,
    /// The server sends (netperf's MAERTS, iperf3's `-R`).
    ToClient,
    /// Each sends over flows of its own (iperf3's `--bidir`).
    Both,
}

/// How bytes get into the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Giving {
    /// Copied from a buffer: `send`, and `sendmmsg` for datagrams.
    Copy,
    /// `sendfile` from a file in memory.
    Sendfile,
    /// `splice` from a pipe.
    Splice,
    /// `MSG_ZEROCOPY`, with its completions read.
    ZeroCopy,
}

/// How bytes get out of the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Taking {
    /// Copied into a buffer: `recv`, and `recvmmsg` for datagrams.
    Copy,
    /// `MSG_TRUNC`: the kernel drops them, nothing is copied.
    Discard,
    /// `splice` into a pipe and on into nothing.
    Splice,
}

/// When a run is over, counted without what was omitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Until {
    /// After a time.
    Time(Duration),
    /// When so many bytes were sent by all flows together.
    Bytes(u64),
    /// When so many messages were sent, transactions made, or connections opened, by all flows together.
    Units(u64),
}

/// How a rate is kept, by each flow for itself.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pace {
    /// `SO_MAX_PACING_RATE`: by TCP itself, or by the `fq` qdisc.
    Kernel {
        /// Bits of payload in a second.
        bits_per_second: u64,
    },
    /// `SO_TXTIME`: each datagram carries its time of departure (qdiscs `fq` and `etf`).
    DepartureTimes {
        /// Bits of payload in a second.
        bits_per_second: u64,
    },
    /// By the sending thread, a message at a time, without bursts.
    Spread {
        /// Bits of payload in a second.
        bits_per_second: u64,
    },
    /// So many transactions or messages in a second, each due at its own time whether the one before has ended or not:
    /// latency is counted from when it was due.
    Schedule {
        /// Transactions or messages in a second.
        per_second: f64,
    },
}

/// Options of data sockets. `None` leaves what the system has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SocketOptions {
    /// `SO_SNDBUF`, bytes as asked for (the kernel doubles them).
    pub send_buffer_bytes: Option<u32>,
    /// `SO_RCVBUF`, bytes as asked for (the kernel doubles them).
    pub receive_buffer_bytes: Option<u32>,
    /// `TCP_NODELAY`.
    pub no_delay: bool,
    /// `TCP_CORK`.
    pub cork: bool,
    /// `TCP_CONGESTION`.
    pub congestion: Option<String>,
    /// `TCP_MAXSEG`, bytes.
    pub mss_bytes: Option<u16>,
    /// `IP_TOS` or `IPV6_TCLASS`.
    pub tos: Option<u8>,
    /// `SO_PRIORITY`.
    pub priority: Option<u32>,
    /// `SO_BUSY_POLL`, microseconds.
    pub busy_poll_us: Option<u32>,
    /// UDP: datagrams that one call hands over as one buffer that the kernel cuts (`UDP_SEGMENT`).
    pub gso_segments: Option<u16>,
    /// UDP: datagrams may be read joined (`UDP_GRO`).
    pub gro: bool,
    /// UDP: messages in one `sendmmsg` or `recvmmsg`.
    pub batch: Option<u16>,
}

/// The threads of one end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Threads {
    /// How many; `None`: one for each flow, but no more than CPUs are allowed.
    pub count: Option<u32>,
    /// Where they run, in turn; empty: where the scheduler puts them.
    pub cpus: Vec<usize>,
}
