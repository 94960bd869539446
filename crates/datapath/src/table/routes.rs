//! The list of routes, from which a table is made.

use std::fmt;
use std::num::NonZeroU16;

use super::{Address, PrefixError};

/// Where to send it: a number that the owner of the table has given a neighbour or device. With `Option` around it
/// still 2 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NextHop(NonZeroU16);

impl NextHop {
    /// The highest number.
    pub const INDEX_MAX: u16 = u16::MAX - 1;

    /// None beyond [`INDEX_MAX`](NextHop::INDEX_MAX).
    #[inline]
    pub const fn new(index: u16) -> Option<NextHop> {
        match NonZeroU16::new(index.wrapping_add(1)) {
            Some(stored) => Some(NextHop(stored)),
            None => None,
        }
    }

    /// The number, to be used as an index.
    #[inline]
    pub const fn index(self) -> usize {
        self.0.get() as usize - 1
    }

    /// As it stands in an entry, where 0 is none.
    #[inline(always)]
    pub(super) const fn stored(hop: Option<NextHop>) -> u16 {
        match hop {
            Some(hop) => hop.0.get(),
            None => 0,
        }
    }

    /// From an entry.
    #[inline(always)]
    pub(super) const fn from_stored(stored: u16) -> Option<NextHop> {
        match NonZeroU16::new(stored) {
            Some(stored) => Some(NextHop(stored)),
            None => None,
        }
    }
}

impl fmt::Debug for NextHop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NextHop({})", self.index())
    }
}

/// All addresses that begin with the same bits.
///
/// Ordered by address, and the shorter before the longer: whatever lies within a prefix comes right behind it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix<A> {
    address: A,
    length: u8,
}

impl<A: Address> Prefix<A> {
    /// The first `length` bits of an address that has no others.
    pub fn new(address: A, length: u8) -> Result<Prefix<A>, PrefixError> {
        let shown = address.display();
        if length > A::BITS {
            return Err(PrefixError::Length { address: shown, length, bits: A::BITS });
        }
        let network = address.masked(length);
        if network != address {
            let network = network.display();
            return Err(PrefixError::HostBits { address: shown, length, network, bits: A::BITS });
        }
        Ok(Prefix { address, length })
    }

    /// The first `length` bits of any address; a longer length is the longest.
    pub fn of(address: A, length: u8) -> Prefix<A> {
        let length = length.min(A::BITS);
        Prefix { address: address.masked(length), length }
    }

    /// Its first address.
    #[inline]
    pub fn address(&self) -> A {
        self.address
    }

    /// How many bits its addresses have in common.
    #[inline]
    pub fn length(&self) -> u8 {
        self.length
    }

    /// Whether it begins like that.
    #[inline]
    pub fn contains(&self, address: A) -> bool {
        address.masked(self.length) == self.address
    }
}

impl<A: Address> fmt::Display for Prefix<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address.display(), self.length)
    }
}

impl<A: Address> fmt::Debug for Prefix<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Where the addresses of a prefix go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route<A: Address> {
    /// Which addresses.
    pub prefix: Prefix<A>,
    /// Where to.
    pub next_hop: NextHop,
}

/// Routes, one for each prefix, in the order of prefixes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes<A: Address>(Vec<Route<A>>);

impl<A: Address> Routes<A> {
    /// None yet.
    pub fn new() -> Routes<A> {
        Routes(Vec::new())
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// None at all.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// In the order of prefixes.
    pub fn as_slice(&self) -> &[Route<A>] {
        &self.0
    }

    /// Adds a route, or replaces that of the same prefix, which is returned. Moves what lies behind it: a whole table
    /// is collected from an iterator instead.
    pub fn insert(&mut self, route: Route<A>) -> Option<NextHop> {
        match self.position(&route.prefix) {
            Ok(at) => Some(std::mem::replace(&mut self.0[at].next_hop, route.next_hop)),
            Err(at) => {
                self.0.insert(at, route);
                None
            }
        }
    }

    /// Removes the route of exactly this prefix. None if there is none.
    pub fn remove(&mut self, prefix: &Prefix<A>) -> Option<NextHop> {
        let at = self.position(prefix).ok()?;
        Some(self.0.remove(at).next_hop)
    }

    /// The route of exactly this prefix.
    pub fn get(&self, prefix: &Prefix<A>) -> Option<NextHop> {
        self.position(prefix).ok().map(|at| self.0[at].next_hop)
    }

    fn position(&self, prefix: &Prefix<A>) -> Result<usize, usize> {
        self.0.binary_search_by(|route| route.prefix.cmp(prefix))
    }
}

/// Of routes with the same prefix the last one counts.
impl<A: Address> FromIterator<Route<A>> for Routes<A> {
    fn from_iter<I: IntoIterator<Item = Route<A>>>(routes: I) -> Routes<A> {
        let mut routes: Vec<Route<A>> = routes.into_iter().collect();
        routes.sort_by_key(|route| route.prefix);
        // Keeps the first of equal ones, which is given the last one's next hop before.
        routes.dedup_by(|later, kept| {
            let is_same = later.prefix == kept.prefix;
            if is_same {
                kept.next_hop = later.next_hop;
            }
            is_same
        });
        Routes(routes)
    }
}
