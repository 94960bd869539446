//! `perpacket datapath forward` beside dpdk-testpmd, over the same two veth pairs, by AF_XDP and by packet sockets.
//!
//! A sender on one CPU offers more than any of them takes, the forwarder runs on the other, and a program in XDP counts
//! and drops behind it. What is compared is the rate that comes out at the far end. testpmd only exchanges the MAC
//! addresses (macswap) or changes nothing (io); perpacket checks headers, looks the route up and rewrites TTL and checksum.
//! Each forwarder is started anew in each round, in random order.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bench::ground::Ground;
use clap::Parser;
use lab::{Lab, Plan, Port};
use linux::bpf::{Link, Program, ProgramKind, ProgramSpec, XdpMode};
use measure::cluster::cluster_median;
use measure::order::Seed;
use measure::quantile::median;
use template::{Addresses, UdpFrame};
use traffic::programs::{self, Action};
use traffic::{AfXdp, AfXdpSpec, Backend, Frames, ProgramSink};

const GEN: (&str, &str) = ("gen", "g0");
const NEAR: (&str, &str) = ("dut", "s0");
const OUT: (&str, &str) = ("dut", "s1");
const FAR: (&str, &str) = ("far", "f0");
const GEN_MAC: [u8; 6] = [2, 0, 0, 0, 1, 1];
const NEAR_MAC: [u8; 6] = [2, 0, 0, 0, 1, 2];
const OUT_MAC: [u8; 6] = [2, 0, 0, 0, 2, 1];
const FAR_MAC: [u8; 6] = [2, 0, 0, 0, 2, 2];
const CONFIDENCE: f64 = 0.95;
/// The lower bound of the ratio's interval must be at least this.
const GOAL: f64 = 0.97;
/// How long a forwarder may take until the first packet is through.
const START: Duration = Duration::from_secs(20);
/// How long a forwarder may take to end by itself.
const ENDING: Duration = Duration::from_secs(2);
/// How long the sender sends before the rate is taken.
const SETTLE: Duration = Duration::from_millis(300);

/// perpacket's forwarder beside dpdk-testpmd
#[derive(Debug, Parser)]
#[command(name = "bench/forwarders", version)]
struct Args {
    /// Rounds, each with every forwarder once
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(6..=1_000))]
    rounds: u32,
    /// How long the rate is taken in each round, in ms
    #[arg(long, default_value_t = 700, value_parser = clap::value_parser!(u64).range(100..=10_000))]
    time_ms: u64,
    /// Frame size in bytes, with the 4-byte FCS
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(64..=1518))]
    frame: u32,
    /// Seed of the order
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only those over this: af-xdp or af-packet
    #[arg(long, value_parser = ["af-xdp", "af-packet"])]
    over: Option<String>,
    /// The program under test
    #[arg(long, default_value = "target/release/perpacket")]
    perpacket: PathBuf,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            drop(writeln!(std::io::stderr(), "bench/forwarders: {error:#}"));
            ExitCode::from(2)
        }
    }
}

/// Measures and prints; whether every goal is met.
fn run(args: &Args) -> Result<bool> {
    let ground = Ground::prepare()?;
    let mut forwarders = Forwarder::all(&args.perpacket.canonicalize().context("find perpacket")?);
    forwarders.retain(|forwarder| args.over.as_ref().is_none_or(|over| *over == forwarder.over));
    let mut rates: Vec<Vec<f64>> = vec![Vec::new(); forwarders.len()];
    let mut order = Seed(args.seed).order();
    let mut places: Vec<usize> = (0..forwarders.len()).collect();
    for _ in 0..args.rounds {
        order.shuffle(&mut places);
        for &place in &places {
            let net = Net::build(args.frame)?;
            let forwarder = &forwarders[place];
            let pps = forwarder.rate(&net, args).with_context(|| format!("measure {}", forwarder.name))?;
            rates[place].push(pps);
            if ground.interrupted() {
                bail!("a signal asked for the end");
            }
        }
    }
    let (text, met) = render(args, &forwarders, &rates);
    std::io::stdout().write_all(text.as_bytes()).context("print the table")?;
    Ok(met)
}

/// Two veth pairs with the forwarder between them.
struct Net {
    frame: Vec<u8>,
    sink: ProgramSink,
    _link: Link,
    lab: Lab,
}

