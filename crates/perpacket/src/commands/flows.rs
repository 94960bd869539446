//! `perpacket flows`: from arguments to a scenario.

use anyhow::{Context, Result, bail, ensure};

use crate::cli::flows::FlowsArgs;
use crate::flows::{self, FlowFactor, FlowSetting, two_values};
use crate::report::Outcome;
use crate::scenario::{FLOWS_JOB, FlowCompare, FlowLoad, FlowMeasurement, Flows, SCHEMA};
use crate::session::fresh_seed;

/// From arguments to a scenario, and on.
pub(crate) fn run(args: &FlowsArgs) -> Result<Outcome> {
    flows::run(&scenario(args)?, args.svg.as_deref(), &args.output)
}

fn scenario(args: &FlowsArgs) -> Result<Flows> {
    let (setting, compare) = setting(args)?;
    Flows {
        schema: SCHEMA.into(),
        job: FLOWS_JOB.into(),
        dut: args.receivers.dut.parse().map_err(anyhow::Error::msg).context("--dut")?,
        load: FlowLoad {
            packets: args.load.packets,
            stamp: !args.load.no_stamp,
            closed_ports: args.load.closed_ports,
        },
        setting,
        measurement: FlowMeasurement {
            runs: args.runs.runs,
            seed: args.runs.seed.unwrap_or_else(fresh_seed),
        },
        host: args.host.resolve(),
        compare,
    }
    .checked()
}

/// The setting, and by what a second one differs from it: one of the options has two values, or `--vary` says so.
fn setting(args: &FlowsArgs) -> Result<(FlowSetting, Option<FlowCompare>)> {
    let mut setting = FlowSetting::default();
    let mut compare = None;
    if let Some(text) = &args.runs.vary {
        let (vary, a, b) = FlowFactor::parse_vary(text)?;
        setting = setting.with(vary, &a)?;
        compare = Some(FlowCompare { vary, a, b });
    }
    for (factor, text) in args.factors() {
        if let Some(FlowCompare { vary, .. }) = compare.as_ref().filter(|compare| compare.vary == factor) {
            bail!("--{} and --vary {}: one of them says what it is", vary.name(), vary.name());
        }
        let values = two_values(text).with_context(|| format!("--{}", factor.name()))?;
        let Some((a, b)) = values else {
            setting = setting.with(factor, text)?;
            continue;
        };
        if let Some(FlowCompare { vary, .. }) = &compare {
            bail!(
                "--{} and --{} both have two values: one thing at a time is compared",
                vary.name(),
                factor.name()
            );
        }
        setting = setting.with(factor, &a)?;
        compare = Some(FlowCompare { vary: factor, a, b });
    }
    Ok((setting, compare))
}

/// The scenario of `ab flows`: what `flows --vary` does, where nothing else is asked for.
///
/// # Errors
/// Options of `ab` that mean nothing here.
pub(crate) fn compared(
    vary: Option<&str>,
    is_plain: bool,
    seed: Option<u64>,
    args: &crate::cli::HostArgs,
) -> Result<Flows> {
    let vary = vary.context("ab flows: say what differs, --vary KEY=A,B, or use `perpacket flows`")?;
    ensure!(
        is_plain,
        "ab flows takes --vary and no other option of what is measured: use `perpacket flows --vary {vary}` with its own"
    );
    let (vary, a, b) = FlowFactor::parse_vary(vary)?;
    Flows {
        schema: SCHEMA.into(),
        job: FLOWS_JOB.into(),
        dut: crate::scenario::Dut::default(),
        load: FlowLoad { packets: 1_000_000, stamp: true, closed_ports: 0 },
        setting: FlowSetting::default().with(vary, &a)?,
        measurement: FlowMeasurement { runs: 5, seed: seed.unwrap_or_else(fresh_seed) },
        host: args.resolve(),
        compare: Some(FlowCompare { vary, a, b }),
    }
    .checked()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn of(args: &[&str]) -> Result<Flows> {
        let all = [&["perpacket", "flows"], args].concat();
        match Cli::try_parse_from(all)?.command {
            Command::Flows(args) => scenario(&args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn two_values_of_an_option_are_two_settings() {
        let by_option = of(&["--rps", "off,0x2", "--seed", "1"]).unwrap();
        let by_vary = of(&["--vary", "rps=off,0x2", "--seed", "1"]).unwrap();
        assert_eq!(by_option, by_vary);
        assert_eq!(by_option.settings().unwrap().len(), 2);
        assert_eq!(of(&["--rps", "0x2"]).unwrap().compare, None);
    }

    #[test]
    fn one_thing_at_a_time_is_compared() {
        for args in [
            &["--rps", "off,0x2", "--flows", "8,16"][..],
            &["--rps", "0x1", "--vary", "rps=off,0x2"],
            &["--vary", "gro=off,on", "--flows", "8,16"],
            &["--flows", "8,,16"],
        ] {
            assert!(of(args).is_err(), "{args:?}");
        }
    }
}
