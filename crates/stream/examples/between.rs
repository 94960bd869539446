//! Both ends of a workload between two network namespaces, in one process: what `bench/streams` puts beside netperf and iperf3.
//!
//! `between WORK --far FILE --here ADDRESS --there ADDRESS [--cpus HERE,THERE] [--ms N] [--bytes N] [--gso N] [--gro] [--batch N]`,
//! where WORK is `tcp`, `sendfile`, `udp` or `rr`. It asks from the namespace that it is run in; the end that answers is in that of
//! FILE (`/run/netns/NAME`). Needs CAP_SYS_ADMIN. It prints bytes, messages and seconds of the end that received, or transactions
//! and seconds of the end that asked.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "that is what it is for")]

use std::error::Error;
use std::fs::File;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use linux::netns::Netns;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use stream::engine::{self, Control, End, Endpoint, Flow, Marks, Role, Settings};
use stream::outcome::Side;
use stream::plan::{Direction, Ends, Giving, Plan, SocketOptions, Taking, Threads, Transport, Until, Work};

type Failed = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failed> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let after = |name: &str| words.iter().position(|word| word == name).and_then(|at| words.get(at + 1));
    let needed = |name: &str| after(name).ok_or_else(|| format!("{name} is missing"));
    let plan = plan(&words)?;
    let [here, there]: [IpAddr; 2] = [needed("--here")?.parse()?, needed("--there")?.parse()?];
    let far = namespace(needed("--far")?)?;
    let (near_flow, far_flow) = if plan.transport == Transport::Udp {
        datagrams(&far, here, there)?
    } else {
        connection(&far, there, plan.work)?
    };
    let (near, far) = exchange(&plan, near_flow, &far, far_flow)?;
    show(&plan, &near, &far);
    Ok(())
}

fn plan(words: &[String]) -> Result<Plan, Failed> {
    let after = |name: &str| words.iter().position(|word| word == name).and_then(|at| words.get(at + 1));
    let number = |name: &str| after(name).map(|word| word.parse::<u16>()).transpose();
    let work = words.first().map_or("", String::as_str);
    let bulk = |giving| Work::Bulk { direction: Direction::ToServer, giving, taking: Taking::Copy };
    let (transport, work) = match work {
        "tcp" => (Transport::Tcp, bulk(Giving::Copy)),
        "sendfile" => (Transport::Tcp, bulk(Giving::Sendfile)),
        "udp" => (Transport::Udp, bulk(Giving::Copy)),
        "rr" => (Transport::Tcp, Work::Transactions { request_bytes: 1, response_bytes: 1, outstanding: 1 }),
        _ => return Err(format!("the work {work:?}: tcp, sendfile, udp or rr").into()),
    };
    let options = SocketOptions {
        gso_segments: number("--gso")?,
        gro: words.iter().any(|word| word == "--gro"),
        batch: number("--batch")?,
        ..SocketOptions::default()
    };
    let list = after("--cpus").map(|list| list.split(',').map(str::parse).collect::<Result<Vec<usize>, _>>());
    let cpus = list.transpose()?.unwrap_or_default();
    let threads = |at: usize| Threads { count: None, cpus: cpus.get(at).copied().into_iter().collect() };
    Ok(Plan {
        transport,
        work,
        flows: 1,
        until: Until::Time(Duration::from_millis(after("--ms").map_or(Ok(2000), |ms| ms.parse())?)),
        omit: Duration::ZERO,
        send_bytes: after("--bytes").map_or(Ok(131_072), |bytes| bytes.parse())?,
        receive_bytes: if transport == Transport::Udp { 65_536 } else { 131_072 },
        pace: None,
        options: Ends { client: options.clone(), server: options },
        threads: Ends { client: threads(0), server: threads(1) },
    })
}

/// The namespace that a file stands for.
fn namespace(path: &str) -> Result<Netns, Failed> {
    let file = File::open(path).map_err(|error| format!("open {path}: {error}"))?;
    let enter = || -> Result<Netns, Failed> {
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|error| format!("enter the namespace {path}: {error}"))?;
        Ok(Netns::current()?)
    };
    std::thread::scope(|scope| scope.spawn(enter).join().map_err(|_| "a thread panicked")?)
}

fn connection(far: &Netns, there: IpAddr, work: Work) -> Result<(Flow, Flow), Failed> {
    let listener = far.run(|| TcpListener::bind(SocketAddr::new(there, 0)))??;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let roles = match work {
        Work::Bulk { .. } => (Role::Send, Role::Receive),
        _ => (Role::Request, Role::Respond),
    };
    let flow = |endpoint, role| Flow { endpoint, role, marks: Marks::None };
    Ok((flow(Endpoint::Tcp(near), roles.0), flow(Endpoint::Tcp(listener.accept()?.0), roles.1)))
}

fn datagrams(far: &Netns, here: IpAddr, there: IpAddr) -> Result<(Flow, Flow), Failed> {
    let (left, right) = (
        UdpSocket::bind(SocketAddr::new(here, 0))?,
        far.run(|| UdpSocket::bind(SocketAddr::new(there, 0)))??,
    );
    let (at_left, at_right) = (left.local_addr()?, right.local_addr()?);
    left.connect(at_right)?;
    right.connect(at_left)?;
    // As `perpacket stream udp` has it: every datagram is numbered, and looked at by its receiver.
    let marks = Marks::Own { cookie: *b"perpacket bench." };
    let flow =
        |socket, peer, role| Flow { endpoint: Endpoint::Udp { socket, peer: Some(peer) }, role, marks };
    Ok((flow(left, at_right, Role::Send), flow(right, at_left, Role::Receive)))
}

fn exchange(plan: &Plan, near: Flow, netns: &Netns, far: Flow) -> Result<(Side, Side), Failed> {
    let settings = |end| Settings {
        plan,
        end,
        interval: None,
        cpu: true,
        give_up_after: Duration::from_secs(5),
        on_interval: None,
    };
    let (near_settings, far_settings) = (settings(End::Client), settings(End::Server));
    let (near_control, far_control) = (Control::new(), Control::new());
    let (near, far) = std::thread::scope(|scope| {
        let serving = scope.spawn(|| -> Result<Side, Failed> {
            netns.enter()?;
            Ok(engine::run(vec![far], &far_settings, &far_control)?)
        });
        far_control.begin();
        while !far_control.ready() && !serving.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        near_control.begin();
        let near = engine::run(vec![near], &near_settings, &near_control);
        if plan.transport == Transport::Udp {
            far_control.stop();
        }
        (near, serving.join())
    });
    Ok((near?, far.map_err(|_| "the end that answers panicked")??))
}

fn show(plan: &Plan, near: &Side, far: &Side) {
    if let Work::Bulk { .. } = plan.work {
        let received = far.flows.iter().filter_map(|flow| flow.received);
        let (bytes, messages) = received.fold((0, 0), |(b, m), moved| (b + moved.bytes, m + moved.messages));
        println!("received {bytes} bytes {messages} messages in {:.6} s", far.wall_ns as f64 / 1e9);
    } else {
        let transactions: u64 = near.flows.iter().filter_map(|flow| flow.transactions).sum();
        println!("made {transactions} transactions in {:.6} s", near.wall_ns as f64 / 1e9);
    }
    [near, far].iter().flat_map(|side| &side.warnings).for_each(|warning| eprintln!("{warning}"));
}
