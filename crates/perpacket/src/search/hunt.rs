//! One search: trials on a course, until the bounds of every goal are found.

use std::time::Duration;

use anyhow::{Context, Result};
use linux::clock;
use measure::gaps::Gaps;
use measure::ledger::{Drop, Ledger};
use measure::record::{Extra, SearchGoal, SearchRow, TrialPart};
use measure::search::{Goal, Limits, Next, Search, TrialResult};

use crate::stop::{Deadline, Stop};
use crate::trial::{Course, Load, Trial};

/// Time that a trial has beyond its length from when its first packet is due, for the sender to catch up: a part of the length, and
/// some more. One that needs more did not offer the load.
const GRACE_SHARE: f64 = 0.05;
const GRACE: Duration = Duration::from_millis(100);

/// How often a trial is made in which the sender fell short by little, before the load counts as not offered.
const TRIES: u32 = 2;
/// The share of a rate from which on it fell short by little; and the share that must be achieved with a pause.
const NEAR: f64 = 0.9;
const PAUSED: f64 = 0.99;

/// What is searched for on which course.
pub(crate) struct Hunt<'a> {
    pub(crate) goals: &'a [Goal],
    pub(crate) limits: Limits,
    /// The variant of the record, and the repetition.
    pub(crate) variant: u16,
    pub(crate) run: u32,
}

/// What was found.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) row: SearchRow,
    /// Where the packets of all trials ended; none where no trial was made.
    pub(crate) ledger: Option<Ledger>,
    /// That of the first trial in which packets are unaccounted for: in the sum, two such trials can cancel each other.
    pub(crate) open: Option<Ledger>,
}

impl Hunt<'_> {
    /// Makes trials until all is found, the time is up, or a signal comes; `told` gets each trial when it has ended, and how much
    /// of the time is over.
    ///
    /// # Errors
    /// Where the course fails, or `told` does.
    pub(crate) fn on(
        &self,
        course: &mut dyn Course,
        stop: &Stop,
        mut told: impl FnMut(&TrialPart, f64) -> Result<()>,
    ) -> Result<Found> {
        let mut search = Search::new(self.goals.to_vec(), self.limits)?;
        let deadline = Deadline::after(Duration::from_secs_f64(self.limits.time_limit_s));
        let begin = clock::monotonic_ns();
        let mut log = Log::default();
        while let Next::Trial { load_pps, duration_s } = search.next_trial() {
            let mut patience = TRIES;
            while patience > 0 && !stop.asked() {
                patience -= 1;
                let trial = self.try_once(course, stop, load_pps, duration_s)?;
                let invalid = if stop.asked() {
                    Some("a signal ended it")
                } else if patience > 0 && is_near_miss(&trial) {
                    Some("the sender was late, so it was made again")
                } else {
                    search.record(result(&trial, duration_s))?;
                    patience = 0;
                    invalid(&search)
                };
                let part = self.part(&trial, invalid);
                told(&part, deadline.share())?;
                log.add(part, &trial.ledger);
            }
            if stop.asked() {
                break;
            }
            if deadline.passed() {
                search.stop();
            }
        }
        let row = SearchRow {
            variant: self.variant,
            run: self.run,
            goals: log.goals(&search),
            trials: log.parts.len() as u64,
            invalid_trials: log.parts.iter().filter(|part| part.invalid.is_some()).count() as u64,
            refused: log.parts.iter().map(|part| part.refused).sum(),
            wall_ns: clock::monotonic_ns() - begin,
            sender: search.sender_bound(),
            extra: Extra::new(),
        };
        Ok(Found { row, ledger: log.ledger, open: log.open })
    }

    /// Sends a load for so many seconds.
    fn try_once(
        &self,
        course: &mut dyn Course,
        stop: &Stop,
        load_pps: f64,
        duration_s: f64,
    ) -> Result<Trial> {
        let load = Load { pps: load_pps, packets: (load_pps * duration_s).round().max(1.0) as u64 };
        let patience = Duration::from_secs_f64(duration_s * (1.0 + GRACE_SHARE)) + GRACE;
        let what = || format!("send {load_pps:.0} packets a second for {duration_s} s");
        course.run(&load, &stop.or_after_its_start(patience)).with_context(what)
    }

    fn part(&self, trial: &Trial, invalid: Option<&str>) -> TrialPart {
        TrialPart {
            variant: self.variant,
            run: self.run,
            load_pps: trial.load.pps,
            packets: trial.load.packets,
            sent: trial.sent,
            received: trial.received,
            wall_ns: trial.wall_ns,
            refused: trial.refused,
            invalid: invalid.map(str::to_owned),
            drops: trial.ledger.drops.clone(),
            unaccounted: trial.ledger.unaccounted(),
            extra: Extra::new(),
        }
    }
}

