//! Between what an end counted and what the messages have words for.

use super::wire::omni::Results;
use super::wire::{CPU_METHOD_PROC_STAT, tcp_stream};
use crate::cpu::Kind;
use crate::outcome::{Cpu, CpuKinds, Flow, Moved, Side};

/// CPU time as the messages tell it: shares of all CPUs together, percent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Shares {
    pub(super) util: f32,
    user: f32,
    system: f32,
    irq: f32,
    softirq: f32,
    pub(super) cpus: u32,
    peak: (i32, f32),
}

impl Shares {
    /// The shares of a run; `None` if CPU time was not accounted for, or no tick went by.
    pub(super) fn of(cpu: Option<&Cpu>) -> Option<Self> {
        let cpu = cpu?;
        let percent = |kind| cpu.share(kind, None).map(|share| (share * 100.0) as f32);
        let busy = cpu.cpus.iter().filter_map(|one| Some((one.cpu, one.busy_share()?)));
        let peak = busy.max_by(|a, b| a.1.total_cmp(&b.1))?;
        Some(Self {
            util: (cpu.busy_share(None)? * 100.0) as f32,
            user: percent(Kind::User)?,
            system: percent(Kind::System)?,
            irq: percent(Kind::Irq)?,
            softirq: percent(Kind::Softirq)?,
            cpus: cpu.cpus.len() as u32,
            peak: (peak.0 as i32, (peak.1 * 100.0) as f32),
        })
    }
}

/// What flows moved, added up.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    pub(super) sent: Moved,
    pub(super) received: Moved,
    pub(super) transactions: u64,
    pub(super) retransmits: Option<u64>,
}

impl Totals {
    pub(super) fn of(side: &Side) -> Self {
        let mut totals = Self::default();
        for flow in &side.flows {
            for (sum, moved) in [(&mut totals.sent, flow.sent), (&mut totals.received, flow.received)] {
                let moved = moved.unwrap_or_default();
                sum.bytes += moved.bytes;
                sum.messages += moved.messages;
            }
            totals.transactions += flow.transactions.unwrap_or_default();
            if let Some(retransmits) = flow.tcp.as_ref().and_then(|tcp| tcp.retransmits) {
                *totals.retransmits.get_or_insert(0) += retransmits;
            }
        }
        totals
    }
}

/// Fills in what was counted. A count beyond 32 bits is told without its high bits, as by netserver.
pub(super) fn fill(results: &mut Results, side: &Side, seconds: f32) {
    let totals = Totals::of(side);
    results.bytes_received = totals.received.bytes;
    results.recv_calls = totals.received.messages as u32;
    results.bytes_sent = totals.sent.bytes;
    results.send_calls = totals.sent.messages as u32;
    results.trans_received = totals.transactions as u32;
    results.elapsed_time = seconds;
    results.transport_retrans = totals.retransmits.map_or(-1, |count| count as i32);
}

/// Fills in CPU time.
pub(super) fn fill_cpu(results: &mut Results, shares: &Shares) {
    results.cpu_util = shares.util;
    results.cpu_percent_user = shares.user;
    results.cpu_percent_system = shares.system;
    results.cpu_percent_irq = shares.irq;
    results.cpu_percent_swintr = shares.softirq;
    results.cpu_method = CPU_METHOD_PROC_STAT;
    results.num_cpus = shares.cpus;
    (results.peak_cpu_id, results.peak_cpu_util) = shares.peak;
}

/// Which of the counters of results mean something.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meaning {
    pub(super) sends: bool,
    pub(super) receives: bool,
    pub(super) transactions: bool,
    pub(super) cpu: bool,
}

/// What a server told, as an outcome.
pub(super) fn side(results: &Results, meaning: Meaning) -> Side {
    let moved = |bytes, calls: u32| Moved { bytes, messages: u64::from(calls), refused: 0 };
    let wall_ns = nanoseconds(results.elapsed_time);
    let flow = Flow {
        wall_ns,
        sent: meaning.sends.then(|| moved(results.bytes_sent, results.send_calls)),
        received: meaning.receives.then(|| moved(results.bytes_received, results.recv_calls)),
        transactions: meaning.transactions.then_some(u64::from(results.trans_received)),
        tcp: u64::try_from(results.transport_retrans)
            .ok()
            .map(|count| crate::outcome::Tcp { retransmits: Some(count), ..Default::default() }),
        ..Flow::default()
    };
    let mut side = Side { wall_ns, flows: vec![flow], ..Side::default() };
    if meaning.cpu {
        let kinds = [
            results.cpu_percent_user,
            results.cpu_percent_system,
            results.cpu_percent_irq,
            results.cpu_percent_swintr,
        ];
        let util = results.cpu_util - results.cpu_percent_iowait.max(0.0);
        put_cpu(&mut side, util, Some(kinds), results.num_cpus);
    }
    side
}

