//! Frames shown to somebody else on their way: what a capture file is written from.

use std::time::Duration;

use pagefrag::PacketBuf;

use super::{DeviceError, Land, Landed, Lend, RxTotals, Transmit, TxTotals};

/// Takes a frame without its check sequence. An error ends the device, as if it were its own.
pub type Sink = Box<dyn FnMut(&[u8]) -> Result<(), DeviceError> + Send>;

/// Shows every received frame that is handed up.
pub struct CapturedRx<Q: ?Sized> {
    sink: Sink,
    /// What the sink failed with while a frame was on its way up: told in the next call.
    failed: Option<DeviceError>,
    queue: Box<Q>,
}

impl<Q: ?Sized> CapturedRx<Q> {
    /// Over this queue, a `dyn Lend` or a `dyn Land`.
    pub fn new(queue: Box<Q>, sink: Sink) -> Self {
        Self { sink, failed: None, queue }
    }
}

impl<Q: Lend + ?Sized> Lend for CapturedRx<Q> {
    /// After an error of the sink the frames of this call are handed up all the same.
    fn lend(&mut self, budget: usize, each: &mut dyn FnMut(&[u8])) -> Result<usize, DeviceError> {
        let Self { sink, queue, .. } = self;
        let mut result = Ok(());
        let lent = queue.lend(budget, &mut |frame| {
            if result.is_ok() {
                result = sink(frame);
            }
            each(frame);
        })?;
        result.map(|()| lent)
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), DeviceError> {
        self.queue.wait(timeout)
    }

    fn totals(&mut self) -> RxTotals {
        self.queue.totals()
    }

    fn ended(&self) -> bool {
        self.queue.ended()
    }
}

impl<Q: Land + ?Sized> Land for CapturedRx<Q> {
    fn post(&mut self, page: pagefrag::Page) -> Result<(), pagefrag::Page> {
        self.queue.post(page)
    }

    fn room(&self) -> usize {
        self.queue.room()
    }

    /// After an error of the sink the frame, which the queue has counted, is handed up all the same, and the next call fails.
    fn landed(&mut self) -> Result<Option<Landed>, DeviceError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let landed = self.queue.landed()?;
        if let Some(Landed { page, offset, l2_bytes }) = &landed {
            self.failed = (self.sink)(page.get(*offset..offset + l2_bytes).unwrap_or_default()).err();
        }
        Ok(landed)
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), DeviceError> {
        self.queue.wait(timeout)
    }

    fn totals(&mut self) -> RxTotals {
        self.queue.totals()
    }
}

/// Shows every packet that a sending queue took, in order: also those that it drops as too long.
pub struct CapturedTx {
    sink: Sink,
    queue: Box<dyn Transmit>,
    copies: Copies,
}

impl CapturedTx {
    /// Over this queue.
    pub fn new(queue: Box<dyn Transmit>, sink: Sink) -> Self {
        Self { sink, queue, copies: Copies::default() }
    }
}

impl Transmit for CapturedTx {
    /// Copies every packet before, since the queue may not have it any more when it is known that it took it.
    fn transmit(
        &mut self,
        packets: &mut Vec<PacketBuf>,
        done: &mut Vec<PacketBuf>,
    ) -> Result<(), DeviceError> {
        self.copies.set(packets);
        let offered = packets.len();
        let result = self.queue.transmit(packets, done);
        let taken = offered - packets.len();
        self.copies.first(taken).try_for_each(&mut self.sink)?;
        result
    }

    fn complete(&mut self, done: &mut Vec<PacketBuf>) -> Result<(), DeviceError> {
        self.queue.complete(done)
    }

    fn held(&self) -> u64 {
        self.queue.held()
    }

    fn totals(&mut self) -> TxTotals {
        self.queue.totals()
    }
}

/// A sending queue that has no device behind it: packets go to the sink, a file for instance, and are done.
pub struct ToSink {
    sink: Sink,
    joined: Vec<u8>,
    totals: TxTotals,
}

impl ToSink {
    /// Into this sink.
    pub fn new(sink: Sink) -> Self {
        Self { sink, joined: Vec::new(), totals: TxTotals::default() }
    }
}

impl Transmit for ToSink {
    /// After an error of the sink, the packet and those behind it are still there.
    fn transmit(
        &mut self,
        packets: &mut Vec<PacketBuf>,
        done: &mut Vec<PacketBuf>,
    ) -> Result<(), DeviceError> {
        let mut result = Ok(());
        let mut taken = 0;
        for packet in packets.iter() {
            result = if packet.is_linear() {
                (self.sink)(packet.data())
            } else {
                self.joined.clear();
                packet.slices().for_each(|part| self.joined.extend_from_slice(part));
                (self.sink)(&self.joined)
            };
            if result.is_err() {
                break;
            }
            taken += 1;
            self.totals.packets += 1;
            self.totals.l2_bytes += packet.len() as u64;
        }
        super::move_front(packets, taken, done);
        result
    }

    /// Left are those that the sink took.
    fn totals(&mut self) -> TxTotals {
        self.totals
    }
}

