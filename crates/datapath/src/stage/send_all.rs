//! Sending everything on, unread.

use super::Stage;
use crate::{Batch, Verdict};

/// Sends every packet out of one port before it looks at a byte: what is left is the cost of receiving and of sending.
#[derive(Debug)]
pub struct SendAll {
    port: u8,
}

impl SendAll {
    /// Out of this port.
    pub fn new(port: u8) -> Self {
        Self { port }
    }
}

impl Stage for SendAll {
    fn name(&self) -> &'static str {
        "send all"
    }

    fn run(&mut self, batch: &mut Batch, _now_ns: u64) {
        batch.decide_rest(Verdict::Transmit(self.port));
    }
}
