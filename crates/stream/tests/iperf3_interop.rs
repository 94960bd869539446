//! Against iperf3 itself, both ways, over loopback.
#![allow(clippy::unwrap_used)]

mod iperf3_support;

use std::path::Path;
use std::time::Duration;

use iperf3_support::{Ours, Theirs, assert_near, bulk, has_iperf3, iperf3, limits};
use serde_json::Value;
use stream::engine::End;
use stream::iperf3::auth::{Guard, Login, Padding, SKEW, credential, private_key, public_key};
use stream::iperf3::client::{self, ClientError, Finished, Options};
use stream::iperf3::json;
use stream::iperf3::results::ServerOutput;
use stream::iperf3::server::Settings;
use stream::plan::{Direction, Ends, Pace, Plan, SocketOptions, Transport, Until};

const SECOND: Duration = Duration::from_secs(1);
/// How far both sides may be apart.
const SHARE: f64 = 0.01;
/// And by what is in buffers when iperf3 stops to read, which is not counted by it: they are small here, because on a busy
/// machine little more flows in a second.
const WINDOW: u32 = 100_000;
const BUFFERS: u64 = 5 * WINDOW as u64;
/// Each end begins to count by its own clock after what is omitted: what flows then is not the same.
const OMITTED_SHARE: f64 = 0.2;

/// Bytes of one figure in the JSON of iperf3.
fn bytes(output: &Value, sum: &str) -> u64 {
    output["end"][sum]["bytes"].as_u64().unwrap_or_else(|| panic!("no {sum} in {output}"))
}

/// Runs iperf3's client against a server of ours, and holds against each other what both ends counted.
fn serve(test: &str, arguments: &[&str]) -> Option<(Value, stream::outcome::Exchanged)> {
    if !has_iperf3(test) {
        return None;
    }
    let ours = Ours::with_limits(limits());
    let output = iperf3(ours.address, arguments);
    assert!(output.get("error").is_none(), "{output}");
    let (plan, exchanged) = ours.only();
    let share = if plan.omit.is_zero() { SHARE } else { OMITTED_SHARE };
    let both = matches!(plan.work, stream::plan::Work::Bulk { direction: Direction::Both, .. });
    for suffix in if both { &["", "_bidir_reverse"][..] } else { &[""][..] } {
        let sent = bytes(&output, &format!("sum_sent{suffix}"));
        assert_near(
            test,
            sent,
            bytes(&output, &format!("sum_received{suffix}")),
            share,
            BUFFERS * u64::from(plan.flows),
        );
    }
    for (near, far) in exchanged.client.flows.iter().zip(&exchanged.server.flows) {
        let (sender, receiver) = if near.sent.is_some() { (near, far) } else { (far, near) };
        assert_near(test, sender.sent.unwrap().bytes, receiver.received.unwrap().bytes, share, BUFFERS);
        assert!(receiver.wall_ns > 0 && sender.wall_ns > 0);
    }
    Some((output, exchanged))
}

/// Runs our client against a server of iperf3, and holds against each other what both ends counted.
fn ask(test: &str, plan: &Plan, options: &Options<'_>) -> Option<Finished> {
    if !has_iperf3(test) {
        return None;
    }
    let theirs = Theirs::start(&[]);
    let finished = client::run_whole(theirs.address, plan, options).unwrap();
    let Finished { exchanged, .. } = &finished;
    let share = if plan.omit.is_zero() { SHARE } else { OMITTED_SHARE };
    assert!(exchanged.client.warnings.is_empty(), "{:?}", exchanged.client.warnings);
    for (near, far) in exchanged.client.flows.iter().zip(&exchanged.server.flows) {
        let (sender, receiver) = if near.sent.is_some() { (near, far) } else { (far, near) };
        assert_near(test, sender.sent.unwrap().bytes, receiver.received.unwrap().bytes, share, BUFFERS);
        assert!(receiver.wall_ns > 0 && sender.wall_ns > 0);
    }
    Some(finished)
}

/// So slow that a receiver which does not run for half a second loses nothing.
fn udp(direction: Direction) -> Plan {
    let pace = Some(Pace::Spread { bits_per_second: 2_000_000 });
    Plan { pace, send_bytes: 1000, receive_bytes: 1000, ..bulk(Transport::Udp, direction, SECOND) }
}

