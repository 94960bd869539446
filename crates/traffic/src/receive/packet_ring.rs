//! A packet socket's receive ring: listens to a device, and takes nothing away from anybody.
//!
//! It sees frames as the stack does: with GRO on, several packets of a flow may arrive as one, and queue and CPU are not
//! known. It is not put into promiscuous mode.

use std::thread;
use std::time::Duration;

use linux::packet::{RxRing, RxRingSpec};

use super::tally::Tally;
use super::{Loss, ReceiveError, Receiver, ReceiverKind, failed};

/// Receives through a ring.
#[derive(Debug)]
pub struct PacketRing {
    ring: RxRing,
}

impl PacketRing {
    /// Opens the ring on a device of the calling thread's namespace.
    ///
    /// # Errors
    /// Those of [`RxRing::open`].
    pub fn open(ifindex: u32, spec: &RxRingSpec) -> Result<Self, ReceiveError> {
        let ring = RxRing::open(ifindex, spec).map_err(failed(ReceiverKind::PacketRing))?;
        Ok(Self { ring })
    }

    /// Takes the blocks that are ready, each at most once.
    fn take(&mut self, tally: &mut Tally) -> u64 {
        let mut frames = 0;
        for _ in 0..self.ring.spec().blocks {
            let count = self.ring.take_block(|frame| tally.frame(None, frame.bytes, frame.l2_bytes.into()));
            match count {
                Some(count) => frames += u64::from(count),
                None => break,
            }
        }
        frames
    }
}

impl Receiver for PacketRing {
    fn kind(&self) -> ReceiverKind {
        ReceiverKind::PacketRing
    }

    fn poll(&mut self, timeout: Duration, tally: &mut Tally) -> Result<u64, ReceiveError> {
        if !self.ring.wait(timeout).map_err(failed(ReceiverKind::PacketRing))? {
            return Ok(0);
        }
        Ok(self.take(tally))
    }

    fn finish(&mut self, tally: &mut Tally) -> Result<(), ReceiveError> {
        self.ring.stop().map_err(failed(ReceiverKind::PacketRing))?;
        self.take(tally);
        // The block that is open is closed by a timer of the kernel.
        thread::sleep(Duration::from_millis(2 * u64::from(self.ring.spec().block_open_ms)));
        self.take(tally);
        Ok(())
    }

    fn losses(&mut self) -> Result<Vec<Loss>, ReceiveError> {
        let frames = self.ring.dropped().map_err(failed(ReceiverKind::PacketRing))?;
        Ok(vec![Loss { reason: "no free block in the ring", counter: "PACKET_STATISTICS", frames }])
    }
}