impl Net {
    fn build(frame_bytes: u32) -> Result<Self> {
        let mut plan = Plan::new();
        plan.namespace(GEN.0).namespace(NEAR.0).namespace(FAR.0);
        plan.veth(Port::new(GEN.0, GEN.1).mac(GEN_MAC), Port::new(NEAR.0, NEAR.1).mac(NEAR_MAC));
        plan.veth(Port::new(OUT.0, OUT.1).mac(OUT_MAC), Port::new(FAR.0, FAR.1).mac(FAR_MAC));
        let lab = Lab::build(&plan)?;
        let sink = ProgramSink::new()?;
        let insns = programs::counter(Action::XdpDrop, sink.map_fd())?;
        let program = Program::load(&ProgramSpec::new(ProgramKind::Xdp, "bench_far_end", &insns))?;
        let far = lab.device(FAR.0, FAR.1).ifindex;
        let link = lab.netns(FAR.0).run(|| Link::attach_xdp(&program, far, XdpMode::Native))??;
        let frame = UdpFrame {
            source_mac: GEN_MAC,
            destination_mac: NEAR_MAC,
            addresses: Addresses::V4 {
                source: Ipv4Addr::new(198, 18, 0, 1),
                destination: Ipv4Addr::new(198, 19, 0, 2),
            },
            source_port: 1024,
            destination_port: 5000,
            flows: 1,
            sources: 1,
            stamp: false,
            frame_bytes,
        };
        Ok(Self { frame: frame.check()?.to_vec(0), sink, _link: link, lab })
    }

    /// A sender in the first namespace, in which the calling thread stays.
    fn sender(&self) -> Result<AfXdp> {
        self.lab.netns(GEN.0).enter()?;
        let ifindex = self.lab.device(GEN.0, GEN.1).ifindex;
        Ok(AfXdp::new(&AfXdpSpec::new(ifindex), Frames::constant(self.frame.clone())?)?)
    }

    fn arrived(&self) -> Result<u64> {
        Ok(self.sink.received()?)
    }
}

/// A forwarder, as a program.
struct Forwarder {
    name: &'static str,
    /// What it receives from and sends to.
    over: &'static str,
    /// The one that it is compared with, if it is ours: several are.
    against: &'static [&'static str],
    command: Vec<String>,
}

impl Forwarder {
    fn all(perpacket: &std::path::Path) -> Vec<Self> {
        let ours = |name, over: &'static str, receive: &str, against| Self {
            name,
            over,
            against,
            command: [
                perpacket.to_string_lossy().as_ref(),
                "datapath forward --busy --cpus 0 --quiet --no-save --time 1min",
                &format!("--port {over}:s0 --port {over}:s1 --allow-device s0 --allow-device s1"),
                &format!("--receive {receive}"),
                "--address 0=198.18.0.254/24 --address 1=198.19.0.254/24",
                "--neighbour 1=198.19.0.2=02:00:00:00:02:02",
            ]
            .join(" ")
            .split(' ')
            .map(str::to_owned)
            .collect(),
        };
        let testpmd = |name, over: &'static str, mode: &str| Self {
            name,
            over,
            against: &[],
            command: [
                "dpdk-testpmd -l 0,1 --main-lcore 1 --no-huge -m 512 --no-pci --no-telemetry",
                &format!("--file-prefix perpacket-{}", std::process::id()),
                &format!(
                    "--vdev net_{driver}0,iface=s0 --vdev net_{driver}1,iface=s1",
                    driver = over.replace('-', "_")
                ),
                &format!("-- --forward-mode={mode} --auto-start --total-num-mbufs=16384 --no-flush-rx"),
            ]
            .join(" ")
            .split(' ')
            .map(str::to_owned)
            .collect(),
        };
        vec![
            ours("perpacket af-xdp", "af-xdp", "page-pool", &["testpmd af_xdp macswap", "testpmd af_xdp io"]),
            testpmd("testpmd af_xdp macswap", "af-xdp", "macswap"),
            testpmd("testpmd af_xdp io", "af-xdp", "io"),
            ours(
                "perpacket af-packet",
                "af-packet",
                "copy",
                &["testpmd af_packet macswap", "testpmd af_packet io"],
            ),
            testpmd("testpmd af_packet macswap", "af-packet", "macswap"),
            testpmd("testpmd af_packet io", "af-packet", "io"),
        ]
    }

    /// Packets per second that come out at the far end while more are offered.
    fn rate(&self, net: &Net, args: &Args) -> Result<f64> {
        let mut child = self.start(net)?;
        let sending = AtomicBool::new(false);
        let ended = AtomicBool::new(false);
        let measured = thread::scope(|scope| {
            let sender = scope.spawn(|| {
                linux::cpu::pin(1)?;
                let mut sender = net.sender()?;
                while !ended.load(Ordering::Relaxed) {
                    if sending.load(Ordering::Relaxed) {
                        sender.send(4_096)?;
                    } else {
                        // One by one, until the first one is through.
                        sender.send(1)?;
                        sender.flush()?;
                        thread::sleep(Duration::from_millis(10));
                    }
                }
                sender.flush()?;
                anyhow::Ok(())
            });
            let measured = measure(net, &mut child, &sending, Duration::from_millis(args.time_ms));
            ended.store(true, Ordering::Relaxed);
            sender.join().map_err(|_| anyhow::anyhow!("the sender panicked"))??;
            measured
        });
        end(&mut child)?;
        measured
    }

    /// Starts it in its namespace.
    fn start(&self, net: &Net) -> Result<Child> {
        let start = || {
            // The calling thread is pinned, and what it starts would be so too.
            Command::new("taskset")
                .args(["--cpu-list", "0,1"])
                .args(&self.command)
                // It reads commands, and ends at their end.
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
        };
        let child = net.lab.netns(NEAR.0).run(start)?;
        child.with_context(|| format!("start {}", self.command.join(" ")))
    }
}

