//! Frame sizes, line rates, and rates as time per packet.
//!
//! A rate hides what was gained: 14.4 to 14.8 Mpps and 1.00 to 1.02 Mpps sound alike, and are 1.9 and
//! 19.6 ns. Time per packet adds up along a path, a rate does not. `frame_bytes` is the size in
//! line-rate tables: with the 4-byte frame check sequence, without preamble and gap.

use thiserror::Error;

/// Smallest Ethernet frame, frame check sequence included (IEEE 802.3, 3.2.7 and 4.4.2).
pub const MIN_FRAME_BYTES: u32 = 64;

/// Frame check sequence: on the wire, but not in what the kernel is handed.
pub const FCS_BYTES: u32 = 4;

/// What each frame takes on the wire beside itself: 8 bytes preamble and start delimiter, 12 bytes
/// gap (IEEE 802.3, 3.1.1 and 4.4.2).
pub const WIRE_OVERHEAD_BYTES: u32 = 20;

const NS_PER_S: f64 = 1e9;

/// Bytes of a frame without its frame check sequence: what is handed to the kernel and what a packet
/// socket sees. 0 for a frame shorter than the sequence itself.
pub fn l2_bytes(frame_bytes: u32) -> u32 {
    frame_bytes.saturating_sub(FCS_BYTES)
}

/// Bits that a frame occupies on the wire, preamble and gap included.
pub fn wire_bits(frame_bytes: u32) -> u64 {
    (u64::from(frame_bytes) + u64::from(WIRE_OVERHEAD_BYTES)) * 8
}

/// Frames per second that fit on a line of `bit_per_s`.
pub fn line_rate_pps(bit_per_s: f64, frame_bytes: u32) -> f64 {
    bit_per_s / wire_bits(frame_bytes) as f64
}

/// Time per packet in ns at a rate; infinite at a rate of 0.
pub fn ns_per_packet(pps: f64) -> f64 {
    NS_PER_S / pps
}

/// Rate in packets per second at a time per packet in ns; infinite at 0 ns.
pub fn pps(ns_per_packet: f64) -> f64 {
    NS_PER_S / ns_per_packet
}

/// Time saved per packet in ns between two rates; negative when the second one is lower.
pub fn saved_ns(before_pps: f64, after_pps: f64) -> f64 {
    (1.0 / before_pps - 1.0 / after_pps) * NS_PER_S
}

/// A rate as a person writes it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rate {
    /// Bits per second on the wire.
    BitPerS(f64),
    /// Packets per second.
    Pps(f64),
}

impl Rate {
    /// Packets per second of frames of this size.
    pub fn pps(self, frame_bytes: u32) -> f64 {
        match self {
            Rate::BitPerS(bit_per_s) => line_rate_pps(bit_per_s, frame_bytes),
            Rate::Pps(pps) => pps,
        }
    }
}

/// Why a text is not a rate.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RateError {
    /// It does not start with a number.
    #[error("read rate {0:?}: it does not start with a number; write for example 10G, 25Gbit/s or 14.88Mpps")]
    NoNumber(String),
    /// The number is negative, zero or not finite.
    #[error("read rate {0:?}: a rate is a number above zero")]
    NotPositive(String),
    /// The unit is unknown.
    #[error("read rate {text:?}: unknown unit {unit:?}; write k, M, G or T, then nothing, bit/s, bps or pps")]
    UnknownUnit {
        /// The whole text.
        text: String,
        /// What stands behind the number.
        unit: String,
    },
}

/// Reads a rate: a number, then a decimal prefix (k, M, G, T or none), then `bit/s`, `bps`, `b/s` or
/// nothing for bits per second, or `pps` for packets per second. Upper and lower case count the same
/// and a space may stand before the unit. Prefixes are powers of 1000, as line rates are.
///
/// # Errors
/// [`RateError`] when the text has another form or the rate is not above zero.
pub fn parse_rate(text: &str) -> Result<Rate, RateError> {
    let trimmed = text.trim();
    let (number, unit) = split_number(trimmed);
    let value: f64 = number.parse().map_err(|_| RateError::NoNumber(text.to_owned()))?;
    let lower = unit.trim().to_ascii_lowercase();
    let unknown = || RateError::UnknownUnit { text: text.to_owned(), unit: unit.trim().to_owned() };
    let (factor, base) = split_prefix(&lower);
    let rate = value * factor;
    if !(rate.is_finite() && rate > 0.0) {
        return Err(RateError::NotPositive(text.to_owned()));
    }
    match base {
        "" | "bit/s" | "bits/s" | "bit" | "bps" | "b/s" => Ok(Rate::BitPerS(rate)),
        "pps" | "p/s" => Ok(Rate::Pps(rate)),
        _ => Err(unknown()),
    }
}

