//! Dropping everything at once.

use super::Stage;
use crate::{Batch, Reason, Verdict};

/// Drops every packet before it looks at a byte: what is left is the cost of receiving, as an XDP program or a rule
/// in the raw table measures it.
#[derive(Debug, Default)]
pub struct EarlyDrop;

impl Stage for EarlyDrop {
    fn name(&self) -> &'static str {
        "early drop"
    }

    fn run(&mut self, batch: &mut Batch, _now_ns: u64) {
        batch.decide_rest(Verdict::Drop(Reason::Early));
    }
}