/// Copies of packets, one behind the other.
#[derive(Default)]
struct Copies {
    bytes: Vec<u8>,
    /// Where each ends.
    ends: Vec<usize>,
}

impl Copies {
    fn set(&mut self, packets: &[PacketBuf]) {
        self.bytes.clear();
        self.ends.clear();
        for packet in packets {
            packet.slices().for_each(|part| self.bytes.extend_from_slice(part));
            self.ends.push(self.bytes.len());
        }
    }

    fn first(&self, count: usize) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).take(count).map(|(start, &end)| &self.bytes[start..end])
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::{Arc, Mutex};

    use pagefrag::Piece;

    use super::*;
    use crate::device::{Frames, Synthetic};

    /// Takes so many packets a call.
    struct Narrow(usize);

    impl Transmit for Narrow {
        fn transmit(
            &mut self,
            packets: &mut Vec<PacketBuf>,
            done: &mut Vec<PacketBuf>,
        ) -> Result<(), DeviceError> {
            let count = self.0.min(packets.len());
            super::super::move_front(packets, count, done);
            Ok(())
        }

        fn totals(&mut self) -> TxTotals {
            TxTotals::default()
        }
    }

    fn recording() -> (Sink, Arc<Mutex<Vec<Vec<u8>>>>) {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&seen);
        let sink = move |frame: &[u8]| {
            sink.lock().unwrap().push(frame.to_vec());
            Ok(())
        };
        (Box::new(sink), seen)
    }

    fn full_after(mut frames: usize) -> Sink {
        Box::new(move |_| match frames {
            0 => Err(DeviceError::Setup("the disk is full".into())),
            _ => {
                frames -= 1;
                Ok(())
            }
        })
    }

    fn packet(bytes: &[u8]) -> PacketBuf {
        let mut packet = PacketBuf::new(vec![0; 512], 0);
        packet.put(bytes.len()).unwrap().copy_from_slice(bytes);
        packet
    }

    fn in_two_pieces() -> PacketBuf {
        let mut packet = packet(&[3, 3]);
        packet.attach(Piece::from(vec![4]));
        packet
    }

    #[test]
    fn received_frames_are_seen_and_handed_up() {
        let frames = Frames::Cycle(vec![vec![1; 60].into(), vec![2; 61].into()]);
        let (sink, seen) = recording();
        let mut queue = CapturedRx::new(Box::new(Synthetic::new(frames, 4).unwrap()), sink);
        let mut handed = Vec::new();
        assert_eq!(Lend::lend(&mut queue, 3, &mut |frame| handed.push(frame.to_vec())).unwrap(), 3);
        assert_eq!(handed, [vec![1; 60], vec![2; 61], vec![1; 60]]);
        assert_eq!(*seen.lock().unwrap(), handed);
    }

    #[test]
    fn a_frame_that_the_sink_fails_at_is_handed_up() {
        let wire = || {
            let frames = Frames::Cycle(vec![vec![1; 60].into()]);
            Box::new(Synthetic::new(frames, 4).unwrap())
        };
        let mut queue = CapturedRx::new(wire(), full_after(1));
        let mut handed = 0;
        Lend::lend(&mut queue, 3, &mut |_| handed += 1).unwrap_err();
        assert_eq!(Lend::totals(&mut queue).received, handed);
        let mut queue = CapturedRx::new(wire(), full_after(1));
        let mut pool = pagefrag::PagePool::default();
        while queue.room() > 0 {
            queue.post(pool.alloc().unwrap()).unwrap();
        }
        let handed = std::iter::from_fn(|| queue.landed().transpose()).take_while(Result::is_ok).count();
        assert_eq!(
            (handed, Land::totals(&mut queue).received),
            (2, 2),
            "that which failed, and the one before"
        );
    }

    #[test]
    fn only_what_was_taken_is_captured() {
        let (sink, seen) = recording();
        let mut queue = CapturedTx::new(Box::new(Narrow(2)), sink);
        let (mut packets, mut done) = (vec![packet(&[1]), in_two_pieces(), packet(&[5])], Vec::new());
        queue.transmit(&mut packets, &mut done).unwrap();
        assert_eq!((packets.len(), done.len()), (1, 2));
        assert_eq!(*seen.lock().unwrap(), [vec![1], vec![3, 3, 4]]);
        queue.transmit(&mut packets, &mut done).unwrap();
        assert_eq!(seen.lock().unwrap()[2..], [vec![5]]);
    }

    #[test]
    fn a_sink_that_fails_keeps_the_rest() {
        let mut queue = ToSink::new(full_after(1));
        let (mut packets, mut done) = (vec![in_two_pieces(), packet(&[1])], Vec::new());
        assert!(queue.transmit(&mut packets, &mut done).unwrap_err().to_string().contains("disk"));
        assert_eq!((packets.len(), done.len()), (1, 1));
        assert_eq!(queue.totals(), TxTotals { packets: 1, l2_bytes: 3, too_long: 0 });
    }
}
