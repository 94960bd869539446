//! What the tests of faults share: a relay that does to datagrams and connections what networks do, and a server of
//! iperf3's protocol that says what a test wants it to.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::{Value, json};
use stream::engine::{Endpoint, Flow, Marks, Role};
use stream::iperf3::wire::{self, COOKIE_BYTES, Header, State};
use stream::outcome::{Datagrams, Side};
use stream::plan::{Direction, Ends, Giving, Pace, Plan, Taking, Transport, Until, Work};

/// Far more than anything takes.
pub const LONG: Duration = Duration::from_secs(20);
const TICK: Duration = Duration::from_millis(10);

/// Which way something goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Toward {
    Server,
    Client,
}

/// What becomes of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    On,
    Drop,
    Twice,
    /// Behind so many others, or when nothing more comes.
    Behind(usize),
}

type Policy = dyn Fn(Toward, Option<u64>) -> Pass + Send + Sync;

#[derive(Default)]
struct Shared {
    over: AtomicBool,
    /// Connections stay open, and nothing goes through any more: as if a cable had been pulled.
    frozen: AtomicBool,
    passed: [AtomicU64; 2],
    dropped: [AtomicU64; 2],
    copies: [AtomicU64; 2],
    connections: Mutex<Vec<TcpStream>>,
}

/// Stands between a client and a server, with the same port for TCP and UDP, until it is dropped.
pub struct Relay {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Relay {
    /// `policy` is asked for each datagram, with its number where it is one of iperf3's with data (numbers of 32 bits).
    pub fn start(
        server: SocketAddr,
        policy: impl Fn(Toward, Option<u64>) -> Pass + Send + Sync + 'static,
    ) -> Self {
        let (listener, socket) = std::iter::repeat_with(|| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let socket = UdpSocket::bind(listener.local_addr().unwrap()).ok()?;
            Some((listener, socket))
        })
        .take(20)
        .flatten()
        .next()
        .unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        let policy: Arc<Policy> = Arc::new(policy);
        let connections = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || relay_connections(&listener, server, &shared))
        };
        let datagrams = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || relay_datagrams(&Arc::new(socket), server, &shared, &policy))
        };
        Self { address, shared, threads: vec![connections, datagrams] }
    }

    /// Nothing goes through from now on, and nobody is told.
    pub fn freeze(&self) {
        self.shared.frozen.store(true, SeqCst);
    }

    /// Datagrams that were dropped on the way there.
    pub fn dropped(&self, toward: Toward) -> u64 {
        self.shared.dropped[toward as usize].load(SeqCst)
    }

    /// Copies that were made on the way there.
    pub fn copies(&self, toward: Toward) -> u64 {
        self.shared.copies[toward as usize].load(SeqCst)
    }

    /// Datagrams with data that were passed on, each once.
    pub fn passed(&self, toward: Toward) -> u64 {
        self.shared.passed[toward as usize].load(SeqCst)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.over.store(true, SeqCst);
        for connection in self.shared.connections.lock().unwrap().drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
        drop(TcpStream::connect(self.address));
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn relay_connections(listener: &TcpListener, server: SocketAddr, shared: &Arc<Shared>) {
    while let Ok((near, _)) = listener.accept() {
        if shared.over.load(SeqCst) {
            return;
        }
        let Ok(far) = TcpStream::connect(server) else { continue };
        for stream in [&near, &far] {
            shared.connections.lock().unwrap().push(stream.try_clone().unwrap());
        }
        for (mut from, mut to) in [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)] {
            let shared = Arc::clone(shared);
            thread::spawn(move || {
                let mut bytes = vec![0; 65536];
                while let Ok(count) = from.read(&mut bytes) {
                    if count == 0 || shared.frozen.load(SeqCst) {
                        break;
                    }
                    if to.write_all(&bytes[..count]).is_err() {
                        break;
                    }
                }
                if !shared.frozen.load(SeqCst) {
                    let _ = to.shutdown(Shutdown::Write);
                }
            });
        }
    }
}

fn relay_datagrams(front: &Arc<UdpSocket>, server: SocketAddr, shared: &Arc<Shared>, policy: &Arc<Policy>) {
    front.set_read_timeout(Some(TICK)).unwrap();
    let mut clients: HashMap<SocketAddr, (Arc<UdpSocket>, Held)> = HashMap::new();
    let mut room = [0; 65536];
    while !shared.over.load(SeqCst) {
        let Ok((count, from)) = front.recv_from(&mut room) else {
            for (back, held) in clients.values_mut() {
                held.flush(|bytes| drop(back.send(bytes)));
            }
            continue;
        };
        let (back, held) = clients.entry(from).or_insert_with(|| {
            let back = Arc::new(UdpSocket::bind("127.0.0.1:0").unwrap());
            back.connect(server).unwrap();
            back.set_read_timeout(Some(TICK)).unwrap();
            let (front, shared, policy) = (Arc::clone(front), Arc::clone(shared), Arc::clone(policy));
            let socket = Arc::clone(&back);
            thread::spawn(move || relay_back(&front, &socket, from, &shared, &policy));
            (back, Held::default())
        });
        pass(shared, policy, Toward::Server, held, &room[..count], |bytes| drop(back.send(bytes)));
    }
}

