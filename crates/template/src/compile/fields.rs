//! Values into fields, and fields that vary.

use std::ops::Range;

use super::functions::fit;
use super::{Builder, PendingVarying};
use crate::counter::{Counter, HeldCounter};
use crate::language::ast::{Bound, CounterNode, Item, Number, Pace, Value, ValueKind};
use crate::language::error::{Checked, Fault, WarningKind};
use crate::plan::{Source, Varying};
use crate::proto::{Field, Show};

/// A field in the packet.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) at: usize,
    pub(super) field: &'static Field,
}

impl Builder<'_> {
    /// Gives a field the value of an item.
    pub(super) fn assign(&mut self, place: Place, item: &Item, value: &Value) -> Checked<()> {
        let Place { at, field } = place;
        let part = self.part(place, item)?;
        match &value.kind {
            ValueKind::Counter(counter) => return self.counter(place, part, value, counter),
            ValueKind::Random { range } => return self.random(place, part, value, *range),
            _ => {}
        }
        if let Some((offset, _)) = &item.offset {
            let message = "a part of a field can only have a function";
            return Err(Fault::at(offset.span, message).expected("`dinc`, `ddec` or `drnd`"));
        }
        let whole = |len: usize| field.mask == 0 && usize::from(field.bytes) == len;
        match &value.kind {
            ValueKind::Number(number) if field.bytes <= 4 => {
                let number = fit_field(Number { value: *number, span: value.span }, field)?;
                self.put(place, number);
            }
            ValueKind::Mac(mac) if whole(6) => self.bytes[at..at + 6].copy_from_slice(mac),
            ValueKind::Ipv4(address) if whole(4) => self.bytes[at..at + 4].copy_from_slice(address),
            ValueKind::Ipv6(address) if whole(16) => self.bytes[at..at + 16].copy_from_slice(address),
            _ => return Err(wrong_kind(field, value)),
        }
        Ok(())
    }

    /// Writes a number that fits.
    pub(super) fn put(&mut self, place: Place, number: u128) {
        let Place { at, field } = place;
        let bytes = usize::from(field.bytes);
        let target = &mut self.bytes[at..at + bytes];
        if field.mask == 0 {
            return target.copy_from_slice(&number.to_be_bytes()[16 - bytes..]);
        }
        let old = target.iter().fold(0_u32, |sum, byte| sum << 8 | u32::from(*byte));
        let new = old & !field.mask | (number as u32) << field.shift() & field.mask;
        target.copy_from_slice(&new.to_be_bytes()[4 - bytes..]);
    }

    /// The bytes that an item means: the field, or a part of it.
    fn part(&self, place: Place, item: &Item) -> Checked<Range<usize>> {
        let Place { at, field } = place;
        let bytes = usize::from(field.bytes);
        let Some((offset, len)) = &item.offset else { return Ok(at..at + bytes) };
        if field.mask != 0 {
            return Err(Fault::at(offset.span, format!("{} is made of bits and has no bytes", item.name)));
        }
        let start = usize::try_from(offset.value).ok().filter(|start| start + usize::from(*len) <= bytes);
        let Some(start) = start else {
            let message = format!("{} has {bytes} bytes, numbered from 0", item.name);
            return Err(Fault::at(offset.span, message));
        };
        Ok(at + start..at + start + usize::from(*len))
    }

    fn counter(
        &mut self,
        place: Place,
        part: Range<usize>,
        value: &Value,
        node: &CounterNode,
    ) -> Checked<()> {
        let down = node.down;
        let step = match node.step {
            None => 1,
            Some(step) => fit(step, 64)?,
        };
        let is_part = part.len() < usize::from(place.field.bytes);
        let mask = if is_part { 0 } else { place.field.mask };
        let Some((least, most)) = node.range else {
            if part.len() > 4 {
                let message =
                    "the counter carries into all of the field; trafgen changes its last four bytes only";
                self.warnings.add(WarningKind::WideCounter, value.span, message);
            }
            let source = Source::Bytes; // replaced when the packet is complete
            self.push(Varying { at: part, mask, source }, Some((step, down)));
            return Ok(());
        };
        let part = check_range(place.field, part, least, most)?;
        let counter = Counter::in_field(least.value, most.value, step, down);
        let source = paced(counter, &node.pace, part.len())?;
        self.push(Varying { at: part, mask, source }, None);
        Ok(())
    }

    fn random(
        &mut self,
        place: Place,
        part: Range<usize>,
        value: &Value,
        range: Option<(Bound, Bound)>,
    ) -> Checked<()> {
        let is_part = part.len() < usize::from(place.field.bytes);
        let mask = if is_part { 0 } else { place.field.mask };
        let Some((least, most)) = range else {
            if part.len() == 4 {
                let message = "all values are drawn; trafgen never sets the top bit of a field of four bytes";
                self.warnings.add(WarningKind::RandomTopBit, value.span, message);
            }
            self.push(Varying { at: part, mask, source: Source::Bytes }, None);
            return Ok(());
        };
        if part.len() > 4 && least.bytes == 0 {
            let message = "the range is one of numbers, for the last bytes; trafgen draws every byte from it";
            self.warnings.add(WarningKind::WideRandom, value.span, message);
        }
        let part = check_range(place.field, part, least, most)?;
        let source = match part.len() {
            0..=8 => Source::Range(least.value as u64, most.value as u64),
            _ => Source::WideRange(Box::new((least.value, most.value))),
        };
        self.push(Varying { at: part, mask, source }, None);
        Ok(())
    }

    /// A function that is given later replaces the one before; a value is where a counter begins.
    fn push(&mut self, varying: Varying, from_current: Option<(u128, bool)>) {
        let pending = PendingVarying { varying, from_current, low_level: false };
        // Fields come after the functions of bytes in front of their header, so that the search is short.
        let start = self.varying.iter().rposition(|known| known.low_level).map_or(0, |last| last + 1);
        let same = |known: &&mut PendingVarying| {
            known.varying.at == pending.varying.at && known.varying.mask == pending.varying.mask
        };
        match self.varying[start..].iter_mut().find(same) {
            Some(known) => *known = pending,
            None => self.varying.push(pending),
        }
    }
}