/// The same for the results of TCP_SENDFILE.
pub(super) fn side_of_stream(results: &tcp_stream::Results, cpu: bool) -> Side {
    let wall_ns = nanoseconds(results.elapsed_time);
    let bytes = results.bytes_received as u64;
    let received = Moved { bytes, messages: u64::from(results.recv_calls), refused: 0 };
    let flow = Flow { wall_ns, received: Some(received), ..Flow::default() };
    let mut side = Side { wall_ns, flows: vec![flow], ..Side::default() };
    if cpu {
        put_cpu(&mut side, results.cpu_util, None, u32::try_from(results.num_cpus).unwrap_or(0));
    }
    side
}

/// The server's protocol tells means over all its CPUs; they are put down for each of them, so that sums are right.
fn put_cpu(side: &mut Side, util: f32, kinds: Option<[f32; 4]>, cpus: u32) {
    let wall_ns = side.wall_ns;
    let part = |percent: f32| (f64::from(percent.max(0.0)) / 100.0 * wall_ns as f64) as u64;
    // Without kinds, all that is busy stands as system time.
    let [user, system, irq, softirq] = kinds.unwrap_or([0.0, util, 0.0, 0.0]).map(part);
    let busy = part(util);
    // netserver has stolen time in its busy share, and tells no share of it.
    let steal = busy.saturating_sub(user + system + irq + softirq);
    let idle = wall_ns.saturating_sub(busy);
    side.cpu = Some(Cpu {
        wall_ns,
        cpus: (0..cpus as usize)
            .map(|cpu| CpuKinds {
                cpu,
                user_ns: user,
                system_ns: system,
                irq_ns: irq,
                softirq_ns: softirq,
                steal_ns: steal,
                idle_ns: idle,
            })
            .collect(),
        ..Cpu::default()
    });
    side.warnings.push(
        "the server told the mean over its CPUs only: each of them is shown with it, and nothing is known of its process; what it counts as busy \
         without naming the kind is shown as stolen"
            .into(),
    );
}

fn nanoseconds(seconds: f32) -> u64 {
    (f64::from(seconds) * 1e9) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_filled_in_is_told_again() {
        let cpus = vec![
            CpuKinds {
                cpu: 0,
                user_ns: 10,
                system_ns: 40,
                softirq_ns: 10,
                idle_ns: 40,
                ..CpuKinds::default()
            },
            CpuKinds { cpu: 1, idle_ns: 100, ..CpuKinds::default() },
        ];
        let cpu = Cpu { wall_ns: 100, cpus, ..Cpu::default() };
        let flow = Flow {
            sent: Some(Moved { bytes: 5 << 32, messages: 7, refused: 0 }),
            received: Some(Moved { bytes: 3, messages: 2, refused: 0 }),
            transactions: Some(2),
            ..Flow::default()
        };
        let mut results = Results::default();
        fill(&mut results, &Side { flows: vec![flow], ..Side::default() }, 2.0);
        fill_cpu(&mut results, &Shares::of(Some(&cpu)).unwrap());
        assert_eq!(results.transport_retrans, -1);
        assert_eq!((results.cpu_util, results.num_cpus, results.peak_cpu_util), (30.0, 2, 60.0));
        let meaning = Meaning { sends: true, receives: true, transactions: true, cpu: true };
        let told = side(&Results::decode(&results.encode()), meaning);
        assert_eq!(told.wall_ns, 2_000_000_000);
        assert_eq!(told.flows[0].sent.unwrap(), Moved { bytes: 5 << 32, messages: 7, refused: 0 });
        assert_eq!(told.flows[0].transactions, Some(2));
        assert_eq!(told.flows[0].tcp, None);
        let told = told.cpu.unwrap();
        assert_eq!(told.cpus.len(), 2);
        assert_eq!(told.busy_ns(None), 2 * 600_000_000);
        assert_eq!((told.cpus[1].user_ns, told.cpus[1].softirq_ns), (100_000_000, 100_000_000));
    }

    #[test]
    fn what_has_no_kind_is_no_kind_of_work() {
        let results = Results {
            elapsed_time: 1.0,
            cpu_util: 50.0,
            cpu_percent_system: 20.0,
            num_cpus: 1,
            ..Results::default()
        };
        let meaning = Meaning { sends: false, receives: true, transactions: false, cpu: true };
        let told = side(&results, meaning);
        assert_eq!(told.flows[0].sent, None);
        let cpu = told.cpu.unwrap().cpus[0];
        assert_eq!((cpu.system_ns, cpu.steal_ns, cpu.idle_ns), (200_000_000, 300_000_000, 500_000_000));
    }
}