fn measure(net: &Net, child: &mut Child, sending: &AtomicBool, time: Duration) -> Result<f64> {
    let deadline = Instant::now() + START;
    while net.arrived()? == 0 {
        if let Some(status) = child.try_wait()? {
            bail!("it ended with {status} before a packet was through");
        }
        ensure!(Instant::now() < deadline, "no packet came through within {START:?}");
        thread::sleep(Duration::from_millis(5));
    }
    sending.store(true, Ordering::Relaxed);
    thread::sleep(SETTLE);
    let (before, start) = (net.arrived()?, Instant::now());
    thread::sleep(time);
    let (after, time) = (net.arrived()?, start.elapsed());
    Ok((after - before) as f64 / time.as_secs_f64())
}

/// Ends it: testpmd at the end of its input, so that it clears up its run-time files, else by a signal.
fn end(child: &mut Child) -> Result<()> {
    drop(child.stdin.take());
    let deadline = Instant::now() + ENDING;
    while child.try_wait()?.is_none() {
        if Instant::now() > deadline {
            child.kill().context("end the forwarder")?;
            child.wait()?;
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn render(args: &Args, forwarders: &[Forwarder], rates: &[Vec<f64>]) -> (String, bool) {
    let mut text = format!(
        "Forwarded between two veth pairs, {}-byte frames (with FCS), more offered than any takes; {} rounds, seed {}\n\n\
         {:<27} {:>9} {:>8}\n",
        args.frame, args.rounds, args.seed, "forwarder", "kpps", "ns/p"
    );
    for (forwarder, rates) in forwarders.iter().zip(rates) {
        let pps = median(&mut rates.clone()).unwrap_or(f64::NAN);
        let _ = writeln!(text, "{:<27} {:>9.1} {:>8.0}", forwarder.name, pps / 1e3, 1e9 / pps);
    }
    text += "\nrate of perpacket over that of testpmd, median of the rounds and 95 % interval\n";
    let mut met = true;
    for (own, own_rates) in forwarders.iter().zip(rates) {
        for other in own.against {
            let Some(place) = forwarders.iter().position(|forwarder| forwarder.name == *other) else {
                continue;
            };
            let ratios: Vec<f64> = own_rates.iter().zip(&rates[place]).map(|(a, b)| a / b).collect();
            let Some(found) = cluster_median(&ratios, &vec![0; ratios.len()], CONFIDENCE) else {
                met = false;
                continue;
            };
            let reached = found.interval.low >= GOAL;
            met &= reached;
            let _ = writeln!(
                text,
                "{:<20} / {:<26} {:.3} [{:.3}, {:.3}]  lower bound >= {GOAL}: {}",
                own.name,
                other,
                found.median,
                found.interval.low,
                found.interval.high,
                if reached { "pass" } else { "FAIL" }
            );
        }
    }
    (text, met)
}
