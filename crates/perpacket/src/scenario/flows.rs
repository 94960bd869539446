//! What `flows` does, wholly resolved.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use traffic::BackendKind;

use super::{HostUse, MAX_SEED, SCHEMA, keys_of, read};
use crate::flows::{FlowFactor, FlowSetting, refusal_in_user_space};

/// What the job is called in a scenario.
pub(crate) const FLOWS_JOB: &str = "flows";
/// The most packets of a run.
const MAX_PACKETS: u64 = 1_000_000_000;
/// The longest that a run may send, in seconds.
const MAX_RUN_S: f64 = 3_600.0;
/// The most runs of a setting.
const MAX_RUNS: u32 = 1_000;
/// The smallest frame with room for number and time over IPv4, in bytes with the FCS.
const STAMP_FRAME_BYTES: u32 = 64;

/// Paced flows into sockets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Flows {
    /// Always [`SCHEMA`].
    pub(crate) schema: String,
    /// Always [`FLOWS_JOB`].
    pub(crate) job: String,
    /// What receives.
    #[serde(default)]
    pub(crate) dut: Dut,
    /// What is sent in each run.
    pub(crate) load: FlowLoad,
    /// Load, receivers and steering; of the first setting where there are two.
    #[serde(default)]
    pub(crate) setting: FlowSetting,
    /// How often.
    pub(crate) measurement: FlowMeasurement,
    /// What is asked of the host.
    #[serde(default)]
    pub(crate) host: HostUse,
    /// The two settings; none where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) compare: Option<FlowCompare>,
}

/// What receives packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Dut {
    /// The kernel, up to sockets.
    #[default]
    Kernel,
    /// The device in user space.
    Datapath,
}

impl fmt::Display for Dut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kernel => "kernel",
            Self::Datapath => "datapath",
        })
    }
}

impl FromStr for Dut {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "kernel" => Ok(Self::Kernel),
            "datapath" => Ok(Self::Datapath),
            other => Err(format!("no device under test is called `{other}`; use kernel or datapath")),
        }
    }
}

/// What is sent in each run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FlowLoad {
    /// Packets.
    pub(crate) packets: u64,
    /// Whether each carries its number and the time, by which reordering and delays are known.
    pub(crate) stamp: bool,
    /// Ports, the last ones, that nobody listens on.
    #[serde(default)]
    pub(crate) closed_ports: u32,
}

/// How often.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FlowMeasurement {
    /// Runs of each setting.
    pub(crate) runs: u32,
    /// Seed of the order of runs.
    pub(crate) seed: u64,
}

/// By what two settings differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FlowCompare {
    /// What differs.
    pub(crate) vary: FlowFactor,
    /// Its value in the first setting.
    pub(crate) a: String,
    /// Its value in the second one.
    pub(crate) b: String,
}

impl Flows {
    /// Reads a scenario file of `flows`.
    pub(super) fn from_toml(text: &str) -> Result<Self> {
        read::<Self>(text, &known_keys())?.checked()
    }

    /// The scenario as a file.
    pub(crate) fn to_toml(&self) -> Result<String> {
        toml::to_string(self).context("write the scenario as TOML")
    }

    /// The settings: one, or the two that are compared.
    pub(crate) fn settings(&self) -> Result<Vec<FlowSetting>> {
        match &self.compare {
            None => Ok(vec![self.setting.clone()]),
            Some(FlowCompare { vary, a, b }) => {
                [a, b].into_iter().map(|value| self.setting.with(*vary, value)).collect()
            }
        }
    }

    /// How a setting is called: by what differs, where something does.
    pub(crate) fn name(&self, variant: usize) -> String {
        match &self.compare {
            None => "flows".into(),
            Some(FlowCompare { vary, a, b }) => {
                format!("{} {}", vary.name(), if variant == 0 { a } else { b })
            }
        }
    }

