//! What netserver said is said to our client: it must ask as netperf did, but for ports, and read what it is told.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use stream::engine::Control;
use stream::netperf::client::{ClientError, How, Run, Session};
use stream::netperf::wire::{MESSAGE_BYTES, Message, omni, tcp_stream};
use stream::outcome::Side;
use stream::plan::{Direction, Plan, Transport, Until, Work};

use crate::recorded::{Exchange, Who, assert_same_but, exchanges};
use crate::{PATIENCE, plan_of};

/// Ports; and what netperf derives from sizes that sockets of this system may not have.
const REQUEST: &[&str] = &["data_port", "port", "netperf_port", "send_width", "recv_width"];

/// The data socket of a netserver of this test's own.
enum Data {
    Tcp(TcpListener),
    Udp(UdpSocket),
}

impl Data {
    fn port(&self) -> u16 {
        match self {
            Self::Tcp(listener) => listener.local_addr().unwrap().port(),
            Self::Udp(socket) => socket.local_addr().unwrap().port(),
        }
    }

    /// What netserver does in a test, until the client ends it.
    fn serve(&self, test: &str) {
        let mut one = [0; 1];
        match (self, test) {
            (Self::Tcp(listener), "TCP_MAERTS") => {
                listener.accept().unwrap().0.write_all(&[0; 50_000]).unwrap();
            }
            (Self::Tcp(listener), "TCP_RR") => {
                let mut stream = listener.accept().unwrap().0;
                while let Ok(1) = stream.read(&mut one) {
                    if stream.write_all(&one).is_err() {
                        break;
                    }
                }
            }
            (Self::Tcp(listener), "TCP_CRR") => {
                let end = std::time::Instant::now() + Duration::from_millis(1500);
                listener.set_nonblocking(true).unwrap();
                while std::time::Instant::now() < end {
                    let Ok((mut stream, _)) = listener.accept() else { continue };
                    stream.set_nonblocking(false).unwrap();
                    if let Ok(1) = stream.read(&mut one) {
                        let _ = stream.write_all(&one);
                    }
                }
            }
            (Self::Tcp(listener), _) => {
                std::io::copy(&mut listener.accept().unwrap().0, &mut std::io::sink()).unwrap();
            }
            (Self::Udp(socket), _) => {
                socket.set_read_timeout(Some(PATIENCE)).unwrap();
                let mut datagram = [0; 100];
                loop {
                    let (bytes, from) = socket.recv_from(&mut datagram).unwrap();
                    if bytes == 0 {
                        break;
                    }
                    if test == "UDP_RR" {
                        socket.send_to(&datagram[..bytes], from).unwrap();
                    }
                }
            }
        }
    }
}

/// Says to one client what was recorded from netserver, and returns what the client said.
fn netserver(listener: &TcpListener, exchange: &Exchange) -> Vec<Message> {
    let mut control = listener.accept().unwrap().0;
    control.set_read_timeout(Some(PATIENCE)).unwrap();
    let recorded: Vec<_> = exchange.said.iter().filter(|(who, _)| *who == Who::Netserver).collect();
    let mut heard = Vec::new();
    for run in recorded.chunks(2) {
        let mut bytes = [0; MESSAGE_BYTES];
        control.read_exact(&mut bytes).unwrap();
        heard.push(Message(bytes));
        let data = match exchange.test.as_str() {
            "UDP_STREAM" | "UDP_RR" => Data::Udp(UdpSocket::bind(("127.0.0.1", 0)).unwrap()),
            _ => Data::Tcp(TcpListener::bind(("127.0.0.1", 0)).unwrap()),
        };
        let response = if exchange.test == "TCP_SENDFILE" {
            let port = i32::from(data.port());
            tcp_stream::Response { data_port_number: port, ..tcp_stream::Response::decode(&run[0].1) }
                .encode()
        } else {
            omni::Response { data_port: data.port().into(), ..omni::Response::decode(&run[0].1) }.encode()
        };
        control.write_all(&response.0).unwrap();
        data.serve(&exchange.test);
        drop(data);
        control.write_all(&run[1].1.0).unwrap();
    }
    heard
}

fn how(control: &Control, cpu: bool) -> How<'_> {
    How { cpu, interval: None, on_interval: None, give_up_after: Duration::from_secs(5), control }
}

