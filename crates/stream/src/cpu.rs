//! What the CPUs of the host did between two looks, by kind.
//!
//! A [`Snapshot`] is `/proc/stat` and what the process used. Two of them make a [`Cpu`]. It counts whole ticks of
//! `/proc/stat` (10 ms where USER_HZ is 100); without `CONFIG_IRQ_TIME_ACCOUNTING` interrupts are charged to whoever they
//! interrupted, unless a tick falls into one.
//!
//! The kinds differ from netperf's (src/netcpu_procstat.c, 2.7.1), for which everything but idle is busy: waiting for a disk, and
//! what the hypervisor gave to others, are no work; guests are in user time already and are not added once more.

use linux::SyscallError;
use linux::clock;
use linux::procfs::{self, CpuTimes, Usage};

use crate::outcome::{Cpu, CpuKinds};

/// The counters at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    at_ns: u64,
    cpus: Vec<CpuTimes>,
    process: Usage,
}

impl Snapshot {
    /// Looks at the counters: some ten µs, and more with many CPUs.
    ///
    /// # Errors
    /// `/proc` is not mounted, or may not be read.
    pub fn take() -> Result<Self, SyscallError> {
        let text = procfs::read("/proc/stat")?;
        Ok(Self {
            at_ns: clock::monotonic_ns(),
            cpus: procfs::cpu_times(&text),
            process: procfs::process_usage(),
        })
    }

    /// What happened from this one until a later one. `threads_ns` is what each thread that moved bytes measured itself.
    pub fn until(&self, later: &Self, threads_ns: Vec<u64>) -> Cpu {
        let tick_ns = 1_000_000_000 / CpuTimes::ticks_per_second().max(1);
        Cpu {
            wall_ns: later.at_ns.saturating_sub(self.at_ns),
            cpus: kinds(&self.cpus, &later.cpus, tick_ns),
            // The split between both is an estimate that the kernel corrects, but never backwards (cputime_adjust,
            // kernel/sched/cputime.c, 6.18).
            process_user_ns: later.process.user_ns.saturating_sub(self.process.user_ns),
            process_system_ns: later.process.system_ns.saturating_sub(self.process.system_ns),
            threads_ns,
        }
    }
}

/// Each CPU that was online at both times. Counters that went back count as having stood still: iowait does that (proc(5)), and
/// idle time by a tick.
fn kinds(before: &[CpuTimes], after: &[CpuTimes], tick_ns: u64) -> Vec<CpuKinds> {
    let of = |after: &CpuTimes| {
        let cpu = after.cpu?;
        let before = before.iter().find(|before| before.cpu == Some(cpu))?;
        let ns = |part: fn(&CpuTimes) -> u64| {
            let (before, after) = (part(before), part(after));
            after.saturating_sub(before).saturating_mul(tick_ns)
        };
        Some(CpuKinds {
            cpu: cpu as usize,
            user_ns: ns(|times| times.user.wrapping_add(times.nice)),
            system_ns: ns(|times| times.system),
            irq_ns: ns(|times| times.irq),
            softirq_ns: ns(|times| times.softirq),
            steal_ns: ns(|times| times.steal.unwrap_or(0)),
            // Together, as what leaves one of them may enter the other.
            idle_ns: ns(|times| times.idle.wrapping_add(times.iowait)),
        })
    };
    after.iter().filter_map(of).collect()
}

/// A kind of CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// In programs.
    User,
    /// In the kernel for them.
    System,
    /// In hard interrupts.
    Irq,
    /// In soft interrupts.
    Softirq,
    /// Given to others by the hypervisor.
    Steal,
    /// With nothing to do.
    Idle,
}

impl Kind {
    /// All of them, work first.
    pub const ALL: [Self; 6] = [Self::User, Self::System, Self::Softirq, Self::Irq, Self::Steal, Self::Idle];
    /// Those that are work for this machine.
    pub const BUSY: [Self; 4] = [Self::User, Self::System, Self::Softirq, Self::Irq];
}

