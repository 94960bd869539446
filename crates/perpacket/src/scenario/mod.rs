//! What a run does, wholly resolved: every command becomes a scenario before anything is touched.
//!
//! It is printed first, kept in the record, and `perpacket run` takes it back. Nothing that changes a figure is
//! outside it, but for the machine.

mod allocate;
mod datapath;
mod datapath_checks;
mod flows;
mod generate;
mod search;
mod search_words;
mod stream;

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use traffic::BackendKind;

use crate::cell::{Cell, Factor, PathName, Setting};
use crate::words::nearest;

pub(crate) use self::stream::{RR_JOB, STREAM_JOB, StreamCell, StreamCompare, StreamMeasurement, Streams};
pub(crate) use allocate::{Allocate, AllocateMeasurement, JOB as ALLOC};
pub(crate) use datapath::{
    DATAPATH_JOB, Datapath, Devices, FramesOf, Network, Receiving, Running, StageName, Steering, UdpQueues,
};
pub(crate) use flows::{Dut, FLOWS_JOB, FlowCompare, FlowLoad, FlowMeasurement, Flows};
pub(crate) use generate::{AskedRate, Generate, JOB, Packets, Send, Target};
pub(crate) use search::{DevicePair, GoalDefaults, SEARCH_JOB, Search, Subject};
pub(crate) use search_words::{FrameWord, PortKind};

/// The form of a scenario that this program writes and reads.
pub(crate) const SCHEMA: &str = "perpacket.scenario/1";

/// Times that a run can take, in seconds: 50 ms to a day.
pub(crate) const TIME_S: RangeInclusive<f64> = 0.05..=86_400.0;

/// The greatest seed: whole numbers of TOML have a sign and 64 bits.
const MAX_SEED: u64 = i64::MAX as u64;

/// Characters of a line of a file that a message shows.
const EXCERPT_CHARS: usize = 200;

/// One run, resolved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Scenario {
    /// Always [`SCHEMA`].
    pub(crate) schema: String,
    /// Which command.
    pub(crate) job: Job,
    /// Paths, in the order asked for.
    pub(crate) paths: Vec<PathName>,
    /// Frame sizes with the FCS, in bytes.
    pub(crate) frames: Vec<u32>,
    /// What the lab or the device and its frames are made of.
    #[serde(default)]
    pub(crate) setting: Setting,
    /// How it is measured.
    pub(crate) measurement: Measurement,
    /// What is asked of the host.
    #[serde(default)]
    pub(crate) host: HostUse,
    /// The comparison; only for the job `ab`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) compare: Option<Compare>,
}

/// The command that a scenario belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Job {
    /// Absolute cost of paths.
    Path,
    /// Two variants in interleaved pairs.
    Ab,
}

/// Slices, clock and stop rule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measurement {
    /// Packets in a slice.
    pub(crate) packets: u64,
    /// The clock that is quoted.
    pub(crate) clock: Clock,
    /// Time for the whole (`path`) or for each path and frame size (`ab`), in seconds.
    pub(crate) time_s: f64,
    /// Relative half width at which `path` stops; not used by `ab`.
    #[serde(default = "default_precision")]
    pub(crate) precision: f64,
    /// Seed of every random order.
    pub(crate) seed: u64,
}

/// Half a percent.
pub(crate) fn default_precision() -> f64 {
    0.005
}

/// The clock that a figure is quoted in. Wall time is stored beside it in every case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Clock {
    /// CPU time of the measuring thread (CLOCK_THREAD_CPUTIME_ID). Other threads and CPUs are not in it.
    Thread,
    /// Busy time of all CPUs, from /proc/stat, in ticks of 10 ms: for work that moves. Whatever else the
    /// machine does is in it.
    Machine,
}

impl FromStr for Clock {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "thread" => Ok(Self::Thread),
            "machine" => Ok(Self::Machine),
            other => bail!("no clock is called `{other}`; use thread or machine"),
        }
    }
}

/// What is asked of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct HostUse {
    /// CPU that sends and measures; none means the last one allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cpu: Option<usize>,
    /// Whether RCU grace periods are expedited for the run.
    pub(crate) expedite: bool,
}

impl Default for HostUse {
    fn default() -> Self {
        Self { cpu: None, expedite: true }
    }
}

/// A comparison of two variants.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Compare {
    /// What differs.
    pub(crate) vary: Factor,
    /// The value, or the command, that makes variant A.
    #[serde(default)]
    pub(crate) a: String,
    /// The value, or the command, that makes variant B.
    #[serde(default)]
    pub(crate) b: String,
    /// Relative difference below which two variants count as the same.
    pub(crate) margin: f64,
    /// Whether five looks may end the comparison before its time.
    pub(crate) early_stop: bool,
    /// Pairs after which programs and labs are made anew; none where both variants are the same code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reload_pairs: Option<u32>,
}

