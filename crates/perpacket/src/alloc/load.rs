//! Which sizes are asked for, and which buffers are held.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use measure::order::Seed;

/// Buffers in the table of a mix; a power of two.
const TABLE: usize = 1 << 14;

/// The largest buffer: a page, which is the most that every allocator here gives.
pub(crate) const LARGEST_BYTES: usize = 4096;

/// Of how many buffers, of which sizes, each thread's work consists.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    /// Buffers of a burst, all of which are alive before the first of them ends.
    pub(crate) live: usize,
    /// The largest size; the only one where there is no table.
    pub(crate) largest: usize,
    /// A held buffer ends when so many more have been taken.
    pub(crate) hold_for: u64,
    /// Size of each buffer and whether it is held long, to be gone through again and again. Empty where all are alike.
    table: Arc<[(u16, bool)]>,
}

impl Load {
    /// Buffers of these sizes, of which a share is held long.
    pub(crate) fn new(sizes: &Sizes, live: usize, hold: f64, hold_for: u64, seed: u64) -> Self {
        let mut order = Seed(seed).order();
        let mut share = || order.below(1 << 32) as f64 / (1_u64 << 32) as f64;
        let is_mixed = hold > 0.0 || !matches!(sizes, Sizes::One(_));
        let entry = |_| (sizes.at(share()) as u16, share() < hold);
        let table: Arc<[(u16, bool)]> = (0..if is_mixed { TABLE } else { 0 }).map(entry).collect();
        Self { live, largest: sizes.largest(), hold_for, table }
    }

    /// Whether all buffers are alike.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.table.is_empty()
    }

    /// The size of buffer `number`, and whether it is held long.
    #[inline]
    pub(crate) fn buffer(&self, number: u64) -> (usize, bool) {
        match self.table.get(number as usize % TABLE) {
            Some(&(bytes, is_kept)) => (usize::from(bytes), is_kept),
            None => (self.largest, false),
        }
    }

    /// How many buffers are held at once, about.
    pub(crate) fn most_kept(&self) -> usize {
        let kept = self.table.iter().filter(|(_, is_kept)| *is_kept).count();
        (kept as u64 * self.hold_for.div_ceil(TABLE as u64)) as usize + kept
    }
}

/// Sizes of buffers in bytes, as `--pattern` has them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Sizes {
    /// All alike.
    One(usize),
    /// Each with its weight.
    Mix(Vec<(usize, f64)>),
    /// All sizes of a range, equally often.
    Uniform(usize, usize),
    /// Sizes of a range as Pareto has them: many small ones, few large ones. P(size > x) falls as x to the power of −1.2, and is
    /// cut at the end of the range.
    Pareto(usize, usize),
}

/// The simple IMIX: 7 frames of 64 bytes, 4 of 570 and 1 of 1518.
const IMIX: [(usize, f64); 3] = [(64, 7.0), (570, 4.0), (1518, 1.0)];

/// The shape of the Pareto distribution.
const SHAPE: f64 = 1.2;

impl Sizes {
    fn largest(&self) -> usize {
        match self {
            Self::One(bytes) | Self::Uniform(_, bytes) | Self::Pareto(_, bytes) => *bytes,
            Self::Mix(sizes) => sizes.iter().map(|(bytes, _)| *bytes).max().unwrap_or(0),
        }
    }

    /// The size below which this share of the buffers lies.
    fn at(&self, share: f64) -> usize {
        match self {
            Self::One(bytes) => *bytes,
            Self::Uniform(low, high) => low + ((high - low + 1) as f64 * share) as usize,
            Self::Pareto(low, high) => {
                let cut = 1.0 - (*low as f64 / *high as f64).powf(SHAPE);
                ((*low as f64 / (1.0 - share * cut).powf(SHAPE.recip())) as usize).min(*high)
            }
            Self::Mix(sizes) => {
                let mut left = share * sizes.iter().map(|(_, weight)| weight).sum::<f64>();
                let found = sizes.iter().find(|(_, weight)| {
                    left -= weight;
                    left < 0.0
                });
                found.or(sizes.last()).map_or(0, |(bytes, _)| *bytes)
            }
        }
    }
}

