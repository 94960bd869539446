//! What a run comes to, in numbers; and the means of a row.

use std::collections::BTreeMap;

use measure::confidence::{Decision, Mean, Repeats, Wanted, mean};
use stream::cpu::Kind;
use stream::outcome::{Cpu, Datagrams, Exchanged, Flow, Latency, Moved, Side};
use stream::plan::{Direction, Ends, Plan, Work};
use stream::{datagrams, demand, latency};

use super::arrange::Beside;
use super::work::Row;

/// The level of intervals where nothing is asked of them.
const LEVEL: f64 = 0.99;

/// What went one way in a run, or in all runs of a row.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Way {
    /// Whether the end that asked sent it.
    pub(crate) from_client: bool,
    /// None where the end in question did not tell.
    pub(crate) sent: Option<Moved>,
    pub(crate) received: Option<Moved>,
    /// Of the sender's clock, and of the receiver's.
    pub(crate) sent_ns: u64,
    pub(crate) received_ns: u64,
    pub(crate) datagrams: Option<Datagrams>,
}

/// A quantity of a run; its mean over runs is what is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Quantity {
    /// 10⁶ bit/s of payload that the sender of a way gave to the kernel, by its clock.
    Sent { from_client: bool },
    /// And that the receiver got, by its own.
    Received { from_client: bool },
    /// Transactions or connections in a second.
    Rate,
    /// µs from one transaction of a flow to the next.
    Spacing,
    /// The share of all CPUs of the machine that those of an end were busy, in percent.
    CpuPercent { client: bool },
    /// µs of CPU time of an end for each KB that it moved, or for each transaction.
    Demand { client: bool },
    /// ms in a run that CPUs of an end spent in a kind of time.
    Time { client: bool, kind: KindOf },
}

/// [`Kind`], in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct KindOf(usize);

impl KindOf {
    pub(crate) const ALL: [Self; 6] = [Self(0), Self(1), Self(2), Self(3), Self(4), Self(5)];

    fn kind(self) -> Kind {
        Kind::ALL[self.0]
    }

    pub(crate) fn name(self) -> &'static str {
        match self.kind() {
            Kind::User => "user",
            Kind::System => "system",
            Kind::Softirq => "softirq",
            Kind::Irq => "irq",
            Kind::Steal => "steal",
            Kind::Idle => "idle",
        }
    }
}

impl Quantity {
    /// Its name in a record.
    pub(crate) fn name(self) -> String {
        let end = |client| if client { "client" } else { "server" };
        match self {
            Self::Sent { from_client } => format!("{}_sent_mbit", end(from_client)),
            Self::Received { from_client } => format!("{}_received_mbit", end(!from_client)),
            Self::Rate => "transactions_per_second".into(),
            Self::Spacing => "us_per_transaction".into(),
            Self::CpuPercent { client } => format!("{}_cpu_percent", end(client)),
            Self::Demand { client } => format!("{}_demand_us", end(client)),
            Self::Time { client, kind } => format!("{}_{}_ms", end(client), kind.name()),
        }
    }
}

/// A run in numbers.
#[derive(Debug, Clone, Default)]
pub(crate) struct RunFigures {
    pub(crate) ways: Vec<Way>,
    pub(crate) latency: Option<Latency>,
    pub(crate) transactions: u64,
    /// How long it took by the clock of the end that asked.
    pub(crate) client_ns: u64,
    values: BTreeMap<Quantity, f64>,
}

impl RunFigures {
    /// `cpus` are those of each end; empty: all, as nobody knows which worked for whom.
    pub(crate) fn of(plan: &Plan, cpus: &Ends<Vec<usize>>, exchanged: &Exchanged) -> Self {
        let Exchanged { client, server } = exchanged;
        let ways: Vec<Way> = match plan.work {
            Work::Bulk { direction: Direction::ToServer, .. } => vec![way(plan, client, server, true)],
            Work::Bulk { direction: Direction::ToClient, .. } => vec![way(plan, server, client, false)],
            Work::Bulk { direction: Direction::Both, .. } => {
                vec![way(plan, client, server, true), way(plan, server, client, false)]
            }
            Work::Transactions { .. } | Work::Connections { .. } => Vec::new(),
        };
        let mut run = Self {
            latency: latency::sum(client.flows.iter().filter_map(|flow| flow.latency.as_ref())),
            transactions: transactions(client).unwrap_or(0),
            client_ns: client.wall_ns,
            ways,
            values: BTreeMap::new(),
        };
        run.add_rates(client);
        for (is_client, side, cpus) in [(true, client, &cpus.client), (false, server, &cpus.server)] {
            // An end that told only of its process has no CPUs here.
            if let Some(cpu) = side.cpu.as_ref().filter(|cpu| !cpu.cpus.is_empty()) {
                run.add_cpu(is_client, side, cpu, cpus);
            }
        }
        run
    }

