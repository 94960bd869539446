//! A list of packets whose places stay where they are.

use pagefrag::PacketBuf;

/// Packets, in order. Their places are kept when they are gone, as empty packets: a packet is filled and ended where it lies. What
/// was put together a moment ago, field by field, costs 7 to 10 ns to move in wider pieces, since the CPU cannot forward
/// such stores; making it costs 2.
#[derive(Debug, Default)]
pub struct Packets {
    /// The first `len` are packets of the list, the others are empty.
    places: Vec<PacketBuf>,
    len: usize,
}

impl Packets {
    /// An empty list with places for so many. More are made when they are needed.
    pub fn with_places(places: usize) -> Self {
        Self { places: (0..places).map(|_| PacketBuf::default()).collect(), len: 0 }
    }

    /// How many there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A new packet at the end, empty, to be filled where it lies.
    #[inline]
    pub fn push_empty(&mut self) -> &mut PacketBuf {
        if self.len == self.places.len() {
            self.grow();
        }
        self.len += 1;
        &mut self.places[self.len - 1]
    }

    /// Adds a packet at the end.
    #[inline]
    pub fn push(&mut self, packet: PacketBuf) {
        *self.push_empty() = packet;
    }

    /// Takes the last one out.
    #[inline]
    pub fn pop(&mut self) -> Option<PacketBuf> {
        self.len = self.len.checked_sub(1)?;
        Some(std::mem::take(&mut self.places[self.len]))
    }

    /// All of them.
    #[inline]
    pub fn as_slice(&self) -> &[PacketBuf] {
        &self.places[..self.len]
    }

    /// All of them, to be changed.
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [PacketBuf] {
        &mut self.places[..self.len]
    }

    /// Each of them.
    pub fn iter(&self) -> std::slice::Iter<'_, PacketBuf> {
        self.as_slice().iter()
    }

    /// Each of them, to be changed.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, PacketBuf> {
        self.as_mut_slice().iter_mut()
    }

    /// Takes the first `count` out, or all if there are not so many. The others move up.
    pub fn take_front(&mut self, count: usize, mut each: impl FnMut(PacketBuf)) {
        let count = count.min(self.len);
        self.places[..count].iter_mut().for_each(|packet| each(std::mem::take(packet)));
        self.places[..self.len].rotate_left(count);
        self.len -= count;
    }

    /// Takes all out, each by a function that ends it where it lies. What it leaves is dropped.
    #[inline]
    pub fn end_all(&mut self, each: impl FnMut(&mut PacketBuf)) {
        self.places[..self.len].iter_mut().for_each(each);
        self.clear();
    }

    /// Drops all.
    pub fn clear(&mut self) {
        for packet in self.places[..self.len].iter_mut().filter(|packet| has_memory(packet)) {
            *packet = PacketBuf::default();
        }
        self.len = 0;
    }

    /// Moves all of another list to the end of this one; if this one is empty, without moving a packet.
    pub fn append(&mut self, other: &mut Self) {
        if self.is_empty() {
            std::mem::swap(self, other);
        } else {
            other.take_front(other.len, |packet| self.push(packet));
        }
    }

    #[cold]
    fn grow(&mut self) {
        let more = self.places.len().max(16);
        self.places.resize_with(self.places.len() + more, PacketBuf::default);
    }
}

/// Whether there is anything to be dropped.
#[inline]
fn has_memory(packet: &PacketBuf) -> bool {
    !packet.is_empty() || packet.headroom() > 0 || packet.tailroom() > 0
}

impl<'a> IntoIterator for &'a Packets {
    type Item = &'a PacketBuf;
    type IntoIter = std::slice::Iter<'a, PacketBuf>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