fn tcp(direction: Direction) -> Plan {
    let small = SocketOptions {
        send_buffer_bytes: Some(WINDOW),
        receive_buffer_bytes: Some(WINDOW),
        ..SocketOptions::default()
    };
    Plan { options: Ends { client: small.clone(), server: small }, ..bulk(Transport::Tcp, direction, SECOND) }
}

#[test]
fn serve_tcp() {
    let Some((output, _)) = serve("serve_tcp", &["-t", "1"]) else { return };
    assert!(output["end"]["cpu_utilization_percent"]["remote_total"].as_f64().unwrap() > 0.0);
    assert!(output["end"]["receiver_tcp_congestion"].is_string());
}

#[test]
fn serve_reverse() {
    let Some((output, _)) = serve("serve_reverse", &["-t", "1", "-R", "-w", "100K"]) else { return };
    assert!(output["end"]["sum_sent"]["retransmits"].is_u64());
}

#[test]
fn serve_both_directions() {
    serve("serve_both_directions", &["-t", "1", "--bidir", "-w", "100K"]);
}

#[test]
fn serve_parallel() {
    let Some((_, exchanged)) = serve("serve_parallel", &["-t", "1", "-P", "4"]) else { return };
    assert_eq!(exchanged.server.flows.len(), 4);
}

#[test]
fn serve_parallel_both_directions() {
    let Some((_, exchanged)) =
        serve("serve_parallel_both_directions", &["-t", "1", "-P", "2", "--bidir", "-w", "100K"])
    else {
        return;
    };
    assert_eq!(exchanged.server.flows.len(), 4);
}

#[test]
fn serve_omit() {
    let Some((output, exchanged)) = serve("serve_omit", &["-t", "1", "-O", "1"]) else { return };
    assert!(exchanged.server.flows[0].wall_ns < 1_900_000_000, "{}", exchanged.server.flows[0].wall_ns);
    assert!(output["end"]["sum_received"]["seconds"].as_f64().unwrap() < 1.9);
}

#[test]
fn serve_udp() {
    let Some((output, _)) = serve("serve_udp", &["-u", "-b", "2M", "-l", "1000", "-t", "1"]) else { return };
    assert_eq!(output["end"]["sum"]["lost_packets"], 0);
    assert!(output["end"]["sum"]["jitter_ms"].as_f64().unwrap() < 1000.0);
}

#[test]
fn serve_udp_reverse() {
    let Some((output, _)) = serve(
        "serve_udp_reverse",
        &["-u", "-b", "2M", "-l", "1000", "-t", "1", "-R", "--udp-counters-64bit"],
    ) else {
        return;
    };
    assert_eq!(output["end"]["sum"]["lost_packets"], 0);
}

#[test]
fn serve_udp_both_directions_in_parallel() {
    serve(
        "serve_udp_both_directions_in_parallel",
        &["-u", "-b", "2M", "-l", "1000", "-t", "1", "--bidir", "-P", "2"],
    );
}

#[test]
fn serve_udp_omit_is_exact() {
    let Some((output, exchanged)) =
        serve("serve_udp_omit", &["-u", "-b", "2M", "-l", "1000", "-t", "1", "-O", "1"])
    else {
        return;
    };
    let datagrams = exchanged.server.flows[0].datagrams.unwrap();
    assert_eq!((datagrams.lost, datagrams.tail_lost.unwrap_or(0)), (0, 0));
    assert_eq!(output["end"]["sum"]["lost_packets"], 0);
}

#[test]
fn serve_an_amount_of_bytes_and_of_blocks() {
    let Some((_, exchanged)) = serve("serve_bytes", &["-n", "20M"]) else { return };
    assert_near("-n", exchanged.server.flows[0].received.unwrap().bytes, 20 << 20, SHARE, BUFFERS);
    let Some((_, exchanged)) = serve("serve_bytes_reverse", &["-n", "20M", "-R"]) else { return };
    assert_near("-n -R", exchanged.server.flows[0].sent.unwrap().bytes, 20 << 20, SHARE, BUFFERS);
    let Some((_, exchanged)) = serve("serve_blocks", &["-k", "100", "-l", "10000"]) else { return };
    assert_near("-k", exchanged.server.flows[0].received.unwrap().bytes, 1_000_000, 0.02, 0);
}

