//! A receiver of UDP flows as `bench/receivers` sets it beside others: a socket and a thread for each port, that reads in batches
//! and does nothing else. It ends on SIGTERM or SIGINT, and prints what it took.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::{Parser, ValueEnum};
use linux::udp::{ReceiverSpec, UdpReceiver};
use signal_hook::consts::{SIGINT, SIGTERM};

/// How long a thread waits before it looks whether the end was asked for.
const WAIT: Duration = Duration::from_millis(100);

/// A socket and a thread for each port, read with recvmmsg
#[derive(Debug, Parser)]
#[command(name = "receive", version)]
struct Args {
    /// Address to receive at
    #[arg(long)]
    address: IpAddr,
    /// The first port
    #[arg(long, default_value_t = 5000)]
    port: u16,
    /// How many ports, one after the other
    #[arg(long, default_value_t = 8)]
    ports: u16,
    /// Messages in a call
    #[arg(long, default_value_t = 64)]
    batch: usize,
    /// Socket memory, in bytes
    #[arg(long, default_value_t = 1 << 20)]
    buffer: usize,
    /// Take datagrams of a flow that were joined as one message
    #[arg(long)]
    gro: bool,
    /// How to wait: in the receiving call, in poll(2) before it, or asleep for a pause whatever comes, so that datagrams gather
    /// and none wakes the thread
    #[arg(long, value_enum, default_value_t = Wait::Call)]
    wait: Wait,
    /// The pause, in µs; the sockets must hold what comes meanwhile
    #[arg(long, default_value_t = 500)]
    pause_us: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Wait {
    Call,
    Poll,
    Pause,
}

/// What one socket took.
#[derive(Debug, Clone, Copy, Default)]
struct Taken {
    datagrams: u64,
    calls: u64,
    drops: u64,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            drop(writeln!(std::io::stderr(), "receive: {error:#}"));
            ExitCode::from(2)
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let over = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&over)).context("listen to signals")?;
    }
    let sockets = (0..args.ports).map(|number| {
        let address = SocketAddr::new(args.address, args.port + number);
        UdpReceiver::bind(&ReceiverSpec {
            receive_buffer_bytes: args.buffer,
            batch: args.batch,
            gro: args.gro,
            ..ReceiverSpec::new(address)
        })
    });
    let sockets: Vec<_> = sockets.collect::<Result<_, _>>()?;
    let mut threads = Vec::new();
    for socket in sockets {
        let (over, wait, pause) = (Arc::clone(&over), args.wait, Duration::from_micros(args.pause_us));
        threads.push(thread::spawn(move || receive(socket, wait, pause, &over)));
    }
    let mut sum = Taken::default();
    for thread in threads {
        let taken = thread.join().map_err(|_| anyhow!("a receiving thread panicked"))??;
        sum.datagrams += taken.datagrams;
        sum.calls += taken.calls;
        sum.drops += taken.drops;
    }
    let line = format!("datagrams {} calls {} drops {}\n", sum.datagrams, sum.calls, sum.drops);
    std::io::stdout().write_all(line.as_bytes()).context("print the result")
}

fn receive(mut socket: UdpReceiver, wait: Wait, pause: Duration, over: &AtomicBool) -> Result<Taken> {
    let mut taken = Taken::default();
    while !over.load(Ordering::Relaxed) {
        let batch = match wait {
            Wait::Call => socket.recv_wait(WAIT)?,
            Wait::Poll => {
                let batch = socket.recv_batch()?;
                if batch.slots == 0 {
                    socket.wait_readable(WAIT)?;
                }
                batch
            }
            Wait::Pause => {
                let batch = socket.recv_batch()?;
                if batch.slots == 0 {
                    thread::sleep(pause);
                }
                batch
            }
        };
        taken.datagrams += batch.datagrams as u64;
        taken.calls += 1;
    }
    taken.drops = socket.drops()?;
    Ok(taken)
}
