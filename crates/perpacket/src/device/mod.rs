//! The user-space device under test (crate `datapath`) as the commands make it: which memory, which driver, which frames, which
//! stages; and as `perpacket datapath` runs it.
//!
//! ```text
//! design        the choices of a driver's receiving side, and the driver that they make
//! wire          frames on the wire of a synthetic device
//! check, lane, tables   what a path of `ab` in user space is made of
//! word, rules   what a person writes: devices, routes, filter rules, faults
//! hosts         the network around a synthetic device, where nothing is said
//! run           `perpacket datapath`: devices opened, joined, run by threads, and accounted for
//! ```

mod check;
mod design;
pub(crate) mod hosts;
mod lane;
mod rules;
mod run;
mod tables;
mod wire;
mod word;

pub(crate) use check::{check, check_memory, refuse_in_the_kernel};
pub(crate) use design::{Alloc, Lock, RxMode, RxQueue, page_pool, receiver};
pub(crate) use lane::{Lane, Sent};
pub(crate) use rules::{
    AddressWord, FaultWord, MacWord, NeighbourWord, Prefix, RouteWord, RuleWord, parse_mac, ports,
};
pub(crate) use run::{Account, ReadQueue, Standing, Standings, forget, run};
pub(crate) use tables::Tables;
pub(crate) use wire::{Destinations, Wire};
/// Frame sizes that the device in user space takes, in bytes with the FCS: to jumbo frames with a VLAN tag.
pub(crate) const FRAME_BYTES: std::ops::RangeInclusive<u32> = 64..=9_216;
/// The most prefixes that can be made up for a routing table: more /24 and shorter ones than these leave little choice.
pub(crate) const MAX_PREFIXES: u32 = 4_000_000;

pub(crate) use word::{DeviceWord, is_same_file};

/// Whether a device writes its frames into pages of the driver.
pub(crate) fn lands(word: &DeviceWord) -> bool {
    matches!(word, DeviceWord::Synthetic | DeviceWord::AfXdp { .. })
}
