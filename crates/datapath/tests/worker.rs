//! The poll loop accounts for every packet, whatever stages and devices do.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use datapath::device::{DeviceError, Dummy, RxTotals, Transmit, TxLock, TxTotals};
use datapath::queue::{Inlet, bounded};
use datapath::receive::{Receive, ReceiveTotals};
use datapath::stage::Stage;
use datapath::{Batch, Reason, Verdict, Worker};
use pagefrag::PacketBuf;
use proptest::prelude::*;

/// Packets of one byte, which says what is to become of them.
struct Script {
    fates: Vec<u8>,
    next: usize,
}

impl Receive for Script {
    fn poll(&mut self, budget: usize, batch: &mut Batch) -> Result<usize, DeviceError> {
        let end = self.fates.len().min(self.next + budget);
        for fate in &self.fates[self.next..end] {
            batch.push(PacketBuf::from(pagefrag::Piece::from(vec![*fate])));
        }
        let frames = end - self.next;
        self.next = end;
        Ok(frames)
    }

    fn reclaim(&mut self, packets: &mut Vec<PacketBuf>) {
        packets.clear();
    }

    fn wait(&mut self, _timeout: Duration) -> Result<(), DeviceError> {
        Ok(())
    }

    fn ended(&self) -> bool {
        self.next == self.fates.len()
    }

    fn totals(&mut self) -> ReceiveTotals {
        let queue = RxTotals { received: self.next as u64, missed: Some(0), ..RxTotals::default() };
        ReceiveTotals { queue, ..ReceiveTotals::default() }
    }

    fn pinned_bytes(&self) -> Option<u64> {
        None
    }
}

/// Does what the packet's byte says.
#[derive(Default)]
struct Fate {
    held: Vec<PacketBuf>,
    made: u64,
}

impl Stage for Fate {
    fn name(&self) -> &'static str {
        "fate"
    }

    fn run(&mut self, batch: &mut Batch, _now_ns: u64) {
        for index in 0..batch.len() {
            match batch.packet(index).data()[0] {
                0 => {}
                1 => batch.decide(index, Verdict::Drop(Reason::Filter)),
                2 => batch.decide(index, Verdict::Transmit(0)),
                3 => batch.decide(index, Verdict::Transmit(1)),
                4 => batch.decide(index, Verdict::Transmit(200)),
                5 => batch.decide(index, Verdict::Deliver(0)),
                6 => batch.decide(index, Verdict::Deliver(9)),
                7 => {
                    let packet = batch.hold(index);
                    self.held.push(packet);
                }
                _ => {
                    let new = PacketBuf::from(pagefrag::Piece::from(vec![2]));
                    batch.push_decided(new, Verdict::Transmit(0));
                    self.made += 1;
                }
            }
        }
    }

    fn made(&self) -> u64 {
        self.made
    }

    fn held(&self) -> u64 {
        self.held.len() as u64
    }

    fn release(&mut self, batch: &mut Batch) {
        for packet in self.held.drain(..) {
            batch.push_decided(packet, Verdict::Drop(Reason::NoNeighbour));
        }
    }
}

/// A device that takes so many packets a call, and is done with them one call later.
#[derive(Default)]
struct Slow {
    room: usize,
    sending: Vec<PacketBuf>,
    packets: u64,
}

impl Transmit for Slow {
    fn transmit(
        &mut self,
        packets: &mut Vec<PacketBuf>,
        done: &mut Vec<PacketBuf>,
    ) -> Result<(), DeviceError> {
        self.complete(done)?;
        let taken = packets.len().min(self.room);
        self.packets += taken as u64;
        self.sending.extend(packets.drain(..taken));
        Ok(())
    }

    fn complete(&mut self, done: &mut Vec<PacketBuf>) -> Result<(), DeviceError> {
        done.append(&mut self.sending);
        Ok(())
    }

    fn held(&self) -> u64 {
        self.sending.len() as u64
    }

    fn totals(&mut self) -> TxTotals {
        TxTotals { packets: self.packets, l2_bytes: self.packets, too_long: 0 }
    }
}

fn drained(inlet: &mut Inlet) -> u64 {
    std::iter::from_fn(|| inlet.pop()).count() as u64
}

proptest! {
    #[test]
    fn every_packet_has_one_end(
        fates in prop_oneof![
            prop::collection::vec(0u8..9, 0..500),
            (0u8..9, 0usize..300).prop_map(|(fate, count)| vec![fate; count]),
        ],
        room in 0usize..80,
        limit in 1usize..100,
        budget in 1usize..100,
    ) {
        let count = |fate: u8| fates.iter().filter(|other| **other == fate).count() as u64;
        let dummy = Dummy::new(1, TxLock::Queue);
        let (outlet, mut inlet) = bounded(limit, Reason::SocketFull);
        let mut worker = Worker::new(Box::new(Script { fates: fates.clone(), next: 0 }))
            .stage(Fate::default())
            .port(Box::new(dummy.queue(0).unwrap()))
            .port(Box::new(Slow { room, ..Slow::default() }))
            .outlet(outlet);
        while !worker.ended() {
            worker.poll(budget, 0).unwrap();
            prop_assert!(worker.ledger().closes(), "{:?}", worker.ledger());
        }
        prop_assert_eq!(worker.ledger().held >= count(7), true);
        for _ in 0..2 {
            worker.settle().unwrap();
        }
        let ledger = worker.ledger();
        prop_assert!(ledger.closes(), "{:?}", ledger);
        prop_assert_eq!(ledger.held, 0);
        prop_assert_eq!((ledger.received, ledger.made), (fates.len() as u64, count(8)));
        prop_assert_eq!(ledger.drops.of(Reason::Filter), count(1));
        prop_assert_eq!(ledger.drops.of(Reason::Undecided), count(0) + count(4) + count(8));
        prop_assert_eq!(ledger.drops.of(Reason::NoSocket), count(6));
        prop_assert_eq!(ledger.drops.of(Reason::NoNeighbour), count(7));
        prop_assert_eq!(dummy.totals()[0].packets, count(2) + count(8));
        prop_assert_eq!(ledger.delivered, drained(&mut inlet));
        prop_assert_eq!(ledger.delivered + ledger.drops.of(Reason::SocketFull), count(5));
        let slow = ledger.transmitted - count(2) - count(8);
        prop_assert_eq!(slow + ledger.drops.of(Reason::TxFull), count(3));
    }
}

/// A device that takes some packets and then fails.
struct Failing(usize);

impl Transmit for Failing {
    fn transmit(
        &mut self,
        packets: &mut Vec<PacketBuf>,
        done: &mut Vec<PacketBuf>,
    ) -> Result<(), DeviceError> {
        done.extend(packets.drain(..self.0.min(packets.len())));
        Err(DeviceError::Setup("the link is down".into()))
    }

    fn totals(&mut self) -> TxTotals {
        TxTotals::default()
    }
}

#[test]
fn the_account_closes_when_a_device_fails() {
    let dummy = Dummy::new(1, TxLock::Queue);
    let mut worker = Worker::new(Box::new(Script { fates: vec![2, 3, 2, 3, 3, 2], next: 0 }))
        .stage(Fate::default())
        .port(Box::new(Failing(1)))
        .port(Box::new(dummy.queue(0).unwrap()));
    worker.poll(64, 0).unwrap_err();
    let ledger = worker.ledger();
    assert!(ledger.closes(), "{ledger:?}");
    assert_eq!((ledger.transmitted, ledger.drops.of(Reason::TxFull)), (1 + 3, 2));
    assert_eq!(dummy.totals()[0].packets, 3, "the other port goes on");
}
