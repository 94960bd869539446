//! `perpacket run`: a scenario file.

use std::fs;
use std::io::{self, Read};

use anyhow::{Context, Result};

use super::{ab, path};
use crate::cli::RunArgs;
use crate::report::Outcome;
use crate::scenario::{Job, Scenario};

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
    let scenario = Scenario::from_toml(&text).with_context(|| format!("read the scenario {name}"))?;
    match scenario.job {
        Job::Path => path::measure(&scenario, &args.output),
        Job::Ab => ab::measure(&scenario, &args.output),
    }
}
