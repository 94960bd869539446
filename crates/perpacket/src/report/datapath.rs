//! What a device under test did, for people.

use anyhow::Result;
use measure::record::{Datapath as Results, DatapathMemory, DatapathPort, DatapathThread, Head};

use super::numbers::thousands;
use super::opening::machine;
use super::sent::{bits, per_second};
use super::tables::{align_right, ledger_text, plain};
use crate::device::Account;
use crate::scenario::{Datapath, StageName};

/// A line on the machine and one on the scenario; the whole scenario with `verbose`.
pub(crate) fn datapath_opening(
    scenario: &Datapath,
    head: &Head,
    cpus: &[usize],
    verbose: bool,
) -> Result<String> {
    let mut numbers = cpus.to_vec();
    numbers.sort_unstable();
    numbers.dedup();
    let plural = if numbers.len() == 1 { "" } else { "s" };
    let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    let on = format!("CPU{plural} {}", numbers.join(", "));
    let mut text = format!("{}{}\n", machine(head, &on), in_a_line(scenario));
    if verbose {
        text += &format!("\n{}\n", scenario.to_toml()?);
    }
    Ok(text)
}

fn in_a_line(scenario: &Datapath) -> String {
    let Datapath { devices, receive, run, .. } = scenario;
    let mut line = format!("datapath {}", scenario.stage);
    match (&devices.rx, &devices.tx) {
        (Some(rx), Some(tx)) => line += &format!(" {rx} to {tx}"),
        (Some(rx), None) => line += &format!(" {rx}"),
        _ => {
            let ports: Vec<String> = devices.ports.iter().map(ToString::to_string).collect();
            line += &format!(" between {}", ports.join(" and "));
        }
    }
    if let Some(frames) = &scenario.frames {
        line += &match (&frames.program, &frames.name) {
            (None, _) => format!(", frames of {} bytes", frames.frame_bytes),
            (Some(_), Some(name)) => format!(", frames of {name}"),
            (Some(_), None) => ", frames of a program".into(),
        };
    }
    line += &format!(", receive {}", receive.mode);
    line += &receive.alloc.map_or(String::new(), |alloc| format!(" into {alloc}"));
    if run.threads > 1 {
        line += &format!(", {} threads", run.threads);
    }
    if let (StageName::Udp, Some(udp)) = (scenario.stage, &scenario.udp) {
        line += &format!(", ports {} of {} packets", udp.ports, udp.limit);
    }
    if let Some(steer) = &scenario.steer {
        let cpus: Vec<String> = steer.cpus.iter().map(ToString::to_string).collect();
        line += &format!(", to CPUs {} with backlogs of {} packets", cpus.join(", "), steer.backlog);
    }
    if scenario.network.prefixes > 0 {
        line += &format!(", {} prefixes", thousands(scenario.network.prefixes.into()));
    }
    line += &scenario.fault.map_or(String::new(), |fault| format!(", faults {fault}"));
    line += &run.count.map_or(String::new(), |count| format!(", {} frames", thousands(count)));
    line += &run.time_s.map_or(String::new(), |time_s| format!(", at most {time_s} s"));
    if run.count.is_none() && run.time_s.is_none() {
        line += ", until Ctrl-C";
    }
    line + &format!(", seed {}", run.seed)
}

/// The line that shows how a run goes, once a second.
#[derive(Default)]
pub(crate) struct DatapathLive {
    /// When the last line was made, and what was received by then.
    last: (f64, u64),
}

impl DatapathLive {
    /// The next line, if a second has passed since the last.
    pub(crate) fn line(&mut self, seconds: f64, received: u64) -> Option<String> {
        let passed = seconds - self.last.0;
        if passed < 1.0 {
            return None;
        }
        let pps = (received - self.last.1) as f64 / passed;
        self.last = (seconds, received);
        Some(format!(
            "{seconds:.0} s  {} pps  {} received",
            thousands(pps.round() as u64),
            thousands(received)
        ))
    }
}

/// Rates, threads, ports, queues, events, memory, and where every packet ended.
pub(crate) fn datapath_text(account: &Account, verbose: bool) -> String {
    let results = &account.results;
    let mut text = totals(results);
    text += &format!("{}\n", threads(results));
    text += &ledger_text(&account.ledger);
    for port in &results.ports {
        text += &port_line(port);
    }
    // One queue says no more than the port.
    if results.queues.len() > 1 || verbose {
        for queue in &results.queues {
            let limit =
                queue.limit.map_or(String::new(), |limit| format!(", at most {} wait", thousands(limit)));
            let bytes = queue.l2_bytes.map_or(String::new(), |bytes| format!(", {} bytes", thousands(bytes)));
            text += &format!(
                "{} {}: {} packets{bytes}{limit}\n",
                queue.kind,
                queue.number,
                thousands(queue.packets)
            );
        }
    }
    for event in &results.events {
        text += &format!("{}: {} {} times\n", event.stage, event.event, thousands(event.count));
    }
    if let Some(faults) = &results.faults {
        text += &format!(
            "faults: {} frames dropped, {} corrupted, {} duplicated, {} reordered, {} delayed, {} not handed over at the end\n",
            thousands(faults.dropped),
            thousands(faults.corrupted),
            thousands(faults.duplicated),
            thousands(faults.reordered),
            thousands(faults.delayed),
            thousands(faults.held)
        );
    }
    text + &memory_line(&results.memory)
}