/// As the search takes it. The time that a trial counts for is that which was asked for: how long its packets took to drain is no
/// property of the load.
fn result(trial: &Trial, duration_s: f64) -> TrialResult {
    TrialResult {
        intended: trial.load.packets,
        offered: trial.sent,
        forwarded: trial.received,
        effective_s: duration_s,
        achieved_pps: (!is_valid(trial)).then(|| trial.achieved_pps()),
    }
}

/// Whether the load was offered: all packets were sent, and the rate was held to a thousandth, or the last ones were late by no
/// more than one pause of the sender. While another program has its CPU for a few milliseconds it sends nothing, and then catches
/// up, at twice the rate at most; at the end of a trial there is no time to. That is no limit of the sender.
fn is_valid(trial: &Trial) -> bool {
    let late_ns = trial.wall_ns as f64 - trial.load.packets as f64 * trial.load.interval_ns();
    let pause_ns = trial.gaps.as_ref().and_then(Gaps::range).map_or(0.0, |(_, longest)| longest as f64);
    let is_one_pause = late_ns <= pause_ns && trial.achieved_pps() >= PAUSED * trial.load.pps;
    trial.is_offered() || (trial.sent == trial.load.packets && is_one_pause)
}

/// Whether the sender fell short by as little as it does where it is disturbed.
fn is_near_miss(trial: &Trial) -> bool {
    !is_valid(trial) && trial.achieved_pps() >= NEAR * trial.load.pps
}

/// Why the last trial says nothing about the path; none where it does.
fn invalid(search: &Search) -> Option<&'static str> {
    use measure::search::Use;
    match search.trials().last()?.used {
        Use::Counted => None,
        Use::WarmUp => Some("it was to warm up"),
        Use::NotOffered => Some("the sender could not offer the load"),
    }
}

/// The trials of one search.
#[derive(Default)]
struct Log {
    parts: Vec<TrialPart>,
    ledger: Option<Ledger>,
    open: Option<Ledger>,
}

impl Log {
    fn add(&mut self, part: TrialPart, ledger: &Ledger) {
        if !ledger.closes() && self.open.is_none() {
            let mut open = ledger.clone();
            let (number, load_pps) = (self.parts.len() + 1, part.load_pps);
            open.notes.push(format!("trial {number} of run {}, at {load_pps:.0} pps", part.run + 1));
            self.open = Some(open);
        }
        self.parts.push(part);
        match &mut self.ledger {
            Some(sum) => drop(sum.absorb(ledger)), // of the same path
            None => self.ledger = Some(ledger.clone()),
        }
    }

    fn goals(&self, search: &Search) -> Vec<SearchGoal> {
        let of = |result: measure::search::GoalResult| SearchGoal {
            upper_drops: result.upper.as_ref().map_or(Vec::new(), |upper| self.drops_at(upper.load_pps)),
            result,
            extra: Extra::new(),
        };
        search.results().into_iter().map(of).collect()
    }

