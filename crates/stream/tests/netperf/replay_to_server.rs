//! What netperf said is said to our server: it must answer as netserver did, but for what was measured, and ports.

use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::time::Duration;

use stream::netperf::wire::{MESSAGE_BYTES, Message, omni, tcp_stream};

use crate::recorded::{Exchange, Who, assert_same_but, exchanges};
use crate::{PATIENCE, Served, limits, loopback};

/// Sizes that sockets of this system have, where they are not those of the system on which it was recorded.
const SIZES: &[&str] =
    &["recv_buf_size", "receive_size", "recv_width", "send_buf_size", "send_size", "send_width"];

/// What was measured; and what netserver does not set, where there stands what was in its buffer before.
const RESULTS: &[&str] = &[
    "bytes_received",
    "recv_calls",
    "recv_buf_size",
    "bytes_sent",
    "send_calls",
    "send_buf_size",
    "trans_received",
    "elapsed_time",
    "cpu_util",
    "cpu_percent_user",
    "cpu_percent_system",
    "cpu_percent_iowait",
    "cpu_percent_irq",
    "cpu_percent_swintr",
    "serv_dem",
    "cpu_method",
    "num_cpus",
    "peak_cpu_id",
    "peak_cpu_util",
    "transport_retrans",
    "cong_control",
];

/// Whether sockets of this system have the sizes that were recorded.
fn same_system() -> bool {
    let socket = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
    let udp = linux::socket::receive_buffer(&socket).unwrap();
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let tcp =
        (linux::socket::receive_buffer(&listener).unwrap(), linux::socket::send_buffer(&listener).unwrap());
    (udp, tcp) == (212_992, (131_072, 16_384))
}

fn read(control: &mut TcpStream) -> Message {
    let mut bytes = [0; MESSAGE_BYTES];
    control.read_exact(&mut bytes).unwrap();
    Message(bytes)
}

/// What the client of the test moved.
#[derive(Debug, Default)]
struct Moved {
    sent: u64,
    received: u64,
    transactions: u32,
}

fn replay(exchange: &Exchange) {
    let served = Served::new("127.0.0.1", limits());
    let mut control = served.connect();
    let mut said = exchange.said.iter();
    let mut port = 0;
    while let Some((who, request)) = said.next() {
        assert_eq!(*who, Who::Netperf);
        let mut request = request.clone();
        let udp = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
        udp.set_read_timeout(Some(PATIENCE)).unwrap();
        let stream = exchange.test == "TCP_SENDFILE";
        if !stream {
            let mut omni = omni::Request::decode(&request);
            if omni.protocol == omni::PROTOCOL_UDP {
                omni.netperf_port = udp.local_addr().unwrap().port().into();
            }
            // netperf names again the port of the run before.
            if omni.data_port != 0 {
                omni.data_port = port;
            }
            request = omni.encode();
        }
        control.write_all(&request.0).unwrap();

        let response = read(&mut control);
        let recorded = &said.next().unwrap().1;
        let sizes: &[&str] = if same_system() { &[] } else { SIZES };
        // netserver leaves in its buffer what results had behind the last field of a response.
        let may: Vec<&str> = [&["data_port", "data_port_number", "rest"], sizes].concat();
        let named = if stream { tcp_stream::response::ALL } else { omni::response::ALL };
        assert_same_but(&exchange.test, named, &response, recorded, &may);
        assert!(response.0[300..].iter().all(|&byte| byte == 0));
        port = match stream {
            true => tcp_stream::Response::decode(&response).data_port_number as u32,
            false => omni::Response::decode(&response).data_port,
        };

        let moved = move_data(&exchange.test, port as u16, &udp);
        let results = read(&mut control);
        let recorded = &said.next().unwrap().1;
        check_results(exchange, &results, recorded, &moved);
    }
    drop(control);
    served.ended().unwrap();
}

fn move_data(test: &str, port: u16, udp: &UdpSocket) -> Moved {
    let to = (loopback(), port);
    let tcp = || {
        let stream = TcpStream::connect(to).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    };
    let mut moved = Moved::default();
    let mut one = [7];
    match test {
        "TCP_STREAM" | "TCP_SENDFILE" => {
            let mut stream = tcp();
            stream.write_all(&[1; 100_000]).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            // As netperf does: the server closes when it has read all.
            assert_eq!(stream.read(&mut one).unwrap(), 0);
            moved.sent = 100_000;
        }
        "TCP_MAERTS" => moved.received = std::io::copy(&mut tcp(), &mut std::io::sink()).unwrap(),
        "TCP_RR" => {
            let mut stream = tcp();
            for _ in 0..100 {
                stream.write_all(&one).unwrap();
                stream.read_exact(&mut one).unwrap();
            }
            moved = Moved { sent: 100, received: 100, transactions: 100 };
        }
        "TCP_CRR" => {
            for _ in 0..20 {
                let mut stream = tcp();
                stream.write_all(&one).unwrap();
                stream.read_exact(&mut one).unwrap();
                // As netperf does: the server closes first.
                assert_eq!(stream.read(&mut one).unwrap(), 0);
            }
            moved = Moved { sent: 20, received: 20, transactions: 20 };
        }
        "UDP_STREAM" => {
            udp.connect(to).unwrap();
            for _ in 0..50 {
                udp.send(&[1; 64]).unwrap();
            }
            end_of_datagrams(udp);
            moved.sent = 50 * 64;
        }
        "UDP_RR" => {
            udp.connect(to).unwrap();
            for _ in 0..100 {
                udp.send(&one).unwrap();
                assert_eq!(udp.recv(&mut one).unwrap(), 1);
            }
            end_of_datagrams(udp);
            moved = Moved { sent: 100, received: 100, transactions: 100 };
        }
        other => panic!("{other}"),
    }
    moved
}

