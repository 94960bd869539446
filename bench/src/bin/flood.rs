//! A flood for `bench/receivers`: packets of a program in the packet language, written in the kernel and injected into the receive
//! path of a device of the calling namespace, as if it had received them. No device is in the way, so that one CPU makes more
//! than sockets can take.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Parser;
use ebpf::Assembler;
use linux::route::RouteSocket;
use template::{LowerError, LoweredLength, ParseOptions, Program};
use traffic::programs::{Destination, GeneratorProgram};
use traffic::{BackendKind, Generator, LiveGenerator, LiveSpec, Pace};

/// Packets of a program, injected into the receive path of a device, or sent out of it
#[derive(Debug, Parser)]
#[command(name = "flood", version)]
struct Args {
    /// File with the program
    program: PathBuf,
    /// Device that is to have received the packets; never one with a default route
    #[arg(long)]
    device: String,
    /// Send them out of the device, without its queue (XDP redirect), rather than let it have received them
    #[arg(long)]
    over: bool,
    /// How many packets
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    count: u64,
    /// Packets a second; as many as go without it
    #[arg(long)]
    rate: Option<f64>,
    /// CPU that makes and delivers them
    #[arg(long, default_value_t = 0)]
    cpu: usize,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            drop(writeln!(std::io::stderr(), "flood: {error:#}"));
            ExitCode::from(2)
        }
    }
}

fn run(args: &Args) -> Result<()> {
    linux::cpu::pin(args.cpu).with_context(|| format!("pin to CPU {}", args.cpu))?;
    let mut route = RouteSocket::open()?;
    let link =
        route.link_by_name(&args.device)?.with_context(|| format!("no device is called {}", args.device))?;
    let carries_default = route.default_route_ifindexes()?.contains(&link.ifindex);
    ensure!(!carries_default, "{} has a default route: use one of a namespace made for this", args.device);
    let text =
        std::fs::read_to_string(&args.program).with_context(|| format!("read {}", args.program.display()))?;
    let compiled = Program::parse(&text, &ParseOptions::default()).map_err(|error| anyhow!("{error}"))?;
    let emitter = compiled.plan.emitter(0, 1, 0)?;
    let write = |asm: &mut Assembler, packet, index, scratch| {
        if let LoweredLength::InRegister(length) = emitter.lower_with_length(asm, packet, index, scratch)? {
            asm.mov(GeneratorProgram::<LowerError>::LENGTH, length);
        }
        Ok::<(), LowerError>(())
    };
    let interval_ns = args.rate.map(|rate| 1e9 / rate);
    let (kind, destination) = if args.over {
        (BackendKind::XdpLive, Destination::Device(link.ifindex))
    } else {
        (BackendKind::Inject, Destination::Stack)
    };
    let mut generator = LiveGenerator::new(&LiveSpec {
        kind,
        destination,
        ingress_ifindex: link.ifindex,
        rx_queue: 0,
        frame: emitter.longest(),
        header_bytes: emitter.lowered_bytes(),
        write_packet: &write,
        shortens: false,
        pace: interval_ns.map(|interval_ns| Pace { start_ns: linux::clock::monotonic_ns(), interval_ns }),
        batch: Some(64),
    })?;
    let start = Instant::now();
    let sent = generator.send(args.count, &AtomicBool::new(false))? + generator.flush()?;
    let seconds = start.elapsed().as_secs_f64();
    if sent.confirmed != args.count {
        bail!("{} of {} packets were made", sent.confirmed, args.count);
    }
    let line = format!("sent {} packets in {seconds:.3} s\n", sent.confirmed);
    std::io::stdout().write_all(line.as_bytes()).context("print the result")
}