impl CpuKinds {
    /// Time of one kind, ns.
    pub fn ns(&self, kind: Kind) -> u64 {
        match kind {
            Kind::User => self.user_ns,
            Kind::System => self.system_ns,
            Kind::Irq => self.irq_ns,
            Kind::Softirq => self.softirq_ns,
            Kind::Steal => self.steal_ns,
            Kind::Idle => self.idle_ns,
        }
    }

    /// Time in which it worked for this machine, ns: all but idle and steal.
    pub fn busy_ns(&self) -> u64 {
        sum(Kind::BUSY.map(|kind| self.ns(kind)))
    }

    /// All of its time, ns.
    pub fn total_ns(&self) -> u64 {
        sum(Kind::ALL.map(|kind| self.ns(kind)))
    }

    /// The part of its time that was of a kind. None where no tick has passed.
    pub fn share(&self, kind: Kind) -> Option<f64> {
        part(self.ns(kind), self.total_ns())
    }

    /// The part of its time in which it worked. None where no tick has passed.
    pub fn busy_share(&self) -> Option<f64> {
        part(self.busy_ns(), self.total_ns())
    }
}

impl Cpu {
    /// Time of a kind of some CPUs together, or of all, ns.
    pub fn ns(&self, kind: Kind, which: Option<&[usize]>) -> u64 {
        sum(self.of(which).map(|cpu| cpu.ns(kind)))
    }

    /// Time in which some CPUs, or all, worked for this machine, ns.
    pub fn busy_ns(&self, which: Option<&[usize]>) -> u64 {
        sum(self.of(which).map(CpuKinds::busy_ns))
    }

    /// The mean over some CPUs, or all, of the part of their time in which they worked, as in netperf's columns. CPUs without a
    /// tick have no part in it; none where there is no other.
    pub fn busy_share(&self, which: Option<&[usize]>) -> Option<f64> {
        self.mean(which, CpuKinds::busy_share)
    }

    /// The same for one kind.
    pub fn share(&self, kind: Kind, which: Option<&[usize]>) -> Option<f64> {
        self.mean(which, |cpu| cpu.share(kind))
    }

    fn mean(&self, which: Option<&[usize]>, share: impl Fn(&CpuKinds) -> Option<f64>) -> Option<f64> {
        let shares: Vec<f64> = self.of(which).filter_map(share).collect();
        (!shares.is_empty()).then(|| shares.iter().sum::<f64>() / shares.len() as f64)
    }

    fn of<'a>(&'a self, which: Option<&'a [usize]>) -> impl Iterator<Item = &'a CpuKinds> {
        self.cpus.iter().filter(move |cpu| which.is_none_or(|which| which.contains(&cpu.cpu)))
    }
}

fn sum(times: impl IntoIterator<Item = u64>) -> u64 {
    times.into_iter().fold(0, u64::saturating_add)
}

