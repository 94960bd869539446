//! Connected sockets as programs that move bulk data use them: options, the state of a TCP connection, and those ways in which
//! bytes get into a socket and out of it for which no library has safe calls.
//!
//! Every function is one call on a socket that the caller owns. Those that move bytes return the kernel's answer as
//! [`io::Result`](std::io::Result), because "not now" is no error there and nothing is formatted on the way. Plain `send` and
//! `recv` (also with `MSG_TRUNC`), `sendfile` and `splice` are safe in the library rustix already.
//!
//! | file | holds |
//! |---|---|
//! | `options` | options that are set and read back |
//! | `dial` | connecting within a time, UDP sockets that share a port, keep-alive |
//! | `create` | TCP and MPTCP sockets that are not connected yet, and connecting them |
//! | `tcp_info` | [`TcpInfo`]: what the kernel tells of a connection |
//! | `batch` | [`SendBatch`], [`ReceiveBatch`]: sendmmsg and recvmmsg on any datagram socket, GSO and GRO |
//! | `zero_copy` | `MSG_ZEROCOPY`, and the completions that come back by the error queue |
//! | `departure` | datagrams with their time of departure (`SO_TXTIME`) |

mod batch;
mod create;
mod departure;
mod dial;
mod options;
mod tcp_info;
mod zero_copy;

pub use batch::{ReceiveBatch, SendBatch};
pub use create::{connect, stream};
pub use departure::{send_at, set_departure_times};
pub use dial::{connect_within, set_keep_alive, shared_udp, unacknowledged};
pub use options::*;
pub use tcp_info::{TcpInfo, tcp_info};
pub use zero_copy::{Completed, Completions, send_zero_copy};