impl FromStr for Sizes {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let sizes = match text.split_once(':') {
            _ if text == "imix" => Self::Mix(IMIX.into()),
            Some(("uniform", range)) => range_of(range).map(|(low, high)| Self::Uniform(low, high))?,
            Some(("pareto", range)) => range_of(range).map(|(low, high)| Self::Pareto(low, high))?,
            Some(_) => Self::Mix(text.split(',').map(weighted).collect::<Result<_>>()?),
            None => match text.parse() {
                Ok(bytes) => Self::One(bytes),
                Err(_) => bail!(
                    "no pattern of sizes is called `{text}`: use imix, uniform:64-2048, pareto:64-2048, or BYTES:WEIGHT,…"
                ),
            },
        };
        let least = match &sizes {
            Self::One(bytes) | Self::Uniform(bytes, _) | Self::Pareto(bytes, _) => *bytes,
            Self::Mix(sizes) => sizes.iter().map(|(bytes, _)| *bytes).min().unwrap_or(0),
        };
        ensure!(
            least >= 1 && sizes.largest() <= LARGEST_BYTES,
            "{text}: buffers of 1 to {LARGEST_BYTES} bytes are compared"
        );
        Ok(sizes)
    }
}

fn range_of(text: &str) -> Result<(usize, usize)> {
    let ends = text.split_once('-').and_then(|(low, high)| Some((low.parse().ok()?, high.parse().ok()?)));
    let (low, high) = ends.with_context(|| format!("`{text}` is no range of sizes; write 64-2048"))?;
    ensure!(low <= high, "{text}: the first size of a range is the smaller one");
    Ok((low, high))
}

fn weighted(text: &str) -> Result<(usize, f64)> {
    let parts =
        text.split_once(':').and_then(|(bytes, weight)| Some((bytes.parse().ok()?, weight.parse().ok()?)));
    let (bytes, weight): (usize, f64) =
        parts.with_context(|| format!("`{text}` is no size with its weight; write 64:7"))?;
    ensure!(weight.is_finite() && weight > 0.0, "{text}: a weight is above 0");
    Ok((bytes, weight))
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(bytes) => write!(f, "{bytes}"),
            Self::Uniform(low, high) => write!(f, "uniform:{low}-{high}"),
            Self::Pareto(low, high) => write!(f, "pareto:{low}-{high}"),
            Self::Mix(sizes) if *sizes == IMIX => f.write_str("imix"),
            Self::Mix(sizes) => {
                let parts: Vec<String> =
                    sizes.iter().map(|(bytes, weight)| format!("{bytes}:{weight}")).collect();
                f.write_str(&parts.join(","))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(text: &str) -> Sizes {
        text.parse().unwrap()
    }

    #[test]
    fn patterns_are_read_as_they_are_written() {
        for text in ["256", "imix", "uniform:64-2048", "pareto:64-4096", "64:7,1500:1.5"] {
            assert_eq!(sizes(text).to_string(), text);
        }
        assert_eq!(sizes("64:7,570:4,1518:1"), sizes("imix"));
        for (bad, why) in [
            ("imx", "use imix"),
            ("0", "1 to 4096"),
            ("4097", "1 to 4096"),
            ("uniform:64", "write 64-2048"),
            ("uniform:2048-64", "the smaller one"),
            ("pareto:0-10", "1 to 4096"),
            ("64:x", "write 64:7"),
            ("64:0", "above 0"),
        ] {
            let error = bad.parse::<Sizes>().unwrap_err().to_string();
            assert!(error.contains(why), "{bad}: {error}");
        }
    }

    #[test]
    fn sizes_come_as_often_as_the_pattern_says() {
        let share_of = |text: &str, wanted: fn(usize) -> bool| {
            let load = Load::new(&sizes(text), 64, 0.0, 0, 1);
            assert!((0..TABLE as u64).all(|number| load.buffer(number).0 <= load.largest));
            (0..TABLE as u64).filter(|&number| wanted(load.buffer(number).0)).count() as f64 / TABLE as f64
        };
        assert!((share_of("imix", |bytes| bytes == 64) - 7.0 / 12.0).abs() < 0.02);
        assert!((share_of("imix", |bytes| bytes == 1518) - 1.0 / 12.0).abs() < 0.01);
        assert!((share_of("uniform:64-2047", |bytes| bytes < 1056) - 0.5).abs() < 0.02);
        assert_eq!(share_of("uniform:64-65", |bytes| bytes == 64 || bytes == 65), 1.0);
        // 1 - 2^-1.2 of an uncut Pareto are below twice the least; the cut adds what is cut off.
        assert!((share_of("pareto:64-4096", |bytes| bytes < 128) - 0.565 / 0.993).abs() < 0.02);
        assert_eq!(share_of("300", |bytes| bytes == 300), 1.0);
    }

    #[test]
    fn a_share_is_held_long() {
        let load = Load::new(&sizes("256"), 64, 0.01, 65_536, 7);
        let kept = (0..TABLE as u64).filter(|&number| load.buffer(number).1).count();
        assert!((kept as f64 / TABLE as f64 - 0.01).abs() < 0.004, "{kept}");
        assert!(!load.is_plain() && load.most_kept() >= 4 * kept);
        assert!(Load::new(&sizes("256"), 64, 0.0, 65_536, 7).is_plain());
    }
}
