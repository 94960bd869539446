//! `perpacket serve`: listens for clients of perpacket, netperf and iperf3 until it is told to end.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use stream::iperf3;
use stream::limits::{Halt, Limits, Net};
use stream::own::Key;
use stream::serve::{Iperf3, Netperf, Own, Protocol, Served, Server, listen};

use crate::cli::serve::{Door, ServeArgs};
use crate::report::{self, Outcome, served_line, serving_opening};
use crate::stop::Stop;
use crate::streams;

/// How often it is looked whether a signal came.
const LOOK: Duration = Duration::from_millis(50);

/// A protocol and the socket at which its clients come.
type OpenDoor = (Box<dyn Protocol>, TcpListener);

/// Serves until a signal, or with --one-off until a client was served.
pub(crate) fn run(args: &ServeArgs) -> Result<Outcome> {
    ensure!(
        [args.port, args.netperf, args.iperf3].iter().any(|&door| door != Door::Off),
        "--port off --netperf off --iperf3 off: there is nothing left to serve"
    );
    let limits = limits(args);
    let key = args.key.as_deref().map(streams::read_key).transpose()?;
    let stop = Stop::listen()?;
    let halt = Halt::new();
    let mut doors = Vec::new();
    for &ip in &args.bind {
        doors.extend(open(ip, args, &limits, key.as_ref(), &halt)?);
    }
    let server = Server::new(doors, limits.clone(), &halt)?;
    report::write_stdout(&serving_opening(&server.addresses(), &limits, key.is_some(), args.quiet))?;
    let on_client = |served: Served| {
        if !args.quiet {
            // A reader that has gone away is no reason to turn clients away.
            let _ = report::write_stdout(&served_line(&served, &now()));
        }
        if args.one_off && served.outcome.is_ok() {
            halt.halt();
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            while !halt.is_halted() && !stop.asked() {
                thread::sleep(LOOK);
            }
            halt.halt();
        });
        let served = server.run(&on_client);
        // So that the thread above ends too, where the server ended by itself.
        halt.halt();
        served
    })?;
    Ok(Outcome::Good)
}

/// The time in UTC, to the second.
fn now() -> String {
    let now = Timestamp::now().to_string();
    now.get(..19).map_or_else(|| now.clone(), |second| format!("{second}Z"))
}

fn limits(args: &ServeArgs) -> Limits {
    let allow = if args.allow.is_empty() { own_addresses(&args.bind) } else { args.allow.clone() };
    Limits {
        duration: args.limits.max_time,
        bits_per_second: args.limits.max_rate,
        memory_bytes: args.limits.max_memory,
        clients: args.limits.max_clients,
        flows: args.limits.max_flows,
        idle: args.limits.idle,
        allow,
    }
}

/// Loopback, and the addresses that are listened on: who comes from there is on this host.
fn own_addresses(bind: &[IpAddr]) -> Vec<Net> {
    let mut nets = Net::loopback();
    let own = bind.iter().filter(|ip| !ip.is_unspecified() && !nets.iter().any(|net| net.contains(**ip)));
    let own: Vec<Net> =
        own.filter_map(|&ip| Net::new(ip, if ip.is_ipv4() { 32 } else { 128 }).ok()).collect();
    nets.extend(own);
    nets
}

/// Opens the doors at one address.
fn open(
    ip: IpAddr,
    args: &ServeArgs,
    limits: &Limits,
    key: Option<&Key>,
    halt: &Halt,
) -> Result<Vec<OpenDoor>> {
    let mut doors: Vec<OpenDoor> = Vec::new();
    let at = |name, port| listen(name, SocketAddr::new(ip, port));
    if let Door::Port(port) = args.port {
        doors.push((Box::new(Own { key: key.cloned() }), at("perpacket", port)?));
    }
    if let Door::Port(port) = args.netperf {
        let listener = at("netperf", port).context("--netperf PORT, or --netperf off")?;
        doors.push((Box::new(Netperf), listener));
    }
    if let Door::Port(port) = args.iperf3 {
        let listener = at("iperf3", port).context("--iperf3 PORT, or --iperf3 off")?;
        let address = listener.local_addr().context("ask for iperf3's port")?;
        let settings = iperf3::server::Settings { limits: limits.clone(), ..Default::default() };
        let protocol = Iperf3::new(address, settings, halt).context("open iperf3's UDP port")?;
        doors.push((Box::new(protocol), listener));
    }
    Ok(doors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_default_only_this_host_may_come() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let allow = own_addresses(&[ip("0.0.0.0"), ip("192.0.2.1"), ip("127.0.0.1")]);
        let limits = Limits { allow, ..Limits::default() };
        assert_eq!(limits.allow.len(), 3);
        assert!(limits.permits(ip("127.0.0.1")) && limits.permits(ip("192.0.2.1")));
        assert!(!limits.permits(ip("192.0.2.2")) && !limits.permits(ip("2001:db8::1")));
    }
}
