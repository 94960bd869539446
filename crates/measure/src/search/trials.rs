//! Trials by load, and the bounds that they make.

use std::collections::BTreeMap;

use super::classify::{Class, Criterion, Sample, classify};

/// The relevant bounds for a criterion, as numbers of the grid. The lower one is always the lesser number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Bounds {
    pub(super) lower: Option<i64>,
    pub(super) upper: Option<i64>,
}

impl Bounds {
    /// How far apart they are, if both are there.
    pub(super) fn span(&self) -> Option<i64> {
        Some(self.upper? - self.lower?)
    }
}

/// What counts of all trials, by number of the grid.
#[derive(Debug, Clone, Default)]
pub(super) struct ByLoad(BTreeMap<i64, Vec<Sample>>);

impl ByLoad {
    pub(super) fn add(&mut self, number: i64, sample: Sample) {
        self.0.entry(number).or_default().push(sample);
    }

    pub(super) fn at(&self, number: i64) -> &[Sample] {
        self.0.get(&number).map_or(&[], Vec::as_slice)
    }

    /// The least load that is an upper bound, and the greatest lower bound below it. A load that passes above one that does
    /// not (loss inversion) is taken for a fluke: the draft's "Conservativeness and Relevant Bounds".
    pub(super) fn bounds(&self, criterion: &Criterion) -> Bounds {
        let mut bounds = Bounds::default();
        for (&number, samples) in &self.0 {
            match classify(criterion, samples) {
                Class::Lower => bounds.lower = Some(number),
                Class::Upper => {
                    bounds.upper = Some(number);
                    break;
                }
                Class::Undecided => {}
            }
        }
        bounds
    }
}