    /// Where packets went in the valid trials at this load.
    fn drops_at(&self, load_pps: f64) -> Vec<Drop> {
        let mut sum: Vec<Drop> = Vec::new();
        let at = |part: &&TrialPart| part.load_pps == load_pps && part.invalid.is_none();
        for drop in self.parts.iter().filter(at).flat_map(|part| &part.drops) {
            match sum.iter_mut().find(|known| known.reason == drop.reason && known.counter == drop.counter) {
                Some(known) => known.packets += drop.packets,
                None => sum.push(drop.clone()),
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use measure::ledger::Count;
    use measure::search::Ending;

    use super::*;

    /// A path that carries so much, and a sender that offers so much.
    struct Simulated {
        carries_pps: f64,
        offers_pps: f64,
        /// Packets that are lost whatever the rate.
        always_lost: u64,
        /// Every so many trials another program takes the CPU.
        disturbed: u64,
        trials: u64,
        fails_at: Option<u64>,
        /// Of this trial, so many packets arrive in the next one.
        late: Option<(u64, u64)>,
    }

    impl Default for Simulated {
        fn default() -> Self {
            Self {
                carries_pps: 1e6,
                offers_pps: 1e9,
                always_lost: 0,
                disturbed: u64::MAX,
                trials: 0,
                fails_at: None,
                late: None,
            }
        }
    }

    impl Course for Simulated {
        fn run(&mut self, load: &Load, _stop: &Stop) -> Result<Trial> {
            self.trials += 1;
            anyhow::ensure!(self.fails_at != Some(self.trials), "the device has gone");
            let seconds = load.packets as f64 / load.pps;
            let sent = load.packets.min((self.offers_pps * seconds) as u64);
            let mut carried = sent.min((self.carries_pps * seconds) as u64).saturating_sub(self.always_lost);
            if self.trials.is_multiple_of(self.disturbed) {
                carried /= 2;
            }
            let by = |name: &str| name.to_owned();
            let mut ledger =
                Ledger::new("simulated", Some(64), Count { packets: sent, seen_by: by("sender") });
            let lost = Drop { reason: by("full"), counter: by("queue"), packets: sent - carried };
            match self.late {
                Some((trial, late)) if trial == self.trials => carried -= late,
                Some((trial, late)) if trial + 1 == self.trials => carried += late,
                _ => {}
            }
            ledger.received.push(Count { packets: carried, seen_by: by("receiver") });
            ledger.drops.push(lost);
            let wall_ns = (seconds * 1e9) as u64;
            Ok(Trial { load: *load, sent, received: carried, wall_ns, refused: None, gaps: None, ledger })
        }
    }

    fn goals() -> Vec<Goal> {
        vec![Goal::ndr(), Goal::pdr()]
    }

    fn hunt(course: &mut Simulated, time_limit_s: f64) -> (Found, Vec<TrialPart>) {
        let limits = Limits { min_pps: 1e4, max_pps: 2e7, time_limit_s, warm_up_s: Some(0.1) };
        let goals = goals();
        let hunt = Hunt { goals: &goals, limits, variant: 3, run: 1 };
        let mut parts = Vec::new();
        let stop = Stop::listen().unwrap();
        let found = hunt
            .on(course, &stop, |part, share| {
                assert!((0.0..=1.0).contains(&share));
                parts.push(part.clone());
                Ok(())
            })
            .unwrap();
        (found, parts)
    }

    fn endings(found: &Found) -> Vec<Ending> {
        found.row.goals.iter().map(|goal| goal.result.ending).collect()
    }

    #[test]
    fn bounds_are_true_of_the_path_whatever_it_carries() {
        for carries_pps in [12_345.0, 250e3, 1e6, 3.3e6, 17e6] {
            for disturbed in [u64::MAX, 5] {
                let mut course = Simulated { carries_pps, disturbed, ..Simulated::default() };
                let (found, parts) = hunt(&mut course, 600.0);
                assert_eq!(endings(&found), [Ending::Regular; 2], "{carries_pps}");
                let ndr = &found.row.goals[0].result;
                let (lower, upper) = (ndr.lower.unwrap().load_pps, ndr.upper.unwrap().load_pps);
                // A simulated packet more or less in a trial.
                let slack = 1.0 + 3.0 / (carries_pps * 0.5);
                assert!(lower <= carries_pps * slack && carries_pps <= upper * slack, "{lower} {upper}");
                assert!((upper - lower) / upper <= Goal::ndr().width);
                assert_eq!((found.row.trials, found.row.variant, found.row.run), (course.trials, 3, 1));
                assert_eq!(parts.len() as u64, course.trials);
                let book = found.ledger.as_ref().unwrap();
                assert!(book.closes());
                assert_eq!(book.sent.packets, parts.iter().map(|part| part.sent).sum::<u64>());
                assert!(found.row.goals[0].upper_drops[0].packets > 0);
            }
        }
    }

    #[test]
    fn a_sender_that_falls_short_bounds_the_search_and_its_trials_are_invalid() {
        let mut course = Simulated { carries_pps: 5e6, offers_pps: 2e6, ..Simulated::default() };
        let (found, parts) = hunt(&mut course, 600.0);
        assert_eq!(endings(&found), [Ending::BoundedBySender; 2]);
        let bound = found.row.sender.unwrap();
        assert!(bound.not_offered_pps > 2e6 && bound.offered_pps.unwrap() <= 2e6 * 1.001);
        let lower = found.row.goals[0].result.lower.unwrap().load_pps;
        assert!((1.97e6..=2.01e6).contains(&lower), "{lower}");
        let not_offered = parts
            .iter()
            .filter(|part| part.invalid.as_deref().is_some_and(|why| why.contains("could not offer")));
        assert!(not_offered.clone().all(|part| part.sent < part.packets) && not_offered.count() > 0);
        assert_eq!(
            found.row.invalid_trials,
            parts.iter().filter(|part| part.invalid.is_some()).count() as u64
        );
    }

    #[test]
    fn a_path_that_always_loses_has_no_rate() {
        let mut course = Simulated { always_lost: 100, ..Simulated::default() };
        let (found, _) = hunt(&mut course, 600.0);
        assert_eq!(found.row.goals[0].result.ending, Ending::LosesAtMinimum);
        assert_eq!(found.row.goals[0].result.lower, None);
        // 100 of a trial's packets are less than half a percent from 40,000 pps on: held to the loss at the least load all the
        // same, as the draft has it.
        assert_eq!(found.row.goals[1].result.ending, Ending::LosesAtMinimum);
    }

    #[test]
    fn a_pause_of_the_sender_is_no_limit_of_it() {
        let trial = |late_ns: u64, longest_gap_ns: u64, sent: u64| {
            let mut gaps = Gaps::new();
            gaps.record_n(1_000, 499_998);
            gaps.record(longest_gap_ns);
            let ledger = Ledger::new("x", None, Count { packets: sent, seen_by: "sender".into() });
            let load = Load { pps: 1e6, packets: 500_000 };
            let wall_ns = 500_000_000 + late_ns;
            Trial { load, sent, received: sent, wall_ns, refused: None, gaps: Some(gaps), ledger }
        };
        assert!(is_valid(&trial(400_000, 1_000, 500_000)), "within a thousandth");
        assert!(!is_valid(&trial(3_000_000, 1_000_000, 500_000)), "late all the time");
        assert!(is_near_miss(&trial(3_000_000, 1_000_000, 500_000)));
        assert!(is_valid(&trial(3_000_000, 4_000_000, 500_000)), "one pause");
        assert!(!is_valid(&trial(3_000_000, 4_000_000, 499_999)), "one is missing");
        assert!(!is_valid(&trial(30_000_000, 40_000_000, 500_000)), "too long a pause");
        assert!(!is_near_miss(&trial(90_000_000, 1_000, 500_000)));
    }

    #[test]
    fn two_trials_that_do_not_close_are_not_closed_by_each_other() {
        let (found, _) = hunt(&mut Simulated { late: Some((4, 100)), ..Simulated::default() }, 600.0);
        assert!(found.ledger.unwrap().closes());
        let open = found.open.unwrap();
        assert_eq!(open.unaccounted(), 100);
        assert!(open.notes[0].contains("trial 4 of run 2"), "{:?}", open.notes);
        let (found, _) = hunt(&mut Simulated::default(), 600.0);
        assert!(found.open.is_none());
    }

    #[test]
    fn what_passes_everything_is_said_to() {
        let (found, _) = hunt(&mut Simulated { carries_pps: 1e9, ..Simulated::default() }, 600.0);
        assert_eq!(endings(&found), [Ending::PassesAtMaximum; 2]);
        assert!(
            found.row.goals.iter().all(|goal| goal.result.upper.is_none() && goal.upper_drops.is_empty())
        );
    }

    #[test]
    fn the_time_limit_ends_a_search_with_what_is_known() {
        let (found, parts) = hunt(&mut Simulated::default(), 3.0);
        assert_eq!(endings(&found), [Ending::TimeLimit; 2]);
        assert!(parts.len() > 3);
    }

    #[test]
    fn a_course_that_fails_says_at_what() {
        let limits = Limits { min_pps: 1e4, max_pps: 2e7, time_limit_s: 60.0, warm_up_s: None };
        let goals = goals();
        let hunt = Hunt { goals: &goals, limits, variant: 0, run: 0 };
        let mut course = Simulated { fails_at: Some(1), ..Simulated::default() };
        let error = hunt.on(&mut course, &Stop::listen().unwrap(), |_, _| Ok(())).unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains("20000000 packets a second") && text.contains("the device has gone"), "{text}");
    }
}
