//! The functions of bytes: `fill`, `c16`, `rnd`, `dinc`, `csumip` and the others.

use super::fields::paced;
use super::{Builder, PendingChecksum, PendingVarying, Pseudo};
use crate::counter::Counter;
use crate::language::ast::{CsumKind, Function, FunctionKind, Number, Pace};
use crate::language::error::{Checked, Fault, WarningKind};
use crate::plan::{Source, Varying};

impl Builder<'_> {
    pub(super) fn function(&mut self, function: &Function) -> Checked<()> {
        let span = function.span;
        match (function.kind, function.arguments.as_slice()) {
            (FunctionKind::Fill, [value, count]) => {
                let value = byte(*value, "the byte to fill with")?;
                let count = length(*count)?;
                self.grow(count, span)?.fill(value);
            }
            (FunctionKind::Const(bytes), [value]) => {
                let value = fit(*value, u32::from(bytes) * 8)?.to_be_bytes();
                self.append(&value[16 - usize::from(bytes)..], span)?;
            }
            (FunctionKind::Rnd, arguments) => {
                let count = arguments.first().map_or(Ok(1), |count| length(*count))?;
                let mut bytes = vec![0; count];
                self.random.fill(&mut bytes);
                self.append(&bytes, span)?;
            }
            (FunctionKind::Drnd, arguments) => {
                let count = arguments.first().map_or(Ok(1), |count| length(*count))?;
                let at = self.bytes.len();
                self.grow(count, span)?;
                if count > 0 {
                    self.push_varying(at..at + count, Source::Bytes);
                }
            }
            (FunctionKind::Seqinc | FunctionKind::Seqdec, [start, count, step @ ..]) => {
                let start = byte(*start, "the first byte")?;
                let step = step.first().map_or(Ok(1), |step| byte(*step, "the step"))?;
                let step = if function.kind == FunctionKind::Seqdec { step.wrapping_neg() } else { step };
                let place = self.grow(length(*count)?, span)?;
                for (index, out) in place.iter_mut().enumerate() {
                    *out = start.wrapping_add(step.wrapping_mul(index as u8));
                }
            }
            (FunctionKind::Dinc | FunctionKind::Ddec, [least, most, rest @ ..]) => {
                self.count_byte(function, *least, *most, rest)?;
            }
            (FunctionKind::Csum(kind), [from, to]) => self.checksum(function, kind, *from, *to)?,
            _ => return Err(Fault::at(span, "these are not the arguments of the function")),
        }
        Ok(())
    }

    fn push_varying(&mut self, at: std::ops::Range<usize>, source: Source) {
        let varying = Varying { at, mask: 0, source };
        self.varying.push(PendingVarying { varying, from_current: None, low_level: true });
    }

    fn count_byte(
        &mut self,
        function: &Function,
        least: Number,
        most: Number,
        rest: &[Number],
    ) -> Checked<()> {
        let (first, last) = (byte(least, "the range's start")?, byte(most, "the range's end")?);
        let step = rest.first().map_or(Ok(1), |step| byte(*step, "the step"))?;
        let pace = Pace { hold: rest.get(1).copied(), again: rest.get(2).copied() };
        if first > last {
            let message = format!("the range from {first} to {last} is empty");
            return Err(Fault::at(least.span.to(most.span), message).expected("the smaller number first"));
        }
        let down = function.kind == FunctionKind::Ddec;
        let (kind, message) = if down {
            let message = "this runs from the larger number down to the smaller, then again; trafgen starts one step \
                           later and leaves the range";
            (WarningKind::DdecRange, message)
        } else {
            (WarningKind::DincStart, "the first packet has the first number; trafgen starts one step later")
        };
        self.warnings.add(kind, function.span, message);
        let at = self.bytes.len();
        self.grow(1, function.span)?;
        self.push_varying(at..at + 1, paced(Counter::in_byte(first, last, step, down), &pace, 1)?);
        Ok(())
    }

    fn checksum(&mut self, function: &Function, kind: CsumKind, from: Number, to: Number) -> Checked<()> {
        let at = self.bytes.len();
        self.grow(2, function.span)?;
        let (first, second) = (length(from)?, length(to)?);
        let (header, cover, pseudo) = match kind {
            CsumKind::Plain => (None, first.min(second)..first.max(second) + 1, None),
            CsumKind::Pseudo { version, protocol } => {
                let addresses = if version == 4 { first + 12..first + 20 } else { first + 8..first + 40 };
                (Some(()), second..usize::MAX, Some(Pseudo { addresses, protocol, bytes: 0 }))
            }
        };
        if header.is_none() && cover.end <= at && !self.varying.iter().any(|varying| varying.low_level) {
            let message = "the checksum covers both ends and is right; trafgen leaves out the last byte and swaps the \
                           result when nothing varies before it";
            self.warnings.add(WarningKind::StaticChecksum, function.span, message);
        } else if header.is_none() && !cover.len().is_multiple_of(2) {
            let message = "the checksum covers an odd number of bytes; trafgen leaves out the last one";
            self.warnings.add(WarningKind::OddChecksum, function.span, message);
        }
        let udp = matches!(kind, CsumKind::Pseudo { protocol: 17, .. });
        self.checksums.push(PendingChecksum { at, cover, pseudo, udp, header: None, span: function.span });
        Ok(())
    }
}

/// A number of one byte.
pub(super) fn byte(number: Number, what: &str) -> Checked<u8> {
    match fit(number, 8) {
        Ok(value) => Ok(value as u8),
        Err(fault) => {
            let low = number.value as u8;
            let message = format!("{} does not fit into {what}; trafgen would take {low:#04x}", number.value);
            Err(Fault { message, ..*fault }.into())
        }
    }
}

/// A number of `bits` bits; negative ones in two's complement.
pub(super) fn fit(number: Number, bits: u32) -> Checked<u128> {
    let most = if bits >= 127 { i128::MAX } else { (1 << bits) - 1 };
    let least = -(1_i128 << (bits.clamp(1, 127) - 1));
    if !(least..=most).contains(&number.value) {
        let message = format!("{} does not fit into {bits} bits", number.value);
        return Err(Fault::at(number.span, message).expected(format!("0 to {most}")));
    }
    let mask = if bits >= 128 { u128::MAX } else { (1_u128 << bits) - 1 };
    Ok(number.value as u128 & mask)
}

/// A number of bytes, or a place in the packet.
fn length(number: Number) -> Checked<usize> {
    let most = super::MOST_PACKET_BYTES;
    let found = usize::try_from(number.value).ok().filter(|&value| value <= most);
    found.ok_or_else(|| {
        let message = format!("{} is no number of bytes", number.value);
        Fault::at(number.span, message).expected(format!("0 to {most}"))
    })
}