#[test]
fn serve_socket_options() {
    let arguments = [
        "-t", "1", "-w", "300K", "-M", "1000", "-N", "-C", "reno", "-Z", "-S", "16", "-R", "-b", "100M",
        "--title", "a title",
    ];
    let Some((output, exchanged)) = serve("serve_socket_options", &arguments) else { return };
    let bits = output["end"]["sum_received"]["bits_per_second"].as_f64().unwrap();
    assert!(bits > 0.0 && bits < 110e6, "{bits}");
    assert_eq!(output["end"]["sender_tcp_congestion"], "reno");
    assert!(exchanged.server.flows[0].sent.is_some());
}

#[test]
fn serve_output() {
    let Some((output, _)) = serve("serve_output", &["-t", "1", "--get-server-output"]) else { return };
    let server = &output["server_output_json"];
    assert!(server["start"]["accepted_connection"]["port"].is_u64(), "{server}");
    assert_eq!(server["end"]["sum_received"]["bytes"], output["end"]["sum_received"]["bytes"]);
}

#[test]
fn serve_several_at_once() {
    if !has_iperf3("serve_several_at_once") {
        return;
    }
    let ours = Ours::with_limits(limits());
    std::thread::scope(|scope| {
        for arguments in [
            &["-t", "1", "-b", "50M"][..],
            &["-t", "1", "-b", "50M", "-R"],
            &["-u", "-t", "1", "-b", "10M"],
            &["-u", "-R", "-t", "1", "-b", "10M"],
        ] {
            let address = ours.address;
            scope.spawn(move || assert!(iperf3(address, arguments).get("error").is_none()));
        }
    });
    ours.wait(4, 0);
}

fn data(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/iperf3").join(name)
}

#[test]
fn serve_those_who_are_known() {
    if !has_iperf3("serve_those_who_are_known") {
        return;
    }
    // iperf3 3.12 pads with PKCS #1 1.5 or, patched, with OAEP: one of them is right.
    let guard = |padding| {
        let users = format!("mia,{}\n", credential("mia", "pass word"));
        Some(Guard::new(private_key(&data("private.pem")).unwrap(), &users, padding, SKEW))
    };
    let mut admitted = 0;
    let key = data("public.pem").display().to_string();
    for padding in [Padding::Oaep, Padding::Pkcs1] {
        let ours = Ours::start(Settings { limits: limits(), guard: guard(padding), ..Settings::default() });
        let known = iperf3(ours.address, &["-n", "1M", "--username", "mia", "--rsa-public-key-path", &key]);
        admitted += usize::from(known.get("error").is_none());
        let unknown = iperf3(ours.address, &["-n", "1M"]);
        assert!(unknown["error"].as_str().unwrap().contains("authorization failed"), "{unknown}");
        let other = iperf3(ours.address, &["-n", "1M", "--username", "max", "--rsa-public-key-path", &key]);
        assert!(other["error"].as_str().unwrap().contains("authorization failed"), "{other}");
    }
    assert_eq!(admitted, 1);
}

#[test]
fn ask_tcp() {
    let Some(finished) = ask("ask_tcp", &tcp(Direction::ToServer), &Options::default()) else { return };
    let tcp = finished.exchanged.client.flows[0].tcp.as_ref().unwrap();
    assert!(tcp.retransmits.is_some() && tcp.congestion.is_some());
}

#[test]
fn ask_reverse() {
    let Some(finished) = ask("ask_reverse", &tcp(Direction::ToClient), &Options::default()) else { return };
    assert!(finished.exchanged.server.flows[0].tcp.as_ref().unwrap().retransmits.is_some());
}

#[test]
fn ask_both_directions() {
    ask("ask_both_directions", &tcp(Direction::Both), &Options::default());
}

#[test]
fn ask_parallel() {
    ask("ask_parallel", &Plan { flows: 4, ..tcp(Direction::ToServer) }, &Options::default());
    ask("ask_parallel reverse", &Plan { flows: 4, ..tcp(Direction::ToClient) }, &Options::default());
}

