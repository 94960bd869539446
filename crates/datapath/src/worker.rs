//! The poll loop: receive, stages, send, and an account of every packet.

use std::time::Duration;

use pagefrag::PacketBuf;

use crate::batch::{BUDGET, Batch, Verdict};
use crate::device::{DeviceError, RxTotals, Transmit, TxTotals};
use crate::ledger::{Drops, Ledger};
use crate::queue::Outlet;
use crate::reason::Reason;
use crate::receive::Receive;
use crate::stage::Stage;

/// How long a worker with several queues waits at one of them.
const SHARED_WAIT: Duration = Duration::from_micros(50);

/// One poll loop with all that it owns: nothing in it is shared but what its devices and queues share.
///
/// It may have several receiving queues, and then polls them in turn: so that a router's two ports share its neighbours.
pub struct Worker {
    /// With the port that each belongs to.
    receives: Vec<(u8, Box<dyn Receive>)>,
    stages: Vec<Box<dyn Stage>>,
    ports: Vec<Box<dyn Transmit>>,
    outlets: Vec<Outlet>,
    batch: Batch,
    /// Packets sorted out of a batch, by port.
    leaving: Vec<Vec<PacketBuf>>,
    done: Vec<PacketBuf>,
    drops: Drops,
    taken: u64,
    delivered: u64,
    polls: u64,
    full_polls: u64,
}

impl Worker {
    /// A loop around one receiving queue: that of port 0.
    pub fn new(receive: Box<dyn Receive>) -> Self {
        Self {
            receives: vec![(0, receive)],
            stages: Vec::new(),
            ports: Vec::new(),
            outlets: Vec::new(),
            batch: Batch::new(),
            leaving: Vec::new(),
            done: Vec::with_capacity(4 * BUDGET),
            drops: Drops::default(),
            taken: 0,
            delivered: 0,
            polls: 0,
            full_polls: 0,
        }
    }

    /// With one more receiving queue: that of the next port.
    #[must_use]
    pub fn receive(self, receive: Box<dyn Receive>) -> Self {
        let next = self.receives.iter().map(|(port, _)| port + 1).max().unwrap_or(0);
        self.receive_at(next, receive)
    }

    /// With one more receiving queue, of this port: the backlog that another worker steers packets of the port to.
    #[must_use]
    pub fn receive_at(mut self, port: u8, receive: Box<dyn Receive>) -> Self {
        self.receives.push((port, receive));
        self
    }

    /// With one more stage, after those before.
    #[must_use]
    pub fn stage(mut self, stage: impl Stage + 'static) -> Self {
        self.stages.push(Box::new(stage));
        self
    }

    /// With one more port: the first is [`Verdict::Transmit`] 0.
    #[must_use]
    pub fn port(mut self, port: Box<dyn Transmit>) -> Self {
        self.ports.push(port);
        self.leaving.push(Vec::with_capacity(2 * BUDGET));
        self
    }

    /// With one more queue to deliver to: the first is [`Verdict::Deliver`] 0.
    #[must_use]
    pub fn outlet(mut self, outlet: Outlet) -> Self {
        self.outlets.push(outlet);
        self
    }

    /// Takes up to `budget` packets (at most [`BUDGET`]) of each receiving queue all the way; how many frames there were.
    pub fn poll(&mut self, budget: usize, now_ns: u64) -> Result<usize, DeviceError> {
        let budget = budget.min(BUDGET);
        let mut frames = 0;
        for at in 0..self.receives.len() {
            let (port, receive) = &mut self.receives[at];
            let found = receive.poll(budget, &mut self.batch)?;
            self.batch.ingress = *port;
            self.polls += 1;
            self.full_polls += u64::from(found == budget);
            for stage in &mut self.stages {
                stage.run(&mut self.batch, now_ns);
            }
            self.dispatch(at)?;
            frames += found;
        }
        Ok(frames)
    }

    /// Waits until there may be packets, for a time at most. With several queues it waits at the first, and only for as
    /// long as that is without harm to the others.
    pub fn wait(&mut self, timeout: Duration) -> Result<(), DeviceError> {
        let one = self.receives.len() == 1;
        self.receives[0].1.wait(if one { timeout } else { timeout.min(SHARED_WAIT) })
    }

    /// Whether no packet will come any more.
    pub fn ended(&self) -> bool {
        self.receives.iter().all(|(_, receive)| receive.ended())
    }

    /// Lets stages give up what they hold, and devices finish what they send: to be called until [`Ledger::held`] is 0.
    pub fn settle(&mut self) -> Result<(), DeviceError> {
        for stage in &mut self.stages {
            stage.release(&mut self.batch);
        }
        self.dispatch(0)
    }

