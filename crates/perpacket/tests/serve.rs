//! `perpacket serve` as a process: its ports, a line for each client, and its end.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Lines, Read};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use stream::limits::Halt;
use stream::own::client::{self, Asking};
use stream::own::{Key, OwnError};
use stream::plan::{Direction, Ends, Giving, Plan, Taking, Transport, Until, Work};

const ANY_PORTS: [&str; 6] = ["--port", "0", "--netperf", "0", "--iperf3", "0"];

/// A server in the background, killed when dropped.
struct Serving {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Serving {
    fn start(args: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_perpacket"))
            .arg("serve")
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn line(&mut self) -> String {
        self.lines.next().unwrap().unwrap()
    }

    /// The address in a line of the opening.
    fn address(&mut self, protocol: &str) -> SocketAddr {
        let line = self.line();
        let mut words = line.split_whitespace();
        assert_eq!(words.next(), Some(protocol), "{line}");
        words.next().unwrap().parse().unwrap()
    }

    /// Its exit code, and what it said on standard error.
    fn end(&mut self) -> (Option<i32>, String) {
        let began = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(began.elapsed() < Duration::from_secs(30), "it goes on");
            thread::sleep(Duration::from_millis(5));
        };
        let mut stderr = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        (status.code(), stderr)
    }
}

fn plan() -> Plan {
    Plan {
        transport: Transport::Tcp,
        work: Work::Bulk { direction: Direction::ToServer, giving: Giving::Copy, taking: Taking::Copy },
        flows: 1,
        until: Until::Bytes(1_000_000),
        omit: Duration::ZERO,
        send_bytes: 65536,
        receive_bytes: 65536,
        pace: None,
        options: Ends::default(),
        threads: Ends::default(),
    }
}

fn ask(to: SocketAddr, key: Option<&Key>) -> Result<(), OwnError> {
    client::run(to, &plan(), &Asking { key, ..Asking::new(&Halt::new()) }).map(drop)
}

#[test]
fn it_prints_its_ports_and_its_clients_and_ends_on_a_signal() {
    for signal in [Signal::INT, Signal::TERM] {
        let mut server = Serving::start(&ANY_PORTS);
        let own = server.address("perpacket");
        assert!(own.ip().is_loopback() && own.port() > 0);
        assert!(server.address("netperf").ip().is_loopback());
        assert!(server.address("iperf3").ip().is_loopback());
        assert!(server.line().contains("127.0.0.0/8"));
        ask(own, None).unwrap();
        let line = server.line();
        assert!(line.contains("TCP to here, 1 flow: received 1000000 bytes"), "{line}");
        kill_process(Pid::from_child(&server.child), signal).unwrap();
        assert_eq!(server.end(), (Some(0), String::new()));
    }
}

#[test]
fn one_off_ends_after_a_client_that_was_served() {
    let mut server =
        Serving::start(&["--port", "0", "--netperf", "off", "--iperf3", "off", "--one-off", "-q"]);
    let own = server.address("perpacket");
    let none: Key = "00".repeat(32).parse().unwrap();
    assert!(ask(own, Some(&none)).is_err());
    ask(own, None).unwrap();
    assert_eq!(server.end(), (Some(0), String::new()));
    assert!(server.lines.next().is_none());
}

#[test]
fn a_key_comes_from_a_file() {
    let file = format!("{}/serve.key", env!("CARGO_TARGET_TMPDIR"));
    let digits = "0123456789abcdef".repeat(4);
    std::fs::write(&file, format!("{digits}\n")).unwrap();
    let mut server = Serving::start(&[&ANY_PORTS[..], &["--key", &file]].concat());
    let own = server.address("perpacket");
    let key: Key = digits.parse().unwrap();
    ask(own, Some(&key)).unwrap();
    assert!(ask(own, None).is_err());
    std::fs::write(&file, "secret").unwrap();
    let (code, stderr) = Serving::start(&[&ANY_PORTS[..], &["--key", &file]].concat()).end();
    assert!(
        code == Some(2) && stderr.contains("64 hexadecimal digits") && !stderr.contains("secret"),
        "{stderr}"
    );
}

#[test]
fn a_port_that_is_taken_is_named_with_what_to_do() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let (code, stderr) = Serving::start(&["--port", "0", "--iperf3", "off", "--netperf", &port]).end();
    assert_eq!(code, Some(2));
    assert!(stderr.contains("--netperf off") && stderr.contains(&port), "{stderr}");
    let (code, stderr) = Serving::start(&["--port", "off", "--iperf3", "off", "--netperf", "off"]).end();
    assert!(code == Some(2) && stderr.contains("nothing left to serve"), "{stderr}");
}
