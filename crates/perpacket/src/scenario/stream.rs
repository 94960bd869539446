//! What `stream` and `rr` do, wholly resolved.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use measure::confidence::Wanted;
use serde::{Deserialize, Serialize};
use stream::plan::Plan;

use super::{MAX_SEED, SCHEMA, TIME_S, keys_of, read};
use crate::streams::{Row, StreamSetting};

/// What the job is called in a scenario.
pub(crate) const STREAM_JOB: &str = "stream";
/// The same where requests are answered.
pub(crate) const RR_JOB: &str = "rr";
/// The longest that may be omitted, in seconds.
const MAX_OMIT_S: f64 = 600.0;
/// The shortest interval, in seconds.
const MIN_INTERVAL_S: f64 = 0.01;
/// The most runs of a row.
const MAX_RUNS: u32 = measure::confidence::MAX_RUNS;

/// Bytes or transactions over sockets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Streams {
    /// Always [`SCHEMA`].
    pub(crate) schema: String,
    /// [`STREAM_JOB`] or [`RR_JOB`].
    pub(crate) job: String,
    /// Rows of the table, in order.
    pub(crate) work: Vec<Row>,
    /// What sockets, threads and the network are made of.
    #[serde(default)]
    pub(crate) setting: StreamSetting,
    /// How long and how often.
    pub(crate) measurement: StreamMeasurement,
    /// The two settings; none where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) compare: Option<StreamCompare>,
}

/// By what two settings differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StreamCompare {
    /// A field of the setting.
    pub(crate) vary: String,
    /// Its value in the first setting.
    pub(crate) a: String,
    /// Its value in the second one.
    pub(crate) b: String,
}

/// A row with a setting.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StreamCell {
    pub(crate) row: Row,
    /// The row, and what is special about the setting.
    pub(crate) name: String,
    pub(crate) setting: StreamSetting,
    pub(crate) plan: Plan,
}

/// How long and how often.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct StreamMeasurement {
    /// Seconds of each run.
    pub(crate) time_s: f64,
    /// Seconds before counting begins.
    #[serde(default)]
    pub(crate) omit_s: f64,
    /// Seconds of each interval; none: there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) interval_s: Option<f64>,
    /// Whether CPU time is accounted for.
    #[serde(default = "yes")]
    pub(crate) cpu: bool,
    /// Runs of each row, where no confidence says how many.
    #[serde(default = "one")]
    pub(crate) runs: u32,
    /// How well means are to be known; none: there are `runs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) confidence: Option<Wanted>,
    /// Seed of the order of runs, where two settings are compared.
    #[serde(default)]
    pub(crate) seed: u64,
}

fn yes() -> bool {
    true
}

fn one() -> u32 {
    1
}

impl Streams {
    /// Reads a scenario file of `stream` or `rr`.
    pub(super) fn from_toml(text: &str) -> Result<Self> {
        read::<Self>(text, &known_keys())?.checked()
    }

    /// The scenario as a file.
    pub(crate) fn to_toml(&self) -> Result<String> {
        toml::to_string(self).context("write the scenario as TOML")
    }

    /// Whether requests are answered.
    pub(crate) fn is_rr(&self) -> bool {
        self.job == RR_JOB
    }

    /// The settings: one, or the two that are compared.
    fn settings(&self) -> Result<Vec<StreamSetting>> {
        match &self.compare {
            None => Ok(vec![self.setting.clone()]),
            Some(StreamCompare { vary, a, b }) => {
                [a, b].into_iter().map(|value| self.setting.with(vary, value)).collect()
            }
        }
    }

    /// Each row with each setting: those of a row stand together.
    ///
    /// # Errors
    /// What does not go together in a row.
    pub(crate) fn cells(&self) -> Result<Vec<StreamCell>> {
        let settings = self.settings()?;
        let mut cells = Vec::new();
        for &row in &self.work {
            for (index, setting) in settings.iter().enumerate() {
                let name = match &self.compare {
                    None => row.to_string(),
                    Some(StreamCompare { vary, a, b }) => {
                        format!("{row} {vary} {}", if index == 0 { a } else { b })
                    }
                };
                let plan = setting.plan(row, &self.measurement).with_context(|| name.clone())?;
                cells.push(StreamCell { row, name, setting: setting.clone(), plan });
            }
        }
        Ok(cells)
    }

