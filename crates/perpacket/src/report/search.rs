//! The highest rates that were found, for people.

use std::fmt::Write;

use anyhow::Result;
use measure::record::{Head, SearchGoal, SearchRow, TrialPart};
use measure::search::{Ending, Goal, SenderBound};

use super::numbers::thousands;
use super::opening::machine;
use super::svg::{Panel, Plot, Point, Scale, Series};
use super::tables::{align_right, ledger_text, plain};
use crate::scenario::{FrameWord, Search};
use crate::search::{Place, Searched, Spread, is_the_senders};

/// A line on the machine, one on the scenario and one on each goal; the whole scenario with `verbose`.
pub(crate) fn search_opening(scenario: &Search, head: &Head, cpus: &str, verbose: bool) -> Result<String> {
    let s = scenario;
    let words = |words: Vec<String>| words.join(" ");
    let mut line = format!(
        "search {}, frames of {}, {} to {} pps, at most {} s each",
        words(s.paths.iter().map(ToString::to_string).collect()),
        frames(&s.frames),
        thousands(s.min_pps as u64),
        thousands(s.max_pps as u64),
        s.time_s,
    );
    if s.runs > 1 {
        line += &format!(", {} times", s.runs);
    }
    for (name, value) in s.setting.changed() {
        line += &format!(", {name} {value}");
    }
    let mut text = format!("{}{line}\n", machine(head, cpus));
    for goal in &s.goals {
        text += &format!("  {}\n", goal_line(goal));
    }
    if verbose {
        text += &format!("\n{}\n", s.to_toml()?);
    }
    Ok(text)
}

/// `64 128 bytes, imix`.
fn frames(all: &[FrameWord]) -> String {
    let sizes = all.iter().filter(|frame| matches!(frame, FrameWord::Bytes(_)));
    let sizes: Vec<String> = sizes.map(ToString::to_string).collect();
    let mut parts = Vec::new();
    if !sizes.is_empty() {
        parts.push(format!("{} bytes", sizes.join(" ")));
    }
    if all.contains(&FrameWord::Imix) {
        parts.push(FrameWord::Imix.to_string());
    }
    parts.join(", ")
}

fn goal_line(goal: &Goal) -> String {
    let percent = |share: f64| format!("{} %", (share * 1e6).round() / 1e4);
    format!(
        "{}: at most {} lost, in all but {} of {} s in trials of {} s; bounds within {}",
        goal.name,
        percent(goal.loss_ratio),
        percent(goal.exceed_ratio),
        goal.duration_sum_s,
        goal.final_trial_s,
        percent(goal.width)
    )
}

/// What a trial was, while a search goes on.
pub(crate) fn trial_line(place: &Place, run: u32, trial: &TrialPart) -> String {
    let run = if run > 0 { format!(" run {}", run + 1) } else { String::new() };
    format!("{}{run}: {} pps, {}", place.name(), thousands(trial.load_pps.round() as u64), fate(trial))
}

fn fate(trial: &TrialPart) -> String {
    match (&trial.invalid, lost(trial)) {
        (Some(why), _) => why.clone(),
        (None, 0) => "none lost".into(),
        (None, lost) => format!("{:.4} % lost", lost as f64 / trial.sent.max(1) as f64 * 100.0),
    }
}

fn lost(trial: &TrialPart) -> u64 {
    trial.sent.saturating_sub(trial.received)
}

/// The whole result.
pub(crate) fn search_text(all: &[Searched], verbose: bool) -> String {
    let mut text = rates(all);
    for searched in all {
        text += &remarks(searched);
    }
    for searched in all {
        if verbose {
            text += &trials(searched);
        }
        text += &ledger(searched, verbose);
    }
    text
}

