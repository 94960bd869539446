//! Facts about the whole machine: processor time, load, model.

/// Processor time since the system started, in clock ticks of [`CpuTimes::ticks_per_second`].
///
/// A line of `/proc/stat` (fs/proc/stat.c, 6.18). `user` contains `guest`. Kernels without
/// CONFIG_IRQ_TIME_ACCOUNTING charge interrupts and softirqs by sampling at the tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuTimes {
    /// The CPU; `None` for the sum over all.
    pub cpu: Option<u32>,
    /// In programs.
    pub user: u64,
    /// In programs of low priority.
    pub nice: u64,
    /// In the kernel.
    pub system: u64,
    /// With nothing to do.
    pub idle: u64,
    /// With nothing to do while a disk works; unreliable (proc(5)).
    pub iowait: u64,
    /// In interrupts.
    pub irq: u64,
    /// In softirqs.
    pub softirq: u64,
    /// Ready to run while the hypervisor ran something else. `None` before Linux 2.6.11.
    pub steal: Option<u64>,
}

impl CpuTimes {
    /// Ticks in which the CPU did something for this machine: all but idle, iowait and steal.
    pub fn busy(&self) -> u64 {
        let parts = [self.user, self.nice, self.system, self.irq, self.softirq];
        parts.into_iter().fold(0, u64::wrapping_add)
    }

    /// Length of a tick: how many make a second (USER_HZ, mostly 100).
    pub fn ticks_per_second() -> u64 {
        rustix::param::clock_ticks_per_second()
    }
}

/// Reads `/proc/stat`: the sum first, then each CPU that is online.
pub fn cpu_times(text: &str) -> Vec<CpuTimes> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.strip_prefix("cpu")?.split(' ');
            let number = words.next()?;
            let cpu = if number.is_empty() { None } else { Some(number.parse().ok()?) };
            let numbers: Vec<u64> =
                words.filter(|word| !word.is_empty()).map_while(|word| word.parse().ok()).collect();
            let [user, nice, system, idle, iowait, irq, softirq] = *numbers.first_chunk()?;
            let steal = numbers.get(7).copied();
            Some(CpuTimes { cpu, user, nice, system, idle, iowait, irq, softirq, steal })
        })
        .collect()
}

/// Reads `/proc/loadavg`: how many tasks ran or wanted to, on average over 1, 5 and 15 minutes.
pub fn load_average(text: &str) -> Option<[f64; 3]> {
    let mut words = text.split_whitespace();
    let mut load = || words.next()?.parse::<f64>().ok().filter(|load| load.is_finite());
    Some([load()?, load()?, load()?])
}

/// The processor's name in `/proc/cpuinfo`: "model name" on x86, its nearest relative elsewhere. arm64 has
/// none.
pub fn cpuinfo_model(text: &str) -> Option<String> {
    const NAMES: [&str; 4] = ["model name", "Model Name", "cpu model", "uarch"];
    let value_of = |wanted: &str| {
        text.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name.trim() == wanted && !value.trim().is_empty()).then(|| value.trim().to_owned())
        })
    };
    NAMES.into_iter().find_map(value_of)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn stat_is_read() {
        let text =
            "cpu  29025 1 16232 220543 558 2 70 26 0 0\ncpu1 15480 0 8515 108700 475 0 54 16 0 0\nintr 1 2\n";
        let times = cpu_times(text);
        assert_eq!((times.len(), times[0].cpu, times[1].cpu), (2, None, Some(1)));
        assert_eq!((times[0].busy(), times[0].steal), (29025 + 1 + 16232 + 2 + 70, Some(26)));
        assert_eq!(cpu_times("cpu  1 2 3 4 5 6 7\n")[0].steal, None);
    }

    #[test]
    fn loadavg_is_read() {
        assert_eq!(load_average("0.84 0.81 0.44 3/87 10789\n"), Some([0.84, 0.81, 0.44]));
        assert_eq!(load_average("nan 1 1 1/1 1"), None);
        assert_eq!(load_average("1 1"), None);
    }

    #[test]
    fn cpuinfo_is_read() {
        let text = "processor\t: 0\nmodel\t\t: 1\nmodel name\t: AMD EPYC\n";
        assert_eq!(cpuinfo_model(text).as_deref(), Some("AMD EPYC"));
        assert_eq!(cpuinfo_model("processor : 0\nBogoMIPS : 50.00\n"), None);
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parsers_panic(text in "(cpu)?[A-Za-z0-9:/. \\n]{0,300}|\\PC{0,100}") {
            let _ = (cpu_times(&text).first().map(CpuTimes::busy), load_average(&text), cpuinfo_model(&text));
        }
    }
}
