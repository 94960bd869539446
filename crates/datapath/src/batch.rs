//! Packets on their way through the stages, as many as one poll takes.

use pagefrag::PacketBuf;

use crate::Reason;

/// The most packets of one poll (NAPI_POLL_WEIGHT, include/linux/netdevice.h, 6.18).
pub const BUDGET: usize = 64;

/// What becomes of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing yet: the next stage sees it. What no stage decides is dropped as [`Reason::Undecided`].
    Pass,
    /// It ends here.
    Drop(Reason),
    /// It leaves through this port.
    Transmit(u8),
    /// It goes to this queue: of a receiver, or of another worker.
    Deliver(u16),
    /// A stage has it, and will send it or count it later: what lies in its place is no packet.
    Held,
}

/// The packets of one poll in the order of arrival, each with its verdict.
///
/// Packets stay where they are while stages work on them.
#[derive(Debug, Default)]
pub struct Batch {
    pub(crate) packets: Vec<PacketBuf>,
    pub(crate) verdicts: Vec<Verdict>,
    pub(crate) ingress: u8,
}

impl Batch {
    /// An empty one. Allocates here, and not again.
    pub fn new() -> Self {
        Self { packets: Vec::with_capacity(2 * BUDGET), verdicts: Vec::with_capacity(2 * BUDGET), ingress: 0 }
    }

    /// The port that they came in by: all packets of a batch come from one.
    pub fn ingress(&self) -> u8 {
        self.ingress
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Adds one that has no verdict.
    #[inline]
    pub fn push(&mut self, packet: PacketBuf) {
        self.packets.push(packet);
        self.verdicts.push(Verdict::Pass);
    }

    /// Adds one that a stage made or held, with its verdict.
    pub fn push_decided(&mut self, packet: PacketBuf, verdict: Verdict) {
        self.packets.push(packet);
        self.verdicts.push(verdict);
    }

    /// Moves the last so many before all others: a stage held them, and they have come earlier.
    pub fn move_first(&mut self, packets: usize) {
        let packets = packets.min(self.len());
        self.packets.as_mut_slice().rotate_right(packets);
        self.verdicts.rotate_right(packets);
    }

    /// The packet at this place.
    pub fn packet(&self, index: usize) -> &PacketBuf {
        &self.packets[index]
    }

    /// The packet at this place, to be changed.
    pub fn packet_mut(&mut self, index: usize) -> &mut PacketBuf {
        &mut self.packets[index]
    }

    /// Its verdict so far.
    pub fn verdict(&self, index: usize) -> Verdict {
        self.verdicts[index]
    }

    /// Decides.
    #[inline]
    pub fn decide(&mut self, index: usize, verdict: Verdict) {
        self.verdicts[index] = verdict;
    }

    /// Decides all that have no verdict yet alike.
    pub fn decide_rest(&mut self, verdict: Verdict) {
        for open in self.verdicts.iter_mut().filter(|open| **open == Verdict::Pass) {
            *open = verdict;
        }
    }

    /// Each packet without a verdict, with its place.
    pub fn undecided(&mut self) -> impl Iterator<Item = (usize, &mut PacketBuf, &mut Verdict)> {
        let both = self.packets.iter_mut().zip(&mut self.verdicts).enumerate();
        both.map(|(index, (packet, verdict))| (index, packet, verdict))
            .filter(|(_, _, verdict)| **verdict == Verdict::Pass)
    }

    /// Takes a packet out, to hold it. Its place is taken by one without data, which allocates: not for every packet.
    pub fn hold(&mut self, index: usize) -> PacketBuf {
        self.verdicts[index] = Verdict::Held;
        std::mem::replace(&mut self.packets[index], PacketBuf::new(Vec::new(), 0))
    }
}
