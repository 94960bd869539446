//! What `gen` does, wholly resolved.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use measure::wire::{Rate, RateError, parse_rate};
use serde::{Deserialize, Serialize};
use traffic::BackendKind;

use super::{HostUse, MAX_SEED, SCHEMA, TIME_S, keys_of, read};
use crate::cell::text;

/// What the job is called in a scenario.
pub(crate) const JOB: &str = "gen";
/// The most threads that send.
const MAX_THREADS: u32 = 256;
/// The most packets of a run: as many as can be counted in TOML.
const MAX_COUNT: u64 = i64::MAX as u64;

/// One run of the generator, resolved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Generate {
    /// Always [`SCHEMA`].
    pub(crate) schema: String,
    /// Always [`JOB`].
    pub(crate) job: String,
    /// Where to: `lab`, `memory`, a file, or a device.
    pub(crate) to: String,
    /// The device of the host that may be sent to; must be the one in `to`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) allow_device: Option<String>,
    /// What is sent.
    pub(crate) packets: Packets,
    /// How it is sent.
    pub(crate) send: Send,
    /// What is asked of the host.
    #[serde(default)]
    pub(crate) host: HostUse,
}

/// What is sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
#[serde(default)]
pub(crate) struct Packets {
    /// A program in the packet language.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) program: Option<String>,
    /// Its name in messages; what it includes in quotes is looked for beside it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// Its definitions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) define: Vec<String>,
    /// Or a capture file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) capture: Option<PathBuf>,
    /// Where the capture file is damaged, what can be read of it is sent.
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) keep_going: bool,
    /// How many times as fast as it was recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) speed: Option<f64>,
    /// Whether each packet carries a mark, by which `sink` knows loss and reordering.
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) mark: bool,
    /// Seed of all random fields.
    pub(crate) seed: u64,
}

/// How it is sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Send {
    /// The way out; none means the best that the packets, the target and this host allow.
    #[serde(default, with = "text", skip_serializing_if = "Option::is_none")]
    pub(crate) backend: Option<BackendKind>,
    /// Threads that send, each on a CPU of its own.
    pub(crate) threads: u32,
    /// Their CPUs; none means the last ones allowed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) cpus: Vec<usize>,
    /// Packets of all threads together; none: until the time is up, or the capture file ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) count: Option<u64>,
    /// Seconds; none: until the count is reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) time_s: Option<f64>,
    /// Rate of all threads together, as a person writes it; none: as fast as it goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rate: Option<String>,
    /// Whether a rate that was not held ends the run with exit code 1.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) strict: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// Where packets go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// Into a lab made for the run: a veth pair whose other end counts them and drops them.
    Lab,
    /// Nowhere: what making them costs.
    Memory,
    /// Into a capture file.
    File(PathBuf),
    /// Out of a device of the namespace that the program was started in.
    Device(String),
}

impl Target {
    /// What a word means: `lab`, `memory`, a name that ends as those of capture files do, or else a device.
    pub(crate) fn parse(word: &str) -> Self {
        let extension = Path::new(word).extension().and_then(|extension| extension.to_str());
        let extension = extension.map(str::to_ascii_lowercase);
        match word {
            "lab" => Self::Lab,
            "memory" => Self::Memory,
            _ if matches!(extension.as_deref(), Some("pcap" | "pcapng")) => Self::File(word.into()),
            _ => Self::Device(word.into()),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lab => f.write_str("a lab"),
            Self::Memory => f.write_str("memory"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Device(name) => f.write_str(name),
        }
    }
}

impl Generate {
    /// Reads a scenario file of `gen`.
    pub(super) fn from_toml(text: &str) -> Result<Self> {
        read::<Self>(text, &known_keys())?.checked()
    }

    /// The scenario as a file.
    pub(crate) fn to_toml(&self) -> Result<String> {
        toml::to_string(self).context("write the scenario as TOML")
    }

    /// Where packets go.
    pub(crate) fn target(&self) -> Target {
        Target::parse(&self.to)
    }

    /// The rate, where one was asked for.
    pub(crate) fn rate(&self) -> Result<Option<AskedRate>> {
        self.send.rate.as_deref().map(AskedRate::parse).transpose()
    }

