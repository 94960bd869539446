//! A backend that sends each packet when it is due.
//!
//! Until shortly before a packet is due the thread sleeps, then it watches the clock, so that from some ten thousand packets
//! a second on it uses a whole CPU. Each packet is handed over by itself and made to leave at once. A backend that turns
//! out too slow for that gets grains of several packets, at correspondingly longer intervals; `grain` decides.
//!
//! The time of a packet is the moment before the call that hands it over. What the kernel does in the call, or an
//! interruption during it, is not in it: only a receiver sees that.

mod grain;
mod recording;
mod schedule;

use std::fmt;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use linux::{clock, process};
use measure::gaps::Gaps;

use self::schedule::{Follow, Schedule, Step};
use crate::backend::{Backend, BackendKind, SendError, Sent};
use crate::generator::{Generator, Pace};

pub use recording::{Recorded, Timeline, recording};

/// Packets in a call of a backend that nothing slows down: some hundred µs, and then `stop` is looked at.
const UNPACED_CALL: u64 = 1024;
/// How long before a packet is due the thread stops sleeping: longer than waking up mostly takes.
const WATCH: Duration = Duration::from_micros(80);
/// The longest sleep: then `stop` is looked at.
const SLEEP_MAX: Duration = Duration::from_millis(50);

impl Pace {
    /// The pace of one of several workers that together keep this one: they send in turn, packet i by worker i modulo
    /// `workers`.
    #[must_use]
    pub fn share(self, worker: u32, workers: u32) -> Self {
        let offset_ns = (f64::from(worker) * self.interval_ns).round() as u64;
        Self {
            start_ns: self.start_ns.saturating_add(offset_ns),
            interval_ns: self.interval_ns * f64::from(workers.max(1)),
        }
    }
}

/// When packets are sent.
#[derive(Debug)]
pub enum Timing {
    /// As fast as the backend takes them.
    Unpaced,
    /// At a rate.
    Fixed(Pace),
    /// As in a recording, whose frames the backend has. A packet that is late is sent no sooner after the one before it
    /// than half of the time that lay between them.
    Recorded {
        /// When its packets were seen.
        timeline: Timeline,
        /// When its beginning is due, on `CLOCK_MONOTONIC` in ns.
        start_ns: u64,
        /// How much faster than recorded; above 0.
        speed: f64,
    },
}

/// A backend with a clock.
///
/// Sending sets the calling thread's timer slack to 1 ns. A kernel that takes nothing for a while keeps a call for up to a
/// second, whatever `stop` says.
pub struct Paced {
    backend: Box<dyn Backend>,
    /// None: as fast as the backend takes them.
    pacer: Option<Pacer>,
}

struct Pacer {
    plan: Plan,
    gaps: Gaps,
    /// When the last packet was handed over.
    last_ns: Option<u64>,
}

enum Plan {
    Fixed(Schedule),
    Recorded(Timeline, Follow),
}

impl Paced {
    /// Sends with `backend`, whose frames are those of the recording if the timing is.
    pub fn new(backend: Box<dyn Backend>, timing: Timing) -> Self {
        let plan = match timing {
            Timing::Unpaced => None,
            Timing::Fixed(pace) => Some(Plan::Fixed(Schedule::new(pace))),
            Timing::Recorded { timeline, start_ns, speed } => {
                Some(Plan::Recorded(timeline, Follow::new(start_ns, speed)))
            }
        };
        let pacer = plan.map(|plan| Pacer { plan, gaps: Gaps::new(), last_ns: None });
        Self { backend, pacer }
    }
}

impl Generator for Paced {
    fn kind(&self) -> BackendKind {
        self.backend.kind()
    }

    fn start_at(&mut self, start_ns: u64) {
        match self.pacer.as_mut().map(|pacer| &mut pacer.plan) {
            Some(Plan::Fixed(schedule)) => schedule.start_at(start_ns),
            Some(Plan::Recorded(_, follow)) => follow.start_at(start_ns),
            None => {}
        }
    }