    /// The scenario, if its numbers mean something.
    ///
    /// # Errors
    /// What does not, and what would.
    pub(crate) fn checked(self) -> Result<Self> {
        ensure!(
            self.job == STREAM_JOB || self.job == RR_JOB,
            "the job `{}` is neither `{STREAM_JOB}` nor `{RR_JOB}`",
            self.job
        );
        ensure!(!self.work.is_empty(), "work = []: there is nothing to do");
        for row in &self.work {
            ensure!(
                row.work.is_rr() == self.is_rr(),
                "work `{}` does not belong to the job `{}`",
                String::from(*row),
                self.job
            );
        }
        let m = &self.measurement;
        ensure!(
            TIME_S.contains(&m.time_s),
            "time_s = {}: {} to {} s",
            m.time_s,
            TIME_S.start(),
            TIME_S.end()
        );
        ensure!((0.0..=MAX_OMIT_S).contains(&m.omit_s), "omit_s = {}: 0 to {MAX_OMIT_S} s", m.omit_s);
        if let Some(interval) = m.interval_s {
            ensure!(
                (MIN_INTERVAL_S..=m.time_s).contains(&interval),
                "interval_s = {interval}: {MIN_INTERVAL_S} s to the time of a run, {} s",
                m.time_s
            );
        }
        ensure!((1..=MAX_RUNS).contains(&m.runs), "runs = {}: 1 to {MAX_RUNS} are possible", m.runs);
        ensure!(m.seed <= MAX_SEED, "seed {}: at most {MAX_SEED}", m.seed);
        let settings = self.settings()?;
        settings.iter().try_for_each(StreamSetting::check)?;
        if let [a, b] = &settings[..] {
            ensure!(a != b, "both settings are the same: write two values");
        }
        let cells = self.cells()?;
        if let Some(remote) = &self.setting.remote {
            remote.check(&cells)?;
        }
        Ok(self)
    }
}

/// Every key that a scenario can have, from a whole one.
fn known_keys() -> BTreeSet<String> {
    keys_of(&Streams {
        schema: SCHEMA.into(),
        job: STREAM_JOB.into(),
        work: Vec::new(),
        setting: StreamSetting::whole(),
        measurement: StreamMeasurement {
            time_s: 1.0,
            omit_s: 0.0,
            interval_s: Some(1.0),
            cpu: true,
            runs: 1,
            confidence: Wanted::new(0.99, 0.05, 3, 10).ok(),
            seed: 0,
        },
        compare: Some(StreamCompare { vary: String::new(), a: String::new(), b: String::new() }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"
        schema = "perpacket.scenario/1"
        job = "stream"
        work = ["tcp@16384", "udp@64"]
        [setting]
        over = "ipv4"
        [measurement]
        time_s = 1.0
        [measurement.confidence]
        level = 0.99
        width = 0.05
        min_runs = 3
        max_runs = 30
    "#;

    #[test]
    fn what_is_written_is_read_back() {
        let scenario = Streams::from_toml(SMALL).unwrap();
        assert_eq!(Streams::from_toml(&scenario.to_toml().unwrap()).unwrap(), scenario);
        let sizes: Vec<u32> = scenario.cells().unwrap().iter().map(|cell| cell.plan.send_bytes).collect();
        assert_eq!(sizes, [16_384, 64]);
    }

    #[test]
    fn two_settings_are_two_cells_of_a_row() {
        let text = format!("{SMALL}[compare]\nvary = \"batch\"\na = \"1\"\nb = \"32\"\n");
        let scenario = Streams::from_toml(&text).unwrap();
        let cells = scenario.cells().unwrap();
        let names: Vec<&str> = cells.iter().map(|cell| cell.name.as_str()).collect();
        assert_eq!(names, ["tcp@16384 batch 1", "tcp@16384 batch 32", "udp@64 batch 1", "udp@64 batch 32"]);
        assert_eq!(cells[3].plan.options.client.batch, Some(32));
        let same = text.replace("b = \"32\"", "b = \"1\"");
        assert!(
            format!("{:#}", Streams::from_toml(&same).unwrap_err()).contains("both settings are the same")
        );
    }

    #[test]
    fn what_means_nothing_is_refused() {
        for (part, other, expected) in [
            ("time_s = 1.0", "time_s = 0.0", "time_s = 0"),
            ("time_s = 1.0", "time_s = 1.0\ninterval_s = 2.0", "interval_s = 2"),
            ("time_s = 1.0", "time_s = 1.0\nruns = 0", "runs = 0"),
            ("level = 0.99", "level = 99.0", "a confidence level of 9900 %"),
            ("\"udp@64\"", "\"udp-rr\"", "does not belong to the job"),
            ("\"udp@64\"", "\"upd\"", "`udp` is near"),
            ("job = \"stream\"", "job = \"streams\"", "neither"),
            ("over = \"ipv4\"", "oevr = \"ipv4\"", "`over` is near"),
            ("over = \"ipv4\"", "flows = 0", "flows = 0"),
            ("over = \"ipv4\"", "gso = 64\nmss = 1000", ""),
            ("over = \"ipv4\"", "pacing = \"1kpps\"", "messages in a second are --rate"),
            ("over = \"ipv4\"", "pacing = \"1Gbit:never\"", "kernel, txtime or spread"),
        ] {
            let read = Streams::from_toml(&SMALL.replace(part, other));
            if expected.is_empty() {
                assert!(read.is_ok(), "{read:?}");
                continue;
            }
            let error = format!("{:#}", read.unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
        let text = SMALL.replace("over = \"ipv4\"", "gso = 64").replace("udp@64", "udp@1472");
        assert!(format!("{:#}", Streams::from_toml(&text).unwrap_err()).contains("94208 bytes at once"));
    }
}
