//! What threads counted, added up.

use datapath::device::Injected;
use datapath::{Drops, Ledger};
use linux::process;
use measure::ledger::{self, Count};
use measure::record::{
    Datapath as Results, DatapathEvent, DatapathFaults, DatapathMemory, DatapathPort, DatapathQueue,
    DatapathThread,
};

use super::plan::Leftovers;
use super::threads::{Done, Polled, Role};
use crate::device::{DeviceWord, RxMode};
use crate::scenario::Datapath;

/// The account of a run.
pub(crate) struct Account {
    /// Where every packet ended.
    pub(crate) ledger: ledger::Ledger,
    pub(crate) results: Results,
    /// Why it ended early.
    pub(crate) failure: Option<anyhow::Error>,
}

impl Account {
    pub(super) fn new(scenario: &Datapath, mut done: Vec<Done>, leftovers: Leftovers) -> Self {
        let mut failure = done.iter_mut().find_map(|done| done.error.take());
        for sink in &leftovers.sinks {
            failure = failure.or(sink.finish().err());
        }
        let ledger = ledger(scenario, &done);
        let polled = || done.iter().filter_map(|done| Some((done.role, done.polled.as_ref()?)));
        let mut events: Vec<DatapathEvent> = Vec::new();
        for (stage, event, count) in polled().flat_map(|(_, polled)| &polled.events) {
            match events.iter_mut().find(|known| known.stage == *stage && known.event == *event) {
                Some(known) => known.count += count,
                None => events.push(DatapathEvent {
                    stage: (*stage).into(),
                    event: (*event).into(),
                    count: *count,
                    ..DatapathEvent::default()
                }),
            }
        }
        let receiving = || done.iter().filter(|done| done.role == Role::Receive);
        let results = Results {
            wall_ns: receiving().map(|done| done.wall_ns).max().unwrap_or(0),
            threads: done.iter().map(thread).collect(),
            ports: rx_ports(scenario, &done)
                .into_iter()
                .chain(tx_ports(scenario, &done, &leftovers))
                .collect(),
            queues: queues(scenario, &done, &leftovers),
            events,
            faults: scenario.fault.is_some().then(|| faults(&total(&done).injected)),
            memory: memory(scenario.receive.mode == RxMode::Copy, &done, &leftovers),
            ..Results::default()
        };
        Self { ledger, results, failure }
    }
}

/// The frame size where all frames have one.
pub(super) fn frame_bytes(scenario: &Datapath) -> Option<u32> {
    scenario.frames.as_ref().filter(|frames| frames.program.is_none()).map(|frames| frames.frame_bytes)
}

/// The sum of all that receive from devices: what backlogs received was counted before.
fn total(done: &[Done]) -> Ledger {
    let mut sum = Ledger { missed: Some(0), ..Ledger::default() };
    for done in done.iter().filter(|done| done.role == Role::Receive) {
        if let Some(polled) = &done.polled {
            sum.add(&polled.ledger);
        }
    }
    sum
}

/// Where packets ended. What was put into queues must have been read from them: it stands here as their readers
/// counted it.
fn ledger(scenario: &Datapath, done: &[Done]) -> ledger::Ledger {
    let received = total(done);
    let ledgers = || done.iter().filter_map(|done| done.polled.as_ref()).map(|polled| &polled.ledger);
    let made: u64 = ledgers().map(|ledger| ledger.made).sum();
    let names = |words: Vec<&DeviceWord>| {
        let words: Vec<String> = words.into_iter().map(ToString::to_string).collect();
        words.join(" and ")
    };
    let mut seen_by = format!("received from {}", names(scenario.devices.receiving()));
    if made > 0 {
        seen_by += &format!(", and {made} made by stages");
    }
    let sent = Count { packets: received.received + made, seen_by };
    let mut book = ledger::Ledger::new(&format!("datapath {}", scenario.stage), frame_bytes(scenario), sent);
    let transmitted: u64 = ledgers().map(|ledger| ledger.transmitted).sum();
    if !scenario.devices.sending().is_empty() {
        let seen_by = format!("taken by {}", names(scenario.devices.sending()));
        book.received.push(Count { packets: transmitted, seen_by });
    }
    for done in done {
        if let Role::Consumer(port) = done.role {
            book.received
                .push(Count { packets: done.packets, seen_by: format!("reader of UDP port {port}") });
        }
    }
    let mut drops = Drops::default();
    ledgers().for_each(|ledger| drops.add(&ledger.drops));
    for (reason, packets) in drops.iter() {
        let counter = "device under test".into();
        book.drops.push(ledger::Drop { reason: reason.name().into(), counter, packets });
    }
    let held: u64 = ledgers().map(|ledger| ledger.held).sum();
    if held > 0 {
        let (reason, counter) = ("held at the end".into(), "stages and sending queues".into());
        book.drops.push(ledger::Drop { reason, counter, packets: held });
    }
    match received.missed {
        Some(0) => {}
        Some(missed) => book.notes.push(format!("{missed} frames were lost before they were received")),
        None => book.notes.push("whether frames were lost before they were received is not known".into()),
    }
    book
}

