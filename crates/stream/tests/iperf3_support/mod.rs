//! What the tests of iperf3's protocol share: a server of ours, one of iperf3's, and its client.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;
use stream::iperf3::server::{Event, Server, Settings};
use stream::limits::{Halt, Limits};
use stream::outcome::Exchanged;
use stream::plan::{Direction, Ends, Giving, Plan, Taking, Transport, Until, Work};

/// Whether iperf3 is installed. Says aloud that a test is skipped where it is not.
pub fn has_iperf3(test: &str) -> bool {
    let there = Command::new("iperf3").arg("--version").output().is_ok();
    if !there {
        assert!(
            std::env::var_os("PERPACKET_REQUIRE_IPERF3").is_none(),
            "{test} needs iperf3, and PERPACKET_REQUIRE_IPERF3 is set"
        );
        writeln!(std::io::stderr(), "SKIPPED {test}: iperf3 is not in PATH").unwrap();
    }
    there
}

pub fn bulk(transport: Transport, direction: Direction, time: Duration) -> Plan {
    Plan {
        transport,
        work: Work::Bulk { direction, giving: Giving::Copy, taking: Taking::Copy },
        flows: 1,
        until: Until::Time(time),
        omit: Duration::ZERO,
        send_bytes: if transport == Transport::Udp { 1400 } else { 128 * 1024 },
        receive_bytes: if transport == Transport::Udp { 1400 } else { 128 * 1024 },
        pace: None,
        options: Ends::default(),
        threads: Ends::default(),
    }
}

/// What became of the tests of a server.
#[derive(Default)]
pub struct Seen {
    pub ended: Vec<(Plan, Exchanged)>,
    pub failed: Vec<String>,
}

/// A server of ours on a free port of loopback, until it is dropped.
pub struct Ours {
    pub address: SocketAddr,
    pub server: Arc<Server>,
    pub seen: Arc<Mutex<Seen>>,
    halt: Halt,
    accepting: Option<JoinHandle<()>>,
}

pub fn limits() -> Limits {
    Limits { idle: Duration::from_secs(5), ..Limits::default() }
}

impl Ours {
    pub fn start(settings: Settings) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, halt) = (Arc::new(Mutex::new(Seen::default())), Halt::new());
        let observer = {
            let seen = Arc::clone(&seen);
            Box::new(move |event: &Event<'_>| {
                let mut seen = seen.lock().unwrap();
                match event {
                    Event::Ended { plan, exchanged, .. } => {
                        seen.ended.push(((*plan).clone(), (*exchanged).clone()))
                    }
                    Event::Failed { error, .. } => seen.failed.push(error.to_string()),
                    _ => {}
                }
            })
        };
        let server =
            Arc::new(Server::with_observer(address, settings, halt.clone(), Some(observer)).unwrap());
        let accepting = {
            let (server, halt) = (Arc::clone(&server), halt.clone());
            std::thread::spawn(move || {
                while let Ok((connection, _)) = listener.accept() {
                    if halt.is_halted() {
                        return;
                    }
                    server.take(connection);
                }
            })
        };
        Self { address, server, seen, halt, accepting: Some(accepting) }
    }

    pub fn with_limits(limits: Limits) -> Self {
        Self::start(Settings { limits, ..Settings::default() })
    }

    pub fn halt(&self) {
        self.halt.halt();
    }

    /// Waits until a number of tests have ended, one way or the other.
    pub fn wait(&self, ended: usize, failed: usize) {
        eventually("tests to end", || {
            let seen = self.seen.lock().unwrap();
            seen.ended.len() >= ended && seen.failed.len() >= failed
        });
    }

    /// The only test that has ended.
    pub fn only(&self) -> (Plan, Exchanged) {
        self.wait(1, 0);
        let seen = self.seen.lock().unwrap();
        assert!(seen.failed.is_empty(), "{:?}", seen.failed);
        seen.ended.last().unwrap().clone()
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        self.halt.halt();
        // Wakes the thread that accepts.
        drop(std::net::TcpStream::connect(self.address));
        if let Some(accepting) = self.accepting.take() {
            drop(accepting.join());
        }
    }
}

pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// `iperf3 -s` for one test; ends with it, or when dropped.
pub struct Theirs {
    pub address: SocketAddr,
    child: Child,
}

impl Theirs {
    pub fn start(arguments: &[&str]) -> Self {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let port = address.port().to_string();
        let mut child = Command::new("iperf3")
            .args(["-s", "-1", "--forceflush", "-B", "127.0.0.1", "-p", &port])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // It says when it listens; a connection to find out would be taken for a client.
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains("listening") {
            line.clear();
            assert!(lines.read_line(&mut line).unwrap() > 0, "iperf3 ended before it listened");
        }
        // What it prints is not to fill the pipe.
        std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        Self { address, child }
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Runs iperf3's client to its end; what it printed as JSON.
pub fn iperf3(server: SocketAddr, arguments: &[&str]) -> Value {
    let output = Command::new("iperf3")
        .args(["-c", &server.ip().to_string(), "-p", &server.port().to_string(), "-J"])
        .args(arguments)
        .env("IPERF3_PASSWORD", "pass word")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Whether two counts differ by no more than a share.
#[track_caller]
pub fn assert_near(what: &str, a: u64, b: u64, share: f64) {
    let (a, b) = (a as f64, b as f64);
    assert!(a > 0.0 && (a - b).abs() <= share * a.max(b), "{what}: {a} and {b}");
}