fn replay(test: &str, number: usize) -> Vec<Run> {
    let exchange = exchanges().into_iter().filter(|exchange| exchange.test == test).nth(number).unwrap();
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let at = listener.local_addr().unwrap();
    let (runs, heard) = thread::scope(|scope| {
        let server = scope.spawn(|| netserver(&listener, &exchange));
        let mut session = Session::connect(at, Duration::from_secs(5)).unwrap();
        let cpu = exchange.options.contains("-C");
        let runs: Vec<_> = (0..exchange.said.len() / 3)
            .map(|_| session.run(&plan_of(test), &how(&Control::new(), cpu)).unwrap())
            .collect();
        drop(session);
        (runs, server.join().unwrap())
    });
    let asked: Vec<_> = exchange.said.iter().filter(|(who, _)| *who == Who::Netperf).collect();
    assert_eq!(heard.len(), asked.len());
    for (heard, (_, recorded)) in heard.iter().zip(&asked) {
        let fields = if test == "TCP_SENDFILE" { tcp_stream::request::ALL } else { omni::request::ALL };
        assert_same_but(test, fields, heard, recorded, REQUEST);
    }
    // A port that was given once is asked for again.
    if heard.len() > 1 {
        assert_ne!(omni::Request::decode(&heard[1]).data_port, 0);
    }
    check(&exchange, &runs);
    runs
}

fn check(exchange: &Exchange, runs: &[Run]) {
    let results = exchange.said.iter().filter(|(who, _)| *who == Who::Netserver).skip(1).step_by(2);
    for (run, (_, recorded)) in runs.iter().zip(results) {
        let server: &Side = &run.exchanged.server;
        let (seconds, util) = match exchange.test.as_str() {
            "TCP_SENDFILE" => {
                let results = tcp_stream::Results::decode(recorded);
                let received = server.flows[0].received.unwrap();
                assert_eq!(received.bytes as f64, results.bytes_received);
                assert_eq!(received.messages, u64::from(results.recv_calls));
                (results.elapsed_time, results.cpu_util)
            }
            _ => {
                let results = omni::Results::decode(recorded);
                let flow = &server.flows[0];
                let moved = |bytes, calls: u32| Some((bytes, u64::from(calls)));
                let seen = |moved: Option<stream::outcome::Moved>| moved.map(|m| (m.bytes, m.messages));
                if let Some(received) = seen(flow.received) {
                    assert_eq!(Some(received), moved(results.bytes_received, results.recv_calls));
                }
                if let Some(sent) = seen(flow.sent) {
                    assert_eq!(Some(sent), moved(results.bytes_sent, results.send_calls));
                }
                assert!(flow.sent.is_some() || flow.received.is_some());
                let transactions = exchange.test.ends_with("RR");
                assert_eq!(flow.transactions, transactions.then_some(u64::from(results.trans_received)));
                (results.elapsed_time, results.cpu_util)
            }
        };
        assert_eq!(server.wall_ns, (f64::from(seconds) * 1e9) as u64);
        let cpu = exchange.options.contains("-C");
        assert_eq!(server.cpu.is_some(), cpu);
        assert_eq!(run.server_cpu_method, cpu.then_some('S'));
        if let Some(cpu) = &server.cpu {
            // Within what netserver's parts leave unnamed.
            let busy = cpu.busy_share(None).unwrap() * 100.0;
            assert!((busy - f64::from(util)).abs() < 1.0, "{busy} {util}");
            assert_eq!(cpu.cpus.len(), 2);
        }
        // The first line of figures in the output names the same sizes for the server.
        assert!(exchange.output.contains(&run.sizes.remote_receive_buffer.to_string()));
        assert!(run.exchanged.client.wall_ns > 0);
    }
}

#[test]
fn tcp_stream() {
    let runs = replay("TCP_STREAM", 0);
    assert!(runs[0].exchanged.client.flows[0].sent.unwrap().bytes > 0);
}

#[test]
fn tcp_stream_with_confidence() {
    assert_eq!(replay("TCP_STREAM", 1).len(), 3);
}

#[test]
fn tcp_maerts() {
    let runs = replay("TCP_MAERTS", 0);
    assert_eq!(runs[0].exchanged.client.flows[0].received.unwrap().bytes, 50_000);
}

#[test]
fn tcp_sendfile() {
    replay("TCP_SENDFILE", 0);
}

#[test]
fn udp_stream() {
    replay("UDP_STREAM", 0);
}

#[test]
fn tcp_rr() {
    let runs = replay("TCP_RR", 0);
    assert!(runs[0].exchanged.client.flows[0].transactions.unwrap() > 0);
}

#[test]
fn udp_rr() {
    replay("UDP_RR", 0);
}

#[test]
fn tcp_crr() {
    replay("TCP_CRR", 0);
}

