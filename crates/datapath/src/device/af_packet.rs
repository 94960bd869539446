//! Packet sockets: a ring to receive from, a ring to send through.
//!
//! # Receiving
//!
//! The socket sees each frame that arrives on the device; **so does the kernel's own stack**, which goes on to do with it what it
//! would do anyway. Where this is to be the only one that answers or forwards, the device has no addresses, and
//! forwarding is off in its namespace. What the device sends itself is not seen.
//!
//! Senders' offloads may stay on: open checksums are completed, long frames of a TCP stream are cut into packets, VLAN tags that
//! the kernel took out are put back (`offload`). Where streams are to be fast, switching them off at the sender
//! (`ethtool -K DEV tso off gso off tx off`) moves that work back to it.
//!
//! A ring with a slot a frame is used (TPACKET_V2): in a ring of blocks (TPACKET_V3) a frame waits until its block is full, or for a
//! timer of at least 1 ms.
//!
//! # Sending
//!
//! Each packet is copied into a slot, and one system call sends a whole burst. Slots begin with an offload header that makes the
//! kernel copy the frame as a whole, which costs a third less over veth than letting it point into the slot.

use std::time::Duration;

use linux::packet::{PROTOCOL_NONE, PacketSocket, RingSpec, SlotRing, SlotRingSpec, TxRing};
use pagefrag::PacketBuf;

use super::undone::Undone;
use super::{DeviceError, Lend, RxTotals, Transmit, TxTotals, move_front};

/// Polls without a frame until the socket is asked for an error: a system call, and the only way for who never waits to learn that
/// the device is gone.
const EMPTY_POLLS: u32 = 1024;

/// The receiving side of a device.
#[derive(Debug)]
pub struct AfPacketRx {
    ring: SlotRing,
    undone: Undone,
    received: u64,
    empty_polls: u32,
}

impl AfPacketRx {
    /// Receives from a device of the calling thread's namespace.
    ///
    /// # Errors
    /// Those of [`SlotRing::open`].
    pub fn open(ifindex: u32, spec: &SlotRingSpec) -> Result<Self, DeviceError> {
        let ring = SlotRing::open(ifindex, spec)?;
        Ok(Self { ring, undone: Undone::default(), received: 0, empty_polls: 0 })
    }
}

impl Lend for AfPacketRx {
    /// # Errors
    /// ENETDOWN when the device went down or away, noticed at the latest after some thousand calls.
    fn lend(&mut self, budget: usize, each: &mut dyn FnMut(&[u8])) -> Result<usize, DeviceError> {
        let mut lent = 0;
        while lent < budget {
            let Some(frame) = self.ring.front()? else { break };
            let (shown, is_done) = self.undone.show(frame.bytes, frame.offload, budget - lent, each);
            lent += shown;
            // At once: to fetch a later, long frame may fail.
            self.received += shown as u64;
            if is_done {
                self.ring.release();
            }
        }
        self.empty_polls = if lent == 0 { self.empty_polls + 1 } else { 0 };
        if self.empty_polls == EMPTY_POLLS {
            self.empty_polls = 0;
            self.ring.check()?;
        }
        Ok(lent)
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), DeviceError> {
        self.ring.wait(timeout)?;
        Ok(())
    }

    /// Received are packets, after long frames were cut; missed are frames, before.
    fn totals(&mut self) -> RxTotals {
        RxTotals { received: self.received, missed: self.ring.dropped().ok(), ..RxTotals::default() }
    }
}

/// How to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AfPacketTxSpec {
    /// Slots of the ring, rounded up to whole blocks.
    pub slots: usize,
    /// Past the queueing discipline.
    pub qdisc_bypass: bool,
}

impl Default for AfPacketTxSpec {
    /// 256 slots, past the queueing discipline.
    fn default() -> Self {
        Self { slots: 256, qdisc_bypass: true }
    }
}

/// The sending side of a device.
#[derive(Debug)]
pub struct AfPacketTx {
    ring: TxRing,
    l2_bytes_max: usize,
    /// Bytes put into slots.
    queued_bytes: u64,
    /// The same when last nothing was under way.
    left_bytes: u64,
    too_long: u64,
}

impl AfPacketTx {
    /// Whether there was room.
    fn queue_or_kick(&mut self, packet: &PacketBuf) -> Result<bool, DeviceError> {
        if self.queue(packet)? {
            return Ok(true);
        }
        // The ring is full of what no call has sent yet, or of what the device still has.
        self.ring.kick()?;
        self.queue(packet)
    }

    /// Sends by a device of the calling thread's namespace frames as long as its MTU allows now.
    ///
    /// # Errors
    /// Those of [`PacketSocket::open`] and [`TxRing::new`].
    pub fn open(ifindex: u32, spec: &AfPacketTxSpec) -> Result<Self, DeviceError> {
        let socket = PacketSocket::open(ifindex, PROTOCOL_NONE)?;
        socket.set_qdisc_bypass(spec.qdisc_bypass)?;
        let l2_bytes_max = socket.l2_bytes_max()?;
        let shape =
            RingSpec { frames: spec.slots, l2_bytes: l2_bytes_max, skip_malformed: false, linear: true };
        let ring = TxRing::new(socket, &shape)?;
        let l2_bytes_max = l2_bytes_max.min(ring.l2_bytes_max());
        Ok(Self { ring, l2_bytes_max, queued_bytes: 0, left_bytes: 0, too_long: 0 })
    }

    /// Whether there was a place for the packet, or none is needed.
    #[inline]
    fn queue(&mut self, packet: &PacketBuf) -> Result<bool, DeviceError> {
        let bytes = packet.len();
        if bytes > self.l2_bytes_max {
            self.too_long += 1;
            return Ok(true);
        }
        let pushed = self.ring.push(|room| {
            let mut filled = 0;
            for part in packet.slices() {
                room.get_mut(filled..filled + part.len())?.copy_from_slice(part);
                filled += part.len();
            }
            Some(filled)
        })?;
        self.queued_bytes += if pushed { bytes as u64 } else { 0 };
        Ok(pushed)
    }
}

impl Transmit for AfPacketTx {
    /// Done with all that it takes at once, since they are copied.
    ///
    /// # Errors
    /// ENETDOWN or ENXIO when the device went down or away.
    fn transmit(
        &mut self,
        packets: &mut Vec<PacketBuf>,
        done: &mut Vec<PacketBuf>,
    ) -> Result<(), DeviceError> {
        let mut taken = 0;
        let mut failed = None;
        for packet in packets.iter() {
            match self.queue_or_kick(packet) {
                Ok(true) => taken += 1,
                Ok(false) => break,
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        move_front(packets, taken, done);
        match failed {
            Some(error) => Err(error),
            None => Ok(self.ring.kick()?),
        }
    }

    fn complete(&mut self, _done: &mut Vec<PacketBuf>) -> Result<(), DeviceError> {
        if self.ring.state().outstanding() > 0 && self.ring.reap()?.outstanding() > 0 {
            self.ring.kick()?;
            self.ring.reap()?;
        }
        if self.ring.state().outstanding() == 0 {
            self.left_bytes = self.queued_bytes;
        }
        Ok(())
    }

    /// In slots that the kernel has not given back, as far as that was noticed.
    fn held(&self) -> u64 {
        self.ring.state().outstanding()
    }

    /// Left are those whose socket buffers went through the device; their bytes are counted when none is under way.
    fn totals(&mut self) -> TxTotals {
        TxTotals { packets: self.ring.state().completed, l2_bytes: self.left_bytes, too_long: self.too_long }
    }
}