    /// The scenario, if its numbers mean something and it is allowed to send where it wants to.
    pub(crate) fn checked(self) -> Result<Self> {
        let (packets, send) = (&self.packets, &self.send);
        ensure!(self.job == JOB, "the job `{}` is not `{JOB}`", self.job);
        ensure!(
            packets.program.is_some() != packets.capture.is_some(),
            "either a program or a capture file says what is sent: [packets] needs one of `program` and `capture`"
        );
        ensure!(packets.seed <= MAX_SEED, "seed {}: at most {MAX_SEED}", packets.seed);
        if let Some(speed) = packets.speed {
            ensure!(
                speed.is_finite() && speed > 0.0,
                "speed {speed}: a number above 0; 2 is twice as fast as recorded"
            );
            ensure!(
                packets.capture.is_some(),
                "speed is of a capture file, and a program is sent: use --rate"
            );
            ensure!(send.rate.is_none(), "speed and rate both say how fast the capture is sent: use one");
        }
        ensure!(
            packets.capture.is_none() || send.threads == 1,
            "a capture file is sent by one thread, in its order: use --threads 1"
        );
        ensure!(
            packets.capture.is_none() || !packets.mark,
            "marks would change the packets of the capture file: send a program with --mark"
        );
        ensure!((1..=MAX_THREADS).contains(&send.threads), "threads {}: 1 to {MAX_THREADS}", send.threads);
        ensure!(
            send.cpus.is_empty() || send.cpus.len() == send.threads as usize,
            "{} CPUs for {} threads: name one for each",
            send.cpus.len(),
            send.threads
        );
        if let Some(count) = send.count {
            ensure!(count > 0, "count 0: there is nothing to send");
            ensure!(count <= MAX_COUNT, "count {count}: at most {MAX_COUNT}");
        }
        if let Some(time_s) = send.time_s {
            ensure!(
                TIME_S.contains(&time_s),
                "time {time_s:?} s: {} s to {} s are possible",
                TIME_S.start(),
                TIME_S.end()
            );
        }
        ensure!(
            send.count.is_some() || send.time_s.is_some() || packets.capture.is_some(),
            "nothing ends the run: give a count or a time"
        );
        self.rate()?;
        self.check_target()?;
        Ok(self)
    }

    /// Whether it may send where it wants to, as far as that can be told without asking the kernel.
    fn check_target(&self) -> Result<()> {
        let Target::Device(name) = self.target() else {
            ensure!(
                self.allow_device.is_none(),
                "--allow-device is for a device, and this goes to {}",
                self.target()
            );
            return Ok(());
        };
        match &self.allow_device {
            Some(allowed) if *allowed == name => Ok(()),
            Some(allowed) => bail!("--allow-device {allowed} does not allow {name}: name the same device"),
            None => bail!(
                "{name} is taken for a device, and sending out of one needs --allow-device {name}; other targets: lab, memory, \
                 FILE.pcap, FILE.pcapng"
            ),
        }
    }
}

/// A rate that was asked for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum AskedRate {
    /// Packets per second.
    Pps(f64),
    /// Bits per second of frames without FCS, preamble and gap.
    L2(f64),
    /// Bits per second on the wire: with FCS, preamble and gap.
    Wire(f64),
}

impl AskedRate {
    /// `750kpps`, `1Gbit` (of the frames as they are handed over), `1Gbit/wire`.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let (number, wire) = match text.trim().to_ascii_lowercase() {
            lower if lower.ends_with("/wire") => (text.trim()[..text.trim().len() - 5].to_owned(), true),
            _ => (text.to_owned(), false),
        };
        let lower = number.to_ascii_lowercase();
        if matches!(parse_rate(&number), Err(RateError::NotPositive(_))) {
            bail!("--rate {text}: a rate above 0 is needed, such as 750kpps");
        }
        ensure!(
            ["pps", "p/s", "bit", "bps", "b/s"].iter().any(|unit| lower.contains(unit)),
            "--rate {text}: a unit is missing: write {number}pps, or {number}bit for bits per second of the frames"
        );
        let rate = parse_rate(&number).with_context(|| {
            format!("--rate {text}: write 750kpps, 1Gbit (bits of the frames, without FCS) or 1Gbit/wire (with FCS, preamble and gap)")
        })?;
        Ok(match rate {
            Rate::Pps(_) if wire => {
                bail!("--rate {text}: a rate in packets is the same on the wire: write it without /wire")
            }
            Rate::Pps(pps) => Self::Pps(pps),
            Rate::BitPerS(bits) if wire => Self::Wire(bits),
            Rate::BitPerS(bits) => Self::L2(bits),
        })
    }

    /// Packets per second of frames that have this length without FCS on average.
    pub(crate) fn pps(self, mean_l2_bytes: f64) -> f64 {
        let overhead = f64::from(measure::wire::FCS_BYTES + measure::wire::WIRE_OVERHEAD_BYTES);
        match self {
            Self::Pps(pps) => pps,
            Self::L2(bits) => bits / (8.0 * mean_l2_bytes),
            Self::Wire(bits) => bits / (8.0 * (mean_l2_bytes + overhead)),
        }
    }
}

