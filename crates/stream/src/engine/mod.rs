//! Moves bytes through sockets that a protocol has arranged, and counts them.
//!
//! [`run`] takes the sockets of one end as [`Flow`]s, each with what is to be done with it, starts the threads of this end and
//! returns what they counted. It knows nothing of protocols: who connects, who tells whom, and when the other end is ready is
//! arranged before; the thread that holds the control connection begins and stops a run by its [`Control`].
//!
//! A thread that has one flow waits in the calls that move its bytes, which costs no call more. A thread that has several
//! waits for all of them at once (epoll, edge-triggered).
//!
//! # What begins and ends a run
//!
//! - Nothing moves before [`Control::begin`]. What is moved until [`Plan::omit`] is over goes into counters of its own, so that
//!   no figure is a difference of two; each flow changes counters by itself, between two calls, and takes the time then.
//! - [`Until`](crate::plan::Until) is kept by ends that send, request or connect. Ends that receive, respond or accept go on
//!   until the stream ends or [`Control::stop`] is called; what has arrived by then is still read.
//! - A stream that was sent ends with `shutdown(Write)`. Over UDP, a sender without [`Marks`] ends with three empty datagrams
//!   (as netperf does), and over UNIX datagrams always; a receiver of non-empty datagrams ends at the first empty one.
//! - Where nothing moves for [`Settings::give_up_after`], the peer has vanished: the run ends with what was counted, and a
//!   warning.

mod accept;
mod build;
mod connect;
mod control;
mod coordinate;
mod counters;
mod datagram_receive;
mod datagram_send;
mod error;
mod events;
mod intervals;
mod marks;
mod options;
mod pace;
mod request_datagram;
mod request_stream;
mod respond;
mod stream_receive;
mod stream_send;
mod task;
mod tcp;
mod thread;

use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::time::Duration;

use crate::outcome::{Interval, Side};
use crate::plan::Plan;

use counters::Account;

pub use control::Control;
pub use error::EngineError;

/// Options of sockets that are not connected yet.
pub mod prepare {
    pub use super::options::{Applied, apply};
}

/// A socket that is arranged already, or how to make such.
#[derive(Debug)]
pub enum Endpoint {
    /// A connection; also one of MPTCP.
    Tcp(TcpStream),
    /// One end of a pair.
    UnixStream(UnixStream),
    /// One end of a pair.
    UnixDatagram(UnixDatagram),
    /// A bound socket.
    Udp {
        /// The socket.
        socket: UdpSocket,
        /// Datagrams go there, and are taken from there only (the socket is connected to it). `None`: the socket takes from
        /// everybody, and answers whoever asked.
        peer: Option<SocketAddr>,
    },
    /// For [`Role::Accept`]. One connection is served at a time: where several ends connect at once, give as many flows, each
    /// with a clone of the listener.
    Listener(TcpListener),
    /// For [`Role::Connect`].
    Connector {
        /// Where to.
        to: SocketAddr,
        /// Where from; port 0 lets the kernel choose one for each connection.
        bind: Option<SocketAddr>,
    },
}

/// What is done with a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Bytes are given to it ([`Work::Bulk`](crate::plan::Work::Bulk)).
    Send,
    /// Bytes are taken from it.
    Receive,
    /// Requests are sent, and their responses awaited ([`Work::Transactions`](crate::plan::Work::Transactions)).
    Request,
    /// Requests are awaited, and answered.
    Respond,
    /// Connections are opened one after the other ([`Work::Connections`](crate::plan::Work::Connections)).
    Connect,
    /// Connections are accepted.
    Accept,
}

/// What the first bytes of each datagram say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marks {
    /// Nothing.
    None,
    /// perpacket's own: the cookie, the number (u64 from 0) and the time of sending (ns, u64), big-endian: 32 bytes. Datagrams
    /// with another cookie are not counted.
    Own {
        /// Which run it is.
        cookie: [u8; 16],
    },
    /// iperf3's: seconds and microseconds of the time of sending (u32 each) and the number from 1, big-endian: 12 bytes, or 16
    /// where numbers have 64 bits.
    Iperf3 {
        /// Whether numbers have 64 bits (`--udp-counters-64bit`).
        wide: bool,
    },
}

/// One flow of this end.
#[derive(Debug)]
pub struct Flow {
    /// The socket.
    pub endpoint: Endpoint,
    /// What is done with it.
    pub role: Role,
    /// Marks in its datagrams.
    pub marks: Marks,
}

/// Whose [`SocketOptions`](crate::plan::SocketOptions) and [`Threads`](crate::plan::Threads) apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The end that asked.
    Client,
    /// The end that answers.
    Server,
}

/// How a run is made.
#[derive(Clone, Copy)]
pub struct Settings<'a> {
    /// What is to flow.
    pub plan: &'a Plan,
    /// Which end of it this is.
    pub end: End,
    /// How long each [`Interval`] is; `None`: there are none.
    pub interval: Option<Duration>,
    /// Whether to account for CPU time ([`Side::cpu`]).
    pub cpu: bool,
    /// Nothing moves that long: the peer has vanished.
    pub give_up_after: Duration,
    /// Called with each interval as it ends, on the thread that called [`run`].
    pub on_interval: Option<&'a (dyn Fn(&Interval) + Sync)>,
}

impl std::fmt::Debug for Settings<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings")
            .field("plan", self.plan)
            .field("end", &self.end)
            .field("interval", &self.interval)
            .finish_non_exhaustive()
    }
}

/// Runs all flows to their end; what this end counted.
///
/// It blocks. The sockets are closed when it returns: a protocol that needs one afterwards keeps a clone.
///
/// # Errors
/// What was asked of a flow cannot be done with its socket (found before anything moves), or a call failed in a way that is not
/// the peer's going away. A connection that is reset or closed early ends its flow with a warning instead.
pub fn run(flows: Vec<Flow>, settings: &Settings<'_>, control: &Control) -> Result<Side, EngineError> {
    coordinate::run(&flows, settings, control)
}