fn end_of_datagrams(udp: &UdpSocket) {
    for _ in 0..3 {
        // The server may be gone after the first.
        let _ = udp.send(&[]);
    }
}

fn check_results(exchange: &Exchange, results: &Message, recorded: &Message, moved: &Moved) {
    let test = &exchange.test;
    if test == "TCP_SENDFILE" {
        assert_same_but(test, tcp_stream::results::ALL, results, recorded, RESULTS);
        let results = tcp_stream::Results::decode(results);
        assert_eq!(results.bytes_received, moved.sent as f64);
        assert!(results.elapsed_time > 0.0 && results.recv_calls > 0);
        return;
    }
    assert_same_but(test, omni::results::ALL, results, recorded, RESULTS);
    let results = omni::Results::decode(results);
    assert_eq!(results.bytes_received, moved.sent, "{test}");
    assert_eq!(results.trans_received, moved.transactions, "{test}");
    assert_eq!(results.bytes_sent, moved.received, "{test}");
    assert!(results.elapsed_time > 0.0 && results.elapsed_time < 10.0, "{test}: {}", results.elapsed_time);
    assert_eq!(results.errno, 0);
    let recorded = omni::Results::decode(recorded);
    // Where netserver names the congestion control, so do we.
    assert_eq!(results.cong_control[0] == 0, recorded.cong_control[0] == 0, "{test}");
    if recorded.transport_retrans == -1 {
        assert_eq!(results.transport_retrans, -1, "{test}");
    }
    if exchange.options.contains("-C") && results.cpu_method != 0 {
        assert_eq!(results.cpu_method, recorded.cpu_method);
        assert!((0.0..=100.1).contains(&results.cpu_util), "{}", results.cpu_util);
        assert!(results.num_cpus > 0);
    }
}

/// One recorded exchange.
fn nth(test: &str, number: usize) -> Exchange {
    exchanges().into_iter().filter(|exchange| exchange.test == test).nth(number).unwrap()
}

#[test]
fn tcp_stream() {
    replay(&nth("TCP_STREAM", 0));
}

#[test]
fn tcp_stream_with_confidence() {
    let exchange = nth("TCP_STREAM", 1);
    assert_eq!(exchange.said.len(), 9);
    replay(&exchange);
}

#[test]
fn tcp_maerts() {
    replay(&nth("TCP_MAERTS", 0));
}

#[test]
fn tcp_sendfile() {
    replay(&nth("TCP_SENDFILE", 0));
}

#[test]
fn udp_stream() {
    replay(&nth("UDP_STREAM", 0));
}

#[test]
fn tcp_rr() {
    replay(&nth("TCP_RR", 0));
}

#[test]
fn udp_rr() {
    replay(&nth("UDP_RR", 0));
}

#[test]
fn tcp_crr() {
    replay(&nth("TCP_CRR", 0));
}

#[test]
fn a_datagram_from_elsewhere_is_neither_counted_nor_answered() {
    let served = Served::new("127.0.0.1", limits());
    let mut control = served.connect();
    let mut request = omni::Request::decode(&nth("UDP_RR", 0).said[0].1);
    let udp = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
    request.netperf_port = udp.local_addr().unwrap().port().into();
    control.write_all(&request.encode().0).unwrap();
    let port = omni::Response::decode(&read(&mut control)).data_port as u16;
    let others = [UdpSocket::bind(("127.0.0.1", 0)).unwrap(), UdpSocket::bind(("127.0.0.2", 0)).unwrap()];
    for other in &others {
        other.send_to(&[9], (loopback(), port)).unwrap();
    }
    let moved = move_data("UDP_RR", port, &udp);
    assert_eq!(omni::Results::decode(&read(&mut control)).trans_received, moved.transactions);
    for other in &others {
        other.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        assert!(other.recv(&mut [0]).is_err());
    }
    drop(control);
    served.ended().unwrap();
}

#[test]
fn a_data_connection_from_elsewhere_is_closed_and_the_client_s_is_taken() {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let served = Served::new("127.0.0.1", limits());
    let mut control = served.connect();
    control.write_all(&nth("TCP_STREAM", 0).said[0].1.0).unwrap();
    let port = omni::Response::decode(&read(&mut control)).data_port as u16;
    let fd = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&fd, &std::net::SocketAddr::from(([127, 0, 0, 2], 0))).unwrap();
    connect(&fd, &std::net::SocketAddr::from((loopback(), port))).unwrap();
    let mut other = TcpStream::from(fd);
    let _ = other.write_all(&[3; 1000]);
    let moved = move_data("TCP_STREAM", port, &UdpSocket::bind(("127.0.0.1", 0)).unwrap());
    assert_eq!(omni::Results::decode(&read(&mut control)).bytes_received, moved.sent);
    drop(control);
    served.ended().unwrap();
}
