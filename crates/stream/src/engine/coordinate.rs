//! The thread that called: starts the others, keeps the time, reads counters and puts together what was counted.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use linux::{clock, cpu};

use super::control::{COUNTING, Control, ENOUGH, STOP};
use super::counters::Account;
use super::task::Common;
use super::thread::{self, Share};
use super::{End, EngineError, Flow, Settings};
use crate::outcome::{self, Side};
use crate::plan::{SocketOptions, Threads, Until};

pub(super) fn run(flows: &[Flow], settings: &Settings<'_>, control: &Control) -> Result<Side, EngineError> {
    let side = run_threads(flows, settings, control);
    control.end();
    side
}

fn run_threads(flows: &[Flow], settings: &Settings<'_>, control: &Control) -> Result<Side, EngineError> {
    let plan = settings.plan;
    let (options, threads): (&SocketOptions, &Threads) = match settings.end {
        End::Client => (&plan.options.client, &plan.threads.client),
        End::Server => (&plan.options.server, &plan.threads.server),
    };
    let accounts: Arc<[Account]> = flows.iter().map(|_| Account::default()).collect();
    control.watch(&accounts);
    let common = Common { plan, options, control, budget: Common::budget(plan) };
    let count = thread_count(threads, flows.len())?;
    if plan.omit.is_zero() {
        control.raise(COUNTING); // before anything moves
    }
    control.change(|stage| stage.threads = Some(count));
    let result = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..count)
            .map(|index| {
                let mine = flows.iter().zip(accounts.iter()).skip(index).step_by(count);
                let cpu = (!threads.cpus.is_empty()).then(|| threads.cpus[index % threads.cpus.len()]);
                let share = Share { common: &common, flows: mine.collect(), cpu };
                std::thread::Builder::new().name(format!("flows-{index}")).spawn_scoped(scope, move || {
                    let result = thread::run(&share);
                    if result.is_err() {
                        share.common.control.raise(STOP);
                    }
                    share.common.control.change(|stage| stage.ended += 1);
                    result
                })
            })
            .collect();
        keep_time(control, plan.omit, plan.until, count);
        let mut cpu_ns = Vec::new();
        for handle in handles {
            let handle = handle.map_err(EngineError::Thread)?;
            cpu_ns.push(handle.join().map_err(|_| EngineError::Panicked)??);
        }
        Ok::<_, EngineError>(cpu_ns)
    });
    result?;
    Ok(side(&accounts))
}

fn keep_time(control: &Control, omit: Duration, until: Until, threads: usize) {
    let mut stage = control.stage();
    while !stage.begun && !control.stopped() {
        stage = control.wait(stage, Duration::from_secs(1));
    }
    let begin_ns = clock::monotonic_ns();
    while stage.ended < threads {
        let elapsed = Duration::from_nanos(clock::monotonic_ns() - begin_ns);
        if elapsed >= omit {
            control.raise(COUNTING);
        }
        let mut wait = Duration::from_millis(100);
        if elapsed < omit {
            wait = wait.min(omit - elapsed);
        } else if let Until::Time(time) = until {
            if elapsed >= omit + time {
                control.raise(ENOUGH);
            } else {
                wait = wait.min(omit + time - elapsed);
            }
        }
        stage = control.wait(stage, wait);
    }
}

fn thread_count(threads: &Threads, flows: usize) -> Result<usize, EngineError> {
    let most = match threads.count {
        Some(count) => count as usize,
        None => cpu::allowed()?.len(),
    };
    Ok(most.min(flows).max(1))
}

fn side(accounts: &[Account]) -> Side {
    let flows: Vec<outcome::Flow> = accounts
        .iter()
        .map(|account| {
            let counts = account.counted.read();
            let wall_ns = account.end_ns.load(Relaxed).saturating_sub(account.begin_ns.load(Relaxed));
            outcome::Flow {
                wall_ns,
                sent: (counts.sent.messages > 0).then_some(counts.sent),
                received: (counts.received.messages > 0).then_some(counts.received),
                ..outcome::Flow::default()
            }
        })
        .collect();
    let wall_ns = flows.iter().map(|flow| flow.wall_ns).max().unwrap_or_default();
    Side { wall_ns, flows, ..Side::default() }
}