/// A row for each place, repetition and goal.
fn rates(all: &[Searched]) -> String {
    let mut table = plain(&[
        "path",
        "frame",
        "via",
        "run",
        "goal",
        "lower bound pps",
        "upper bound pps",
        "throughput pps",
        "Mpps",
        "Gbit/s",
        "trials",
        "s",
        "ended",
    ]);
    for searched in all {
        let place = &searched.place;
        for row in &searched.rows {
            for goal in &row.goals {
                let mut line = vec![
                    place.subject.to_string(),
                    place.frame.to_string(),
                    place.way(),
                    (row.run + 1).to_string(),
                    goal.result.goal.name.clone(),
                ];
                line.extend(figures(goal, place.mean_bytes()));
                line.extend([row.trials.to_string(), format!("{:.1}", row.wall_ns as f64 / 1e9)]);
                line.push(ended(goal.result.ending).into());
                table.add_row(line);
            }
        }
    }
    align_right(&mut table, 5);
    format!("{table}\nthroughput: what arrives at the lower bound; Gbit/s of frames with FCS\n")
}

/// Both bounds, and the conditional throughput in three units.
fn figures(goal: &SearchGoal, frame_bytes: f64) -> [String; 5] {
    let missing = || "–".to_owned();
    let bound = |pps: Option<f64>| pps.map_or_else(missing, whole);
    let result = &goal.result;
    let throughput = result.conditional_throughput_pps;
    let bits = frame_bytes * 8.0;
    [
        bound(result.lower.map(|bound| bound.load_pps)),
        bound(result.upper.map(|bound| bound.load_pps)),
        bound(throughput),
        throughput.map_or_else(missing, |pps| format!("{:.3}", pps / 1e6)),
        throughput.map_or_else(missing, |pps| format!("{:.3}", pps * bits / 1e9)),
    ]
}

/// How often the device refused a packet that was sent again: no loss, and what the path would have lost of a sender that does not
/// look.
pub(super) fn refused_line(name: &str, refused: u64) -> String {
    format!(
        "{name}: the device refused a packet {} times, which was then sent again: the path held the sender back, and lost nothing by \
         that (xdp-live and inject do not send again)\n",
        thousands(refused)
    )
}

fn whole(pps: f64) -> String {
    thousands(pps.round() as u64)
}

/// In a word or two.
fn ended(ending: Ending) -> &'static str {
    match ending {
        Ending::Regular => "found",
        Ending::LosesAtMinimum => "loses at the least rate",
        Ending::PassesAtMaximum => "passes the greatest rate",
        Ending::BoundedBySender => "bounded by the sender",
        Ending::UnsteadySender => "unsteady sender",
        Ending::NotOffered => "nothing offered",
        Ending::TimeLimit => "time limit",
        Ending::Unfinished => "unfinished",
    }
}

/// What the rows of a place do not say: how far repetitions lie apart, what the sender's limit was, where packets were lost.
fn remarks(searched: &Searched) -> String {
    let mut text = String::new();
    let name = searched.place.name();
    let Some(first) = searched.rows.first() else {
        return format!("{name}: not searched\n");
    };
    if let Some(sender) =
        first.sender.filter(|_| first.goals.iter().any(|goal| goal.result.ending == Ending::NotOffered))
    {
        text += &not_offered(&name, sender);
    }
    if let Some(refused) =
        searched.rows.iter().filter_map(|row| row.refused).reduce(|a, b| a + b).filter(|&all| all > 0)
    {
        text += &refused_line(&name, refused);
    }
    for (index, goal) in first.goals.iter().enumerate() {
        let goal_name = &goal.result.goal.name;
        if let Some(spread) = Spread::of(&searched.rows, index).filter(|_| searched.rows.len() > 1) {
            let _ = writeln!(
                text,
                "{name} {goal_name}: {} of {} searches found it: median {} pps, from {} to {}: a spread of {:.2} %",
                spread.runs,
                searched.rows.len(),
                whole(spread.median_pps),
                whole(spread.least_pps),
                whole(spread.most_pps),
                spread.share() * 100.0
            );
        }
        if is_the_senders(&searched.rows, index) {
            text += &senders_limit(searched, index);
        }
        for row in &searched.rows {
            text += &unsteady(&name, row, index);
        }
        text += &losses(searched, index);
    }
    text
}

