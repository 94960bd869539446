//! What `search` does, wholly resolved.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use measure::search::{Goal, Limits};
use serde::{Deserialize, Serialize};
use traffic::BackendKind;

use super::search_words::{FrameWord, PortKind};
use super::{HostUse, SCHEMA, TIME_S, keep_first, keys_of, read};
use crate::cell::{PathName, Setting};
use crate::flows::{FlowFactor, FlowSetting};
use crate::words::nearest;

/// What the job is called in a scenario.
pub(crate) const SEARCH_JOB: &str = "search";

/// Lengths that a trial can have, in seconds: at the least rate it has packets, and it is worth its overhead.
const TRIALS_S: RangeInclusive<f64> = 0.01..=3_600.0;
/// Rates that can be searched, in packets per second.
const RATES_PPS: RangeInclusive<f64> = 1.0..=1e9;
/// The length of the first trial, which counts for nothing: what is made on first use is made then.
const WARM_UP_S: f64 = 0.1;
/// The most repetitions.
const MAX_RUNS: u32 = 1_000;

/// One run of searches, resolved: one for each path, frame size and repetition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Search {
    /// Always [`SCHEMA`].
    pub(crate) schema: String,
    /// Always [`SEARCH_JOB`].
    pub(crate) job: String,
    /// Where packets are sent along, in the order asked for.
    pub(crate) paths: Vec<Subject>,
    /// Frame sizes.
    pub(crate) frames: Vec<FrameWord>,
    /// What is searched for, in one search.
    pub(crate) goals: Vec<Goal>,
    /// The lowest rate that is tried, in packets per second.
    pub(crate) min_pps: f64,
    /// The highest one.
    pub(crate) max_pps: f64,
    /// The most seconds that one search takes.
    pub(crate) time_s: f64,
    /// How often each search is made.
    pub(crate) runs: u32,
    /// How a device under test in user space is joined to the lab.
    #[serde(default)]
    pub(crate) ports: PortKind,
    /// What the lab or the device and its frames are made of.
    #[serde(default)]
    pub(crate) setting: Setting,
    /// What the path `flows` has beside that: values of factors of the command `flows`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) flows: BTreeMap<String, String>,
    /// The devices that are named; only with the path `devices`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) devices: Option<DevicePair>,
    /// What is asked of the host.
    #[serde(default)]
    pub(crate) host: HostUse,
}

/// Two devices of the host, with what is searched on between them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DevicePair {
    /// The one that frames leave by.
    pub(crate) to: String,
    /// The one that they come in by.
    pub(crate) from: String,
    /// Devices that are allowed to take test traffic.
    #[serde(default)]
    pub(crate) allow: Vec<String>,
    /// The MAC address that frames are sent to; none: that of `from`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) destination_mac: Option<String>,
    /// The IPv4 address that they are sent to; none: 198.19.0.1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) destination: Option<Ipv4Addr>,
}

/// What can stand in [`Search::flows`].
const OF_FLOWS: [FlowFactor; 8] = [
    FlowFactor::Flows,
    FlowFactor::Ports,
    FlowFactor::SocketsPerPort,
    FlowFactor::Reader,
    FlowFactor::Wait,
    FlowFactor::Rcvbuf,
    FlowFactor::Rfs,
    FlowFactor::Backlog,
];

/// What is searched on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) enum Subject {
    /// A path of `path`.
    Path(PathName),
    /// Paced flows into a socket and a thread for each port, as `flows` has them.
    Flows,
    /// What is between two devices of the host.
    Devices,
}

/// What goals have in common where they do not say.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct GoalDefaults {
    pub(crate) trial_s: Option<f64>,
    pub(crate) sum_s: Option<f64>,
    pub(crate) exceed_ratio: Option<f64>,
    pub(crate) width: Option<f64>,
}

