//! A receiver of UDP flows as `bench/receivers` sets it beside others: a socket for each port, that is read in batches by a thread
//! of its own, or all of them by one thread, and nothing else. It ends on SIGTERM or SIGINT, and prints what it took.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::{Parser, ValueEnum};
use linux::epoll::Epoll;
use linux::udp::{ReceiverSpec, UdpReceiver};
use signal_hook::consts::{SIGINT, SIGTERM};

/// How long a thread waits before it looks whether the end was asked for.
const WAIT: Duration = Duration::from_millis(100);

/// A socket for each port, read with recvmmsg
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
    /// Bytes of a datagram that are kept
    #[arg(long, default_value_t = 64)]
    keep: usize,
    /// One thread for all sockets, which waits for them with epoll(7), takes a batch of each that has something, and waits again
    #[arg(long)]
    epoll: bool,
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
            datagram_bytes: args.keep,
            gro: args.gro,
            ..ReceiverSpec::new(address)
        })
    });
    let sockets: Vec<_> = sockets.collect::<Result<_, _>>()?;
    let (wait, pause) = (args.wait, Duration::from_micros(args.pause_us));
    let (batch, mut threads) = (args.batch, Vec::new());
    if args.epoll {
        let over = Arc::clone(&over);
        threads.push(thread::spawn(move || receive_all(sockets, batch, wait, pause, &over)));
    } else {
        for socket in sockets {
            let over = Arc::clone(&over);
            threads.push(thread::spawn(move || receive(socket, wait, pause, &over)));
        }
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

/// All sockets in one thread.
fn receive_all(
    mut sockets: Vec<UdpReceiver>,
    batch_size: usize,
    wait: Wait,
    pause: Duration,
    over: &AtomicBool,
) -> Result<Taken> {
    let mut taken = Taken::default();
    let mut epoll = Epoll::new()?;
    for (number, socket) in sockets.iter().enumerate() {
        epoll.add(socket, number as u32)?;
    }
    while !over.load(Ordering::Relaxed) {
        let mut full = false;
        let mut take = |socket: &mut UdpReceiver| {
            let batch = socket.recv_batch()?;
            full |= batch.slots == batch_size;
            taken.datagrams += batch.datagrams as u64;
            taken.calls += 1;
            anyhow::Ok(())
        };
        if wait == Wait::Pause {
            sockets.iter_mut().try_for_each(&mut take)?;
            if !full {
                thread::sleep(pause);
            }
        } else {
            for number in epoll.wait(WAIT)? {
                take(&mut sockets[number as usize])?;
            }
        }
    }
    for socket in &mut sockets {
        taken.drops += socket.drops()?;
    }
    Ok(taken)
}