impl Scenario {
    /// Reads a scenario file of `path` or `ab`. A key that means nothing is an error that names the nearest one that does.
    pub(crate) fn from_toml(text: &str) -> Result<Self> {
        read::<Self>(text, &known_keys())?.checked()
    }

    /// The scenario with each path and frame size once, where its numbers mean something.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub(crate) fn checked(mut self) -> Result<Self> {
        self.check()?;
        keep_first(&mut self.paths);
        keep_first(&mut self.frames);
        Ok(self)
    }

    /// The scenario as a file.
    pub(crate) fn to_toml(&self) -> Result<String> {
        toml::to_string(self).context("write the scenario as TOML")
    }

    /// The cells in order: every path at every frame size.
    pub(crate) fn cells(&self) -> Vec<Cell> {
        let of_path = |&path| {
            let cell = move |&frame_bytes: &u32| Cell { path, frame_bytes, setting: self.setting.clone() };
            self.frames.iter().map(cell)
        };
        self.paths.iter().flat_map(of_path).collect()
    }

    /// Whether a path of it goes through the kernel.
    pub(crate) fn needs_kernel(&self) -> bool {
        self.paths.iter().any(|path| !path.is_datapath())
    }

    /// Refuses numbers that mean nothing, and frames that no lab takes.
    pub(crate) fn check(&self) -> Result<()> {
        ensure!(!self.paths.is_empty(), "no path is named: there is nothing to measure");
        ensure!(!self.frames.is_empty(), "no frame size is named: there is nothing to send");
        for cell in self.cells() {
            cell.path.check_frame(cell.frame_bytes)?;
        }
        let m = &self.measurement;
        ensure!(m.packets >= 1, "a slice of 0 packets costs nothing: use --slice 5000");
        ensure!(m.packets <= 10_000_000, "a slice of {} packets: at most 10,000,000", m.packets);
        ensure!(
            m.packets >= 64,
            "a slice of {} packets is shorter than its own noise: at least 64",
            m.packets
        );
        ensure!(
            TIME_S.contains(&m.time_s),
            "time_s = {:?}: {} to {} seconds are needed",
            m.time_s,
            TIME_S.start(),
            TIME_S.end()
        );
        ensure!(
            m.seed <= MAX_SEED,
            "seed {}: at most {MAX_SEED}, the greatest number that a scenario in TOML can hold",
            m.seed
        );
        check_share("precision", m.precision)?;
        if let Some(compare) = &self.compare {
            check_share("margin", compare.margin)?;
            ensure!(
                compare.vary != Factor::Frame || self.frames.len() == 1,
                "frame is what differs, so A and B have a size each: leave the {} sizes of --frame out",
                self.frames.len()
            );
            ensure!(
                compare.reload_pairs.is_none_or(|pairs| pairs >= 10),
                "reload_pairs: at least 10 pairs between two rebuilds"
            );
        }
        ensure!(
            (self.job == Job::Ab) == self.compare.is_some(),
            "the job `ab` needs a [compare] table, and only it has one"
        );
        self.setting.check()
    }
}

/// A scenario file of any command.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum AnyScenario {
    /// Of `path` and `ab`.
    Measure(Scenario),
    /// Of `gen`.
    Generate(Generate),
    /// Of `datapath`.
    Datapath(Box<Datapath>),
    /// Of `flows`.
    Flows(Box<Flows>),
    /// Of `alloc`.
    Allocate(Allocate),
    /// Of `search`.
    Search(Box<Search>),
    /// Of `stream` and `rr`.
    Streams(Box<Streams>),
}

impl AnyScenario {
    /// Reads a scenario file.
    pub(crate) fn from_toml(text: &str) -> Result<Self> {
        let job =
            text.parse::<toml::Table>().ok().and_then(|table| table.get("job")?.as_str().map(str::to_owned));
        match job.as_deref() {
            Some(generate::JOB) => Generate::from_toml(text).map(Self::Generate),
            Some(DATAPATH_JOB) => Datapath::from_toml(text).map(Box::new).map(Self::Datapath),
            Some(FLOWS_JOB) => Flows::from_toml(text).map(Box::new).map(Self::Flows),
            Some(SEARCH_JOB) => Search::from_toml(text).map(Box::new).map(Self::Search),
            Some(STREAM_JOB | RR_JOB) => Streams::from_toml(text).map(Box::new).map(Self::Streams),
            Some(allocate::JOB) => Allocate::from_toml(text).map(Self::Allocate),
            _ => Scenario::from_toml(text).map(Self::Measure),
        }
    }
}