fn part(of: u64, all: u64) -> Option<f64> {
    (all > 0).then(|| of as f64 / all as f64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TICK_NS: u64 = 10_000_000;

    fn between(before: &str, after: &str) -> Vec<CpuKinds> {
        kinds(&procfs::cpu_times(before), &procfs::cpu_times(after), TICK_NS)
    }

    fn cpu(cpus: Vec<CpuKinds>) -> Cpu {
        Cpu { cpus, ..Cpu::default() }
    }

    #[test]
    fn kinds_are_apart_and_guests_not_counted_twice() {
        //               user nice system idle iowait irq softirq steal guest guest_nice
        let before = "cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 100 10 50 1000 7 1 20 4 60 5\n";
        let after = "cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 130 15 70 1030 12 2 26 7 85 9\n";
        let found = between(before, after);
        let expected = CpuKinds {
            cpu: 0,
            user_ns: 35 * TICK_NS,
            system_ns: 20 * TICK_NS,
            irq_ns: TICK_NS,
            softirq_ns: 6 * TICK_NS,
            steal_ns: 3 * TICK_NS,
            idle_ns: 35 * TICK_NS,
        };
        assert_eq!(found, [expected]);
        assert_eq!((expected.busy_ns(), expected.total_ns()), (62 * TICK_NS, 100 * TICK_NS));
        assert_eq!((expected.busy_share(), expected.share(Kind::Steal)), (Some(0.62), Some(0.03)));
    }

    #[test]
    fn steal_and_waiting_for_a_disk_are_no_work() {
        // netperf: 80 % busy.
        let found = between("cpu3 0 0 0 0 0 0 0 0\n", "cpu3 10 0 0 20 40 0 0 30\n");
        assert_eq!(
            (found[0].cpu, found[0].busy_share(), found[0].share(Kind::Idle)),
            (3, Some(0.1), Some(0.6))
        );
    }

    #[test]
    fn a_counter_that_goes_back_stands_still() {
        let found = between("cpu0 10 5 5 100 50 0 9 0\n", "cpu0 10 5 4 101 48 0 19 0\n");
        let ns = Kind::ALL.map(|kind| found[0].ns(kind));
        assert_eq!(ns, [0, 0, 10 * TICK_NS, 0, 0, 0]);
        // What iowait loses idle may win.
        let found = between("cpu0 0 0 0 100 50 0 0 0\n", "cpu0 0 0 0 120 45 0 0 0\n");
        assert_eq!(found[0].idle_ns, 15 * TICK_NS);
    }

    #[test]
    fn a_cpu_that_came_or_went_is_not_there() {
        let found =
            between("cpu0 1 0 0 0 0 0 0\ncpu1 1 0 0 0 0 0 0\n", "cpu0 2 0 0 1 0 0 0\ncpu2 9 0 0 0 0 0 0\n");
        assert_eq!(found.iter().map(|cpu| cpu.cpu).collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn shares_are_those_of_some_cpus_or_all_and_zero_is_zero() {
        let before =
            "cpu0 0 0 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0\ncpu2 0 0 0 0 0 0 0 0\ncpu3 5 0 0 0 0 0 0 0\n";
        let after =
            "cpu0 50 0 0 50 0 0 0 0\ncpu1 0 0 20 60 0 0 20 0\ncpu2 0 0 0 100 0 0 0 0\ncpu3 5 0 0 0 0 0 0 0\n";
        let cpu = cpu(between(before, after));
        assert_eq!(cpu.busy_share(Some(&[0])), Some(0.5));
        assert_eq!(cpu.share(Kind::Softirq, Some(&[1])), Some(0.2));
        assert_eq!(
            (cpu.busy_share(Some(&[2])), cpu.busy_share(Some(&[3])), cpu.busy_share(Some(&[9]))),
            (Some(0.0), None, None)
        );
        assert!((cpu.busy_share(None).unwrap() - 0.3).abs() < 1e-12);
        assert_eq!((cpu.busy_ns(None), cpu.busy_ns(Some(&[1, 2]))), (90 * TICK_NS, 40 * TICK_NS));
        assert_eq!(cpu.ns(Kind::System, None), 20 * TICK_NS);
    }

    #[test]
    fn this_machine_is_measured() {
        let before = Snapshot::take().unwrap();
        let begin = clock::thread_cpu_ns();
        // Long enough for the process's own account, which is exact.
        while clock::thread_cpu_ns() - begin < 20_000_000 {}
        let cpu = before.until(&Snapshot::take().unwrap(), vec![clock::thread_cpu_ns() - begin]);
        assert!(cpu.wall_ns >= 20_000_000 && !cpu.cpus.is_empty());
        assert!(cpu.process_user_ns + cpu.process_system_ns >= 15_000_000, "{cpu:?}");
        assert!(cpu.threads_ns[0] >= 20_000_000);
        // The other way round nothing happened, and nothing is negative.
        let nothing = Snapshot::take().unwrap().until(&before, Vec::new());
        assert_eq!((nothing.wall_ns, nothing.busy_ns(None)), (0, 0));
    }

    proptest! {
        #[test]
        fn no_counters_break_it(before in "(cpu[0-3]( [0-9]{1,20}){7,10}\n){0,4}", after in "(cpu[0-3]( [0-9]{1,20}){7,10}\n){0,4}") {
            let cpu = cpu(between(&before, &after));
            let share = cpu.busy_share(None);
            prop_assert!(share.is_none_or(|share| (0.0..=1.0).contains(&share)), "{:?}", share);
        }
    }
}
