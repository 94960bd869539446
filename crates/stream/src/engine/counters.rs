//! What flows count: written by the thread that has the flow, read by whoever reports.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use super::marks::Arrivals;
use crate::outcome::{Datagrams, Latency, Moved};

/// Counters of one flow in one phase, on cache lines of their own (two: CPUs fetch lines in pairs). Only one thread writes, so
/// that adding is a load and a store.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Counters {
    sent_bytes: AtomicU64,
    sent_messages: AtomicU64,
    refused: AtomicU64,
    received_bytes: AtomicU64,
    received_messages: AtomicU64,
    transactions: AtomicU64,
}

/// All of them at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) sent: Moved,
    pub(super) received: Moved,
    pub(super) transactions: u64,
}

fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Relaxed) + count, Relaxed);
}

impl Counters {
    pub(super) fn sent(&self, bytes: u64, messages: u64) {
        add(&self.sent_bytes, bytes);
        add(&self.sent_messages, messages);
    }

    pub(super) fn refused(&self, messages: u64) {
        add(&self.refused, messages);
    }

    pub(super) fn received(&self, bytes: u64, messages: u64) {
        add(&self.received_bytes, bytes);
        add(&self.received_messages, messages);
    }

    pub(super) fn transactions(&self, count: u64) {
        add(&self.transactions, count);
    }

    pub(super) fn read(&self) -> Counts {
        Counts {
            sent: Moved {
                bytes: self.sent_bytes.load(Relaxed),
                messages: self.sent_messages.load(Relaxed),
                refused: self.refused.load(Relaxed),
            },
            received: Moved {
                bytes: self.received_bytes.load(Relaxed),
                messages: self.received_messages.load(Relaxed),
                refused: 0,
            },
            transactions: self.transactions.load(Relaxed),
        }
    }
}

impl Counts {
    /// What came since `before`; each counter only grows.
    pub(super) fn since(self, before: Self) -> Self {
        let moved = |now: Moved, before: Moved| Moved {
            bytes: now.bytes - before.bytes,
            messages: now.messages - before.messages,
            refused: now.refused - before.refused,
        };
        Self {
            sent: moved(self.sent, before.sent),
            received: moved(self.received, before.received),
            transactions: self.transactions - before.transactions,
        }
    }

    /// Something that grows whenever anything moves.
    pub(super) fn motion(self) -> u64 {
        let Self { sent, received, transactions } = self;
        sent.messages
            .wrapping_add(received.messages)
            .wrapping_add(transactions)
            .wrapping_add(sent.bytes)
            .wrapping_add(received.bytes)
    }
}

/// What is known of one flow while it runs.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// While omitting.
    pub(super) omitted: Counters,
    /// What counts.
    pub(super) counted: Counters,
    /// When counting began, and when the last call ended; 0 before.
    pub(super) begin_ns: AtomicU64,
    pub(super) end_ns: AtomicU64,
    pub(super) over: AtomicBool,
    pub(super) found: Mutex<Found>,
}

/// What the thread of a flow says at its end.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Datagrams that come. Held for a call of the kernel's results at a time, so that an interval ends between two calls.
    pub(super) arrivals: Option<Arrivals>,
    /// What requests over datagrams became.
    pub(super) answers: Option<Datagrams>,
    pub(super) latency: Option<Latency>,
    pub(super) warnings: Vec<String>,
}

impl Account {
    pub(super) fn counters(&self, counting: bool) -> &Counters {
        if counting { &self.counted } else { &self.omitted }
    }
}
