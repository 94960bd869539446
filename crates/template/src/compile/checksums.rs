//! Checksums: in which order, over what, and what of it varies.

use std::ops::Range;

use super::{Builder, PendingChecksum};
use crate::checksum;
use crate::language::error::{Checked, Fault, WarningKind};
use crate::plan::Checksum;
use crate::proto::Id;

/// Up to this length, a range that varies is added pair by pair.
const MOST_PAIRED_BYTES: usize = 8;
/// Checksums of one packet.
const MOST_CHECKSUMS: usize = 64;

impl Builder<'_> {
    /// Computes what does not vary, and returns the others in the order in which they must be computed.
    pub(super) fn plan_checksums(&mut self) -> Checked<Vec<Checksum>> {
        let mut pending = std::mem::take(&mut self.checksums);
        if let Some(extra) = pending.get(MOST_CHECKSUMS) {
            return Err(Fault::at(
                extra.span,
                format!("the packet has more than {MOST_CHECKSUMS} checksums"),
            ));
        }
        for checksum in &mut pending {
            check_bounds(checksum, self.bytes.len())?;
        }
        if pending.is_empty() {
            return Ok(Vec::new());
        }
        self.warn_of_stale(&pending);
        let mut varies = vec![false; self.bytes.len()];
        for varying in &self.varying {
            varies[varying.varying.at.clone()].fill(true);
        }
        let mut planned = Vec::new();
        for checksum in in_order(pending) {
            let plan = split(&checksum, &self.bytes, &varies);
            if plan.pairs.is_empty() && plan.ranges.is_empty() {
                self.store_fixed(&checksum, &plan);
            } else {
                varies[plan.at..plan.at + 2].fill(true);
                planned.push(plan);
            }
        }
        Ok(planned)
    }

    fn store_fixed(&mut self, checksum: &PendingChecksum, plan: &Checksum) {
        let value = checksum::finish(plan.partial);
        if plan.udp && value == 0 {
            let message =
                "the checksum is 0 and is sent as 0xffff; trafgen sends 0, which means that there is none";
            self.warnings.add(WarningKind::UdpZeroChecksum, checksum.span, message);
        }
        let value = if plan.udp { checksum::finish_udp(plan.partial) } else { value };
        self.bytes[plan.at..plan.at + 2].copy_from_slice(&value.to_ne_bytes());
    }

    fn warn_of_stale(&mut self, pending: &[PendingChecksum]) {
        let any_low_level = self.varying.iter().any(|varying| varying.low_level);
        for checksum in pending {
            let within = |low_level: bool| {
                self.varying
                    .iter()
                    .any(|known| known.low_level == low_level && covers(checksum, &known.varying.at))
            };
            let stale = match checksum.header {
                None => checksum.pseudo.is_some() && !any_low_level && within(false),
                Some(Id::Icmp6) => within(false) || within(true),
                Some(Id::Ipv4) => false,
                Some(_) => within(true),
            };
            if stale {
                let message = "the checksum is right for every packet; trafgen computes it once, though what it covers \
                               varies";
                self.warnings.add(WarningKind::StaleChecksum, checksum.span, message);
            }
        }
    }
}

/// Completes what a checksum covers, and refuses what is not in the packet.
fn check_bounds(checksum: &mut PendingChecksum, len: usize) -> Checked<()> {
    if checksum.cover.end == usize::MAX {
        checksum.cover.end = len;
    }
    let addresses = checksum.pseudo.as_ref().map_or(0..0, |pseudo| pseudo.addresses.clone());
    if checksum.cover.start >= checksum.cover.end || checksum.cover.end > len || addresses.end > len {
        let message = format!("the checksum covers bytes that are not in the packet of {len} bytes");
        return Err(Fault::at(checksum.span, message).expected("offsets of bytes from 0, both inclusive"));
    }
    if let Some(pseudo) = &mut checksum.pseudo {
        pseudo.bytes = checksum.cover.len() as u32;
    }
    Ok(())
}

fn overlaps(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

fn covers(checksum: &PendingChecksum, bytes: &Range<usize>) -> bool {
    let pseudo = checksum.pseudo.as_ref().is_some_and(|pseudo| overlaps(&pseudo.addresses, bytes));
    pseudo || overlaps(&checksum.cover, bytes)
}

/// A checksum that another one covers comes first. Where two cover each other, the first stays first.
fn in_order(mut pending: Vec<PendingChecksum>) -> Vec<PendingChecksum> {
    let mut ordered = Vec::with_capacity(pending.len());
    while !pending.is_empty() {
        let waits = |index: usize| {
            let this: &PendingChecksum = &pending[index];
            pending.iter().enumerate().any(|(other, that)| {
                let needs = covers(this, &(that.at..that.at + 2));
                let needed = covers(that, &(this.at..this.at + 2));
                other != index && needs && !needed
            })
        };
        let next = (0..pending.len()).find(|&index| !waits(index)).unwrap_or(0);
        ordered.push(pending.remove(next));
    }
    ordered
}

/// Splits what is covered into the sum of what stays and the ranges that vary.
fn split(checksum: &PendingChecksum, bytes: &[u8], varies: &[bool]) -> Checksum {
    let mut plan =
        Checksum { at: checksum.at, udp: checksum.udp, partial: 0, pairs: Vec::new(), ranges: Vec::new() };
    if let Some(pseudo) = &checksum.pseudo {
        let [a, b, c, d] = pseudo.bytes.to_be_bytes();
        plan.partial = checksum::add(0, &[a, b, c, d, 0, pseudo.protocol]);
        split_range(&mut plan, pseudo.addresses.clone(), bytes, varies);
    }
    split_range(&mut plan, checksum.cover.clone(), bytes, varies);
    plan
}

fn split_range(plan: &mut Checksum, range: Range<usize>, bytes: &[u8], varies: &[bool]) {
    let own = plan.at..plan.at + 2;
    let mut terms: Vec<Range<usize>> = Vec::new();
    for start in range.clone().step_by(2) {
        let word = start..(start + 2).min(range.end);
        if !word.clone().any(|at| varies[at] && !own.contains(&at)) {
            plan.partial = checksum::add(plan.partial, &bytes[word]);
            continue;
        }
        match terms.last_mut() {
            Some(last) if last.end == word.start => last.end = word.end,
            _ => terms.push(word),
        }
    }
    for term in terms {
        if term.len() > MOST_PAIRED_BYTES || !term.len().is_multiple_of(2) {
            plan.ranges.push(term);
        } else {
            plan.pairs.extend(term.step_by(2).map(|at| at as u32));
        }
    }
}