    fn send(&mut self, packets: u64, stop: &AtomicBool) -> Result<Sent, SendError> {
        match &mut self.pacer {
            None => send_unpaced(&mut *self.backend, packets, stop),
            Some(pacer) => pacer.send(&mut *self.backend, packets, stop),
        }
    }

    fn ended(&self) -> bool {
        self.backend.ended()
    }

    fn flush(&mut self) -> Result<Sent, SendError> {
        self.backend.flush()
    }

    /// The most at once until now.
    fn grain(&self) -> Option<u32> {
        self.pacer.as_ref().map(|pacer| match &pacer.plan {
            Plan::Fixed(schedule) => schedule.grain(),
            Plan::Recorded(..) => 1,
        })
    }

    fn gaps(&mut self) -> Option<Gaps> {
        self.pacer.as_ref().map(|pacer| pacer.gaps.clone())
    }

    fn last_ns(&self) -> Option<u64> {
        self.pacer.as_ref()?.last_ns
    }
}

impl fmt::Debug for Paced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pace: &dyn fmt::Debug = match self.pacer.as_ref().map(|pacer| &pacer.plan) {
            None => &"none",
            Some(Plan::Fixed(schedule)) => schedule,
            Some(Plan::Recorded(timeline, follow)) => &(timeline, follow),
        };
        f.debug_struct("Paced").field("backend", &self.backend).field("pace", pace).finish()
    }
}

fn send_unpaced(backend: &mut dyn Backend, packets: u64, stop: &AtomicBool) -> Result<Sent, SendError> {
    let mut sent = Sent::default();
    while sent.offered < packets && !stop.load(Ordering::Relaxed) {
        let count = (packets - sent.offered).min(UNPACED_CALL);
        let part = backend.send(count).map_err(|error| error.after(sent))?;
        sent += part;
        if part.offered < count {
            break;
        }
    }
    Ok(sent)
}

impl Pacer {
    fn send(
        &mut self,
        backend: &mut dyn Backend,
        packets: u64,
        stop: &AtomicBool,
    ) -> Result<Sent, SendError> {
        // Without it sleeps are less exact, which the gaps show.
        drop(process::set_timer_slack(NonZeroU64::MIN));
        let mut sent = Sent::default();
        let mut now = clock::monotonic_ns();
        while sent.offered < packets && !stop.load(Ordering::Relaxed) {
            let count = match self.plan.step(now, packets - sent.offered) {
                Step::Wait { until_ns } => {
                    now = wait(until_ns, stop);
                    continue;
                }
                Step::Send { packets } => packets,
            };
            let part = send_now(backend, count).map_err(|error| error.after(sent))?;
            self.note(now, part.offered);
            sent += part;
            if part.offered < count {
                break;
            }
            now = clock::monotonic_ns();
        }
        Ok(sent)
    }

    /// So many packets were handed over at once.
    fn note(&mut self, at_ns: u64, packets: u64) {
        if packets == 0 {
            return;
        }
        if let Some(last_ns) = self.last_ns.replace(at_ns) {
            self.gaps.record(at_ns.saturating_sub(last_ns));
        }
        if packets > 1 {
            self.gaps.record_n(0, packets - 1);
        }
        match &mut self.plan {
            Plan::Fixed(schedule) => schedule.sent(at_ns, packets),
            Plan::Recorded(_, follow) => follow.sent(at_ns),
        }
    }
}

impl Plan {
    fn step(&mut self, now_ns: u64, left: u64) -> Step {
        match self {
            Self::Fixed(schedule) => schedule.step(now_ns, left),
            Self::Recorded(timeline, follow) => match timeline.next_ns() {
                Some(at_ns) => follow.step(now_ns, at_ns),
                // The backend may still have one that the kernel did not take, or finds that this is the end.
                None => Step::Send { packets: 1 },
            },
        }
    }
}

/// Hands frames over and makes them leave.
fn send_now(backend: &mut dyn Backend, packets: u64) -> Result<Sent, SendError> {
    let sent = backend.send(packets)?;
    let more = backend.push_out().map_err(|error| error.after(sent))?;
    Ok(sent + more)
}

