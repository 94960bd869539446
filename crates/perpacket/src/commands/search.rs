//! `perpacket search`: from arguments to a scenario.

use anyhow::{Context, Result, bail};
use measure::wire::{Rate, parse_rate};

use crate::cli::SearchArgs;
use crate::report::Outcome;
use crate::scenario::{DevicePair, FrameWord, GoalDefaults, SCHEMA, SEARCH_JOB, Search, Subject};
use crate::search;

/// From arguments to a scenario, and on.
pub(crate) fn run(args: &SearchArgs) -> Result<Outcome> {
    search::run(&scenario(args)?.checked()?, args.svg.as_deref(), &args.output)
}

fn scenario(args: &SearchArgs) -> Result<Search> {
    let goal = &args.goal;
    let defaults = GoalDefaults {
        trial_s: goal.trial.map(|trial| trial.as_secs_f64()),
        sum_s: goal.sum.map(|sum| sum.as_secs_f64()),
        exceed_ratio: goal.exceed,
        width: goal.width,
    };
    let into_flows = args.paths.iter().any(|path| path == Subject::Flows.name());
    Ok(Search {
        schema: SCHEMA.into(),
        job: SEARCH_JOB.into(),
        paths: args
            .paths
            .iter()
            .map(|name| name.parse().map_err(anyhow::Error::msg))
            .collect::<Result<_>>()?,
        frames: FrameWord::parse_all(&args.frame)?,
        goals: goal.goal.iter().map(|word| defaults.goal(word).context("--goal")).collect::<Result<_>>()?,
        min_pps: rate("--min", &goal.min)?,
        max_pps: rate("--max", &goal.max)?,
        time_s: goal.time.as_secs_f64(),
        runs: goal.runs,
        ports: args.ports.parse().map_err(anyhow::Error::msg).context("--ports")?,
        setting: args.setting.resolve()?,
        flows: args.flows.given(args.setting.flows.filter(|_| into_flows)),
        devices: args.devices.to.clone().zip(args.devices.from.clone()).map(|(to, from)| DevicePair {
            to,
            from,
            allow: args.devices.allow_device.clone(),
            destination_mac: args.devices.dst_mac.clone(),
            destination: args.devices.dst_ip,
        }),
        host: args.host.resolve(),
    })
}

/// A rate in packets: searches at several frame sizes have the same one.
fn rate(flag: &'static str, text: &str) -> Result<f64> {
    match parse_rate(text).context(flag)? {
        Rate::Pps(pps) => Ok(pps),
        Rate::BitPerS(_) => bail!("{flag} {text}: a rate in packets is needed, as 750kpps"),
    }
}