fn thread(done: &Done) -> DatapathThread {
    let role = match done.role {
        Role::Receive => "receive",
        Role::Backlog => "backlog",
        Role::Consumer(_) => "consumer",
    };
    DatapathThread {
        role: role.into(),
        cpu: u32::try_from(done.cpu).ok(),
        packets: done.packets,
        wall_ns: done.wall_ns,
        cpu_ns: done.cpu_ns,
        polls: done.polled.as_ref().map(|polled| polled.polls),
        full_polls: done.polled.as_ref().map(|polled| polled.full_polls),
        waits: done.waits,
        ..DatapathThread::default()
    }
}

fn rx_ports(scenario: &Datapath, done: &[Done]) -> Vec<DatapathPort> {
    let of = |(port, word): (usize, &&DeviceWord)| {
        let queues = done.iter().filter(|done| done.role == Role::Receive);
        let totals: Vec<_> = queues.filter_map(|done| done.polled.as_ref()?.rx.get(port).copied()).collect();
        DatapathPort {
            port: port as u32,
            direction: "rx".into(),
            device: word.to_string(),
            packets: totals.iter().map(|queue| queue.received).sum(),
            l2_bytes: None,
            missed: totals.iter().map(|queue| queue.missed).sum(),
            ..DatapathPort::default()
        }
    };
    scenario.devices.receiving().iter().enumerate().map(of).collect()
}

fn tx_ports(scenario: &Datapath, done: &[Done], leftovers: &Leftovers) -> Vec<DatapathPort> {
    let of = |(port, word): (usize, &&DeviceWord)| {
        let queues: Vec<(u64, u64)> = match (word, leftovers.dummies.first()) {
            // Threads may share its queues, and each thread would tell all of a queue.
            (DeviceWord::Dummy { .. }, Some(dummy)) => {
                dummy.totals().iter().map(|queue| (queue.packets, queue.l2_bytes)).collect()
            }
            _ => done
                .iter()
                .filter_map(|done| done.polled.as_ref()?.tx.get(port))
                .map(|queue| (queue.packets, queue.l2_bytes))
                .collect(),
        };
        DatapathPort {
            port: port as u32,
            direction: "tx".into(),
            device: word.to_string(),
            packets: queues.iter().map(|(packets, _)| packets).sum(),
            l2_bytes: Some(queues.iter().map(|(_, l2_bytes)| l2_bytes).sum()),
            missed: None,
            ..DatapathPort::default()
        }
    };
    scenario.devices.sending().iter().enumerate().map(of).collect()
}

fn queues(scenario: &Datapath, done: &[Done], leftovers: &Leftovers) -> Vec<DatapathQueue> {
    let queue = |kind: &str, number: usize, packets, l2_bytes, limit| DatapathQueue {
        kind: kind.into(),
        number: number as u32,
        packets,
        l2_bytes,
        limit,
        ..DatapathQueue::default()
    };
    let mut all = Vec::new();
    for dummy in &leftovers.dummies {
        for (number, totals) in dummy.totals().iter().enumerate() {
            all.push(queue("dummy queue", number, totals.packets, Some(totals.l2_bytes), None));
        }
    }
    for done in done {
        match done.role {
            Role::Consumer(port) => {
                let limit = scenario.udp.as_ref().map(|udp| udp.limit as u64);
                all.push(queue("UDP port", port.into(), done.packets, Some(done.l2_bytes), limit));
            }
            Role::Backlog => {
                let limit = scenario.steer.as_ref().map(|steer| steer.backlog as u64);
                all.push(queue("backlog of CPU", done.cpu, done.packets, None, limit));
            }
            Role::Receive => {}
        }
    }
    all
}

fn faults(injected: &Injected) -> DatapathFaults {
    DatapathFaults {
        dropped: injected.dropped,
        corrupted: injected.corrupted,
        duplicated: injected.duplicated,
        reordered: injected.reordered,
        delayed: injected.delayed,
        held: injected.held,
        ..DatapathFaults::default()
    }
}

fn memory(copies: bool, done: &[Done], leftovers: &Leftovers) -> DatapathMemory {
    let polled = |done: &&Done| done.role == Role::Receive;
    let pinned = |done: &Done| done.polled.as_ref().and_then(|polled: &Polled| polled.pinned_bytes);
    DatapathMemory {
        // Pages that are handed up are their pool's, and it does not tell.
        pinned_bytes: done.iter().filter(polled).map(pinned).sum::<Option<u64>>().filter(|_| copies),
        dummy_queue_bytes: leftovers.dummies.first().map(|dummy| dummy.bytes_per_queue() as u64),
        table_bytes: leftovers.table.map(|table| table.bytes as u64),
        table_huge_bytes: leftovers.table.and_then(|table| table.huge_bytes).map(|bytes| bytes as u64),
        table_prefixes: leftovers.table.map(|table| table.prefixes as u64),
        resident_bytes: process::resident_bytes(),
        ..DatapathMemory::default()
    }
}