    pub(crate) fn value(&self, quantity: Quantity) -> Option<f64> {
        self.values.get(&quantity).copied()
    }

    /// What has to be known well: throughput or rate, and both CPU shares.
    pub(crate) fn judged(&self) -> Vec<Option<f64>> {
        let quantities = [
            Quantity::Received { from_client: true },
            Quantity::Received { from_client: false },
            Quantity::Rate,
            Quantity::CpuPercent { client: true },
            Quantity::CpuPercent { client: false },
        ];
        quantities.into_iter().map(|quantity| self.value(quantity)).collect()
    }

    fn put(&mut self, quantity: Quantity, value: Option<f64>) {
        self.values.extend(value.map(|value| (quantity, value)));
    }

    fn add_rates(&mut self, client: &Side) {
        for way in self.ways.clone() {
            let from_client = way.from_client;
            let rate = |moved: Option<Moved>, ns| moved.and_then(|moved| megabits(moved.bytes, ns));
            self.put(Quantity::Sent { from_client }, rate(way.sent, way.sent_ns));
            self.put(Quantity::Received { from_client }, rate(way.received, way.received_ns));
        }
        if self.ways.is_empty() && client.wall_ns > 0 {
            let seconds = client.wall_ns as f64 / 1e9;
            self.put(Quantity::Rate, Some(self.transactions as f64 / seconds));
            let flows = client.flows.len() as f64;
            let spacing = (self.transactions > 0).then(|| seconds * 1e6 * flows / self.transactions as f64);
            self.put(Quantity::Spacing, spacing);
        }
    }

    fn add_cpu(&mut self, client: bool, side: &Side, cpu: &Cpu, cpus: &[usize]) {
        let which = (!cpus.is_empty()).then_some(cpus);
        self.put(Quantity::CpuPercent { client }, share_of_machine(cpu, which).map(|share| 100.0 * share));
        for kind in KindOf::ALL {
            let ms = cpu.ns(kind.kind(), which) as f64 / 1e6;
            self.put(Quantity::Time { client, kind }, Some(ms));
        }
        let busy_ns = cpu.busy_ns(which);
        let demand = if self.ways.is_empty() {
            demand::us_per_transaction(busy_ns, transactions(side).unwrap_or(self.transactions))
        } else {
            demand::us_per_kb(busy_ns, moved_bytes(side))
        };
        self.put(Quantity::Demand { client }, demand);
    }
}

/// As netperf has it: the mean over all CPUs of the machine, of which those of the other end count as idle.
fn share_of_machine(cpu: &Cpu, which: Option<&[usize]>) -> Option<f64> {
    let Some(which) = which else { return cpu.busy_share(None) };
    let shares: Vec<f64> = cpu
        .cpus
        .iter()
        .filter(|kinds| which.contains(&kinds.cpu))
        .filter_map(|kinds| kinds.busy_share())
        .collect();
    (!shares.is_empty()).then(|| shares.iter().sum::<f64>() / cpu.cpus.len() as f64)
}

fn way(plan: &Plan, sender: &Side, receiver: &Side, from_client: bool) -> Way {
    let sent = sum(sender.flows.iter().map(|flow| flow.sent));
    let received = sum(receiver.flows.iter().map(|flow| flow.received));
    let flows: Vec<Datagrams> =
        sender.flows.iter().zip(&receiver.flows).filter_map(|(sent, got)| counted(plan, sent, got)).collect();
    Way {
        from_client,
        sent,
        received,
        sent_ns: sender.wall_ns,
        received_ns: receiver.wall_ns,
        datagrams: datagrams::sum(&flows),
    }
}