fn totals(results: &Results) -> String {
    let of = |direction: &str| -> u64 {
        results.ports.iter().filter(|port| port.direction == direction).map(|port| port.packets).sum()
    };
    let (received, cpu_ns) = (of("rx"), results.threads.iter().map(|thread| thread.cpu_ns).sum::<u64>());
    let pps = |packets| thousands(per_second(packets, results.wall_ns));
    let mut line = format!(
        "received {} packets in {:.3} s: {} pps",
        thousands(received),
        results.wall_ns as f64 / 1e9,
        pps(received)
    );
    let worked = results.threads.iter().all(worked);
    if let Some(cost) = per_packet(cpu_ns, received).filter(|_| worked) {
        line += &format!(", {cost} ns CPU time a packet");
    }
    let sends = results.ports.iter().any(|port| port.direction == "tx");
    if sends {
        let sent = of("tx");
        let bytes: u64 = results.ports.iter().filter_map(|port| port.l2_bytes).sum();
        let rate = bits(bytes as f64 * 8e9 / results.wall_ns.max(1) as f64);
        line += &format!("\nsent {} packets: {} pps, {rate} (without FCS)", thousands(sent), pps(sent));
    }
    line + "\n"
}

fn threads(results: &Results) -> String {
    let mut table = plain(&["thread", "CPU", "packets", "pps", "ns/packet", "polls", "full", "waits"]);
    let or_none = |value: Option<String>| value.unwrap_or_else(|| "–".into());
    for thread in &results.threads {
        table.add_row(vec![
            thread.role.clone(),
            or_none(thread.cpu.map(|cpu| cpu.to_string())),
            thousands(thread.packets),
            thousands(per_second(thread.packets, thread.wall_ns)),
            or_none(worked(thread).then(|| per_packet(thread.cpu_ns, thread.packets)).flatten()),
            or_none(thread.polls.map(thousands)),
            or_none(full_share(thread)),
            thousands(thread.waits),
        ]);
    }
    align_right(&mut table, 1);
    table.to_string()
}

/// Whether its time is that of packets: with fewer packets than polls it mostly looked for some.
fn worked(thread: &DatapathThread) -> bool {
    thread.polls.is_none_or(|polls| thread.packets >= polls)
}

fn full_share(thread: &DatapathThread) -> Option<String> {
    let polls = thread.polls.filter(|polls| *polls > 0)?;
    Some(format!("{:.1} %", thread.full_polls? as f64 * 100.0 / polls as f64))
}

/// CPU time a packet; none without packets.
fn per_packet(cpu_ns: u64, packets: u64) -> Option<String> {
    let ns = cpu_ns as f64 / packets as f64;
    (packets > 0).then(|| if ns < 1000.0 { format!("{ns:.1}") } else { thousands(ns.round() as u64) })
}

fn port_line(port: &DatapathPort) -> String {
    let mut line =
        format!("port {} {} {}: {} packets", port.port, port.direction, port.device, thousands(port.packets));
    line += &port.l2_bytes.map_or(String::new(), |bytes| format!(", {} bytes", thousands(bytes)));
    if port.direction == "rx" {
        line += &match port.missed {
            Some(0) => String::new(),
            Some(missed) => format!(", {} lost before", thousands(missed)),
            None => ", lost before: not known".into(),
        };
    }
    line + "\n"
}

fn memory_line(memory: &DatapathMemory) -> String {
    let mut parts = Vec::new();
    parts.extend(
        memory.pinned_bytes.map(|bytes| format!("{} bytes pinned by packets and caches", thousands(bytes))),
    );
    parts.extend(memory.dummy_queue_bytes.map(|bytes| format!("{bytes} bytes a dummy queue")));
    if let (Some(bytes), Some(prefixes)) = (memory.table_bytes, memory.table_prefixes) {
        let huge = match memory.table_huge_bytes {
            Some(0) => ", none of it in huge pages".into(),
            Some(huge) => format!(", {} of it in huge pages", thousands(huge)),
            None => String::new(),
        };
        parts.push(format!(
            "{} bytes for a table of {} prefixes{huge}",
            thousands(bytes),
            thousands(prefixes)
        ));
    }
    parts.extend(memory.resident_bytes.map(|bytes| format!("{} bytes resident", thousands(bytes))));
    if parts.is_empty() { String::new() } else { format!("memory: {}\n", parts.join(", ")) }
}
