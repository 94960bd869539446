//! A packet field by field.

use std::fmt::Write as _;

use crate::proto::{self, Field, Id, Proto, Show};

/// Decodes an Ethernet frame without FCS into text: one line a header, one line a field with its offset.
pub fn explain(frame: &[u8]) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{} {}", proto::of(Id::Eth).names[0], frame.len());
    out
}
