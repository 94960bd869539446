//! Poptrie (Asai and Ohara, SIGCOMM 2015): a trie of 64 children a node, whose children and leaves lie side by side
//! and are found by counting bits.
//!
//! One thing is added. A node below which there is only one route does not grow a chain of nodes down to the end of
//! its prefix, but holds the prefix itself, to be compared with. In the sparse tables of IPv6 most nodes are of this
//! kind: it takes half the memory and half the accesses.

use std::marker::PhantomData;

use super::{
    Address, Advise, BuildError, Inspect, NextHop, Plain, Route, Routes, advise::make_room, advise::moved,
};

/// Bits that a node decides.
const STRIDE: u32 = 6;
const SLOTS: usize = 1 << STRIDE;
/// In an entry: this is a place among the leaves, not among the nodes.
const IS_LEAF: u32 = 1 << 31;
/// In [`Node::child`]: the node is a prefix.
const LONE: u32 = 1 << 31;
/// How many addresses of a burst are followed at once: their state stays in registers and the first cache.
const LANES: usize = 32;

/// 24 bytes. Either a branch, or, if `child` has [`LONE`], a prefix: then `children` and `runs` are its bits from the
/// highest on, the rest of `child` is its length, and `leaf` what is found: in its upper half if the prefix matches,
/// in the lower if not.
#[derive(Clone, Copy, Debug, Default)]
struct Node {
    /// Which of the 64 are nodes.
    children: u64,
    /// Where among the others a run of equal leaves begins.
    runs: u64,
    /// The first leaf.
    leaf: u32,
    /// The first child.
    child: u32,
}

/// A table that is only read. The first array decides 18 bits of IPv4, so that the common /24 end with a node, and 20
/// of IPv6, which with 18 nodes come out at 128.
#[derive(Debug)]
pub struct Poptrie<A> {
    first: Vec<u32>,
    nodes: Vec<Node>,
    /// Begins with each number up to the highest next hop, so that an entry may also say at once what is found.
    leaves: Vec<u16>,
    _address: PhantomData<A>,
}

impl<A: Address> Poptrie<A> {
    /// From all routes.
    pub fn build(routes: &Routes<A>) -> Result<Poptrie<A>, BuildError> {
        Poptrie::build_in(routes, &mut Plain)
    }

    /// As [`build`](Poptrie::build), in memory of which `advise` is told.
    pub fn build_in(routes: &Routes<A>, advise: &mut impl Advise) -> Result<Poptrie<A>, BuildError> {
        let routes = routes.as_slice();
        let highest = routes.iter().map(|route| NextHop::stored(Some(route.next_hop))).max().unwrap_or(0);
        let mut builder =
            Builder { nodes: Vec::new(), leaves: (0..=highest).collect(), routes: routes.len() };
        let count = 1 << A::FIRST_BITS;
        let mut slots = Vec::new();
        make_room(&mut slots, count, routes.len())?;
        slots.resize(count, Slot::default());
        sort_into(&mut slots, routes, 0, A::FIRST_BITS, 0);
        let mut first = Vec::new();
        make_room(&mut first, count, routes.len())?;
        advise.advise(first.spare_capacity_mut());
        for slot in &slots {
            first.push(builder.entry(slot)?);
        }
        let Builder { nodes, leaves, .. } = builder;
        let (nodes, leaves) = (moved(nodes, advise, routes.len())?, moved(leaves, advise, routes.len())?);
        Ok(Poptrie { first, nodes, leaves, _address: PhantomData })
    }

    /// The next hop of the longest prefix that the address begins with.
    #[inline]
    pub fn lookup(&self, address: A) -> Option<NextHop> {
        let mut entry = self.first[address.bits(0, A::FIRST_BITS)];
        let mut from = A::FIRST_BITS;
        while entry & IS_LEAF == 0 {
            entry = self.step(entry, address, from);
            from += STRIDE;
        }
        self.found(entry)
    }

    /// As [`lookup`](Poptrie::lookup) for each address, into the same place of `out`. What is longer stays as it is.
    pub fn lookup_burst(&self, addresses: &[A], out: &mut [Option<NextHop>]) {
        for (addresses, out) in addresses.chunks(LANES).zip(out.chunks_mut(LANES)) {
            self.lookup_lanes(addresses, out);
        }
    }

    /// Shows its arrays.
    pub fn inspect(&self, inspect: &mut impl Inspect) {
        inspect.see(&self.first);
        inspect.see(&self.nodes);
        inspect.see(&self.leaves);
    }

    /// What its arrays take.
    pub fn memory_bytes(&self) -> usize {
        size_of_val(&*self.first) + size_of_val(&*self.nodes) + size_of_val(&*self.leaves)
    }

    /// Level by level, each time only those that have not come to a leaf; leaves themselves are read at the end.
    #[inline]
    fn lookup_lanes(&self, addresses: &[A], out: &mut [Option<NextHop>]) {
        let mut entries = [0u32; LANES];
        // The lanes that are at a node; each is written, and counted only if it is. The remainders leave no check.
        let mut active = [0u8; LANES];
        let mut count = 0;
        for (lane, (entry, address)) in entries.iter_mut().zip(addresses).enumerate() {
            *entry = self.first[address.bits(0, A::FIRST_BITS)];
            active[count % LANES] = lane as u8;
            count += usize::from(*entry & IS_LEAF == 0);
        }
        let mut from = A::FIRST_BITS;
        while count != 0 {
            let mut still = 0;
            for at in 0..count.min(LANES) {
                let lane = usize::from(active[at]) % LANES;
                let entry = self.step(entries[lane], addresses[lane], from);
                entries[lane] = entry;
                active[still % LANES] = lane as u8;
                still += usize::from(entry & IS_LEAF == 0);
            }
            count = still;
            from += STRIDE;
        }
        for ((out, entry), _) in out.iter_mut().zip(&entries).zip(addresses) {
            *out = self.found(*entry);
        }
    }

