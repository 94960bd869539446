//! What a server bears: strangers, liars, the silent, the slow and the many, while it measures for others.
#![allow(clippy::unwrap_used)]

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{LONG, Running, bulk, plan, small, wait_for};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use stream::limits::{Halt, Limits};
use stream::own::OwnError;
use stream::own::client::{self, Asking};
use stream::own::wire::{Asked, Frames, Hello, LARGE_FRAME, Message, Ready, VERSION, Way, frame};
use stream::plan::{Direction, Plan, Transport, Until, Work};

/// A client by hand: its control connection, without anything that a real one does by itself.
struct ByHand {
    stream: TcpStream,
    frames: Frames,
}

impl ByHand {
    /// Says hello and asks for this.
    fn ask(to: SocketAddr, plan: Plan) -> Self {
        let mut stream = TcpStream::connect(to).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.write_all(&Hello { version: VERSION, code: Way::Plain as u8 }.bytes()).unwrap();
        let mut hello = [0; 12];
        stream.read_exact(&mut hello).unwrap();
        let mut one = Self { stream, frames: Frames::default() };
        one.say(&Message::Plan(Box::new(Asked { plan, interval: None, cpu: false })));
        one
    }

    fn say(&mut self, message: &Message) {
        self.stream.write_all(&frame(message, LARGE_FRAME).unwrap()).unwrap();
    }

    /// The next message but signs of life; `None` when the connection is closed.
    fn hear(&mut self) -> Option<Message> {
        loop {
            match self.frames.next(LARGE_FRAME).unwrap() {
                Some(Message::Alive) => {}
                Some(message) => return Some(message),
                None => {
                    let mut bytes = [0; 4096];
                    match self.stream.read(&mut bytes) {
                        Ok(0) => return None,
                        Ok(count) => self.frames.push(&bytes[..count]),
                        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                        Err(error) => panic!("{error}"),
                    }
                }
            }
        }
    }

    fn ready(&mut self) -> Ready {
        match self.hear() {
            Some(Message::Ready(ready)) => ready,
            other => panic!("{other:?}"),
        }
    }
}

fn impatient(clients: u32) -> Limits {
    Limits { idle: Duration::from_secs(1), clients, ..Limits::default() }
}

#[test]
fn a_spoofed_greeting_gets_no_stream() {
    let server = Running::own(impatient(4));
    let endless = plan(Transport::Udp, bulk(Direction::ToClient), Until::Time(Duration::from_secs(60)));
    let mut hand = ByHand::ask(server.address(), endless.clone());
    let ready = hand.ready();
    let to = SocketAddr::new(server.address().ip(), ready.ports[0]);
    // All that an attacker could know, the cookie even; but it is not the address that asked.
    let victim = UdpSocket::bind("127.0.0.2:0").unwrap();
    victim.send_to(&ready.cookie.greeting(0), to).unwrap();
    // It gets no further, and says so when its time is over.
    let words = match hand.hear() {
        Some(Message::Error { message }) => message,
        other => panic!("{other:?}"),
    };
    assert!(words.contains("0 of 1 data connections"), "{words}");
    victim.set_nonblocking(true).unwrap();
    assert!(victim.recv(&mut [0; 2000]).is_err());
    // The right address without the cookie, and with that of another flow.
    let mut hand = ByHand::ask(server.address(), endless.clone());
    let ready = hand.ready();
    let to = SocketAddr::new(server.address().ip(), ready.ports[0]);
    let own = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut wrong = ready.cookie.greeting(0);
    wrong[0] ^= 1;
    for bytes in [&wrong[..], &ready.cookie.greeting(1), b"", &[0; 1400]] {
        own.send_to(bytes, to).unwrap();
    }
    assert!(matches!(hand.hear(), Some(Message::Error { .. })));
    own.set_nonblocking(true).unwrap();
    assert!(own.recv(&mut [0; 2000]).is_err());
    // And with the right one, from the address that asked: the same socket gets its stream.
    let mut hand = ByHand::ask(server.address(), endless);
    let ready = hand.ready();
    own.send_to(&ready.cookie.greeting(0), SocketAddr::new(server.address().ip(), ready.ports[0])).unwrap();
    assert_eq!(hand.hear(), Some(Message::Connected));
    assert!(own.recv(&mut [0; 2000]).is_err(), "nothing is sent before it was asked to begin");
    hand.say(&Message::Begin);
    own.set_nonblocking(false).unwrap();
    own.set_read_timeout(Some(LONG)).unwrap();
    let mut datagram = [0; 2000];
    assert_eq!(own.recv(&mut datagram).unwrap(), 1000);
    assert_eq!(datagram[..16], ready.cookie.0);
}