#[test]
fn ask_omit() {
    let plan = Plan { omit: SECOND, ..tcp(Direction::ToServer) };
    let Some(finished) = ask("ask_omit", &plan, &Options::default()) else { return };
    assert!(finished.exchanged.client.flows[0].wall_ns < 1_900_000_000);
}

#[test]
fn ask_udp_in_each_direction() {
    for direction in [Direction::ToServer, Direction::ToClient, Direction::Both] {
        let Some(finished) = ask("ask_udp", &udp(direction), &Options::default()) else { return };
        let Finished { exchanged, .. } = finished;
        for flow in exchanged.client.flows.iter().chain(&exchanged.server.flows) {
            let Some(datagrams) = flow.datagrams else { continue };
            assert_eq!((datagrams.lost, datagrams.duplicate), (0, 0), "{direction:?}");
        }
    }
}

#[test]
fn ask_udp_omit() {
    let plan = Plan { omit: SECOND, ..udp(Direction::ToServer) };
    let options = Options { wide_counters: true, interval: Some(SECOND), ..Options::default() };
    let Some(finished) = ask("ask_udp_omit", &plan, &options) else { return };
    let datagrams = finished.exchanged.server.flows[0].datagrams.unwrap();
    assert_eq!(datagrams.lost, 0);
}

#[test]
fn ask_an_amount() {
    for direction in [Direction::ToServer, Direction::ToClient] {
        let plan = Plan { until: Until::Bytes(20 << 20), ..tcp(direction) };
        let Some(finished) = ask("ask_an_amount", &plan, &Options::default()) else { return };
        let client = &finished.exchanged.client.flows[0];
        assert_near("bytes", client.sent.or(client.received).unwrap().bytes, 20 << 20, SHARE, BUFFERS);
    }
}

#[test]
fn ask_for_output() {
    let options = Options { get_server_output: true, ..Options::default() };
    let plan = tcp(Direction::ToServer);
    let Some(finished) = ask("ask_for_output", &plan, &options) else { return };
    let Some(ServerOutput::Text(text)) = &finished.server_output else {
        panic!("{:?}", finished.server_output)
    };
    assert!(text.contains("receiver"), "{text}");
    let Finished { exchanged, facts, server_output } = &finished;
    let document = json::document(&json::Test {
        end: End::Client,
        plan: &plan,
        facts,
        exchanged,
        server_output: server_output.as_ref(),
    });
    assert_eq!(document["server_output_text"].as_str(), Some(text.as_str()));
}

#[test]
fn ask_as_somebody() {
    if !has_iperf3("ask_as_somebody") {
        return;
    }
    let users = std::env::temp_dir().join(format!("perpacket-iperf3-users-{}", std::process::id()));
    // The password has no space: 3.12 reads it with %s.
    std::fs::write(&users, format!("mia,{}\n", credential("mia", "password"))).unwrap();
    let private = data("private.pem").display().to_string();
    let users_path = users.display().to_string();
    let arguments =
        ["--rsa-private-key-path", private.as_str(), "--authorized-users-path", users_path.as_str()];
    let plan = Plan { until: Until::Bytes(1 << 20), ..tcp(Direction::ToServer) };
    let ask = |login: Option<&Login>| {
        let theirs = Theirs::start(&arguments);
        client::run(theirs.address, &plan, &Options { login, ..Options::default() })
    };
    let login = |password: &str, padding| Login {
        user: "mia".into(),
        password: password.into(),
        key: public_key(&data("public.pem")).unwrap(),
        padding,
    };
    let admitted =
        [Padding::Oaep, Padding::Pkcs1].map(|padding| ask(Some(&login("password", padding))).is_ok());
    assert_eq!(admitted.iter().filter(|&&admitted| admitted).count(), 1, "{admitted:?}");
    for refused in [None, Some(&login("other", Padding::Oaep))] {
        let answer = ask(refused);
        assert!(matches!(answer, Err(ClientError::Server { .. })), "{answer:?}");
    }
    std::fs::remove_file(users).unwrap();
}