/// Returns when the time has come, or soon after `stop` becomes true; the time then.
fn wait(until_ns: u64, stop: &AtomicBool) -> u64 {
    loop {
        let now = clock::monotonic_ns();
        if now >= until_ns || stop.load(Ordering::Relaxed) {
            return now;
        }
        let left = Duration::from_nanos(until_ns - now);
        if left > WATCH {
            std::thread::sleep((left - WATCH).min(SLEEP_MAX));
        } else {
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{Frames, Memory};

    static GO_ON: AtomicBool = AtomicBool::new(false);

    fn numbered(last: u64) -> Frames {
        Frames::varied(60, move |sequence, _| (sequence < last).then_some(60)).unwrap()
    }

    fn fixed(interval_ns: f64) -> Timing {
        Timing::Fixed(Pace { start_ns: clock::monotonic_ns(), interval_ns })
    }

    /// Needs to be pushed out, and fails at that after some packets.
    #[derive(Debug)]
    struct Failing {
        memory: Memory,
        good: u64,
    }

    impl Backend for Failing {
        fn kind(&self) -> BackendKind {
            BackendKind::Memory
        }

        fn send(&mut self, packets: u64) -> Result<Sent, SendError> {
            self.memory.send(packets)
        }

        fn push_out(&mut self) -> Result<Sent, SendError> {
            let sent = Sent { calls: 1, ..Sent::default() };
            self.good = self.good.checked_sub(1).ok_or(SendError::Stalled {
                backend: BackendKind::Memory,
                sent,
                outstanding: 1,
                waited: Duration::ZERO,
            })?;
            Ok(sent)
        }

        fn flush(&mut self) -> Result<Sent, SendError> {
            Ok(Sent::default())
        }
    }

    #[test]
    fn a_pace_goes_on_from_call_to_call_until_the_frames_end() {
        let start_ns = clock::monotonic_ns();
        let mut paced = Paced::new(Box::new(Memory::new(numbered(1000), 0)), fixed(10_000.0));
        assert_eq!(paced.send(400, &GO_ON).unwrap().confirmed, 400);
        assert!(!paced.ended());
        assert_eq!(paced.send(u64::MAX, &GO_ON).unwrap().confirmed, 600);
        assert!(paced.ended() && clock::monotonic_ns() - start_ns >= 999 * 10_000);
        let gaps = paced.gaps().unwrap();
        assert_eq!((gaps.count(), gaps.between(0, 4990), paced.grain()), (999, 0, Some(1)));
        assert_eq!(paced.send(1, &GO_ON).unwrap(), Sent::default());
        assert_eq!(paced.gaps().unwrap().count(), 999);
    }

    #[test]
    fn a_backend_that_runs_full_ends_a_call_early() {
        for timing in [fixed(10.0), Timing::Unpaced] {
            let memory = Memory::new(numbered(u64::MAX), 0).with_capacity(3000);
            let mut paced = Paced::new(Box::new(memory), timing);
            assert_eq!((paced.send(5000, &GO_ON).unwrap().offered, paced.ended()), (3000, false));
        }
    }

    #[test]
    fn an_error_says_all_that_was_sent() {
        let backend = Failing { memory: Memory::new(numbered(u64::MAX), 0), good: 7 };
        let mut paced = Paced::new(Box::new(backend), fixed(10.0));
        let error = paced.send(100, &GO_ON).unwrap_err();
        assert_eq!(error.sent(), Sent { offered: 8, confirmed: 8, calls: 8 });
    }

    #[test]
    fn a_stop_is_seen_before_anything_is_sent() {
        for timing in [fixed(10.0), Timing::Unpaced] {
            let mut paced = Paced::new(Box::new(Memory::new(numbered(u64::MAX), 0)), timing);
            assert_eq!(paced.send(100, &AtomicBool::new(true)).unwrap(), Sent::default());
        }
    }
}