    /// The scenario, if its numbers mean something.
    ///
    /// # Errors
    /// What does not, and what would.
    pub(crate) fn checked(self) -> Result<Self> {
        let (load, measurement) = (&self.load, &self.measurement);
        ensure!(self.job == FLOWS_JOB, "the job `{}` is not `{FLOWS_JOB}`", self.job);
        ensure!(
            (1..=MAX_PACKETS).contains(&load.packets),
            "packets = {}: 1 to {MAX_PACKETS} a run",
            load.packets
        );
        ensure!(
            (1..=MAX_RUNS).contains(&measurement.runs),
            "runs = {}: 1 to {MAX_RUNS} are possible",
            measurement.runs
        );
        ensure!(measurement.seed <= MAX_SEED, "seed {}: at most {MAX_SEED}", measurement.seed);
        let settings = self.settings()?;
        for setting in &settings {
            setting.check()?;
            if let Some(refusal) = refusal_in_user_space(setting).filter(|_| self.dut == Dut::Datapath) {
                bail!("{refusal}");
            }
            let seconds = load.packets as f64 / setting.pps()?;
            ensure!(
                seconds <= MAX_RUN_S,
                "{} packets at {}: a run would take {seconds:.0} s, and {MAX_RUN_S:.0} s are possible",
                load.packets,
                setting.rate
            );
            ensure!(
                !load.stamp || setting.frame >= STAMP_FRAME_BYTES,
                "a frame of {} bytes has no room for number and time",
                setting.frame
            );
            ensure!(
                load.closed_ports <= setting.port_count(),
                "closed_ports = {} of {} ports",
                load.closed_ports,
                setting.port_count()
            );
            ensure!(
                setting.rfs == 0 || !setting.is_flood() && setting.source_count() == 1,
                "rfs with several sources: the kernel knows the readers of connected sockets alone, and these have one source; use \
                 one flow a port"
            );
        }
        if let [a, b] = &settings[..] {
            ensure!(a != b, "both settings are the same: write two values");
        }
        Ok(self)
    }
}

/// Every key that a scenario can have, from a whole one.
fn known_keys() -> BTreeSet<String> {
    keys_of(&Flows {
        schema: SCHEMA.into(),
        job: FLOWS_JOB.into(),
        dut: Dut::Kernel,
        load: FlowLoad { packets: 1, stamp: true, closed_ports: 0 },
        setting: FlowSetting {
            backend: Some(BackendKind::Inject),
            ports: Some(1),
            backlog: Some(1),
            ..FlowSetting::default()
        },
        measurement: FlowMeasurement { runs: 1, seed: 0 },
        host: HostUse { cpu: Some(0), expedite: true },
        compare: Some(FlowCompare { vary: FlowFactor::Rps, a: String::new(), b: String::new() }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"
        schema = "perpacket.scenario/1"
        job = "flows"
        [load]
        packets = 1000
        stamp = true
        [measurement]
        runs = 2
        seed = 7
        [compare]
        vary = "rps"
        a = "off"
        b = "0x1"
    "#;

    #[test]
    fn what_is_written_is_read_back() {
        let scenario = Flows::from_toml(SMALL).unwrap();
        assert_eq!(Flows::from_toml(&scenario.to_toml().unwrap()).unwrap(), scenario);
        let settings = scenario.settings().unwrap();
        assert_eq!((settings[0].rps.as_str(), settings[1].rps.as_str()), ("off", "0x1"));
        assert_eq!((scenario.name(0), scenario.name(1)), ("rps off".into(), "rps 0x1".into()));
    }

    #[test]
    fn what_means_nothing_is_refused() {
        for (part, other, expected) in [
            ("packets = 1000", "packets = 0", "packets = 0"),
            ("runs = 2", "runs = 0", "runs = 0"),
            ("b = \"0x1\"", "b = \"off\"", "both settings are the same"),
            ("b = \"0x1\"", "b = \"0xz\"", "rps = 0xz"),
            (
                "job = \"flows\"",
                "job = \"flows\"\ndut = \"datapath\"\n[setting]\nrfs = 4096",
                "with dut = datapath",
            ),
            ("stamp = true", "stamp = true\nclosed_ports = 9", "closed_ports = 9 of 8 ports"),
            ("stamp = true", "stmap = true", "`stamp` is near"),
            ("packets = 1000", "packets = 1000000000\n[setting]\nrate = \"1kpps\"\n[load.x]", "load.x"),
        ] {
            let error = format!("{:#}", Flows::from_toml(&SMALL.replace(part, other)).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_run_has_an_end() {
        let text = SMALL.replace("packets = 1000", "packets = 1000000000");
        let text = text.replace("[measurement]", "[setting]\nrate = \"1kpps\"\n[measurement]");
        let error = format!("{:#}", Flows::from_toml(&text).unwrap_err());
        assert!(error.contains("a run would take 1000000 s"), "{error}");
    }
}