#[test]
fn a_stranger_takes_no_data_connection() {
    let server = Running::own(impatient(4));
    let mut hand = ByHand::ask(server.address(), small());
    let ready = hand.ready();
    let to = SocketAddr::new(server.address().ip(), ready.ports[0]);
    let mut strangers: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(to).unwrap()).collect();
    for (index, stranger) in strangers.iter_mut().enumerate() {
        let mut preface = ready.cookie.preface(if index % 2 == 0 { 0 } else { 7 });
        preface[index % 16] ^= u8::from(index % 2 == 0);
        // Those after the first may be closed already.
        let _ = stranger.write_all(&preface[..20 - index % 3]);
    }
    let mut own = TcpStream::connect(to).unwrap();
    own.write_all(&ready.cookie.preface(0)).unwrap();
    assert_eq!(hand.hear(), Some(Message::Connected));
    // Connections that are opened only to be counted come from one address only.
    let connections = plan(Transport::Tcp, Work::Connections { exchange: None }, Until::Units(1));
    let mut hand = ByHand::ask(server.address(), connections);
    let ready = hand.ready();
    assert_eq!(hand.hear(), Some(Message::Connected));
    let to = SocketAddr::new(server.address().ip(), ready.ports[0]);
    let from = Some(SocketAddr::from(([127, 0, 0, 2], 0)));
    let dial = |from, within| {
        linux::socket::connect_within(linux::socket::stream(to, false).unwrap(), to, from, within)
    };
    assert!(dial(from, Duration::from_millis(300)).is_err());
    assert!(dial(None, LONG).is_ok());
}

#[test]
fn a_half_open_control_connection_gives_its_place_back_at_each_stage() {
    let server = Running::own(impatient(1));
    // It asked and does not connect; it connected and does not begin; it began and says nothing more.
    for stage in 0..3 {
        let mut hand = ByHand::ask(server.address(), Plan { until: Until::Time(LONG), ..small() });
        let ready = hand.ready();
        let mut data = None;
        if stage > 0 {
            let mut stream =
                TcpStream::connect(SocketAddr::new(server.address().ip(), ready.ports[0])).unwrap();
            stream.write_all(&ready.cookie.preface(0)).unwrap();
            data = Some(stream);
            assert_eq!(hand.hear(), Some(Message::Connected));
        }
        if stage > 1 {
            hand.say(&Message::Begin);
            assert_eq!(hand.hear(), Some(Message::Begun));
        }
        wait_for(|| server.count() > stage);
        assert!(server.served(stage + 1)[stage].outcome.is_err());
        while hand.hear().is_some() {}
        drop(data);
    }
    assert!(server.ask(&small()).is_ok());
}

#[test]
fn a_client_that_does_not_read_is_left() {
    let server = Running::own(impatient(1));
    let endless = Plan { until: Until::Time(Duration::from_secs(600)), ..small() };
    let mut hand = ByHand::ask(server.address(), Plan { work: bulk(Direction::ToClient), ..endless });
    let ready = hand.ready();
    let mut data = TcpStream::connect(SocketAddr::new(server.address().ip(), ready.ports[0])).unwrap();
    data.write_all(&ready.cookie.preface(0)).unwrap();
    assert_eq!(hand.hear(), Some(Message::Connected));
    hand.say(&Message::Begin);
    // Its data is never read: the stream stands still, although the client says that it is there.
    wait_for(|| {
        // The server may have closed it by now.
        let _ = hand.stream.write_all(&frame(&Message::Alive, LARGE_FRAME).unwrap());
        thread::sleep(Duration::from_millis(50));
        server.count() > 0
            || matches!(hand.frames.next(LARGE_FRAME), Ok(Some(_)))
            || matches!(ended(&hand), Some(true))
    });
    drop((hand, data));
    wait_for(|| server.ask(&small()).is_ok());
}

/// Whether the server said that its flows have ended; `None` where nothing came.
fn ended(hand: &ByHand) -> Option<bool> {
    let mut bytes = [0; 4096];
    hand.stream.set_nonblocking(true).unwrap();
    let count = hand.stream.peek(&mut bytes).ok();
    hand.stream.set_nonblocking(false).unwrap();
    count.map(|count| bytes[..count].windows(7).any(|word| word == b"\"ended\""))
}

/// A run over loopback; its bits in a second as the server received them.
fn measure(server: &Running, time: Duration) -> Result<f64, OwnError> {
    let plan = plan(Transport::Tcp, bulk(Direction::ToServer), Until::Time(time));
    let both = client::run(server.address(), &plan, &Asking::new(&Halt::new()))?;
    let bytes: u64 = both.server.flows.iter().filter_map(|flow| flow.received).map(|moved| moved.bytes).sum();
    Ok(bytes as f64 * 8e9 / both.server.wall_ns as f64)
}

