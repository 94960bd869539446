//! What `alloc` does, wholly resolved.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::{MAX_SEED, SCHEMA, TIME_S, keep_first, keys_of, read};
use crate::alloc::{Allocator, Cell, LARGEST_BYTES, Sizes, Threads};

/// What the job is called in a scenario.
pub(crate) const JOB: &str = "alloc";

/// The most buffers of a burst.
const MAX_LIVE: usize = 4096;
/// The most buffers that a held one may outlive.
const MAX_HOLD_FOR: u64 = 1 << 24;

/// One comparison of allocators, resolved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Allocate {
    /// Always [`SCHEMA`].
    pub(crate) schema: String,
    /// Always [`JOB`].
    pub(crate) job: String,
    /// What is compared.
    pub(crate) allocators: Vec<Allocator>,
    /// Sizes of buffers in bytes, each measured by itself; none where there is a pattern.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) sizes: Vec<usize>,
    /// A mix of sizes, as [`Sizes`] reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pattern: Option<String>,
    /// Who takes and who ends.
    pub(crate) threads: Vec<Threads>,
    /// Buffers of a burst.
    pub(crate) live: usize,
    /// The share of the buffers that is held long.
    #[serde(default)]
    pub(crate) hold: f64,
    /// A held buffer ends when so many more have been taken.
    pub(crate) hold_for: u64,
    /// The CPUs of the measuring thread and of the second one; none means the last ones allowed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) cpus: Vec<usize>,
    /// How it is measured.
    pub(crate) measurement: AllocateMeasurement,
}

/// How long, and in which order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct AllocateMeasurement {
    /// Seconds.
    pub(crate) time_s: f64,
    /// Seed of the order, of the sizes, and of what is held.
    pub(crate) seed: u64,
}

impl Allocate {
    /// Reads a scenario file of `alloc`.
    pub(super) fn from_toml(text: &str) -> Result<Self> {
        read::<Self>(text, &known_keys())?.checked()
    }

    /// The scenario as a file.
    pub(crate) fn to_toml(&self) -> Result<String> {
        toml::to_string(self).context("write the scenario as TOML")
    }

    /// The sizes, or the one mix of them.
    pub(crate) fn loads(&self) -> Result<Vec<Sizes>> {
        match &self.pattern {
            Some(pattern) => Ok(vec![pattern.parse().context("--pattern")?]),
            None => Ok(self.sizes.iter().map(|&bytes| Sizes::One(bytes)).collect()),
        }
    }

    /// The cells of allocators that are in this program and can do this, in order.
    pub(crate) fn cells(&self) -> Result<Vec<Cell>> {
        let loads = self.loads()?;
        let mut cells = Vec::new();
        for &threads in &self.threads {
            for &allocator in self.allocators.iter().filter(|allocator| allocator.lacking().is_none()) {
                let can = |sizes: &&Sizes| allocator.refuses(threads, sizes, self.hold).is_none();
                let cell = |sizes: &Sizes| Cell::Allocator { allocator, sizes: sizes.clone(), threads };
                cells.extend(loads.iter().filter(can).map(cell));
            }
        }
        Ok(cells)
    }

    /// The scenario with everything once, if its numbers mean something.
    pub(crate) fn checked(mut self) -> Result<Self> {
        ensure!(self.job == JOB, "the job `{}` is not `{JOB}`", self.job);
        keep_first(&mut self.allocators);
        keep_first(&mut self.sizes);
        keep_first(&mut self.threads);
        ensure!(!self.allocators.is_empty(), "no allocator is named: there is nothing to compare");
        ensure!(!self.threads.is_empty(), "nobody takes buffers: use --threads one");
        ensure!(
            self.sizes.is_empty() == self.pattern.is_some(),
            "either sizes or a pattern says how large buffers are: one of them is needed"
        );
        if let Some(bytes) = self.sizes.iter().find(|bytes| !(1..=LARGEST_BYTES).contains(bytes)) {
            anyhow::bail!("size {bytes}: buffers of 1 to {LARGEST_BYTES} bytes are compared");
        }
        self.loads()?;
        ensure!((1..=MAX_LIVE).contains(&self.live), "live {}: 1 to {MAX_LIVE} buffers", self.live);
        ensure!(
            (0.0..1.0).contains(&self.hold),
            "hold {}: a share from 0 on and below 1 is needed, for example 1%",
            self.hold
        );
        ensure!(
            (1..=MAX_HOLD_FOR).contains(&self.hold_for),
            "hold_for {}: 1 to {MAX_HOLD_FOR} buffers",
            self.hold_for
        );
        let m = &self.measurement;
        ensure!(
            TIME_S.contains(&m.time_s),
            "time_s = {:?}: {} to {} seconds are needed",
            m.time_s,
            TIME_S.start(),
            TIME_S.end()
        );
        ensure!(m.seed <= MAX_SEED, "seed {}: at most {MAX_SEED}", m.seed);
        ensure!(
            self.cpus.len() < 2 || self.cpus.len() == 2 && self.cpus[0] != self.cpus[1],
            "cpus {:?}: one for the measuring thread, and another one for the second thread",
            self.cpus
        );
        ensure!(!self.cells()?.is_empty(), "none of these allocators can do this: {}", self.why_none());
        Ok(self)
    }

