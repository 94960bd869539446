//! The device under test: from words to queues, threads and an account.
//!
//! ```text
//! word, rules   what a person writes
//! design        the choices of a driver's receiving side, and the driver that they make
//! ```

mod design;
mod rules;
mod word;

pub(crate) use design::{Alloc, COPY_BREAK_BYTES, Lock, RxMode, RxQueue, receiver};
pub(crate) use rules::{AddressWord, FaultWord, MacWord, NeighbourWord, Prefix, RouteWord, RuleWord, ports};
pub(crate) use word::{DeviceWord, is_same_file};

/// Whether a device writes its frames into pages of the driver.
pub(crate) fn lands(word: &DeviceWord) -> bool {
    matches!(word, DeviceWord::Synthetic)
}