/// What became of the datagrams of a flow, with what was lost at its tail where nothing was omitted: then all that were sent
/// are numbered from 0.
fn counted(plan: &Plan, sent: &Flow, received: &Flow) -> Option<Datagrams> {
    let found = received.datagrams?;
    let tail = || sent.sent?.messages.checked_sub(found.received.checked_add(found.lost)?);
    let tail_lost = found.tail_lost.or_else(|| if plan.omit.is_zero() { tail() } else { None });
    Some(Datagrams { tail_lost, ..found })
}

/// None where nobody told.
fn sum(all: impl IntoIterator<Item = Option<Moved>>) -> Option<Moved> {
    all.into_iter().flatten().reduce(|sum, one| Moved {
        bytes: sum.bytes.saturating_add(one.bytes),
        messages: sum.messages.saturating_add(one.messages),
        refused: sum.refused.saturating_add(one.refused),
    })
}

fn moved_bytes(side: &Side) -> u64 {
    let both = side.flows.iter().flat_map(|flow| [flow.sent, flow.received]);
    sum(both).map_or(0, |moved| moved.bytes)
}

fn transactions(side: &Side) -> Option<u64> {
    side.flows.iter().filter_map(|flow| flow.transactions).reduce(u64::saturating_add)
}

fn megabits(bytes: u64, wall_ns: u64) -> Option<f64> {
    (wall_ns > 0).then(|| bytes as f64 * 8.0 / 1e6 / (wall_ns as f64 / 1e9))
}

/// The runs of a row with a setting.
#[derive(Debug)]
pub(crate) struct RowResult {
    pub(crate) row: Row,
    /// As the record names it.
    pub(crate) name: String,
    pub(crate) runs: Vec<RunFigures>,
    /// Connections of the last run, as the kernel told at their end.
    pub(crate) last: Exchanged,
    /// What is known beside it.
    pub(crate) beside: Beside,
    wanted: Option<Wanted>,
    repeats: Option<Repeats>,
}

impl RowResult {
    pub(crate) fn new(row: Row, name: String, wanted: Option<Wanted>) -> Self {
        // As many quantities as a run is judged by.
        let repeats = wanted.map(|wanted| Repeats::new(wanted, RunFigures::default().judged().len()));
        let (last, beside) = (Exchanged::default(), Beside::default());
        Self { row, name, runs: Vec::new(), last, beside, wanted, repeats }
    }

    pub(crate) fn add(&mut self, run: RunFigures, exchanged: Exchanged, beside: Beside) {
        if let Some(repeats) = &mut self.repeats {
            repeats.add(&run.judged());
        }
        self.runs.push(run);
        self.last = exchanged;
        self.beside = beside;
    }

    /// Whether there should be another run, of `runs` where no confidence says how many.
    pub(crate) fn wants_more(&self, runs: u32) -> bool {
        match self.decision() {
            Some(decision) => decision == Decision::More,
            None => self.runs.len() < runs as usize,
        }
    }

    /// None where nothing was asked of the means.
    pub(crate) fn decision(&self) -> Option<Decision> {
        self.repeats.as_ref().map(Repeats::decision)
    }

    /// The mean of a quantity over all runs that have it.
    pub(crate) fn mean(&self, quantity: Quantity) -> Option<Mean> {
        let values: Vec<f64> = self.runs.iter().filter_map(|run| run.value(quantity)).collect();
        mean(&values, self.level())
    }

    /// The level of intervals.
    pub(crate) fn level(&self) -> f64 {
        self.wanted.map_or(LEVEL, |wanted| wanted.level())
    }

    /// By what factor a quantity is greater in `other`: the geometric mean over pairs of runs that were made one after the
    /// other, and its interval. None without two pairs.
    pub(crate) fn ratio(&self, other: &Self, quantity: Quantity) -> Option<Ratio> {
        let pairs = self.runs.iter().zip(&other.runs);
        let logs = pairs.filter_map(|(a, b)| {
            let log = (b.value(quantity)? / a.value(quantity)?).ln();
            log.is_finite().then_some(log)
        });
        let logs: Vec<f64> = logs.collect();
        let found = mean(&logs, self.level())?;
        let half = found.half?;
        Some(Ratio {
            ratio: found.mean.exp(),
            low: (found.mean - half).exp(),
            high: (found.mean + half).exp(),
            pairs: found.runs,
        })
    }