    fn why_none(&self) -> String {
        let loads = self.loads().unwrap_or_default();
        let mut reasons = Vec::new();
        for &allocator in &self.allocators {
            let refused = loads.iter().flat_map(|sizes| {
                self.threads.iter().filter_map(|&threads| allocator.refuses(threads, sizes, self.hold))
            });
            let all = allocator.lacking().into_iter().chain(refused);
            reasons.extend(all.map(|why| format!("{allocator}: {why}")));
        }
        reasons.dedup();
        reasons.join("; ")
    }
}

/// Every key that a scenario of `alloc` can have, from a whole one.
fn known_keys() -> BTreeSet<String> {
    keys_of(&Allocate {
        schema: SCHEMA.into(),
        job: JOB.into(),
        allocators: vec![Allocator::Poll],
        sizes: vec![64],
        pattern: Some("imix".into()),
        threads: vec![Threads::One],
        live: 1,
        hold: 0.1,
        hold_for: 1,
        cpus: vec![0],
        measurement: AllocateMeasurement { time_s: 1.0, seed: 0 },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"
        schema = "perpacket.scenario/1"
        job = "alloc"
        allocators = ["poll", "system", "poll"]
        sizes = [256, 64]
        threads = ["one", "across"]
        live = 64
        hold_for = 65536
        [measurement]
        time_s = 1.0
        seed = 3
    "#;

    #[test]
    fn what_is_written_is_read_back() {
        let scenario = Allocate::from_toml(SMALL).unwrap();
        assert_eq!(scenario.allocators, [Allocator::Poll, Allocator::System]);
        // What its owner alone can give back is in no cell of two threads.
        assert_eq!(scenario.cells().unwrap().len(), 6);
        assert_eq!(Allocate::from_toml(&scenario.to_toml().unwrap()).unwrap(), scenario);
        let pattern = SMALL.replace("sizes = [256, 64]", "pattern = \"imix\"\n hold = 0.01");
        let scenario = Allocate::from_toml(&pattern).unwrap();
        assert_eq!(scenario.cells().unwrap().len(), 3);
        assert_eq!(Allocate::from_toml(&scenario.to_toml().unwrap()).unwrap(), scenario);
    }

    #[test]
    fn what_means_nothing_is_refused() {
        for (from, to, why) in [
            ("\"system\"", "\"sysetm\"", "`system` is near"),
            ("\"across\"", "\"acros\"", "unknown variant"),
            ("live = 64", "live = 0", "live 0"),
            ("live = 64", "vile = 64", "key of a scenario"),
            ("[256, 64]", "[4097]", "size 4097"),
            ("[256, 64]", "[]", "one of them is needed"),
            ("live = 64", "live = 64\n pattern = \"imix\"", "one of them is needed"),
            ("live = 64", "live = 64\n hold = 1.0", "hold 1"),
            ("live = 64", "live = 64\n hold = nan", "hold"),
            ("live = 64", "live = 64\n cpus = [1, 1]", "another one"),
            ("65536", "0", "hold_for 0"),
            ("time_s = 1.0", "time_s = inf", "time_s"),
            ("[\"poll\", \"system\", \"poll\"]", "[]", "no allocator"),
            ("[\"one\", \"across\"]", "[]", "--threads one"),
        ] {
            assert!(SMALL.contains(from), "{from}");
            let error = format!("{:#}", Allocate::from_toml(&SMALL.replace(from, to)).unwrap_err());
            assert!(error.contains(why), "{to}: {error}");
        }
        let alone = SMALL
            .replace("[\"poll\", \"system\", \"poll\"]", "[\"free-list\"]")
            .replace("[\"one\", \"across\"]", "[\"across\"]");
        let error = format!("{:#}", Allocate::from_toml(&alone).unwrap_err());
        assert!(error.contains("free-list: has one owner"), "{error}");
    }
}
