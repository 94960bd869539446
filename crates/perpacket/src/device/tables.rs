//! What the devices of a run share because making it takes long: routing tables.

/// To come.
#[derive(Default)]
pub(crate) struct Tables {}
