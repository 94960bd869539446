//! What `serve` says: where it listens, and a line for each client.

use std::net::SocketAddr;
use std::time::Duration;

use stream::limits::Limits;
use stream::outcome::{Moved, Side};
use stream::plan::{Direction, Plan, Transport, Work};
use stream::serve::Served;

/// Where it listens, a line each; and unless `quiet`, for whom.
pub(crate) fn serving_opening(
    addresses: &[(&'static str, SocketAddr)],
    limits: &Limits,
    keyed: bool,
    quiet: bool,
) -> String {
    let mut text = String::new();
    for (protocol, address) in addresses {
        let note = if keyed && *protocol == "perpacket" { "  with a key" } else { "" };
        text += &format!("{protocol:<9}  {address}{note}\n");
    }
    if !quiet {
        let from: Vec<String> = limits.allow.iter().map(ToString::to_string).collect();
        text += &format!(
            "clients from {}; at most {} at once, {} s a run; SIGINT or SIGTERM ends it\n",
            from.join(", "),
            limits.clients,
            limits.duration.as_secs_f64()
        );
        if keyed && addresses.iter().any(|(protocol, _)| *protocol != "perpacket") {
            text += "netperf and iperf3 know no key: whoever may come is served by them\n";
        }
    }
    text
}

/// What became of a client, in one line.
pub(crate) fn served_line(served: &Served, time: &str) -> String {
    let mut line = format!("{time}  {:<9}  {}  ", served.protocol, served.peer);
    match &served.outcome {
        Ok(account) => {
            let words = [account.plan.as_ref().map(plan_words), account.side.as_ref().map(side_words)];
            let words: Vec<String> = words.into_iter().flatten().collect();
            line += &if words.is_empty() { "served".to_owned() } else { words.join(": ") };
            if words.is_empty()
                && let Some(length) = served.length
            {
                line += &format!(", {:.2} s", length.as_secs_f64());
            }
        }
        Err(refused) => line += &format!("not served: {}", refused.0),
    }
    line + "\n"
}

fn plan_words(plan: &Plan) -> String {
    let over = match plan.transport {
        Transport::Tcp => "TCP",
        Transport::Mptcp => "MPTCP",
        Transport::Udp => "UDP",
        Transport::UnixStream | Transport::UnixDatagram => "UNIX",
    };
    let work = match plan.work {
        Work::Bulk { direction: Direction::ToServer, .. } => "to here",
        Work::Bulk { direction: Direction::ToClient, .. } => "from here",
        Work::Bulk { direction: Direction::Both, .. } => "both ways",
        Work::Transactions { .. } => "transactions",
        Work::Connections { .. } => "connections",
    };
    let flows = if plan.flows == 1 { "1 flow".to_owned() } else { format!("{} flows", plan.flows) };
    format!("{over} {work}, {flows}")
}

fn side_words(side: &Side) -> String {
    let mut words = Vec::new();
    let rate = |moved: Moved| {
        let seconds = Duration::from_nanos(side.wall_ns).as_secs_f64();
        let gigabits = if side.wall_ns > 0 {
            format!(", {:.3} Gbit/s", moved.bytes as f64 * 8e-9 / seconds)
        } else {
            String::new()
        };
        format!("{} bytes in {seconds:.3} s{gigabits}", moved.bytes)
    };
    if let Some(moved) = sum(side.flows.iter().filter_map(|flow| flow.sent)) {
        words.push(format!("sent {}", rate(moved)));
    }
    if let Some(moved) = sum(side.flows.iter().filter_map(|flow| flow.received)) {
        words.push(format!("received {}", rate(moved)));
    }
    let transactions: Vec<u64> = side.flows.iter().filter_map(|flow| flow.transactions).collect();
    if !transactions.is_empty() {
        words.push(format!("{} transactions", transactions.iter().sum::<u64>()));
    }
    words.extend(side.warnings.iter().cloned());
    if words.is_empty() { "nothing moved".to_owned() } else { words.join("; ") }
}

/// All flows together; `None` where there is none.
fn sum(moved: impl Iterator<Item = Moved>) -> Option<Moved> {
    moved.reduce(|a, b| Moved {
        bytes: a.bytes + b.bytes,
        messages: a.messages + b.messages,
        refused: a.refused + b.refused,
    })
}

#[cfg(test)]
mod tests {
    use stream::outcome::Flow;
    use stream::plan::{Ends, Giving, Taking, Until};
    use stream::serve::{Account, Refused};

    use super::*;

    fn plan() -> Plan {
        Plan {
            transport: Transport::Tcp,
            work: Work::Bulk { direction: Direction::ToServer, giving: Giving::Copy, taking: Taking::Copy },
            flows: 2,
            until: Until::Time(Duration::from_secs(1)),
            omit: Duration::ZERO,
            send_bytes: 1,
            receive_bytes: 1,
            pace: None,
            options: Ends::default(),
            threads: Ends::default(),
        }
    }

    fn line(outcome: Result<Account, Refused>) -> String {
        let (peer, length) = (([192, 0, 2, 7], 4000).into(), Some(Duration::from_millis(1500)));
        served_line(&Served { protocol: "netperf", peer, length, outcome }, "12:00:00")
    }

    #[test]
    fn a_client_is_one_line() {
        let moved = Moved { bytes: 1_000_000_000, messages: 1, refused: 0 };
        let flow = Flow { received: Some(moved), ..Flow::default() };
        let side = Side { wall_ns: 2_000_000_000, flows: vec![flow.clone(), flow], ..Side::default() };
        assert_eq!(
            line(Ok(Account { plan: Some(plan()), side: Some(side) })),
            "12:00:00  netperf    192.0.2.7:4000  TCP to here, 2 flows: received 2000000000 bytes in 2.000 s, 8.000 Gbit/s\n"
        );
        assert_eq!(line(Ok(Account::default())), "12:00:00  netperf    192.0.2.7:4000  served, 1.50 s\n");
        let refused = line(Err(Refused("it was silent".into())));
        assert_eq!(refused, "12:00:00  netperf    192.0.2.7:4000  not served: it was silent\n");
        let empty = Account { plan: Some(plan()), side: Some(Side::default()) };
        assert!(line(Ok(empty)).ends_with("2 flows: nothing moved\n"));
    }

    #[test]
    fn ports_come_first_and_alone_where_it_is_to_be_quiet() {
        let addresses =
            [("perpacket", ([127, 0, 0, 1], 12866).into()), ("iperf3", ([127, 0, 0, 1], 5201).into())];
        let quiet = serving_opening(&addresses, &Limits::default(), false, true);
        assert_eq!(quiet, "perpacket  127.0.0.1:12866\niperf3     127.0.0.1:5201\n");
        let keyed = serving_opening(&addresses, &Limits::default(), true, false);
        assert!(
            keyed.starts_with("perpacket  127.0.0.1:12866  with a key\n") && keyed.contains("know no key")
        );
    }
}