/// A netserver that answers with these messages, whatever is asked, and then closes.
fn answers(messages: Vec<Message>, cut: usize) -> std::net::SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        let mut control: TcpStream = listener.accept().unwrap().0;
        let mut request = [0; MESSAGE_BYTES];
        control.read_exact(&mut request).unwrap();
        for message in messages {
            control.write_all(&message.0[..cut]).unwrap();
        }
        // Until the client has gone.
        let _ = control.shutdown(std::net::Shutdown::Write);
        let _ = control.read(&mut request);
    });
    at
}

fn asked(at: std::net::SocketAddr, plan: &Plan) -> ClientError {
    let control = Control::new();
    let how = How { give_up_after: Duration::from_secs(2), ..how(&control, true) };
    stream::netperf::client::run(at, plan, &how).unwrap_err()
}

#[test]
fn answers_that_are_none_are_named() {
    let plan = plan_of("TCP_RR");
    let ok = omni::Response { kind: 98, ..Default::default() };
    let refused = answers(vec![Message::new(98).with_errno(13)], MESSAGE_BYTES);
    let text = asked(refused, &plan).to_string();
    assert!(text.contains("error 13") && text.contains("ermission"), "{text}");
    let unknown = answers(vec![Message::new(0).with_errno(998)], MESSAGE_BYTES);
    assert!(asked(unknown, &plan).to_string().contains("does not know this test"));
    assert!(matches!(
        asked(answers(vec![Message::new(5)], MESSAGE_BYTES), &plan),
        ClientError::Answer { kind: 5, .. }
    ));
    let port = omni::Response { data_port: 70_000, ..ok.clone() }.encode();
    assert!(asked(answers(vec![port], MESSAGE_BYTES), &plan).to_string().contains("port that is none"));
    // netserver 2.5.0 and older has messages of 256 bytes.
    assert!(asked(answers(vec![ok.encode()], 256), &plan).to_string().contains("256 of 656 bytes"));
    assert!(asked(answers(vec![], 0), &plan).to_string().contains("closed the control connection"));
}

#[test]
fn results_of_netperf_260_are_refused() {
    let exchange = exchanges().into_iter().find(|exchange| exchange.test == "TCP_STREAM").unwrap();
    let data = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let response = omni::Response::decode(&exchange.said[1].1);
    let response =
        omni::Response { data_port: data.local_addr().unwrap().port().into(), ..response }.encode();
    // As 2.6.0 lays them out: without the five shares behind cpu_util.
    let mut results = exchange.said[2].1.clone();
    let at = omni::results::CPU_PERCENT_USER.start;
    results.0.copy_within(omni::results::SERV_DEM.start..omni::results::IFNAME.start, at);
    let at = answers(vec![response, results], MESSAGE_BYTES);
    let sink = thread::spawn(move || std::io::copy(&mut data.accept().unwrap().0, &mut std::io::sink()));
    let error = asked(at, &plan_of("TCP_STREAM"));
    assert!(matches!(error, ClientError::Implausible { .. }), "{error}");
    assert!(error.to_string().contains("2.6.0"), "{error}");
    sink.join().unwrap().unwrap();
}

#[test]
fn what_cannot_be_said_is_refused_before_anything_is_sent() {
    let nobody = "127.0.0.1:1".parse().unwrap();
    let stream = plan_of("TCP_STREAM");
    let both = |direction| Work::Bulk {
        direction,
        giving: stream::plan::Giving::Copy,
        taking: stream::plan::Taking::Copy,
    };
    for (plan, what) in [
        (Plan { flows: 2, ..stream.clone() }, "2 flows"),
        (Plan { omit: Duration::from_secs(1), ..stream.clone() }, "omitted"),
        (Plan { transport: Transport::UnixStream, ..stream.clone() }, "UnixStream"),
        (Plan { work: both(Direction::Both), ..stream.clone() }, "both directions"),
        (
            Plan { transport: Transport::Udp, work: both(Direction::ToClient), ..stream.clone() },
            "datagrams from",
        ),
        (Plan { until: Until::Time(Duration::from_millis(1500)), ..plan_of("TCP_MAERTS") }, "1.5 s"),
        (Plan { until: Until::Units(5), ..plan_of("UDP_RR") }, "over UDP"),
        (Plan { until: Until::Units(1 << 40), ..plan_of("TCP_RR") }, "1099511627776"),
    ] {
        let error = asked(nobody, &plan);
        assert!(matches!(error, ClientError::Unsaid(_)), "{error}");
        assert!(error.to_string().contains(what), "{error}");
    }
    let mut cork = stream;
    cork.options.server.cork = true;
    assert!(asked(nobody, &cork).to_string().contains("TCP_CORK"));
}