/// What a hostile connection says first, from its number: nothing, noise, a beginning, or a beginning and then noise.
fn hostility(protocol: usize, number: usize) -> Vec<u8> {
    let mut noise = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut random = |length: usize| -> Vec<u8> {
        let next = |noise: &mut u64| {
            *noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (*noise >> 56) as u8
        };
        (0..length).map(|_| next(&mut noise)).collect()
    };
    let beginning = match protocol {
        0 => {
            let asked = Message::Plan(Box::new(Asked { plan: small(), interval: None, cpu: false }));
            let hello = Hello { version: VERSION, code: Way::Plain as u8 }.bytes();
            [&hello[..], &frame(&asked, LARGE_FRAME).unwrap()].concat()
        }
        1 => {
            let mut message = vec![0; 656];
            message[3] = 97;
            message
        }
        _ => {
            let cookie = format!("{number:036}").replace(['0', '1', '8', '9'], "a");
            [cookie.as_bytes(), &[0, 0, 0, 0, 20], br#"{"tcp":true,"time":1"#].concat()
        }
    };
    match number % 5 {
        0 => Vec::new(),
        1 => random(1 + number % 700),
        2 => beginning[..number % beginning.len()].to_vec(),
        3 => [beginning, random(100)].concat(),
        _ => [&beginning[..beginning.len().min(40)], &[255; 64]].concat(),
    }
}

#[test]
fn a_thousand_hostile_connections_of_each_protocol_do_not_disturb_a_measurement() {
    const EACH: usize = 1000;
    let server = Running::all(Limits { idle: Duration::from_secs(2), clients: 8, ..Limits::default() });
    measure(&server, Duration::from_millis(200)).unwrap();
    let (before, done) = (linux::process::resident_bytes().unwrap(), AtomicBool::new(false));
    let disturbed = thread::scope(|scope| {
        let attack = scope.spawn(|| {
            let mut open = Vec::new();
            let mut refused = 0;
            for number in 0..EACH {
                for (protocol, &address) in server.addresses.iter().enumerate() {
                    let Ok(mut stream) = TcpStream::connect_timeout(&address, LONG) else {
                        refused += 1;
                        continue;
                    };
                    // It may be closed by now, which is what is hoped for.
                    let _ = stream.write_all(&hostility(protocol, number));
                    match number % 7 {
                        0 => drop(stream),
                        1 => {
                            let _ = stream.shutdown(Shutdown::Write);
                            open.push(stream);
                        }
                        _ => open.push(stream),
                    }
                }
                // So that some of it lasts as long as the measurement does.
                if number % 10 == 0 {
                    thread::sleep(Duration::from_millis(10));
                }
            }
            done.store(true, Ordering::Relaxed);
            (open, refused)
        });
        let mut rates = Vec::new();
        let mut busy = 0;
        while rates.is_empty() || !done.load(Ordering::Relaxed) && !attack.is_finished() {
            match measure(&server, Duration::from_millis(500)) {
                Ok(rate) => rates.push(rate),
                // As many half-open clients as there are places: it passes when they have been idle for too long.
                Err(OwnError::TurnedAway(_) | OwnError::Closed { .. }) => busy += 1,
                Err(error) => panic!("{error}"),
            }
            assert!(busy < 10_000);
        }
        let (open, refused) = attack.join().unwrap();
        assert_eq!(refused, 0);
        let grown = linux::process::resident_bytes().unwrap().saturating_sub(before);
        assert!(grown < 64 << 20, "{grown} bytes more");
        all_are_closed(open);
        rates
    });
    assert!(disturbed.iter().all(|&rate| rate > 0.0));
    wait_for(|| measure(&server, Duration::from_millis(100)).is_ok());
}

/// Every connection is at its end within the timeouts of the server.
fn all_are_closed(open: Vec<TcpStream>) {
    let began = Instant::now();
    for mut stream in open {
        stream.set_read_timeout(Some(LONG)).unwrap();
        let mut bytes = Vec::new();
        match stream.read_to_end(&mut bytes) {
            Err(error) if error.kind() != std::io::ErrorKind::ConnectionReset => {
                panic!("{error}: still open after {:?}", began.elapsed())
            }
            _ => {}
        }
    }
}

#[test]
fn any_bytes_to_any_port_leave_it_serving() {
    let server = Running::all(impatient(8));
    let hello = Hello { version: VERSION, code: Way::Plain as u8 }.bytes();
    let bytes = prop::collection::vec(any::<u8>(), 0..900);
    let config = Config { cases: 150, failure_persistence: None, ..Config::default() };
    let sent =
        TestRunner::new(config).run(&(bytes, 0..3_usize, any::<bool>()), |(mut bytes, port, as_if)| {
            if as_if {
                // As if it were one of the protocol's.
                let first = match port {
                    0 => hello.to_vec(),
                    1 => vec![0, 0, 0, 97],
                    _ => [&[b'a'; 36][..], &[0]].concat(),
                };
                bytes.splice(0..0, first);
            }
            let mut stream = TcpStream::connect(server.addresses[port])?;
            // It may have been closed in the middle of it.
            let _ = stream.write_all(&bytes);
            let _ = stream.shutdown(Shutdown::Write);
            stream.set_read_timeout(Some(LONG))?;
            let mut rest = Vec::new();
            let closed = stream.read_to_end(&mut rest);
            prop_assert!(!matches!(closed, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock));
            Ok(())
        });
    sent.unwrap();
    wait_for(|| server.ask(&small()).is_ok());
}
