//! What is printed before the first slice: the resolved scenario, and what makes its figures unsure.

use anyhow::Result;
use measure::record::{Head, Warning};

use traffic::BackendKind;

use super::numbers::thousands;
use crate::cell::Factor;
use crate::scenario::{Clock, Generate, Job, Scenario};

/// A line on the machine and one on the scenario; the whole scenario with `verbose`.
pub(crate) fn opening(scenario: &Scenario, head: &Head, cpu: usize, verbose: bool) -> Result<String> {
    let mut text = format!("{}{}\n", machine(head, &format!("CPU {cpu}")), in_a_line(scenario));
    if verbose {
        text += &format!("\n{}\n", scenario.to_toml()?);
    }
    Ok(text)
}

/// The same for the generator.
pub(crate) fn generator_opening(
    scenario: &Generate,
    head: &Head,
    kind: BackendKind,
    cpus: &[usize],
    verbose: bool,
) -> Result<String> {
    let numbers: Vec<String> = cpus.iter().map(ToString::to_string).collect();
    let on = format!("CPU{} {}", if cpus.len() == 1 { "" } else { "s" }, numbers.join(", "));
    let (packets, send) = (&scenario.packets, &scenario.send);
    let source = match (&packets.capture, &packets.name) {
        (Some(file), _) => file.display().to_string(),
        (None, Some(name)) => name.clone(),
        (None, None) => "(program)".into(),
    };
    let mut line = format!("gen {source} to {} by {kind}", scenario.target());
    if let Some(count) = send.count {
        line += &format!(", {} packets", thousands(count));
    }
    if let Some(time_s) = send.time_s {
        line += &format!(", at most {time_s} s");
    }
    line += &match (&send.rate, &packets.capture) {
        (Some(rate), _) => format!(", {rate}"),
        (None, Some(_)) => format!(", {} times as fast as recorded", packets.speed.unwrap_or(1.0)),
        (None, None) => ", as fast as it goes".into(),
    };
    if send.threads > 1 {
        line += &format!(", {} threads", send.threads);
    }
    let mut text = format!("{}{line}, seed {}\n", machine(head, &on), packets.seed);
    if verbose {
        text += &format!("\n{}\n", scenario.to_toml()?);
    }
    Ok(text)
}

/// A line on the program and the machine.
pub(super) fn machine(head: &Head, on: &str) -> String {
    let e = &head.environment;
    let known = |value: &Option<String>| value.clone().unwrap_or_else(|| "?".into());
    let cores = e.cores.map_or("?".into(), |cores| cores.to_string());
    format!(
        "perpacket {} on Linux {}, {} ({cores} CPUs), {on}\n",
        head.program.version,
        known(&e.kernel_release),
        known(&e.cpu_model)
    )
}

/// A warning in one line: what, the fact, what to do.
pub(crate) fn warning_line(warning: &Warning) -> String {
    format!("warning: {} ({}): {}\n", warning.what, warning.fact, warning.next_step)
}

fn in_a_line(scenario: &Scenario) -> String {
    let paths: Vec<String> = scenario.paths.iter().map(ToString::to_string).collect();
    let frames: Vec<String> = scenario.frames.iter().map(ToString::to_string).collect();
    let from = if scenario.paths.iter().any(|path| path.is_datapath()) {
        " (datapath: in user space, from a synthetic device in memory)"
    } else {
        ""
    };
    let m = &scenario.measurement;
    let job = match scenario.job {
        Job::Path => "path",
        Job::Ab => "ab",
    };
    let clock = match m.clock {
        Clock::Thread => "thread CPU time",
        Clock::Machine => "busy time of all CPUs",
    };
    let mut line = format!(
        "{job} {}{from}, frames of {} bytes, slices of {} packets, {clock}, at most {:.0} s, seed {}",
        paths.join(" "),
        listed(&frames),
        m.packets,
        m.time_s,
        m.seed
    );
    if let Some(compare) = scenario.compare.as_ref().filter(|compare| compare.vary != Factor::Nothing) {
        line += &format!(", {}: {} against {}", compare.vary.name(), compare.a, compare.b);
    }
    for (name, value) in scenario.setting.changed() {
        line += &format!(", {name} {value}");
    }
    line
}

/// `a`, `a and b`, `a, b and c`.
fn listed(words: &[String]) -> String {
    match words {
        [all @ .., last] if !all.is_empty() => format!("{} and {last}", all.join(", ")),
        _ => words.concat(),
    }
}
