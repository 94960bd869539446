//! Faults that users of other tools reported of CPU figures, each with the right value.
#![allow(clippy::unwrap_used)]

mod common;
mod faults_support;

use std::hint::black_box;
use std::time::Duration;

use common::Running;
use faults_support::{fake_server, frame, results};
use linux::procfs;
use stream::cpu::{Kind, Snapshot};
use stream::demand;
use stream::engine::End;
use stream::iperf3::client::{self, Finished, Options};
use stream::iperf3::json;
use stream::limits::Limits;
use stream::outcome::{Cpu, CpuKinds};
use stream::plan::{Direction, Plan, Threads, Transport, Until};

/// The CPU time of a server is that since it was started (iperf3 #1076): it is that of the test.
#[test]
fn cpu_time_is_that_of_the_test_alone() {
    let used = || {
        let usage = procfs::process_usage();
        usage.user_ns + usage.system_ns
    };
    let begin = used();
    while used() - begin < 300_000_000 {
        black_box((0..100_000_u64).fold(0, |sum: u64, number| black_box(sum.wrapping_add(number))));
    }
    let (spent, before) = (used(), Snapshot::take().unwrap());
    let cpu = before.until(&Snapshot::take().unwrap(), Vec::new());
    let since = used() - spent;
    // Whatever other tests do at the same time, it is no more than was spent since.
    let told = cpu.process_user_ns + cpu.process_system_ns;
    assert!(told <= since, "{told} of {since}");
}

/// CPU figures are incomplete and wrong after 3.14 (iperf3 #1552): each is there, of both hosts, and the total is the sum.
#[test]
fn cpu_figures_are_complete_and_add_up() {
    let to = fake_server(50_000, Some(frame(results(50_000).to_string().as_bytes())));
    let plan = Plan {
        send_bytes: 1000,
        ..common::plan(Transport::Tcp, common::bulk(Direction::ToServer), Until::Bytes(50_000))
    };
    let finished: Finished = client::run_whole(to, &plan, &Options::default()).unwrap();
    let document = json::document(&json::Test {
        end: End::Client,
        plan: &plan,
        facts: &finished.facts,
        exchanged: &finished.exchanged,
        server_output: None,
    });
    let cpu = &document["end"]["cpu_utilization_percent"];
    for host in ["host", "remote"] {
        let [total, user, system] =
            ["total", "user", "system"].map(|kind| cpu[format!("{host}_{kind}")].as_f64().unwrap());
        assert!((total - user - system).abs() < 1e-6, "{cpu}");
    }
    assert!((cpu["remote_total"].as_f64().unwrap() - 3.5).abs() < 1e-3, "{cpu}");
}

fn busy(cpu: usize, system_ns: u64) -> CpuKinds {
    CpuKinds { cpu, system_ns, idle_ns: 1_000_000_000 - system_ns, ..CpuKinds::default() }
}

/// Pinning is not seen in the CPU figures (kperf #16): those of the CPUs that a thread was pinned to are apart from the rest.
#[test]
fn pinning_shows_in_the_figures_of_its_cpu() {
    let cpu = Cpu { cpus: vec![busy(0, 0), busy(1, 900_000_000), busy(2, 0)], ..Cpu::default() };
    assert_eq!((cpu.busy_share(Some(&[1])), cpu.busy_share(Some(&[0, 2]))), (Some(0.9), Some(0.0)));
    assert!((cpu.busy_share(None).unwrap() - 0.3).abs() < 1e-12);
    // And in a run: a thread's CPU time is measured by itself, wherever it ran.
    let mut plan = common::plan(
        Transport::Tcp,
        common::bulk(Direction::ToServer),
        Until::Time(Duration::from_millis(100)),
    );
    plan.threads.client = Threads { count: Some(1), cpus: vec![allowed_cpu()] };
    let server = Running::own(Limits::default());
    let told = server.ask(&plan).unwrap().client.cpu.unwrap();
    assert_eq!(told.threads_ns.len(), 1);
    assert!(told.threads_ns[0] > 0 && told.cpus.iter().any(|cpu| cpu.cpu == allowed_cpu()));
}

/// A CPU that this process may use.
fn allowed_cpu() -> usize {
    let status = procfs::read("/proc/self/status").unwrap();
    let list =
        status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim().to_owned();
    list.split([',', '-']).next().unwrap().parse().unwrap()
}

/// A host with more than 32 CPUs (netperf pull request #69): all of them count.
#[test]
fn more_than_32_cpus_all_count() {
    const CPUS: usize = 512;
    let text = |ticks: u64| -> String {
        (0..CPUS).map(|cpu| format!("cpu{cpu} {ticks} 0 0 1000 0 0 0 0 0 0\n")).collect()
    };
    let times = procfs::cpu_times(&text(7));
    assert_eq!(times.len(), CPUS);
    assert_eq!(times[CPUS - 1].cpu, Some(CPUS as u32 - 1));
    let cpu = Cpu { cpus: (0..CPUS).map(|cpu| busy(cpu, 250_000_000)).collect(), ..Cpu::default() };
    assert_eq!(cpu.busy_share(None), Some(0.25));
    assert_eq!(cpu.busy_ns(None), CPUS as u64 * 250_000_000);
    assert_eq!(cpu.busy_ns(Some(&[40, 400])), 500_000_000);
}

/// A remote use of exactly 0 makes netperf take the local one (src/netlib.c, 2.7.1): zero is zero, and nothing is nothing.
#[test]
fn zero_utilisation_is_zero() {
    assert_eq!(demand::classic(0.0, 8, Duration::from_secs(10), 1000.0), Some(0.0));
    assert_eq!(demand::us_per_kb(0, 1024), Some(0.0));
    assert_eq!(demand::us_per_kb(0, 0), None);
    let idle = Cpu { cpus: vec![busy(0, 0)], ..Cpu::default() };
    assert_eq!((idle.busy_share(None), Cpu::default().busy_share(None)), (Some(0.0), None));
}

/// What the hypervisor gave to others is busy in netperf (src/netcpu_procstat.c, 2.7.1): it is apart.
#[test]
fn stolen_time_is_no_work() {
    let mut stolen = busy(0, 200_000_000);
    (stolen.steal_ns, stolen.idle_ns) = (300_000_000, 500_000_000);
    let cpu = Cpu { cpus: vec![stolen], ..Cpu::default() };
    assert_eq!((cpu.busy_share(None), cpu.share(Kind::Steal, None)), (Some(0.2), Some(0.3)));
}