fn relay_back(front: &UdpSocket, back: &UdpSocket, to: SocketAddr, shared: &Shared, policy: &Arc<Policy>) {
    let mut held = Held::default();
    let mut room = [0; 65536];
    while !shared.over.load(SeqCst) {
        let send = |bytes: &[u8]| drop(front.send_to(bytes, to));
        match back.recv(&mut room) {
            Ok(count) => pass(shared, policy, Toward::Client, &mut held, &room[..count], send),
            Err(_) => held.flush(send),
        }
    }
}

/// Datagrams that wait until others have overtaken them.
#[derive(Default)]
struct Held(Vec<(usize, Vec<u8>)>);

impl Held {
    fn flush(&mut self, send: impl Fn(&[u8])) {
        self.0.drain(..).for_each(|(_, bytes)| send(&bytes));
    }

    fn one_more(&mut self, send: impl Fn(&[u8])) {
        self.0.iter_mut().for_each(|(behind, _)| *behind -= 1);
        self.0.retain(|(behind, bytes)| {
            if *behind == 0 {
                send(bytes);
            }
            *behind > 0
        });
    }
}

fn pass(
    shared: &Shared,
    policy: &Arc<Policy>,
    toward: Toward,
    held: &mut Held,
    bytes: &[u8],
    send: impl Fn(&[u8]),
) {
    if shared.frozen.load(SeqCst) {
        return;
    }
    let number = (bytes.len() > 4).then(|| Header::parse(bytes, false)).flatten().map(|header| header.number);
    let what = policy(toward, number);
    let way = toward as usize;
    match what {
        Pass::Drop => {
            shared.dropped[way].fetch_add(1, SeqCst);
            return;
        }
        Pass::Behind(others) => {
            shared.passed[way].fetch_add(1, SeqCst);
            held.0.push((others.max(1), bytes.to_vec()));
            return;
        }
        Pass::Twice => {
            shared.copies[way].fetch_add(1, SeqCst);
            send(bytes);
            send(bytes);
        }
        Pass::On => send(bytes),
    }
    if number.is_some() {
        shared.passed[way].fetch_add(1, SeqCst);
    }
    held.one_more(send);
}

/// Datagrams of 100 bytes at a gentle rate: so few that a socket of default size holds all of them.
pub fn gentle(direction: Direction, datagrams: u64) -> Plan {
    Plan {
        transport: Transport::Udp,
        work: Work::Bulk { direction, giving: Giving::Copy, taking: Taking::Copy },
        flows: 1,
        until: Until::Units(datagrams),
        omit: Duration::ZERO,
        send_bytes: 100,
        receive_bytes: 2048,
        pace: Some(Pace::Spread { bits_per_second: 800 * 1000 }),
        options: Ends::default(),
        threads: Ends::default(),
    }
}

/// What a side's flow tells of its datagrams.
#[track_caller]
pub fn datagrams(side: &Side, flow: usize) -> Datagrams {
    side.flows[flow].datagrams.unwrap()
}

pub fn received(side: &Side) -> u64 {
    side.flows.iter().filter_map(|flow| flow.received).map(|moved| moved.bytes).sum()
}

pub fn sent(side: &Side) -> u64 {
    side.flows.iter().filter_map(|flow| flow.sent).map(|moved| moved.bytes).sum()
}

/// A flow over a UDP socket.
pub fn udp_flow(socket: UdpSocket, peer: SocketAddr, role: Role, marks: Marks) -> Flow {
    Flow { endpoint: Endpoint::Udp { socket, peer: Some(peer) }, role, marks }
}

/// Results of one stream as iperf3 tells them, for a test to change.
pub fn results(bytes: u64) -> Value {
    json!({
        "cpu_util_total": 3.5, "cpu_util_user": 1.5, "cpu_util_system": 2.0, "sender_has_retransmits": -1,
        "streams": [{ "id": 1, "bytes": bytes, "retransmits": -1, "jitter": 0, "errors": 0, "packets": 0,
            "start_time": 0, "end_time": 1.0 }],
    })
}

/// A frame of JSON.
pub fn frame(json: &[u8]) -> Vec<u8> {
    [&(json.len() as u32).to_be_bytes()[..], json].concat()
}

/// A server for one test over TCP in which the client sends so many bytes; what it answers when results are exchanged, byte
/// for byte, and then the end of the test, or of the connection.
pub fn fake_server(bytes: usize, answer: Option<Vec<u8>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let cookie = |stream: &mut TcpStream| {
            stream.set_read_timeout(Some(LONG)).unwrap();
            stream.read_exact(&mut [0; COOKIE_BYTES]).unwrap();
        };
        let mut line = listener.accept().unwrap().0;
        cookie(&mut line);
        wire::write_state(&mut line, State::ParamExchange).unwrap();
        wire::read_json(&mut line, 1 << 20).unwrap();
        wire::write_state(&mut line, State::CreateStreams).unwrap();
        let mut data = listener.accept().unwrap().0;
        cookie(&mut data);
        wire::write_state(&mut line, State::TestStart).unwrap();
        wire::write_state(&mut line, State::TestRunning).unwrap();
        data.read_exact(&mut vec![0; bytes]).unwrap();
        assert_eq!(wire::read_state(&mut line).unwrap(), State::TestEnd);
        let Some(answer) = answer else { return };
        wire::write_state(&mut line, State::ExchangeResults).unwrap();
        wire::read_json(&mut line, 1 << 20).unwrap();
        // The client may refuse it in the middle.
        let _ = line.write_all(&answer);
        let _ = wire::write_state(&mut line, State::DisplayResults);
        let _ = line.read(&mut [0]);
    });
    address
}