/// A counter in a field of `bytes` bytes, at its pace.
pub(super) fn paced(counter: Counter, pace: &Pace, bytes: usize) -> Checked<Source> {
    let packets = |number: Number| match u64::try_from(number.value) {
        Err(_) | Ok(0) => {
            Err(Fault::at(number.span, "this is no number of packets").expected("a number from 1 on"))
        }
        Ok(packets) => Ok(packets),
    };
    let hold = pace.hold.map(packets).transpose()?.unwrap_or(1);
    let again = pace.again.map(packets).transpose()?;
    Ok(match (hold, again) {
        (1, None) => Source::counter(counter, bytes),
        _ => Source::Held(Box::new(HeldCounter::new(counter, hold, again))),
    })
}

/// A number that fits into a field.
pub(super) fn fit_field(number: Number, field: &Field) -> Checked<u128> {
    fit(number, field.bits()).map_err(|fault| {
        let low = number.value as u128 & ((1_u128 << field.bits()) - 1);
        let message = format!(
            "{} does not fit into {}, which has {} bits; trafgen would take {low}",
            number.value,
            field.names[0],
            field.bits()
        );
        Fault { message, ..*fault }.into()
    })
}

/// Checks a range, and narrows a long field to the bytes that a range of numbers changes: the last 4, or 8.
fn check_range(field: &Field, part: Range<usize>, least: Bound, most: Bound) -> Checked<Range<usize>> {
    let span = least.span.to(most.span);
    let whole = usize::from(field.bytes);
    let address = usize::from(least.bytes.max(most.bytes));
    if address != 0 && (least.bytes != most.bytes || address != part.len() || address != whole) {
        let message = format!("this range of addresses is not one of {}", field.names[0]);
        return Err(Fault::at(span, message)
            .expected(format!("two numbers, or two addresses of {} bytes", part.len())));
    }
    if least.value > most.value {
        let message = format!("the range from {} to {} is empty", least.value, most.value);
        return Err(Fault::at(span, message).expected("the smaller number first"));
    }
    let bits = if part.len() < whole { part.len() as u32 * 8 } else { field.bits() };
    if bits < 128 && most.value >> bits != 0 {
        let message = format!("{} does not fit into {}, which has {bits} bits", most.value, field.names[0]);
        let largest = (1_u128 << bits) - 1;
        return Err(Fault::at(most.span, message).expected(format!("0 to {largest}")));
    }
    let used = match (address, part.len()) {
        (0, len) if len > 4 && most.value <= u128::from(u32::MAX) => 4,
        (0, len) if len > 8 => 8,
        (_, len) => len,
    };
    if used < 16 && most.value >> (used * 8) != 0 {
        return Err(Fault::at(most.span, format!("{} does not fit into {used} bytes", most.value)));
    }
    Ok(part.end - used..part.end)
}

