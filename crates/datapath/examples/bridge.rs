//! Passes every frame of one device to another, in both directions: `bridge af-packet|af-xdp|af-xdp-copy DEV DEV SECONDS [CPU]`.
//!
//! For comparison with `dpdk-testpmd --forward-mode=io`. Prints what it passed on, and its ledger.

#![allow(clippy::print_stdout, reason = "what it is for")]

use std::time::{Duration, Instant};

use datapath::device::{AfPacketRx, AfPacketTx, AfPacketTxSpec, AfXdp, AfXdpSpec, PacketMemory, Transmit};
use datapath::receive::{Copying, Handing, Paged, Poll, Receive};
use datapath::stage::Stage;
use datapath::{BUDGET, Batch, Verdict, Worker};
use linux::packet::SlotRingSpec;
use linux::route::RouteSocket;
use pagefrag::Source;

type Port = (Box<dyn Receive>, Box<dyn Transmit>);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kind, left, right, seconds, rest @ ..] = &arguments[..] else {
        return Err("bridge KIND DEV DEV SECONDS [CPU]".into());
    };
    if let [cpu] = rest {
        linux::cpu::pin(cpu.parse()?)?;
    }
    let mut route = RouteSocket::open()?;
    let memory = PacketMemory::new(2 * AfXdpSpec::new(0).pages())?;
    let mut ports = Vec::new();
    for name in [left, right] {
        let link = route.link_by_name(name)?.ok_or("no such device")?;
        ports.push(open(kind, link.ifindex, &memory)?);
    }
    let (Some(second), Some(first)) = (ports.pop(), ports.pop()) else { return Ok(()) };
    let mut worker = Worker::new(first.0).receive(second.0).stage(Cross).port(first.1).port(second.1);
    let (end, start_ns) =
        (Instant::now() + Duration::from_secs_f64(seconds.parse()?), linux::clock::thread_cpu_ns());
    let mut busy = 0_u64;
    while Instant::now() < end {
        for _ in 0..1000 {
            busy += u64::from(worker.poll(BUDGET, 0)? > 0);
        }
    }
    let cpu_ns = linux::clock::thread_cpu_ns() - start_ns;
    for _ in 0..1000 {
        worker.settle()?;
    }
    let ledger = worker.ledger();
    println!(
        "transmitted {} in {} ms of CPU, {busy} polls with frames",
        ledger.transmitted,
        cpu_ns / 1_000_000
    );
    println!("{ledger:?}");
    Ok(())
}

fn open(kind: &str, ifindex: u32, memory: &PacketMemory) -> Result<Port, Box<dyn std::error::Error>> {
    let buffers = Poll::new(Source::default().share());
    if kind == "af-packet" {
        let rx = AfPacketRx::open(ifindex, &SlotRingSpec::default())?;
        let tx = AfPacketTx::open(ifindex, &AfPacketTxSpec::default())?;
        return Ok((Box::new(Copying::new(Box::new(rx), buffers)), Box::new(tx)));
    }
    let mut opened = AfXdp::open(memory, &AfXdpSpec::new(ifindex))?;
    let (rx, tx) = opened.queues.pop().ok_or("no queue")?;
    let handing = if kind == "af-xdp" { Handing::Page } else { Handing::Copy };
    let rx = Paged::new(Box::new(rx), memory.pool(), buffers, handing, 1514);
    Ok((Box::new(rx), Box::new(tx)))
}

struct Cross;

impl Stage for Cross {
    fn name(&self) -> &'static str {
        "cross"
    }

    fn run(&mut self, batch: &mut Batch, _now_ns: u64) {
        batch.decide_rest(Verdict::Transmit(1 - batch.ingress()));
    }
}