/// Reads a file in which only known keys stand.
fn read<T: DeserializeOwned>(text: &str, known: &BTreeSet<String>) -> Result<T> {
    ensure!(
        !text.trim_start().starts_with('{'),
        "this is JSON, and a scenario is TOML: a record is not a scenario; the option -v of a command prints \
         the scenario of a run as TOML"
    );
    let table: toml::Table =
        text.parse().map_err(|error| excerpt(&error)).context("the scenario is no TOML")?;
    // Before anything is missed: a key with a typing error is both unknown and missing.
    if let Some(path) = keys(&table).into_iter().find(|path| !known.contains(path)) {
        let key = last_key(&path);
        if let Some(place) = known.iter().find(|known| last_key(known) == key) {
            bail!("`{path}`: the key is in another place: `{place}`");
        }
        let names: BTreeSet<&str> = known.iter().map(|path| last_key(path)).collect();
        bail!("`{path}`: {}", nearest("key of a scenario", key, names.iter().copied()));
    }
    let schema = table
        .get("schema")
        .with_context(|| format!("`schema` is missing: write schema = \"{SCHEMA}\" at the top"))?;
    let scenario = toml::from_str(text)
        .map_err(|error| excerpt(&error))
        .context("the scenario does not say what is needed")?;
    ensure!(
        schema.as_str() == Some(SCHEMA),
        "the scenario is of the form {schema}; this version reads {SCHEMA}"
    );
    Ok(scenario)
}

/// Refuses what is no share; also what is no number.
fn check_share(name: &str, share: f64) -> Result<()> {
    ensure!(
        share > 0.0 && share < 1.0,
        "{name} = {share}: a share between 0 and 1 is needed, for example 0.005"
    );
    Ok(())
}

/// What the parser says, with the lines that it shows cut to a length that a person reads.
fn excerpt(error: &toml::de::Error) -> anyhow::Error {
    let cut = |line: &str| line.chars().take(EXCERPT_CHARS).collect::<String>();
    anyhow::Error::msg(error.to_string().lines().map(cut).collect::<Vec<_>>().join("\n"))
}

/// Drops what has been there before, and leaves the order as it is.
fn keep_first<T: PartialEq + Copy>(values: &mut Vec<T>) {
    let mut seen = Vec::new();
    values.retain(|value| {
        let new = !seen.contains(value);
        seen.push(*value);
        new
    });
}

/// Every key that a scenario can have, from a whole one.
fn known_keys() -> BTreeSet<String> {
    let whole = Scenario {
        schema: SCHEMA.into(),
        job: Job::Ab,
        paths: vec![],
        frames: vec![],
        setting: Setting { backend: Some(BackendKind::Inject), queues: Some(1), ..Setting::default() },
        measurement: Measurement { packets: 1, clock: Clock::Thread, time_s: 1.0, precision: 0.1, seed: 0 },
        host: HostUse { cpu: Some(0), expedite: true },
        compare: Some(Compare {
            vary: Factor::Nothing,
            a: String::new(),
            b: String::new(),
            margin: 0.1,
            early_stop: true,
            reload_pairs: Some(1),
        }),
    };
    keys_of(&whole)
}

/// Every key of a scenario that has all of them.
fn keys_of(whole: &impl Serialize) -> BTreeSet<String> {
    toml::Table::try_from(whole).map(|table| keys(&table)).unwrap_or_default().into_iter().collect()
}

/// Every key of a table and of the tables in it, as `measurement.time_s`, in order.
fn keys(table: &toml::Table) -> Vec<String> {
    let mut all = Vec::new();
    for (key, value) in table {
        all.push(key.clone());
        let inner = value.as_table().map(keys).unwrap_or_default();
        all.extend(inner.into_iter().map(|path| format!("{key}.{path}")));
    }
    all
}

