//! DIR-24-8 (Gupta, Lin and McKeown, INFOCOM 1998): an array with an entry for each /24, and groups of 256 for those
//! that have longer prefixes. DPDK's `rte_lpm` is of the same kind; its entries have 4 bytes, ours 2, so that the
//! array is nearer to the size of a third cache.

use super::{Advise, BuildError, NextHop, Plain, Routes};

/// In an entry: the rest is the number of a group.
const IS_GROUP: u16 = 1 << 15;
const FIRST: usize = 1 << 24;
const GROUP: usize = 256;
/// How many addresses of a burst are followed at once.
const LANES: usize = 32;

/// A table of IPv4 that is only read. Next hops up to 32766, and up to 32768 different /24 with longer prefixes in
/// them.
#[derive(Debug)]
pub struct Dir24 {
    first: Box<[u16; FIRST]>,
    groups: Vec<[u16; GROUP]>,
}

impl Dir24 {
    /// The highest number of a next hop.
    pub const NEXT_HOP_MAX: u16 = IS_GROUP - 2;
    /// How many /24 may have longer prefixes in them.
    pub const GROUPS_MAX: usize = IS_GROUP as usize;

    /// From all routes.
    pub fn build(routes: &Routes<u32>) -> Result<Dir24, BuildError> {
        Dir24::build_in(routes, &mut Plain)
    }

    /// As [`build`](Dir24::build), in memory of which `advise` is told.
    pub fn build_in(routes: &Routes<u32>, advise: &mut impl Advise) -> Result<Dir24, BuildError> {
        // Zeroed by the kernel, when it is touched.
        let Ok(mut first) = <Box<[u16; FIRST]>>::try_from(vec![0u16; FIRST].into_boxed_slice()) else {
            unreachable!("it is as long as it was made");
        };
        advise.advise(&mut first[..]);
        let mut groups: Vec<[u16; GROUP]> = Vec::new();
        // The order of prefixes has a shorter one before all that lie in it.
        for route in routes.as_slice() {
            let hop = NextHop::stored(Some(route.next_hop));
            if hop & IS_GROUP != 0 {
                let (routes, limit) = (routes.len(), Dir24::NEXT_HOP_MAX);
                return Err(BuildError::TooManyNextHops { routes, index: hop - 1, limit });
            }
            let (address, length) = (route.prefix.address(), route.prefix.length());
            let at = (address >> 8) as usize;
            if length <= 24 {
                first[at..at + (1 << (24 - length))].fill(hop);
                continue;
            }
            if first[at] & IS_GROUP == 0 {
                if groups.len() == Dir24::GROUPS_MAX {
                    let (routes, limit) = (routes.len(), Dir24::GROUPS_MAX);
                    let advice = "leave out routes longer than /24, or take a poptrie";
                    let what = "groups for /24 with longer prefixes in them";
                    return Err(BuildError::TooLarge { routes, what, limit, advice });
                }
                groups.push([first[at]; GROUP]);
                first[at] = IS_GROUP | (groups.len() - 1) as u16;
            }
            let group = &mut groups[usize::from(first[at] & !IS_GROUP)];
            let low = (address & 0xff) as usize;
            group[low..low + (1 << (32 - length))].fill(hop);
        }
        groups.shrink_to_fit();
        Ok(Dir24 { first, groups })
    }

    /// The next hop of the longest prefix that the address begins with.
    #[inline]
    pub fn lookup(&self, address: u32) -> Option<NextHop> {
        let entry = self.first[(address >> 8) as usize];
        NextHop::from_stored(if entry & IS_GROUP == 0 { entry } else { self.in_group(entry, address) })
    }

    /// As [`lookup`](Dir24::lookup) for each address, into the same place of `out`. What is longer stays as it is.
    pub fn lookup_burst(&self, addresses: &[u32], out: &mut [Option<NextHop>]) {
        for (addresses, out) in addresses.chunks(LANES).zip(out.chunks_mut(LANES)) {
            let mut entries = [0u16; LANES];
            let mut all = 0;
            for (entry, address) in entries.iter_mut().zip(addresses) {
                *entry = self.first[(*address >> 8) as usize];
                all |= *entry;
            }
            if all & IS_GROUP != 0 {
                for (entry, address) in entries.iter_mut().zip(addresses) {
                    if *entry & IS_GROUP != 0 {
                        *entry = self.in_group(*entry, *address);
                    }
                }
            }
            for ((out, entry), _) in out.iter_mut().zip(&entries).zip(addresses) {
                *out = NextHop::from_stored(*entry);
            }
        }
    }

    /// What its arrays take.
    pub fn memory_bytes(&self) -> usize {
        size_of_val(&*self.first) + size_of_val(&*self.groups)
    }

    #[inline(always)]
    fn in_group(&self, entry: u16, address: u32) -> u16 {
        self.groups[usize::from(entry & !IS_GROUP)][(address & 0xff) as usize]
    }
}