impl GoalDefaults {
    /// A goal by its word: `ndr`, `pdr`, `rfc2544`, `tst009`, a share of loss (`0.1%`), or `NAME:LOSS:EXCEED`.
    ///
    /// # Errors
    /// Where it is none of these.
    pub(crate) fn goal(&self, word: &str) -> Result<Goal> {
        let own = |name: &str, loss_ratio: f64, exceed: Option<f64>| {
            let usual = Goal::ndr();
            let trial_s = self.trial_s.unwrap_or(usual.final_trial_s);
            Goal {
                name: name.into(),
                loss_ratio,
                exceed_ratio: exceed.or(self.exceed_ratio).unwrap_or(usual.exceed_ratio),
                // Bounds that lie closer than their losses say little (draft, "Goal Width").
                width: usual.width.max(loss_ratio),
                initial_trial_s: trial_s,
                final_trial_s: trial_s,
                // As many trials, whatever their length.
                duration_sum_s: usual.duration_sum_s / usual.final_trial_s * trial_s,
            }
        };
        let known = |goal: Goal| self.like_standard(word, goal);
        let goal = match word {
            "ndr" => own("NDR", 0.0, None),
            "pdr" => own("PDR", Goal::pdr().loss_ratio, None),
            "rfc2544" => return known(Goal::rfc2544()),
            "tst009" => return known(Goal::tst009()),
            _ => match word.split(':').collect::<Vec<_>>()[..] {
                [loss] if loss.ends_with('%') => own(loss, parse_ratio("loss", loss)?, None),
                [name, loss] if !name.is_empty() => own(name, parse_ratio("loss", loss)?, None),
                [name, loss, exceed] if !name.is_empty() => {
                    own(name, parse_ratio("loss", loss)?, Some(parse_ratio("exceed", exceed)?))
                }
                _ => bail!(
                    "{}; or write a share of loss, as 0.1%, or NAME:LOSS:EXCEED, as mine:0.1%:50%",
                    nearest("goal", word, ["ndr", "pdr", "rfc2544", "tst009"].into_iter())
                ),
            },
        };
        Ok(Goal {
            width: self.width.unwrap_or(goal.width),
            duration_sum_s: self.sum_s.unwrap_or(goal.duration_sum_s),
            ..goal
        })
    }
}

impl GoalDefaults {
    /// A goal of a standard with as many trials of another length; under the standard's name only where nothing else is asked for. A
    /// sum that has no room for one of its trials is meant for other goals.
    fn like_standard(&self, word: &str, standard: Goal) -> Result<Goal> {
        ensure!(
            self.exceed_ratio.is_none_or(|ratio| ratio == standard.exceed_ratio),
            "{word} with --exceed: how much may exceed is what this goal is: name one of your own, as mine:0%:50%"
        );
        let final_trial_s = self.trial_s.unwrap_or(standard.final_trial_s);
        let usual_sum_s = standard.duration_sum_s / standard.final_trial_s * final_trial_s;
        let duration_sum_s = self.sum_s.filter(|&sum_s| sum_s >= final_trial_s).unwrap_or(usual_sum_s);
        let goal = Goal {
            initial_trial_s: standard.initial_trial_s.min(final_trial_s),
            final_trial_s,
            duration_sum_s,
            width: self.width.unwrap_or(standard.width),
            ..standard.clone()
        };
        let is_standard =
            goal.final_trial_s == standard.final_trial_s && goal.duration_sum_s == standard.duration_sum_s;
        let name = if is_standard { goal.name.clone() } else { format!("{}-like", goal.name) };
        Ok(Goal { name, ..goal })
    }
}

/// A share as `0.5%`, or `0`.
fn parse_ratio(what: &str, text: &str) -> Result<f64> {
    let number = text.strip_suffix('%').unwrap_or(text).trim();
    let percent: f64 =
        number.parse().ok().with_context(|| format!("{what} `{text}`: a percentage is needed, as 0.5%"))?;
    ensure!((0.0..100.0).contains(&percent), "{what} `{text}`: 0% or more, and below 100%");
    Ok(percent / 100.0)
}

impl Search {
    /// Reads a scenario file of `search`.
    pub(super) fn from_toml(text: &str) -> Result<Self> {
        read::<Self>(text, &known_keys())?.checked()
    }

    /// The scenario as a file.
    pub(crate) fn to_toml(&self) -> Result<String> {
        toml::to_string(self).context("write the scenario as TOML")
    }

