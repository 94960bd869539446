//! UDP sockets: one that receives and counts, in batches and with what was lost for lack of room, and one that sends
//! batches.
//!
//! | file | holds |
//! |---|---|
//! | `receiver` | [`UdpReceiver`]: recvmmsg, GRO, busy polling, drops |
//! | `sender` | [`UdpSender`]: sendmmsg, GSO |
//! | `outgoing` | [`DatagramBatch`]: what one call sends, and how it is cut into messages |
//! | `control` | the one item of control data that both use: the size of a segment |

mod control;
mod outgoing;
mod receiver;
mod sender;

pub(crate) use control::segment_bytes;
pub use outgoing::{DatagramBatch, GSO_BYTES_MAX, GSO_SEGMENTS_MAX};
pub use receiver::{Batch, ReceiverSpec, UdpReceiver};
pub use sender::{Handed, SenderSpec, UdpSender};
