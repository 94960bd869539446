//! The allocators that are compared, one file for each family.

pub(crate) mod fragments;
pub(crate) mod general;
pub(crate) mod plain;
pub(crate) mod pool;