fn wrong_kind(field: &Field, value: &Value) -> Box<Fault> {
    let expected = match (field.show, field.bytes) {
        (Show::Mac, _) => "a MAC address such as 02:00:00:00:00:01".to_owned(),
        (Show::Ipv4, _) => "an IPv4 address such as 10.0.0.1, or a number".to_owned(),
        (Show::Ipv6, _) => "an IPv6 address such as fd00::1".to_owned(),
        _ => format!("a number of {} bits", field.bits()),
    };
    let message = match &value.kind {
        ValueKind::Word(word) => format!("`{word}` is no value of {}", field.names[0]),
        _ => format!("{} cannot hold this", field.names[0]),
    };
    Fault::at(value.span, message).expected(format!("{expected}, or `dinc()`, `ddec()`, `drnd()`"))
}

/// The field as it will vary, now that the packet's bytes are known.
pub(super) fn resolve(pending: &PendingVarying, bytes: &[u8]) -> Varying {
    let mut varying = pending.varying.clone();
    let Some((step, down)) = pending.from_current else { return varying };
    let raw = bytes[varying.at.clone()].iter().fold(0_u128, |sum, byte| sum << 8 | u128::from(*byte));
    let (start, bits) = match varying.mask {
        0 => (raw, varying.at.len() as u32 * 8),
        mask => ((raw & u128::from(mask)) >> mask.trailing_zeros(), mask.count_ones()),
    };
    varying.source = Source::counter(Counter::whole(start, bits, step, down), varying.at.len());
    varying
}

/// Whether [`narrow`] may do anything.
pub(super) fn may_be_narrow(varying: &Varying) -> bool {
    let counts = matches!(varying.source, Source::Small(_) | Source::Counter(_) | Source::Held(_));
    counts && varying.mask == 0 && varying.at.len() > 2
}

/// A counter whose values begin with the same bytes changes the last ones only: 2, 4 or 8. So it is faster, has fewer bytes in
/// checksums, and in the longest fields a form as instructions. Nothing else may vary in these bytes.
pub(super) fn narrow(varying: &mut Varying, bytes: &mut [u8]) {
    let len = varying.at.len();
    for used in [2, 4, 8].into_iter().filter(|&used| used < len) {
        let narrowed = match &varying.source {
            Source::Small(counter) => {
                counter.wide().narrow(used).map(|(prefix, counter)| (prefix, Source::counter(counter, used)))
            }
            Source::Counter(counter) => {
                counter.narrow(used).map(|(prefix, counter)| (prefix, Source::counter(counter, used)))
            }
            Source::Held(counter) => {
                counter.narrow(used).map(|(prefix, counter)| (prefix, Source::Held(Box::new(counter))))
            }
            _ => None,
        };
        if let Some((prefix, source)) = narrowed {
            bytes[varying.at.clone()].copy_from_slice(&prefix.to_be_bytes()[16 - len..]);
            varying.at.start = varying.at.end - used;
            varying.source = source;
            return;
        }
    }
}

/// Whether two random fields can be drawn as one.
pub(super) fn joins(first: &Varying, second: &Varying) -> bool {
    let random = |varying: &Varying| varying.mask == 0 && matches!(varying.source, Source::Bytes);
    random(first) && random(second) && first.at.end == second.at.start
}

/// Sets what varies to 0, so that it can be added later.
pub(super) fn clear(varying: &Varying, bytes: &mut [u8]) {
    let place = &mut bytes[varying.at.clone()];
    if varying.mask == 0 {
        return place.fill(0);
    }
    let keep = (!varying.mask).to_be_bytes();
    let keep = &keep[4 - place.len()..];
    for (byte, keep) in place.iter_mut().zip(keep) {
        *byte &= keep;
    }
}
