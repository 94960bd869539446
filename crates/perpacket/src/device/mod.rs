//! The user-space device under test (crate `datapath`) as the commands make it: which memory, which driver, which frames;
//! and as `perpacket datapath` runs it.
//!
//! ```text
//! word, rules   what a person writes: devices, routes, filter rules, faults
//! design        the choices of a driver's receiving side, and the driver that they make
//! wire          frames on the wire of a synthetic device
//! ```

mod design;
pub(crate) mod hosts;
mod rules;
mod run;
mod wire;
mod word;

pub(crate) use design::{Alloc, COPY_BREAK_BYTES, Lock, RxMode, RxQueue, receiver};
pub(crate) use run::{Account, run};
pub(crate) use rules::{AddressWord, FaultWord, MacWord, NeighbourWord, Prefix, RouteWord, RuleWord, ports};
pub(crate) use wire::{Destinations, Wire};
pub(crate) use word::{DeviceWord, is_same_file};

/// Whether a device writes its frames into pages of the driver.
pub(crate) fn lands(word: &DeviceWord) -> bool {
    matches!(word, DeviceWord::Synthetic | DeviceWord::AfXdp { .. })
}
