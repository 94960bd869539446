//! Figures as people read them: no more digits than the interval supports.

use measure::quantile::Interval;

/// Nanoseconds, with as many decimals as the uncertainty leaves meaning to (two where it is not known).
pub(crate) fn ns(value: f64, half_width: Option<f64>) -> String {
    format!("{value:.0$}", decimals(half_width))
}

/// Both bounds, with the decimals that their width supports.
pub(crate) fn bounds(interval: &Interval) -> String {
    let places = decimals(Some(interval.half_width()));
    format!("{:.places$} – {:.places$}", interval.low, interval.high)
}

/// A share as a percentage with a sign.
pub(crate) fn percent(share: f64) -> String {
    format!("{:+.2} %", share * 100.0)
}

/// Digits in groups of three.
pub(crate) fn thousands(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A number with its sign in front of groups of three.
pub(crate) fn signed(value: i64) -> String {
    let sign = if value < 0 { "−" } else { "" };
    format!("{sign}{}", thousands(value.unsigned_abs()))
}

fn decimals(half_width: Option<f64>) -> usize {
    match half_width {
        Some(width) if width >= 10.0 => 0,
        Some(width) if width >= 0.5 => 1,
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_follow_the_uncertainty() {
        assert_eq!(ns(211.234, Some(0.15)), "211.23");
        assert_eq!(ns(211.234, Some(1.5)), "211.2");
        assert_eq!(ns(211.234, Some(15.0)), "211");
        assert_eq!(bounds(&Interval { low: 1.0, high: 41.0 }), "1 – 41");
    }

    #[test]
    fn groups_of_three() {
        assert_eq!([0, 999, 1_000, 14_880_952].map(thousands), ["0", "999", "1,000", "14,880,952"]);
    }
}
