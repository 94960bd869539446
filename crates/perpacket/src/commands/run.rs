//! `perpacket run`: a scenario file.

use std::fs;
use std::io::{self, Read};

use anyhow::{Context, Result};

use super::{ab, alloc, path};
use crate::cli::RunArgs;
use crate::cli::stream::Format;
use crate::device;
use crate::flows;
use crate::generate;
use crate::report::Outcome;
use crate::scenario::{AnyScenario, Job};
use crate::search;
use crate::streams;

/// Reads and runs.
pub(crate) fn run(args: &RunArgs) -> Result<Outcome> {
    let name = args.file.display();
    let text = if args.file.as_os_str() == "-" {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        fs::read_to_string(&args.file)
    };
    let text = text.with_context(|| format!("read the scenario {name}"))?;
    match AnyScenario::from_toml(&text).with_context(|| format!("read the scenario {name}"))? {
        AnyScenario::Measure(scenario) if scenario.job == Job::Path => path::measure(&scenario, &args.output),
        AnyScenario::Measure(scenario) => ab::measure(&scenario, &args.output),
        AnyScenario::Generate(scenario) => generate::run(&scenario, &args.output),
        AnyScenario::Datapath(scenario) => device::run(&scenario, &args.output),
        AnyScenario::Flows(scenario) => flows::run(&scenario, None, &args.output),
        AnyScenario::Search(scenario) => search::run(&scenario, None, &args.output),
        AnyScenario::Streams(scenario) => streams::run(&scenario, Format::Table, &args.output),
        AnyScenario::Allocate(scenario) => alloc::compare(&scenario, None, &args.output),
    }
}
