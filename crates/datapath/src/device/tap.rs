//! TAP devices: what the kernel's stack sends there is received here, and the other way round.
//!
//! One system call a frame in either direction. With [`TapSpec::offloads`] up to 64 KiB of a TCP stream come in one call, and are
//! cut here.

use std::sync::Arc;
use std::time::Duration;

use linux::tap::{Tap, TapSpec};
use pagefrag::PacketBuf;

use super::undone::Undone;
use super::{DeviceError, Lend, RxTotals, Transmit, TxTotals, move_front};

/// The longest frame with offloads: 64 KiB and headers.
const FRAME_BYTES_MAX: usize = (64 << 10) + 256;

/// Opens a queue of a TAP device in the calling thread's namespace, made if it is not there. It is down then.
///
/// # Errors
/// Those of [`Tap::open`].
pub fn open_tap(name: &str, spec: TapSpec) -> Result<(TapRx, TapTx), DeviceError> {
    let tap = Arc::new(Tap::open(name, spec)?);
    let rx = TapRx {
        tap: Arc::clone(&tap),
        frame: vec![0; FRAME_BYTES_MAX].into(),
        waiting: None,
        undone: Undone::default(),
        received: 0,
    };
    Ok((rx, TapTx { tap, totals: TxTotals::default() }))
}

/// What the stack sends.
#[derive(Debug)]
pub struct TapRx {
    tap: Arc<Tap>,
    frame: Box<[u8]>,
    /// Bytes of the frame that is not all shown, and what is left to do with it.
    waiting: Option<(usize, linux::offload::Offload)>,
    undone: Undone,
    received: u64,
}

impl TapRx {
    /// The name of the device.
    pub fn name(&self) -> &str {
        self.tap.name()
    }
}

impl Lend for TapRx {
    /// # Errors
    /// EBADFD when the device was deleted.
    fn lend(&mut self, budget: usize, each: &mut dyn FnMut(&[u8])) -> Result<usize, DeviceError> {
        let mut lent = 0;
        while lent < budget {
            if self.waiting.is_none() {
                self.waiting = self.tap.receive(&mut self.frame)?;
            }
            let Some((bytes, offload)) = self.waiting else { break };
            let (shown, is_done) = self.undone.show(&mut self.frame[..bytes], offload, budget - lent, each);
            lent += shown;
            // At once: a later frame of this call may find that the device is gone.
            self.received += shown as u64;
            if is_done {
                self.waiting = None;
            }
        }
        Ok(lent)
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), DeviceError> {
        if self.waiting.is_none() {
            self.tap.wait_readable(timeout)?;
        }
        Ok(())
    }

    /// What did not fit into the device's queue is counted there (`tx_dropped` of the device), not here.
    fn totals(&mut self) -> RxTotals {
        RxTotals { received: self.received, ..RxTotals::default() }
    }
}

/// Into the stack.
#[derive(Debug)]
pub struct TapTx {
    tap: Arc<Tap>,
    totals: TxTotals,
}

impl Transmit for TapTx {
    /// # Errors
    /// EIO when the device is down, EBADFD when it was deleted.
    fn transmit(
        &mut self,
        packets: &mut Vec<PacketBuf>,
        done: &mut Vec<PacketBuf>,
    ) -> Result<(), DeviceError> {
        let mut taken = 0;
        let mut result = Ok(());
        for packet in packets.iter() {
            match self.tap.send(packet.slices()) {
                Ok(true) => taken += 1,
                Ok(false) => break,
                Err(error) => {
                    result = Err(error.into());
                    break;
                }
            }
            self.totals.packets += 1;
            self.totals.l2_bytes += packet.len() as u64;
        }
        move_front(packets, taken, done);
        result
    }

    /// Left are those that the stack took.
    fn totals(&mut self) -> TxTotals {
        self.totals
    }
}
