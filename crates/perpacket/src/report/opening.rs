//! What is printed before the first slice: the resolved scenario, and what makes its figures unsure.

use anyhow::Result;
use measure::record::{Head, Warning};

use crate::cell::Factor;
use crate::scenario::{Clock, Job, Scenario};

/// A line on the machine and one on the scenario; the whole scenario with `verbose`.
pub(crate) fn opening(scenario: &Scenario, head: &Head, cpu: usize, verbose: bool) -> Result<String> {
    let e = &head.environment;
    let known = |value: &Option<String>| value.clone().unwrap_or_else(|| "?".into());
    let cores = e.cores.map_or("?".into(), |cores| cores.to_string());
    let mut text = format!(
        "perpacket {} on Linux {}, {} ({cores} CPUs), CPU {cpu}\n",
        head.program.version,
        known(&e.kernel_release),
        known(&e.cpu_model)
    );
    text += &format!("{}\n", in_a_line(scenario));
    if verbose {
        text += &format!("\n{}\n", scenario.to_toml()?);
    }
    Ok(text)
}

/// A warning in one line: what, the fact, what to do.
pub(crate) fn warning_line(warning: &Warning) -> String {
    format!("warning: {} ({}): {}\n", warning.what, warning.fact, warning.next_step)
}

fn in_a_line(scenario: &Scenario) -> String {
    let paths: Vec<String> = scenario.paths.iter().map(ToString::to_string).collect();
    let frames: Vec<String> = scenario.frames.iter().map(ToString::to_string).collect();
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
        "{job} {}, frames of {} bytes, slices of {} packets, {clock}, at most {:.0} s, seed {}",
        paths.join(" "),
        frames.join(" and "),
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