    /// Where every packet ended so far.
    pub fn ledger(&mut self) -> Ledger {
        let mut ledger = Ledger { missed: Some(0), drops: self.drops.clone(), ..Ledger::default() };
        for (_, receive) in &mut self.receives {
            let totals = receive.totals();
            ledger.received += totals.queue.received;
            ledger.missed = ledger.missed.zip(totals.queue.missed).map(|(sum, more)| sum + more);
            ledger.injected.add(&totals.queue.injected);
            ledger.drops.count(Reason::NoBuffer, totals.no_buffer);
            ledger.drops.count(Reason::TooLong, totals.too_long);
        }
        let sending: u64 = self.ports.iter().map(|port| port.held()).sum();
        let too_long: u64 = self.ports.iter_mut().map(|port| port.totals().too_long).sum();
        ledger.drops.count(Reason::TooLong, too_long);
        ledger.made = self.stages.iter().map(|stage| stage.made()).sum();
        ledger.held = sending + self.stages.iter().map(|stage| stage.held()).sum::<u64>();
        ledger.transmitted = self.taken - sending - too_long;
        ledger.delivered = self.delivered;
        ledger
    }

    /// What stages did beside deciding: stage, event, count.
    pub fn events(&self) -> Vec<(&'static str, &'static str, u64)> {
        let of = |stage: &dyn Stage| {
            let name = stage.name();
            stage.events().into_iter().map(move |(event, count)| (name, event, count))
        };
        self.stages.iter().flat_map(|stage| of(stage.as_ref())).collect()
    }

    /// Memory that packets and caches of the receiving side keep from other use, in bytes; where it can be told.
    pub fn pinned_bytes(&self) -> Option<u64> {
        self.receives.iter().map(|(_, receive)| receive.pinned_bytes()).sum()
    }

    /// What each receiving queue counted, by port.
    pub fn rx_totals(&mut self) -> Vec<RxTotals> {
        self.receives.iter_mut().map(|(_, receive)| receive.totals().queue).collect()
    }

    /// What each port counted that is sent to.
    pub fn tx_totals(&mut self) -> Vec<TxTotals> {
        self.ports.iter_mut().map(|port| port.totals()).collect()
    }

    /// Polls so far, and those of them that used their whole budget.
    pub fn polls(&self) -> (u64, u64) {
        (self.polls, self.full_polls)
    }

    /// Sends every packet of the batch where its verdict says.
    fn dispatch(&mut self, from: usize) -> Result<(), DeviceError> {
        match self.batch.verdicts.first() {
            Some(&all) if self.batch.verdicts.iter().all(|verdict| *verdict == all) => self.send_whole(all),
            Some(_) => self.sort_out(),
            None => {}
        }
        self.batch.verdicts.clear();
        let mut result = Ok(());
        for (port, leaving) in self.ports.iter_mut().zip(&mut self.leaving) {
            if leaving.is_empty() {
                result = result.and(port.complete(&mut self.done));
                continue;
            }
            let offered = leaving.len();
            // A device that fails leaves what it has not taken, as one without room does: all of it is accounted for.
            result = result.and(port.transmit(leaving, &mut self.done));
            self.taken += (offered - leaving.len()) as u64;
            self.drops.count(Reason::TxFull, leaving.len() as u64);
            self.done.append(leaving);
        }
        self.receives[from].1.reclaim(&mut self.done);
        result
    }

    /// A batch with one verdict: nothing is moved.
    fn send_whole(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Drop(reason) => {
                self.drops.count(reason, self.batch.len() as u64);
                swap_or_append(&mut self.batch.packets, &mut self.done);
            }
            Verdict::Transmit(port) if usize::from(port) < self.ports.len() => {
                swap_or_append(&mut self.batch.packets, &mut self.leaving[usize::from(port)]);
            }
            _ => self.sort_out(),
        }
    }

    fn sort_out(&mut self) {
        let Self { batch, leaving, outlets, done, drops, delivered, .. } = self;
        for (packet, verdict) in batch.packets.drain(..).zip(&batch.verdicts) {
            let reason = match *verdict {
                Verdict::Held => continue,
                Verdict::Drop(reason) => reason,
                Verdict::Pass => Reason::Undecided,
                Verdict::Transmit(port) => match leaving.get_mut(usize::from(port)) {
                    Some(leaving) => {
                        leaving.push(packet);
                        continue;
                    }
                    None => Reason::Undecided,
                },
                Verdict::Deliver(queue) => match outlets.get_mut(usize::from(queue)) {
                    Some(outlet) => match outlet.push(packet) {
                        Ok(()) => {
                            *delivered += 1;
                            continue;
                        }
                        Err(refused) => {
                            drops.count(outlet.reason(), 1);
                            done.push(refused);
                            continue;
                        }
                    },
                    None => Reason::NoSocket,
                },
            };
            drops.count(reason, 1);
            done.push(packet);
        }
    }
}

/// Packets from one list to the end of another, without moving them where that is empty.
fn swap_or_append(from: &mut Vec<PacketBuf>, to: &mut Vec<PacketBuf>) {
    if to.is_empty() {
        std::mem::swap(from, to);
    } else {
        to.append(from);
    }
}