    /// The scenario with each path and frame size once, where all of it means something.
    pub(crate) fn checked(mut self) -> Result<Self> {
        ensure!(self.job == SEARCH_JOB, "the job `{}` is not `{SEARCH_JOB}`", self.job);
        keep_first(&mut self.paths);
        keep_first(&mut self.frames);
        ensure!(!self.paths.is_empty(), "no path is named: there is nothing to search on");
        ensure!(!self.frames.is_empty(), "no frame size is named: there is nothing to send");
        self.limits().check(&self.goals)?;
        for goal in &self.goals {
            ensure!(
                TRIALS_S.contains(&goal.initial_trial_s) && TRIALS_S.contains(&goal.final_trial_s),
                "goal {}: a trial takes {} to {} seconds",
                goal.name,
                TRIALS_S.start(),
                TRIALS_S.end()
            );
        }
        for (what, pps) in [("min_pps", self.min_pps), ("max_pps", self.max_pps)] {
            ensure!(
                RATES_PPS.contains(&pps),
                "{what} = {pps}: a rate of {} to {} packets per second is needed",
                RATES_PPS.start(),
                RATES_PPS.end()
            );
        }
        ensure!(
            TIME_S.contains(&self.time_s),
            "time_s = {:?}: {} to {} seconds are needed",
            self.time_s,
            TIME_S.start(),
            TIME_S.end()
        );
        self.check_time()?;
        ensure!((1..=MAX_RUNS).contains(&self.runs), "runs = {}: 1 to {MAX_RUNS} repetitions", self.runs);
        self.check_paths()?;
        self.check_flows()?;
        self.setting.check()?;
        Ok(self)
    }

    /// A setting of `flows` with what stands in its table.
    ///
    /// # Errors
    /// A value that a factor cannot have.
    pub(crate) fn with_flows(&self, setting: FlowSetting) -> Result<FlowSetting> {
        self.flows.iter().try_fold(setting, |setting, (name, value)| {
            let factor = OF_FLOWS.into_iter().find(|factor| factor.name() == name);
            let Some(factor) = factor else {
                bail!(
                    "flows.{name}: {}",
                    nearest("option of flows", name, OF_FLOWS.map(FlowFactor::name).into_iter())
                );
            };
            setting.with(factor, value)
        })
    }

    fn check_flows(&self) -> Result<()> {
        self.with_flows(FlowSetting::default())?;
        if let Some(name) = self.flows.keys().next().filter(|_| !self.paths.contains(&Subject::Flows)) {
            bail!(
                "{name} means something on the path flows only: add it to the paths, or leave --{name} out"
            );
        }
        Ok(())
    }

    /// The limits of each search.
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            min_pps: self.min_pps,
            max_pps: self.max_pps,
            time_limit_s: self.time_s,
            warm_up_s: Some(WARM_UP_S),
        }
    }

    /// Refuses a search that surely ends by its time limit: a goal needs a decision at two loads at least.
    fn check_time(&self) -> Result<()> {
        let longest = self.goals.iter().max_by(|a, b| a.duration_sum_s.total_cmp(&b.duration_sum_s));
        let Some(goal) = longest else { return Ok(()) };
        // A load is decided early where all its trials agree: as an upper bound when more than the share that may exceed has, as a
        // lower one when the rest has not. Together that is the sum.
        let least = (3.0 * goal.final_trial_s).max(goal.duration_sum_s);
        ensure!(
            self.time_s >= least,
            "goal {}: its two bounds take {least} s of trials at least, and a search has {} s: use a greater --time, or a \
             smaller --sum",
            goal.name,
            self.time_s
        );
        Ok(())
    }

    fn check_paths(&self) -> Result<()> {
        let on_devices = self.paths.contains(&Subject::Devices);
        ensure!(
            self.devices.is_some() == on_devices,
            "the path devices takes --to DEVICE and --from DEVICE, and nothing else does"
        );
        for subject in &self.paths {
            if let Subject::Path(path) = subject {
                ensure!(
                    *path != PathName::DatapathDummy,
                    "{path} is joined to no network: search datapath:drop, datapath:forward or datapath:udp"
                );
                ensure!(
                    *path != PathName::Floor,
                    "{path} ends its packets in the program that makes them: it cannot lose any; search xdp-drop or raw-drop"
                );
            }
            for frame in &self.frames {
                if let FrameWord::Bytes(bytes) = frame {
                    subject.check_frame(*bytes)?;
                }
            }
        }
        ensure!(
            self.setting.threads == 1,
            "threads = {}: one thread sends in a search",
            self.setting.threads
        );
        ensure!(
            self.setting.spin == 0,
            "spin = {}: a search adds no work; use path or ab",
            self.setting.spin
        );
        Ok(())
    }
}