fn last_key(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"
        schema = "perpacket.scenario/1"
        job = "path"
        paths = ["raw-drop", "forward"]
        frames = [64, 272]
        [measurement]
        packets = 5000
        clock = "thread"
        time_s = 1.0
        seed = 7
    "#;

    #[test]
    fn what_is_written_is_read_back() {
        let scenario = Scenario::from_toml(SMALL).unwrap();
        assert_eq!(scenario.cells().len(), 4);
        assert_eq!(Scenario::from_toml(&scenario.to_toml().unwrap()).unwrap(), scenario);
    }

    #[test]
    fn an_unknown_key_names_the_nearest() {
        let text = SMALL.replace("time_s", "tmie_s = 2.0\n time_s");
        for text in [text, SMALL.replace("time_s", "tmie_s")] {
            let error = format!("{:#}", Scenario::from_toml(&text).unwrap_err());
            assert!(error.contains("measurement.tmie_s") && error.contains("`time_s` is near"), "{error}");
        }
        let misplaced = format!("{SMALL}\n[setting]\nseed = 1\n");
        let error = format!("{:#}", Scenario::from_toml(&misplaced).unwrap_err());
        assert!(error.contains("`setting.seed`") && error.contains("`measurement.seed`"), "{error}");
        let missing = format!("{:#}", Scenario::from_toml(&SMALL.replace("time_s = 1.0", "")).unwrap_err());
        assert!(missing.contains("missing field `time_s`"), "{missing}");
    }

    #[test]
    fn an_unknown_path_names_the_nearest() {
        let error = format!("{:#}", Scenario::from_toml(&SMALL.replace("raw-drop", "raw-dorp")).unwrap_err());
        assert!(error.contains("`raw-drop` is near"), "{error}");
    }

    #[test]
    fn each_path_and_size_is_there_once_and_within_bounds() {
        let twice = SMALL
            .replace("[64, 272]", "[272, 64, 272]")
            .replace("\"forward\"]", "\"forward\", \"raw-drop\"]");
        let scenario = Scenario::from_toml(&twice).unwrap();
        assert_eq!(scenario.paths, [PathName::RawDrop, PathName::Forward]);
        assert_eq!(scenario.frames, [272, 64]);
        for frames in ["[64, 9000]", "[63, 64]", "[1519]", "[]"] {
            assert!(Scenario::from_toml(&SMALL.replace("[64, 272]", frames)).is_err(), "{frames}");
        }
    }

    #[test]
    fn numbers_that_mean_nothing_are_refused() {
        for (key, value) in [
            ("time_s = 1.0", "time_s = 1e300"),
            ("time_s = 1.0", "time_s = nan"),
            ("time_s = 1.0", "time_s = inf"),
            ("time_s = 1.0", "time_s = 0.01"),
            ("time_s = 1.0", "time_s = 86401"),
            ("seed = 7", "seed = 9223372036854775808"),
            ("seed = 7", "seed = -1"),
            ("seed = 7", "seed = 7\n precision = nan"),
            ("seed = 7", "seed = 7\n precision = 1"),
        ] {
            assert!(Scenario::from_toml(&SMALL.replace(key, value)).is_err(), "{value}");
        }
        let greatest = Scenario::from_toml(&SMALL.replace("seed = 7", "seed = 9223372036854775807")).unwrap();
        assert_eq!(Scenario::from_toml(&greatest.to_toml().unwrap()).unwrap(), greatest);
        let mut greater = greatest;
        greater.measurement.seed += 1;
        assert!(greater.check().unwrap_err().to_string().contains("9223372036854775807"));
    }

    #[test]
    fn what_is_no_scenario_is_said_briefly() {
        let message = |text: &str| format!("{:#}", Scenario::from_toml(text).unwrap_err());
        let missing = message(&SMALL.replace("schema = \"perpacket.scenario/1\"", ""));
        assert!(missing.contains("write schema = \"perpacket.scenario/1\""), "{missing}");
        let record =
            message(&format!("{{\"schema\":\"perpacket.record/1\",\"x\":\"{}\"}}", "y".repeat(5_000)));
        assert!(record.contains("a record is not a scenario") && record.len() < 300, "{record}");
        let long = message(&format!("x = [{}", "1 ".repeat(5_000)));
        assert!(long.lines().all(|line| line.len() < 300), "{long}");
    }

    #[test]
    fn another_form_is_refused() {
        let error = Scenario::from_toml(&SMALL.replace("scenario/1", "scenario/2")).unwrap_err();
        assert!(format!("{error:#}").contains("perpacket.scenario/2"));
    }

    #[test]
    fn factors_are_parsed_and_applied() {
        let (factor, a, b) = Factor::parse_vary("rules=0,50").unwrap();
        assert_eq!((factor, a.as_str(), b.as_str()), (Factor::Rules, "0", "50"));
        let cell = Scenario::from_toml(SMALL).unwrap().cells().remove(0);
        assert_eq!(cell.with(factor, &b).unwrap().setting.rules, 50);
        assert_eq!(cell.with(Factor::Frame, "1518").unwrap().frame_bytes, 1518);
        for bad in ["rules", "rules=1", "rules=1,2,3", "rules=,1", "ruels=0,1"] {
            assert!(Factor::parse_vary(bad).is_err(), "{bad}");
        }
        for (factor, value) in [
            (Factor::Rules, "-1"),
            (Factor::Batch, "0"),
            (Factor::Gro, "maybe"),
            (Factor::Rps, "xyz"),
            (Factor::Flows, "0"),
            (Factor::Spin, "99999"),
            (Factor::Qdisc, ""),
            (Factor::Qdisc, "fq codel"),
            (Factor::Threads, "0"),
        ] {
            assert!(cell.with(factor, value).is_err(), "{factor:?} {value}");
        }
    }
}