    /// From a node to the entry behind it, by the bits from `from` on.
    #[inline(always)]
    fn step(&self, index: u32, address: A, from: u32) -> u32 {
        let node = &self.nodes[index as usize];
        if node.child & LONE != 0 {
            return node.compare(address);
        }
        let bit = 1u64 << address.bits(from, STRIDE);
        let up_to = bit | (bit - 1);
        if node.children & bit != 0 {
            node.child + (node.children & up_to).count_ones() - 1
        } else {
            (IS_LEAF | node.leaf) + (node.runs & up_to).count_ones() - 1
        }
    }

    #[inline(always)]
    fn found(&self, entry: u32) -> Option<NextHop> {
        NextHop::from_stored(self.leaves[(entry & !IS_LEAF) as usize])
    }
}

impl Node {
    fn lone<A: Address>(route: &Route<A>, otherwise: u16) -> Node {
        let prefix = route.prefix.address().to_highest();
        Node {
            children: (prefix >> 64) as u64,
            runs: prefix as u64,
            leaf: u32::from(NextHop::stored(Some(route.next_hop))) << 16 | u32::from(otherwise),
            child: LONE | u32::from(route.prefix.length()),
        }
    }

    /// Its length is not 0: it is behind the first array.
    #[inline(always)]
    fn compare<A: Address>(&self, address: A) -> u32 {
        let prefix = u128::from(self.children) << 64 | u128::from(self.runs);
        let differing = (prefix ^ address.to_highest()) >> ((128 - (self.child & !LONE)) & 127);
        IS_LEAF | if differing == 0 { self.leaf >> 16 } else { self.leaf & 0xffff }
    }
}

struct Builder {
    nodes: Vec<Node>,
    leaves: Vec<u16>,
    routes: usize,
}

impl Builder {
    fn entry<A: Address>(&mut self, slot: &Slot<'_, A>) -> Result<u32, BuildError> {
        if slot.deeper.is_empty() {
            return Ok(IS_LEAF | u32::from(slot.leaf));
        }
        let index = self.nodes.len();
        make_room(&mut self.nodes, 1, self.routes)?;
        self.nodes.push(Node::default());
        self.fill(index, slot, A::FIRST_BITS)?;
        Ok(index as u32)
    }

    /// Makes a node of what is behind a slot. As deep as an address has strides.
    fn fill<A: Address>(&mut self, index: usize, slot: &Slot<'_, A>, from: u32) -> Result<(), BuildError> {
        if let [only] = slot.deeper {
            self.nodes[index] = Node::lone(only, slot.leaf);
            return Ok(());
        }
        make_room(&mut self.nodes, SLOTS, self.routes)?;
        make_room(&mut self.leaves, SLOTS, self.routes)?;
        let mut slots = [Slot::default(); SLOTS];
        sort_into(&mut slots, slot.deeper, from, STRIDE, slot.leaf);
        let mut node = Node::default();
        (node.leaf, node.child) = (self.leaves.len() as u32, self.nodes.len() as u32);
        let mut last = None;
        for (at, slot) in slots.iter().enumerate() {
            if !slot.deeper.is_empty() {
                node.children |= 1 << at;
                self.nodes.push(Node::default());
            } else if last != Some(slot.leaf) {
                node.runs |= 1 << at;
                self.leaves.push(slot.leaf);
                last = Some(slot.leaf);
            }
        }
        let limit = IS_LEAF as usize;
        if self.nodes.len() > limit || self.leaves.len() > limit {
            let advice = "leave out routes";
            return Err(BuildError::TooLarge { routes: self.routes, what: "nodes or leaves", limit, advice });
        }
        self.nodes[index] = node;
        let deeper = slots.iter().filter(|slot| !slot.deeper.is_empty());
        for (child, slot) in (node.child as usize..).zip(deeper) {
            self.fill(child, slot, from + STRIDE)?;
        }
        Ok(())
    }
}

/// What is behind one value of some bits: a next hop for all that nothing longer has, and the routes that are longer.
#[derive(Clone, Copy)]
struct Slot<'a, A: Address> {
    leaf: u16,
    deeper: &'a [Route<A>],
}

impl<A: Address> Default for Slot<'_, A> {
    fn default() -> Self {
        Slot { leaf: 0, deeper: &[] }
    }
}

/// Sorts routes, all of which agree before bit `from`, into slots by the next `count` bits. The order of prefixes has
/// a shorter one before all that lie in it: these overwrite it, and those that are longer than the slots come
/// together.
fn sort_into<'a, A: Address>(
    slots: &mut [Slot<'a, A>],
    mut routes: &'a [Route<A>],
    from: u32,
    count: u32,
    leaf: u16,
) {
    for slot in &mut *slots {
        slot.leaf = leaf;
    }
    while let Some(route) = routes.first() {
        let (length, at) = (u32::from(route.prefix.length()), route.prefix.address().bits(from, count));
        if length <= from + count {
            let span = 1usize << (from + count - length);
            for slot in &mut slots[at..at + span] {
                slot.leaf = NextHop::stored(Some(route.next_hop));
            }
            routes = &routes[1..];
        } else {
            let same = routes.partition_point(|r| r.prefix.address().bits(from, count) == at);
            slots[at].deeper = &routes[..same];
            routes = &routes[same..];
        }
    }
}