    /// The means of all quantities by name.
    pub(crate) fn means(&self) -> BTreeMap<String, Mean> {
        let quantities = self.runs.iter().flat_map(|run| run.values.keys().copied());
        quantities.filter_map(|quantity| Some((quantity.name(), self.mean(quantity)?))).collect()
    }

    /// What went each way in all runs together.
    pub(crate) fn ways(&self) -> Vec<Way> {
        let count = self.runs.iter().map(|run| run.ways.len()).max().unwrap_or(0);
        let all = |index: usize| self.runs.iter().filter_map(move |run| run.ways.get(index));
        (0..count)
            .filter_map(|index| {
                let found: Vec<Datagrams> = all(index).filter_map(|way| way.datagrams).collect();
                Some(Way {
                    from_client: all(index).next()?.from_client,
                    sent: sum(all(index).map(|way| way.sent)),
                    received: sum(all(index).map(|way| way.received)),
                    sent_ns: all(index).map(|way| way.sent_ns).sum(),
                    received_ns: all(index).map(|way| way.received_ns).sum(),
                    datagrams: datagrams::sum(&found),
                })
            })
            .collect()
    }

    /// The latencies of all runs together.
    pub(crate) fn latency(&self) -> Option<Latency> {
        latency::sum(self.runs.iter().filter_map(|run| run.latency.as_ref()))
    }
}

