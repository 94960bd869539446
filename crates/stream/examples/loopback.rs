//! Both ends of a workload over loopback in one process, and what they counted: how fast the engine is by itself.
//!
//! `cargo run --release -p stream --example loopback -- WORK [FLOWS [SECONDS [THREADS]]]`, where WORK is one of `tcp`,
//! `sendfile`, `discard`, `udp` (64 bytes, a call each), `udp-batch` (64 at a time), `udp-gso` (buffers of 64, joined again),
//! `rr`, `udp-rr` and `crr`.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use linux::clock;
use stream::engine::{self, Control, End, Endpoint, Flow, Marks, Role, Settings};
use stream::latency::Figures;
use stream::outcome::Side;
use stream::plan::{Direction, Ends, Giving, Plan, SocketOptions, Taking, Threads, Transport, Until, Work};

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: u64| words.get(at).map_or(Ok(default), |word| word.parse());
    let (flows, seconds) = (number(1, 1)?, number(2, 3)?);
    let threads = number(3, 0)?;
    let name = words.first().map_or("tcp", String::as_str);
    let plan = plan(name, flows as u32, Duration::from_secs(seconds), threads as u32);
    linux::limits::raise_open_files(4 * flows + 100);
    let (near, far) = pairs(&plan)?;
    let (near_control, far_control) = (Control::new(), Control::new());
    let cpu_before_ns = clock::process_cpu_ns();
    let (near, far) = std::thread::scope(|scope| {
        let serving = scope.spawn(|| engine::run(far, &settings(&plan, End::Server), &far_control));
        far_control.begin();
        while !far_control.ready() && !serving.is_finished() {
            std::thread::yield_now();
        }
        near_control.begin();
        let near = engine::run(near, &settings(&plan, End::Client), &near_control);
        if plan.transport == Transport::Udp || matches!(plan.work, Work::Connections { .. }) {
            far_control.stop();
        }
        (near, serving.join())
    });
    let cpu_s = (clock::process_cpu_ns() - cpu_before_ns) as f64 / 1e9;
    let (near, far) = (near?, far.map_err(|_| "the far end panicked")??);
    show("near", &near, cpu_s);
    show("far", &far, cpu_s);
    Ok(())
}

fn plan(name: &str, flows: u32, time: Duration, threads: u32) -> Plan {
    let bulk = |giving, taking| Work::Bulk { direction: Direction::ToServer, giving, taking };
    let copy = bulk(Giving::Copy, Taking::Copy);
    let rr = Work::Transactions { request_bytes: 1, response_bytes: 1, outstanding: 1 };
    let (transport, work, send_bytes) = match name {
        "sendfile" => (Transport::Tcp, bulk(Giving::Sendfile, Taking::Copy), 131_072),
        "discard" => (Transport::Tcp, bulk(Giving::Copy, Taking::Discard), 131_072),
        "udp" | "udp-batch" | "udp-gso" => (Transport::Udp, copy, 64),
        "rr" => (Transport::Tcp, rr, 1),
        "udp-rr" => (Transport::Udp, rr, 1),
        "crr" => (Transport::Tcp, Work::Connections { exchange: Some((1, 1)) }, 1),
        _ => (Transport::Tcp, copy, 131_072),
    };
    let (gso, gro, batch) = match name {
        "udp-batch" => (None, false, Some(64)),
        "udp-gso" => (Some(64), true, Some(8)),
        _ => (None, false, None),
    };
    let options = SocketOptions { gso_segments: gso, gro, batch, ..SocketOptions::default() };
    let threads = Threads { count: (threads > 0).then_some(threads), cpus: Vec::new() };
    Plan {
        transport,
        work,
        flows,
        until: Until::Time(time),
        omit: Duration::ZERO,
        send_bytes,
        receive_bytes: 131_072,
        pace: None,
        options: Ends { client: options.clone(), server: options },
        threads: Ends { client: threads.clone(), server: threads },
    }
}

fn settings(plan: &Plan, end: End) -> Settings<'_> {
    let give_up_after = Duration::from_secs(5);
    Settings { plan, end, interval: None, cpu: true, give_up_after, on_interval: None }
}

fn pairs(plan: &Plan) -> std::io::Result<(Vec<Flow>, Vec<Flow>)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let to = listener.local_addr()?;
    let (mut near, mut far) = (Vec::new(), Vec::new());
    for _ in 0..plan.flows {
        let flow = |endpoint, role| Flow { endpoint, role, marks: Marks::None };
        let (give, take) = match plan.work {
            Work::Bulk { .. } => (Role::Send, Role::Receive),
            Work::Transactions { .. } => (Role::Request, Role::Respond),
            Work::Connections { .. } => {
                near.push(flow(Endpoint::Connector { to, bind: None }, Role::Connect));
                far.push(flow(Endpoint::Listener(listener.try_clone()?), Role::Accept));
                continue;
            }
        };
        let (left, right) = if plan.transport == Transport::Udp {
            let (left, right) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
            let (here, there) = (left.local_addr()?, right.local_addr()?);
            let udp = |socket, peer| Endpoint::Udp { socket, peer: Some(peer) };
            (udp(left, there), udp(right, here))
        } else {
            let left = TcpStream::connect(to)?;
            left.set_nodelay(matches!(plan.work, Work::Transactions { .. }))?;
            (Endpoint::Tcp(left), Endpoint::Tcp(listener.accept()?.0))
        };
        near.push(flow(left, give));
        far.push(flow(right, take));
    }
    Ok((near, far))
}

fn show(name: &str, side: &Side, process_cpu_s: f64) {
    let seconds = side.wall_ns as f64 / 1e9;
    let sum =
        |of: fn(&stream::outcome::Flow) -> Option<u64>| side.flows.iter().filter_map(of).sum::<u64>() as f64;
    let bits = 8.0 * sum(|flow| flow.sent.or(flow.received).map(|moved| moved.bytes));
    let messages = sum(|flow| flow.sent.or(flow.received).map(|moved| moved.messages));
    let transactions = sum(|flow| flow.transactions);
    println!(
        "{name}: {seconds:.3} s, {:.2} Gbit/s, {:.0} messages/s, {:.0} transactions/s",
        bits / seconds / 1e9,
        messages / seconds,
        transactions / seconds
    );
    if let Some(cpu) = &side.cpu {
        let threads_s = cpu.threads_ns.iter().sum::<u64>() as f64 / 1e9;
        println!(
            "  threads of this end {threads_s:.2} s of CPU, {:.2} Gbit a second of it; process {process_cpu_s:.2} s",
            bits / threads_s / 1e9
        );
    }
    if let Some(figures) = side.flows.first().and_then(|flow| Figures::of(flow.latency.as_ref()?)) {
        println!("  {figures:?}");
    }
    side.warnings.iter().for_each(|warning| println!("  {warning}"));
}