/// What to do where a sender did not offer even the least rate.
fn not_offered(name: &str, sender: SenderBound) -> String {
    let [asked, achieved] = [sender.not_offered_pps, sender.achieved_pps].map(whole);
    let next_step = "so that nothing is known of the path: use a lower --min, or another --backend";
    if sender.achieved_pps > sender.not_offered_pps {
        return format!(
            "{name}: the sender did not hold even {asked} pps; asked for more, it sent up to {achieved}: a steady pace is what it could \
             not hold, for other work on this machine, {next_step}; or try again when the machine is quiet\n"
        );
    }
    format!(
        "{name}: the sender could not offer even {asked} pps in time (it sent up to {achieved}), {next_step}\n"
    )
}

/// The bounds between which a sender was too unsteady to come nearer.
fn unsteady(name: &str, row: &SearchRow, goal: usize) -> String {
    let Some(result) = row.goals.get(goal).map(|goal| &goal.result) else { return String::new() };
    let (Ending::UnsteadySender, Some(lower), Some(sender)) = (result.ending, result.lower, row.sender)
    else {
        return String::new();
    };
    let upper = result.upper.map_or_else(
        || format!("more than that was lost from {} pps on", whole(sender.not_offered_pps)),
        |upper| format!("more at {} pps", whole(upper.load_pps)),
    );
    format!(
        "{name} {}: not narrowed: at most {} % lost at {} pps, {upper}; in between the sender was unsteady, and did not hold {} pps\n",
        result.goal.name,
        result.goal.loss_ratio * 100.0,
        whole(lower.load_pps),
        whole(sender.not_offered_pps)
    )
}

/// What was offered without loss, and why no more was.
fn senders_limit(searched: &Searched, goal: usize) -> String {
    let best = |row: &SearchRow| Some((row.goals.get(goal)?.result.lower?.load_pps, row.sender?));
    let highest = searched.rows.iter().filter_map(best).max_by(|a, b| a.0.total_cmp(&b.0));
    let Some((lower, sender)) = highest else { return String::new() };
    let result = &searched.rows[0].goals[goal].result;
    let what = match result.goal.loss_ratio {
        0.0 => "no loss".to_owned(),
        ratio => format!("at most {} % lost", ratio * 100.0),
    };
    let why = searched.shared.as_ref().map_or(String::new(), |shared| format!(": {shared}"));
    let is_held_back = searched.rows.iter().any(|row| row.refused.is_some_and(|refused| refused > 0));
    let held = if is_held_back { " to a path that holds it back" } else { "" };
    let mut text = format!(
        "{} {}: {what} up to {} pps, which is all the sender can offer{held} (not {} pps){why}\n",
        searched.place.name(),
        result.goal.name,
        whole(lower),
        whole(sender.not_offered_pps)
    );
    if sender.achieved_pps > sender.not_offered_pps {
        let _ = writeln!(
            text,
            "  asked for more, it sent up to {} pps: a steady pace is what it could not hold, for other work on this machine",
            whole(sender.achieved_pps)
        );
    }
    text
}

/// Where packets were lost at the upper bound, over all repetitions.
fn losses(searched: &Searched, goal: usize) -> String {
    let mut sums: Vec<(String, u64)> = Vec::new();
    let goals = searched.rows.iter().filter_map(|row| row.goals.get(goal));
    for drop in goals.clone().flat_map(|goal| &goal.upper_drops) {
        let what = format!("{} ({})", drop.reason, drop.counter);
        match sums.iter_mut().find(|(known, _)| *known == what) {
            Some((_, sum)) => *sum += drop.packets,
            None => sums.push((what, drop.packets)),
        }
    }
    if sums.is_empty() {
        return String::new();
    }
    sums.sort_by_key(|(_, packets)| std::cmp::Reverse(*packets));
    let sums: Vec<String> =
        sums.into_iter().map(|(what, packets)| format!("{} {what}", thousands(packets))).collect();
    let name = goals.clone().next().map_or("", |goal| goal.result.goal.name.as_str());
    format!("{} {name}: lost at the upper bound: {}\n", searched.place.name(), sums.join(", "))
}