/// Splits behind the longest number at the start: digits, a point, an exponent.
fn split_number(text: &str) -> (&str, &str) {
    let bytes = text.as_bytes();
    let mut end = 0;
    while end < bytes.len() {
        let exponent =
            matches!(bytes[end], b'e' | b'E') && end > 0 && bytes.get(end + 1).is_some_and(is_exponent);
        let sign = matches!(bytes[end], b'+' | b'-') && (end == 0 || matches!(bytes[end - 1], b'e' | b'E'));
        if !(bytes[end].is_ascii_digit() || bytes[end] == b'.' || exponent || sign) {
            break;
        }
        end += 1;
    }
    text.split_at(end)
}

fn is_exponent(byte: &u8) -> bool {
    byte.is_ascii_digit() || matches!(byte, b'+' | b'-')
}

fn split_prefix(unit: &str) -> (f64, &str) {
    for (prefix, factor) in [("k", 1e3), ("m", 1e6), ("g", 1e9), ("t", 1e12)] {
        if let Some(base) = unit.strip_prefix(prefix) {
            return (factor, base);
        }
    }
    (1.0, unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_rates_are_the_familiar_ones() {
        assert_eq!(line_rate_pps(10e9, 64).floor(), 14_880_952.0);
        assert_eq!(line_rate_pps(10e9, 272).floor(), 4_280_821.0);
        assert_eq!(wire_bits(64), 672);
        assert_eq!(l2_bytes(64), 60);
        assert_eq!(l2_bytes(3), 0);
        assert!((ns_per_packet(14_880_952.38) - 67.2).abs() < 1e-6);
        assert_eq!(pps(ns_per_packet(1e6)), 1e6);
    }

    #[test]
    fn rates_are_read_as_people_write_them() {
        for (text, rate) in [
            ("10G", Rate::BitPerS(10e9)),
            ("25Gbit/s", Rate::BitPerS(25e9)),
            ("100 gbps", Rate::BitPerS(100e9)),
            ("1e9", Rate::BitPerS(1e9)),
            ("2.5e+9 bit/s", Rate::BitPerS(2.5e9)),
            ("400kbit/s", Rate::BitPerS(400e3)),
            ("977414pps", Rate::Pps(977_414.0)),
            (" 2 Mpps ", Rate::Pps(2e6)),
        ] {
            assert_eq!(parse_rate(text), Ok(rate), "{text}");
        }
        let Ok(Rate::Pps(pps)) = parse_rate("14.88Mpps") else { panic!("not a packet rate") };
        assert!((pps - 14.88e6).abs() < 1e-6);
    }

    #[test]
    fn what_is_no_rate_is_refused_with_the_reason() {
        assert!(matches!(parse_rate("fast"), Err(RateError::NoNumber(_))));
        assert!(matches!(parse_rate(""), Err(RateError::NoNumber(_))));
        assert!(matches!(parse_rate("1.2.3G"), Err(RateError::NoNumber(_))));
        assert!(matches!(parse_rate("-1G"), Err(RateError::NotPositive(_))));
        assert!(matches!(parse_rate("0"), Err(RateError::NotPositive(_))));
        assert!(matches!(parse_rate("1e999"), Err(RateError::NotPositive(_))));
        let error = parse_rate("10 GiB").unwrap_err().to_string();
        assert!(error.contains("\"GiB\""), "{error}");
    }

    #[test]
    fn a_rate_in_bits_becomes_packets_by_frame_size() {
        assert_eq!(Rate::BitPerS(672.0).pps(64), 1.0);
        assert_eq!(Rate::Pps(5.0).pps(64), 5.0);
    }
}