/// Every key that a scenario of `gen` can have, from a whole one.
fn known_keys() -> BTreeSet<String> {
    keys_of(&Generate {
        schema: SCHEMA.into(),
        job: JOB.into(),
        to: "lab".into(),
        allow_device: Some(String::new()),
        packets: Packets {
            program: Some(String::new()),
            name: Some(String::new()),
            define: vec![String::new()],
            capture: Some(PathBuf::new()),
            keep_going: true,
            speed: Some(1.0),
            mark: true,
            seed: 0,
        },
        send: Send {
            backend: Some(BackendKind::Mmsg),
            threads: 1,
            cpus: vec![0],
            count: Some(1),
            time_s: Some(1.0),
            rate: Some(String::new()),
            strict: true,
        },
        host: HostUse { cpu: Some(0), expedite: true },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"
        schema = "perpacket.scenario/1"
        job = "gen"
        to = "lab"
        [packets]
        program = "{ udp() }"
        seed = 3
        [send]
        threads = 1
        count = 10
    "#;

    #[test]
    fn what_is_written_is_read_back() {
        let scenario = Generate::from_toml(SMALL).unwrap();
        assert_eq!(Generate::from_toml(&scenario.to_toml().unwrap()).unwrap(), scenario);
        let error = format!("{:#}", Generate::from_toml(&SMALL.replace("count", "cuont")).unwrap_err());
        assert!(error.contains("`count` is near"), "{error}");
    }

    #[test]
    fn what_means_nothing_or_is_not_allowed_is_refused() {
        for (from, to, why) in [
            ("count = 10", "", "nothing ends the run"),
            ("count = 10", "count = 0", "count 0"),
            ("threads = 1", "threads = 0", "threads 0"),
            ("count = 10", "count = 10\n rate = \"fast\"", "a unit is missing"),
            ("to = \"lab\"", "to = \"eth0\"", "--allow-device eth0"),
            ("to = \"lab\"", "to = \"eth0\"\n allow_device = \"eth1\"", "does not allow eth0"),
            ("seed = 3", "seed = 3\n capture = \"a.pcap\"", "either a program or a capture"),
            ("seed = 3", "seed = 3\n speed = 2.0", "--rate"),
        ] {
            let error = format!("{:#}", Generate::from_toml(&SMALL.replace(from, to)).unwrap_err());
            assert!(error.contains(why), "{to}: {error}");
        }
    }

    #[test]
    fn rates_say_what_is_counted() {
        let pps = |text: &str| AskedRate::parse(text).unwrap().pps(60.0);
        assert_eq!(pps("750kpps"), 750e3);
        assert_eq!(pps("480kbit"), 1000.0);
        assert_eq!(pps("10Gbit/wire").round(), 14_880_952.0);
        assert!(AskedRate::parse("1kpps/wire").is_err() && AskedRate::parse("x").is_err());
    }

    #[test]
    fn targets_are_told_by_their_names() {
        let all = ["lab", "memory", "a/b.pcap", "x.pcapng", "veth0.5"].map(Target::parse);
        let expected = [
            Target::Lab,
            Target::Memory,
            Target::File("a/b.pcap".into()),
            Target::File("x.pcapng".into()),
            Target::Device("veth0.5".into()),
        ];
        assert_eq!(all, expected);
    }
}