impl Subject {
    /// Its name on the command line and in files.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Path(path) => path.name(),
            Self::Flows => "flows",
            Self::Devices => "devices",
        }
    }

    /// Refuses a frame that it does not take: in a search all packets come over devices of a lab.
    fn check_frame(self, frame_bytes: u32) -> Result<()> {
        // Those of the lab's devices also hold for a device in user space, which is joined to them.
        PathName::Udp.check_frame(frame_bytes)
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Subject {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "flows" => return Ok(Self::Flows),
            "devices" => return Ok(Self::Devices),
            _ => {}
        }
        text.parse().map(Self::Path).map_err(|_| {
            let names = PathName::ALL.map(PathName::name).into_iter().chain(["flows", "devices"]);
            nearest("path", text, names)
        })
    }
}

impl TryFrom<String> for Subject {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Subject> for String {
    fn from(subject: Subject) -> Self {
        subject.name().into()
    }
}

/// Every key that a scenario of `search` can have, from a whole one. Those of goals are checked where they are read.
fn known_keys() -> BTreeSet<String> {
    keys_of(&Search {
        schema: SCHEMA.into(),
        job: SEARCH_JOB.into(),
        paths: vec![],
        frames: vec![],
        goals: vec![],
        min_pps: 1.0,
        max_pps: 2.0,
        time_s: 1.0,
        runs: 1,
        ports: PortKind::AfXdp,
        setting: Setting { backend: Some(BackendKind::Inject), queues: Some(1), ..Setting::default() },
        devices: Some(DevicePair {
            to: String::new(),
            from: String::new(),
            allow: vec![String::new()],
            destination_mac: Some(String::new()),
            destination: Some(Ipv4Addr::LOCALHOST),
        }),
        flows: OF_FLOWS.map(|factor| (factor.name().to_owned(), String::new())).into(),
        host: HostUse { cpu: Some(0), expedite: true },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"
        schema = "perpacket.scenario/1"
        job = "search"
        paths = ["udp", "datapath:forward", "udp"]
        frames = [64, 1518]
        min_pps = 10000.0
        max_pps = 20000000.0
        time_s = 120.0
        runs = 5
        [[goals]]
        name = "NDR"
        loss_ratio = 0.0
        exceed_ratio = 0.5
        width = 0.01
        initial_trial_s = 0.5
        final_trial_s = 0.5
        duration_sum_s = 5.5
    "#;

    fn message(text: &str) -> String {
        format!("{:#}", Search::from_toml(text).unwrap_err())
    }

    #[test]
    fn what_is_written_is_read_back() {
        let scenario = Search::from_toml(SMALL).unwrap();
        assert_eq!(scenario.paths, [Subject::Path(PathName::Udp), Subject::Path(PathName::DatapathForward)]);
        assert_eq!(scenario.goals, [GoalDefaults::default().goal("ndr").unwrap()]);
        assert_eq!(Search::from_toml(&scenario.to_toml().unwrap()).unwrap(), scenario);
    }

    #[test]
    fn goals_are_read_by_name_by_loss_and_whole() {
        let none = GoalDefaults::default();
        let of = |word: &str| none.goal(word).unwrap();
        assert_eq!((of("pdr").loss_ratio, of("pdr").exceed_ratio, of("pdr").width), (0.005, 0.5, 0.01));
        assert_eq!(of("rfc2544"), Goal::rfc2544());
        assert_eq!(of("tst009").duration_sum_s, 120.0);
        assert_eq!((of("0.1%").name.as_str(), of("0.1%").loss_ratio), ("0.1%", 0.001));
        // Bounds are no closer than the loss that is allowed.
        assert_eq!((of("2%").loss_ratio, of("2%").width), (0.02, 0.02));
        assert_eq!([of("ndr"), of("pdr")], [Goal::ndr(), Goal::pdr()]);
        let short = GoalDefaults { trial_s: Some(10.0), ..GoalDefaults::default() };
        let like = short.goal("rfc2544").unwrap();
        assert_eq!(
            (like.name.as_str(), like.final_trial_s, like.duration_sum_s),
            ("RFC2544-like", 10.0, 10.0)
        );
        let sum = GoalDefaults { sum_s: Some(21.0), ..GoalDefaults::default() };
        assert_eq!(sum.goal("rfc2544").unwrap(), Goal::rfc2544());
        assert_eq!(sum.goal("ndr").unwrap().duration_sum_s, 21.0);
        let exceed = GoalDefaults { exceed_ratio: Some(0.5), ..GoalDefaults::default() };
        assert!(exceed.goal("rfc2544").unwrap_err().to_string().contains("rfc2544 with --exceed"));
        let mine = of("mine:0.2%:10%");
        assert_eq!((mine.name.as_str(), mine.loss_ratio, mine.exceed_ratio), ("mine", 0.002, 0.1));
        let asked = GoalDefaults {
            trial_s: Some(1.0),
            sum_s: Some(21.0),
            exceed_ratio: Some(0.2),
            width: Some(0.01),
        };
        let ndr = asked.goal("ndr").unwrap();
        assert_eq!(
            (ndr.final_trial_s, ndr.duration_sum_s, ndr.exceed_ratio, ndr.width),
            (1.0, 21.0, 0.2, 0.01)
        );
        assert_eq!(asked.goal("mine:0:10%").unwrap().exceed_ratio, 0.1);
        for (word, why) in [
            ("nrd", "`ndr` is near"),
            ("", "write a share of loss"),
            ("5", "write a share of loss"),
            ("x:y:1%", "a percentage is needed"),
            ("x:1%:100%", "below 100%"),
            ("-1%", "0% or more"),
            ("a:b:c:d", "write a share of loss"),
        ] {
            let error = format!("{:#}", none.goal(word).unwrap_err());
            assert!(error.contains(why), "{word}: {error}");
        }
    }

    #[test]
    fn what_means_nothing_is_refused() {
        for (from, to, why) in [
            ("\"udp\", \"data", "\"upd\", \"data", "`udp` is near"),
            ("datapath:forward", "datapath:dummy", "joined to no network"),
            ("\"datapath:forward\"", "\"floor\"", "cannot lose any"),
            ("[64, 1518]", "[64, 1519]", "frame size 1519"),
            ("[64, 1518]", "[]", "no frame size"),
            ("[64, 1518]", "[\"mix\"]", "frame `mix`"),
            ("runs = 5", "runs = 0", "runs = 0"),
            ("runs = 5", "ruins = 5", "`runs` is near"),
            ("min_pps = 10000.0", "min_pps = 30000000.0", "must be above the least"),
            ("min_pps = 10000.0", "min_pps = 0.0", "least load is 0"),
            ("max_pps = 20000000.0", "max_pps = 2e9", "max_pps = 2000000000"),
            ("max_pps = 20000000.0", "max_pps = inf", "greatest load is inf"),
            ("time_s = 120.0", "time_s = 1.0", "use a greater --time"),
            ("loss_ratio = 0.0", "loss_ratio = 1.0", "loss ratio is 1"),
            ("loss_ratio = 0.0", "loss_ratio = nan", "loss ratio is NaN"),
            ("width = 0.01", "width = 0.0", "width is 0"),
            ("width = 0.01", "wight = 0.01", "unknown field `wight`"),
            ("initial_trial_s = 0.5", "initial_trial_s = 0.7", "be at least the initial one"),
            ("duration_sum_s = 5.5", "duration_sum_s = 0.1", "at least one final trial"),
            ("[[goals]]", "[setting]\nthreads = 2\n[[goals]]", "one thread sends"),
            ("[[goals]]", "[setting]\nspin = 2\n[[goals]]", "adds no work"),
            ("[[goals]]", "[host]\ncqu = 2\n[[goals]]", "`cpu` is near"),
            ("\"udp\", \"data", "\"devices\", \"data", "--to DEVICE"),
            ("[[goals]]", "[devices]\nto = \"a\"\nfrom = \"b\"\n[[goals]]", "nothing else does"),
            ("[[goals]]", "[flows]\nrfs = \"off\"\n[[goals]]", "on the path flows only"),
            ("[[goals]]", "[flows]\nwait = \"long\"\n[[goals]]", "use sleep, nap or spin"),
        ] {
            assert!(SMALL.contains(from), "{from}");
            let error = message(&SMALL.replace(from, to));
            assert!(error.contains(why), "{to}: {error}");
        }
        let goal = SMALL.split_once("[[goals]]").unwrap().1;
        assert!(message(&format!("{SMALL}\n[[goals]]{goal}")).contains("two goals are called NDR"));
    }

    #[test]
    fn a_sweep_is_all_sizes_of_the_table() {
        let frames = FrameWord::parse_all(&["sweep".into(), "64".into()]).unwrap();
        assert_eq!((frames.len(), frames[7]), (9, FrameWord::Imix));
        assert!(FrameWord::parse_all(&["sixty".into()]).is_err());
    }
}