/// How two settings differ in a quantity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Ratio {
    /// The second one's as a multiple of the first one's.
    pub(crate) ratio: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) pairs: u32,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use stream::outcome::CpuKinds;
    use stream::plan::{Giving, Taking, Transport, Until};

    use super::*;

    fn plan(work: Work) -> Plan {
        Plan {
            transport: Transport::Udp,
            work,
            flows: 1,
            until: Until::Time(Duration::from_secs(1)),
            omit: Duration::ZERO,
            send_bytes: 1024,
            receive_bytes: 65_536,
            pace: None,
            options: Ends::default(),
            threads: Ends::default(),
        }
    }

    fn bulk(direction: Direction) -> Plan {
        plan(Work::Bulk { direction, giving: Giving::Copy, taking: Taking::Copy })
    }

    /// Two CPUs for a second: the first one busy for `first` ms, the second for `second`.
    fn cpu(first: u64, second: u64) -> Option<Cpu> {
        let kinds = |cpu, busy_ms: u64| CpuKinds {
            cpu,
            system_ns: busy_ms * 1_000_000,
            idle_ns: (1000 - busy_ms) * 1_000_000,
            ..CpuKinds::default()
        };
        Some(Cpu { wall_ns: 1_000_000_000, cpus: vec![kinds(0, first), kinds(1, second)], ..Cpu::default() })
    }

    fn moved(kb: u64) -> Option<Moved> {
        Some(Moved { bytes: kb * 1024, messages: kb, refused: 0 })
    }

    fn exchanged() -> Exchanged {
        let sent = Flow { wall_ns: 1_000_000_000, sent: moved(1_000_000), ..Flow::default() };
        let found = Datagrams { received: 800_000, lost: 150_000, ..Datagrams::default() };
        let got = Flow { received: moved(800_000), datagrams: Some(found), ..Flow::default() };
        Exchanged {
            client: Side { wall_ns: 1_000_000_000, flows: vec![sent], cpu: cpu(500, 250), ..Side::default() },
            server: Side { wall_ns: 1_600_000_000, flows: vec![got], cpu: cpu(500, 250), ..Side::default() },
        }
    }

    #[test]
    fn each_end_is_paid_for_what_it_moved_in_its_own_time() {
        let cpus = Ends { client: vec![0], server: vec![1] };
        let run = RunFigures::of(&bulk(Direction::ToServer), &cpus, &exchanged());
        let value = |quantity| run.value(quantity).unwrap();
        assert!((value(Quantity::Sent { from_client: true }) - 8192.0).abs() < 1e-9);
        assert!((value(Quantity::Received { from_client: true }) - 4096.0).abs() < 1e-9);
        // Of two CPUs one was busy for half the time.
        assert!((value(Quantity::CpuPercent { client: true }) - 25.0).abs() < 1e-9);
        assert!((value(Quantity::CpuPercent { client: false }) - 12.5).abs() < 1e-9);
        assert!((value(Quantity::Demand { client: true }) - 0.5).abs() < 1e-9);
        assert!((value(Quantity::Demand { client: false }) - 0.3125).abs() < 1e-9);
        let found = run.ways[0].datagrams.unwrap();
        assert_eq!((found.lost, found.tail_lost), (150_000, Some(50_000)));
    }

    #[test]
    fn without_pins_the_whole_machine_is_each_ends() {
        let run = RunFigures::of(&bulk(Direction::ToServer), &Ends::default(), &exchanged());
        for client in [true, false] {
            assert_eq!(run.value(Quantity::CpuPercent { client }), Some(37.5));
        }
        assert_eq!(run.value(Quantity::Rate), None);
    }

    #[test]
    fn what_was_omitted_leaves_the_tail_unknown() {
        let plan = Plan { omit: Duration::from_secs(1), ..bulk(Direction::ToServer) };
        let run = RunFigures::of(&plan, &Ends::default(), &exchanged());
        assert_eq!(run.ways[0].datagrams.unwrap().tail_lost, None);
    }

    #[test]
    fn transactions_have_a_rate_and_their_own_demand() {
        let flow = Flow { transactions: Some(10_000), ..Flow::default() };
        let side =
            |cpu| Side { wall_ns: 2_000_000_000, flows: vec![flow.clone(); 2], cpu, ..Side::default() };
        let exchanged = Exchanged { client: side(cpu(500, 0)), server: side(None) };
        let work = Work::Transactions { request_bytes: 1, response_bytes: 1, outstanding: 1 };
        let run = RunFigures::of(&plan(work), &Ends::default(), &exchanged);
        assert_eq!(run.value(Quantity::Rate), Some(10_000.0));
        assert_eq!(run.value(Quantity::Spacing), Some(200.0));
        assert_eq!(run.value(Quantity::Demand { client: true }), Some(25.0));
        assert_eq!(run.value(Quantity::Demand { client: false }), None, "nothing is known of it");
    }

    #[test]
    fn every_figure_is_a_mean_over_all_runs() {
        let row = "udp@1024".parse().unwrap();
        let mut result = RowResult::new(row, "udp".into(), Some(Wanted::new(0.99, 0.05, 2, 5).unwrap()));
        for factor in [1, 3] {
            assert!(result.wants_more(1));
            let mut exchanged = exchanged();
            exchanged.server.wall_ns *= factor;
            let run = RunFigures::of(&bulk(Direction::ToServer), &Ends::default(), &exchanged);
            result.add(run, exchanged, Beside::default());
        }
        let received = result.mean(Quantity::Received { from_client: true }).unwrap();
        assert!((received.mean - 4096.0 * 2.0 / 3.0).abs() < 1e-9 && received.runs == 2);
        assert_eq!(result.decision(), Some(Decision::More), "they differ by a factor of 3");
        assert_eq!(result.ways()[0].datagrams.unwrap().tail_lost, Some(100_000));
        assert!(result.means().contains_key("server_received_mbit"));
        // And a setting that is twice as fast in each run is so in a ratio, however the runs differ.
        let mut fast = RowResult::new(row, "fast".into(), None);
        for factor in [1, 3] {
            let mut exchanged = exchanged();
            exchanged.server.wall_ns = exchanged.server.wall_ns * factor / 2;
            fast.add(
                RunFigures::of(&bulk(Direction::ToServer), &Ends::default(), &exchanged),
                exchanged,
                Beside::default(),
            );
        }
        let ratio = result.ratio(&fast, Quantity::Received { from_client: true }).unwrap();
        assert!((ratio.ratio - 2.0).abs() < 1e-9 && (ratio.high - ratio.low).abs() < 1e-6, "{ratio:?}");
        assert_eq!((ratio.pairs, result.ratio(&fast, Quantity::Rate)), (2, None));
    }
}