/// Every trial.
fn trials(searched: &Searched) -> String {
    let mut table = plain(&["run", "load pps", "s", "sent", "received", "lost", "what"]);
    for trial in &searched.trials {
        let counts = [trial.sent, trial.received, lost(trial)].map(thousands);
        let mut line = vec![
            (trial.run + 1).to_string(),
            whole(trial.load_pps),
            format!("{:.3}", trial.wall_ns as f64 / 1e9),
        ];
        line.extend(counts);
        line.push(match &trial.invalid {
            Some(why) => why.clone(),
            None if lost(trial) == 0 => String::new(),
            None => trial.drops.iter().map(|drop| drop.reason.as_str()).collect::<Vec<_>>().join(", "),
        });
        table.add_row(line);
    }
    align_right(&mut table, 0);
    format!("trials of {}\n{table}\n", searched.place.name())
}

/// The account of all trials: whole with `verbose` or where it is open.
fn ledger(searched: &Searched, verbose: bool) -> String {
    let Some(book) = &searched.ledger else { return String::new() };
    let open = searched.open.as_ref().map_or(String::new(), |open| {
        format!("{}: packets of a trial are unaccounted for:\n{}", searched.place.name(), ledger_text(open))
    });
    if verbose || !book.closes() {
        return open + &ledger_text(book);
    }
    open + &format!(
        "{}: {} packets sent, {} received, {} dropped, 0 unaccounted for\n",
        searched.place.name(),
        thousands(book.sent.packets),
        thousands(book.received_packets()),
        thousands(book.dropped_packets())
    )
}

/// The rates over the frame sizes: a panel for each path, a line for each goal; a bar from the least to the most of the
/// repetitions, or from the lower to the upper bound where there is one. Of searches that found it only.
pub(crate) fn search_svg(all: &[Searched]) -> String {
    let mut places: Vec<String> = Vec::new();
    let mut panels: Vec<Panel> = Vec::new();
    for searched in all {
        let frame = searched.place.frame.to_string();
        let place = places.iter().position(|known| *known == frame).unwrap_or_else(|| {
            places.push(frame);
            places.len() - 1
        });
        let title = format!("{}, pps", searched.place.subject);
        if panels.iter().all(|panel| panel.title != title) {
            panels.push(Panel { title: title.clone(), series: Vec::new() });
        }
        let Some(panel) = panels.iter_mut().find(|panel| panel.title == title) else { continue };
        let Some(first) = searched.rows.first() else { continue };
        for (index, goal) in first.goals.iter().enumerate() {
            let Some(point) = point(&searched.rows, index, place) else { continue };
            let name = goal.result.goal.name.clone();
            match panel.series.iter_mut().find(|series| series.name == name) {
                Some(series) => series.points.push(point),
                None => panel.series.push(Series { name, points: vec![point] }),
            }
        }
    }
    let across = "frame size in bytes, with FCS".into();
    Plot { title: "highest rate within a goal".into(), across, places, panels, scale: Scale::Logarithmic }
        .svg()
}

fn point(rows: &[SearchRow], goal: usize, place: usize) -> Option<Point> {
    let spread = Spread::of(rows, goal)?;
    let value = spread.median_pps;
    if spread.runs > 1 {
        return Some(Point { place, value, low: spread.least_pps, high: spread.most_pps });
    }
    let goals = rows.iter().filter_map(|row| row.goals.get(goal));
    let result = goals.map(|goal| &goal.result).find(|result| result.is_regular())?;
    let high = result.upper.map_or(value, |upper| upper.load_pps);
    let low = result.lower.map_or(value, |lower| lower.load_pps.min(value));
    Some(Point { place, value, low, high })
}
