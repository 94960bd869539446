//! Random operations on packets, beside a model that knows of each what is in it and who shares it.

#![allow(clippy::unwrap_used)]

mod support;

use std::rc::Rc;

use pagefrag::{
    Align, HEADROOM, PacketBuf, PacketError, PagePool, Piece, PollCache, PoolConfig, TRAILER_BYTES,
    buffer_bytes,
};
use proptest::{collection::vec, prelude::*, sample::Index};
use support::Watched;

/// At a boundary that depends on the packet, or anywhere.
#[derive(Clone, Copy, Debug)]
enum Amount {
    Edge(isize),
    Any(usize),
}

impl Amount {
    fn at(self, edge: usize) -> usize {
        match self {
            Amount::Edge(delta) => edge.saturating_add_signed(delta),
            Amount::Any(bytes) => bytes,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Memory {
    Frag,
    Page,
    PageFrag,
    Heap,
}

#[derive(Clone, Debug)]
enum Op {
    New(Memory, usize, usize),
    Push(Amount),
    Pull(Amount),
    Put(Amount),
    Trim(Amount),
    Reserve(Amount),
    Attach(Memory, usize, usize),
    Linearize,
    Share,
    Write,
    MakeMut,
    Drop,
    ToCache,
    ToPool,
    Reassemble,
    #[cfg(feature = "bytes")]
    ThroughBytes,
}

fn ops() -> impl Strategy<Value = Vec<(Op, Index)>> {
    let amount = || {
        prop_oneof![
            2 => (-1isize..=1).prop_map(Amount::Edge),
            2 => (0usize..100).prop_map(Amount::Any),
            1 => prop::sample::select(vec![2000, usize::MAX]).prop_map(Amount::Any),
        ]
    };
    let memory = || prop::sample::select(vec![Memory::Frag, Memory::Page, Memory::PageFrag, Memory::Heap]);
    let new_bytes = prop_oneof![0usize..200, 300usize..700, Just(buffer_bytes(64)), Just(2048)];
    let headroom = prop::sample::select(vec![0, 1, HEADROOM, 300, 5000]);
    let op = prop_oneof![
        6 => (memory(), new_bytes, headroom).prop_map(|(memory, bytes, room)| Op::New(memory, bytes, room)),
        4 => amount().prop_map(Op::Push),
        4 => amount().prop_map(Op::Pull),
        6 => amount().prop_map(Op::Put),
        4 => amount().prop_map(Op::Trim),
        2 => amount().prop_map(Op::Reserve),
        4 => (memory(), 0usize..300, 0usize..50).prop_map(|(memory, bytes, skip)| Op::Attach(memory, bytes, skip)),
        2 => Just(Op::Linearize),
        4 => Just(Op::Share),
        4 => Just(Op::Write),
        2 => Just(Op::MakeMut),
        2 => Just(Op::Drop),
        2 => Just(Op::ToCache),
        2 => Just(Op::ToPool),
        1 => Just(Op::Reassemble),
    ];
    #[cfg(feature = "bytes")]
    let op = prop_oneof![16 => op, 1 => Just(Op::ThroughBytes)];
    vec((op, any::<Index>()), 1..if cfg!(miri) { 40 } else { 300 })
}

/// A packet, and what must be in it.
struct Live {
    packet: PacketBuf,
    headroom: usize,
    head: Vec<u8>,
    /// Behind the data of the head, also if something is attached.
    free: usize,
    attached: Vec<Vec<u8>>,
    /// One for each that has the memory of the head.
    holders: Rc<()>,
    /// It came from `Bytes`, and can never be written.
    read_only: bool,
}

impl Live {
    fn new(packet: PacketBuf) -> Live {
        let (headroom, free) = (packet.headroom(), packet.tailroom());
        Live {
            packet,
            headroom,
            head: Vec::new(),
            free,
            attached: Vec::new(),
            holders: Rc::default(),
            read_only: false,
        }
    }

    fn is_writable(&self) -> bool {
        !self.read_only && Rc::strong_count(&self.holders) == 1
    }

    fn tailroom(&self) -> usize {
        if self.attached.is_empty() { self.free } else { 0 }
    }

    fn all(&self) -> Vec<u8> {
        [self.head.clone(), self.attached.concat()].concat()
    }

    fn check(&mut self) {
        let (packet, all) = (&mut self.packet, [&self.head[..], &self.attached.concat()].concat());
        assert!(packet.data() == self.head, "the head is not what was written");
        assert!(packet.slices().collect::<Vec<_>>().concat() == all);
        assert_eq!((packet.len(), packet.is_empty()), (all.len(), all.is_empty()));
        assert_eq!((packet.head_len(), packet.headroom()), (self.head.len(), self.headroom));
        assert_eq!(packet.is_linear(), self.attached.is_empty());
        assert_eq!(packet.fragments().count(), self.attached.len());
        assert!(packet.fragments().zip(&self.attached).all(|(piece, bytes)| **piece == bytes[..]));
        assert!(packet.truesize() >= size_of::<PacketBuf>() + all.len());
        let expected = if self.attached.is_empty() { self.free } else { 0 };
        assert_eq!(packet.tailroom(), expected);
        let writable = !self.read_only && Rc::strong_count(&self.holders) == 1;
        assert_eq!(packet.data_mut().is_some(), writable);
    }

    fn push(&mut self, amount: Amount, pattern: u8) {
        let bytes = amount.at(self.headroom);
        let expected = match () {
            () if bytes > self.headroom => Err(PacketError::Headroom { bytes, room: self.headroom }),
            () if !self.is_writable() => Err(PacketError::Shared),
            () => Ok(bytes),
        };
        let pushed = self.packet.push(bytes).map(|new| {
            new.fill(pattern);
            new.len()
        });
        assert_eq!(pushed, expected);
        if expected.is_ok() {
            self.headroom -= bytes;
            self.head.splice(..0, vec![pattern; bytes]);
        }
    }

    fn pull(&mut self, amount: Amount) {
        let (bytes, len) = (amount.at(self.head.len()), self.head.len());
        match self.packet.pull(bytes) {
            Ok(pulled) => {
                assert_eq!(pulled, self.head.drain(..bytes).collect::<Vec<u8>>());
                self.headroom += bytes;
            }
            Err(error) => {
                assert!(bytes > len);
                assert_eq!(error, PacketError::Short { bytes, len });
            }
        }
    }

    fn put(&mut self, amount: Amount, pattern: u8) {
        let room = self.tailroom();
        let bytes = amount.at(room);
        let writable = self.is_writable();
        match self.packet.put(bytes) {
            Ok(new) => {
                assert!(writable && bytes <= room);
                assert_eq!(new.len(), bytes);
                new.fill(pattern);
                self.head.resize(self.head.len() + bytes, pattern);
                self.free -= bytes;
            }
            Err(PacketError::Shared) => assert!(bytes <= room && !writable),
            Err(error) => {
                assert!(bytes > room);
                assert_eq!(error, PacketError::Tailroom { bytes, room });
            }
        }
    }

    fn trim(&mut self, amount: Amount) {
        let mut left = amount.at(self.all().len());
        self.packet.trim(left);
        let kept = left.min(self.head.len());
        self.free += self.head.len() - kept;
        self.head.truncate(kept);
        left -= kept;
        for bytes in &mut self.attached {
            bytes.truncate(left);
            left -= bytes.len();
        }
        self.attached.retain(|bytes| !bytes.is_empty());
    }

    fn reserve(&mut self, amount: Amount) {
        let (room, len) = (self.tailroom(), self.all().len());
        let bytes = amount.at(room);
        let expected = match () {
            () if len > 0 => Err(PacketError::NotEmpty { len }),
            () if bytes > room => Err(PacketError::Tailroom { bytes, room }),
            () => Ok(()),
        };
        assert_eq!(self.packet.reserve(bytes), expected);
        if expected.is_ok() {
            self.headroom += bytes;
            self.free -= bytes;
        }
    }

    fn linearize(&mut self) {
        let more: usize = self.attached.iter().map(Vec::len).sum();
        let in_place = more <= self.free && self.is_writable();
        let before = self.packet.data().as_ptr();
        self.packet.linearize().unwrap();
        if more == 0 {
            return;
        }
        self.head = self.all();
        self.attached.clear();
        if in_place {
            assert_eq!(self.packet.data().as_ptr(), before, "there was room, and it was moved");
            self.free -= more;
        } else {
            self.moved();
        }
    }

    /// To memory of its own; how much is free there is not promised.
    fn moved(&mut self) {
        self.free = 0;
        (self.holders, self.read_only) = (Rc::default(), false);
        if self.attached.is_empty() {
            self.free = self.packet.tailroom();
        }
    }

    fn make_mut(&mut self, pattern: u8) {
        let (moves, free) = (!self.is_writable(), self.free);
        let bytes = self.packet.make_mut().unwrap();
        bytes.fill(pattern);
        self.head.fill(pattern);
        if moves {
            self.moved();
            if self.attached.is_empty() {
                assert!(self.free >= free, "as much room as before");
            } else {
                self.linearize_after_move();
            }
        }
    }

    /// So that the room behind can be seen again.
    fn linearize_after_move(&mut self) {
        self.packet.linearize().unwrap();
        self.head = self.all();
        self.attached.clear();
        self.free = self.packet.tailroom();
    }

    fn share(&mut self) -> Live {
        let packet = self.packet.share();
        Live {
            packet,
            headroom: self.headroom,
            head: self.head.clone(),
            free: self.free,
            attached: self.attached.clone(),
            holders: self.holders.clone(),
            read_only: self.read_only,
        }
    }

    /// All its pieces, put together again as they were.
    fn reassemble(self) -> Live {
        let mut pieces = self.packet.into_pieces();
        let mut packet = PacketBuf::from(pieces.next().unwrap());
        pieces.for_each(|piece| packet.attach(piece));
        Live { packet, ..self }
    }

    #[cfg(feature = "bytes")]
    fn through_bytes(self) -> Live {
        let (all, linear, before) = (self.all(), self.packet.is_linear(), self.packet.data().as_ptr());
        let bytes = bytes::Bytes::from(self.packet);
        assert_eq!(bytes, all);
        assert!(!linear || all.is_empty() || bytes.as_ptr() == before, "it was copied");
        // Of no bytes, no memory is kept; and a copy has its own.
        let holders = if linear && !all.is_empty() { self.holders } else { Rc::default() };
        let packet = PacketBuf::from(bytes);
        Live { packet, headroom: 0, head: all, free: 0, attached: Vec::new(), holders, read_only: true }
    }
}

struct World {
    memory: Watched,
    cache: PollCache,
    pool: PagePool,
    live: Vec<Live>,
    pattern: u8,
}

impl World {
    fn new() -> World {
        let memory = Watched::new();
        let source = memory.source().share();
        let cache = PollCache::with_source(source.clone());
        let pool = PagePool::new(PoolConfig { source, ..PoolConfig::default() });
        World { memory, cache, pool, live: Vec::new(), pattern: 0 }
    }

    fn piece(&mut self, memory: Memory, bytes: usize) -> Piece {
        match memory {
            Memory::Frag => self.cache.alloc(bytes, Align::BYTE).unwrap().into(),
            Memory::Page => {
                let mut page = self.pool.alloc().unwrap();
                page.truncate(bytes);
                page.into()
            }
            Memory::PageFrag => self.pool.alloc_frag(bytes, Align::CACHE_LINE).unwrap().into(),
            Memory::Heap => vec![0; bytes].into(),
        }
    }

    fn apply(&mut self, op: Op, index: &Index) {
        self.pattern = self.pattern.wrapping_add(1);
        let pattern = self.pattern;
        match op {
            Op::New(memory, bytes, headroom) => {
                let live = Live::new(PacketBuf::new(self.piece(memory, bytes), headroom));
                let room = live.headroom + live.free;
                assert!(room == bytes || room + TRAILER_BYTES <= bytes && bytes <= room + TRAILER_BYTES + 63);
                assert_eq!(live.headroom, headroom.min(bytes));
                return self.live.push(live);
            }
            _ if self.live.is_empty() => return,
            Op::Attach(memory, bytes, skip) => {
                let mut piece = self.piece(memory, bytes + skip);
                piece.advance(skip);
                piece.bytes_mut().unwrap().fill(pattern);
                let live = index.get_mut(&mut self.live);
                live.packet.attach(piece);
                if bytes > 0 {
                    live.attached.push(vec![pattern; bytes]);
                }
                return;
            }
            _ => {}
        }
        let at = index.index(self.live.len());
        let live = &mut self.live[at];
        match op {
            Op::New(..) | Op::Attach(..) => {}
            Op::Push(amount) => live.push(amount, pattern),
            Op::Pull(amount) => live.pull(amount),
            Op::Put(amount) => live.put(amount, pattern),
            Op::Trim(amount) => live.trim(amount),
            Op::Reserve(amount) => live.reserve(amount),
            Op::Linearize => live.linearize(),
            Op::MakeMut => live.make_mut(pattern),
            Op::Write => {
                if let Some(bytes) = live.packet.data_mut() {
                    bytes.fill(pattern);
                    live.head.fill(pattern);
                }
            }
            Op::Share => {
                let other = live.share();
                self.live.push(other);
            }
            Op::Drop => drop(self.live.swap_remove(at)),
            Op::ToCache => self.cache.give_back_packet(self.live.swap_remove(at).packet),
            Op::ToPool => self.pool.recycle_packet(self.live.swap_remove(at).packet),
            Op::Reassemble => {
                let live = self.live.swap_remove(at).reassemble();
                self.live.push(live);
            }
            #[cfg(feature = "bytes")]
            Op::ThroughBytes => {
                let live = self.live.swap_remove(at).through_bytes();
                self.live.push(live);
            }
        }
    }

    /// In whatever order they end, nothing is left.
    fn end(self, owners_first: bool) {
        let World { memory, cache, pool, mut live, .. } = self;
        if owners_first {
            drop((cache, pool));
            live.iter_mut().for_each(Live::check);
            drop(live);
        } else {
            drop(live);
            assert_eq!(pool.in_flight(), 0);
            drop((cache, pool));
        }
        assert_eq!(memory.blocks(), 0, "a block was lost");
    }
}

fn config() -> ProptestConfig {
    let cases = if cfg!(miri) { 4 } else { 500 };
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn packets_behave_as_the_model(ops in ops(), owners_first in any::<bool>()) {
        let mut world = World::new();
        for (op, index) in ops {
            world.apply(op, &index);
            world.live.iter_mut().for_each(Live::check);
        }
        world.end(owners_first);
    }
}
