//! `perpacket wire`: line rates, time budgets, and differences of packet rates.

use std::fmt::Write as _;
use std::io::{self, BufRead};

use anyhow::{Context, Result, bail, ensure};
use measure::wire::{self, Rate};
use serde::Serialize;

use crate::cli::WireArgs;
use crate::report::{Outcome, prints_text, write_json, write_stdout};

/// One line of the answer.
#[derive(Debug, PartialEq, Serialize)]
#[serde(untagged)]
enum Answer {
    /// What a line of this rate carries at this frame size.
    Line { bit_per_s: f64, frame_bytes: u32, wire_bits: u64, pps: f64, ns_per_packet: f64 },
    /// What a packet costs less after than before.
    Difference { before_pps: f64, after_pps: f64, saved_ns: f64, change_percent: f64 },
}

/// Answers and prints.
pub(crate) fn run(args: &WireArgs) -> Result<Outcome> {
    let words: Vec<&str> = args.words.iter().map(String::as_str).collect();
    let answers = match words[..] {
        ["diff"] => differences(io::stdin().lock())?,
        ["diff", before, after] => vec![difference(before, after)?],
        ["diff", ..] => {
            bail!("wire diff: two rates, BEFORE and AFTER, or none to read pairs from standard input")
        }
        [rate, ref frames @ ..] if !frames.is_empty() => lines(rate, frames)?,
        _ => bail!(
            "wire {}: a frame size is missing; write wire 10G 64, or wire diff BEFORE AFTER",
            words.join(" ")
        ),
    };
    if let Some(file) = &args.json {
        write_json(file, &answers)?;
    }
    if prints_text(args.json.as_deref()) {
        write_stdout(&text(&answers))?;
    }
    Ok(Outcome::Good)
}

fn lines(rate: &str, frames: &[&str]) -> Result<Vec<Answer>> {
    let rate = wire::parse_rate(rate)?;
    let line = |frame: &&str| {
        let frame_bytes: u32 =
            frame.parse().with_context(|| format!("frame size `{frame}`: a number of bytes is needed"))?;
        ensure!(
            (wire::MIN_FRAME_BYTES..=65_535).contains(&frame_bytes),
            "frame size {frame_bytes}: Ethernet frames have 64 bytes at least (with the 4-byte FCS)"
        );
        let wire_bits = wire::wire_bits(frame_bytes);
        let pps = rate.pps(frame_bytes);
        let bit_per_s = match rate {
            Rate::BitPerS(bit_per_s) => bit_per_s,
            Rate::Pps(pps) => pps * wire_bits as f64,
        };
        Ok(Answer::Line { bit_per_s, frame_bytes, wire_bits, pps, ns_per_packet: wire::ns_per_packet(pps) })
    };
    frames.iter().map(line).collect()
}

fn differences(input: impl BufRead) -> Result<Vec<Answer>> {
    let mut answers = Vec::new();
    for (index, line) in input.lines().enumerate() {
        let line = line.context("read pairs of rates from standard input")?;
        let spaced = line.trim().contains(char::is_whitespace);
        let separator = |c: char| c.is_whitespace() || c == ';' || c == '·' || (c == ',' && !spaced);
        let columns: Vec<&str> = line.split(separator).filter(|word| !word.is_empty()).collect();
        match columns[..] {
            [] => {}
            [first, ..] if first.starts_with('#') => {}
            [before, after] => {
                answers.push(difference(before, after).with_context(|| format!("line {}", index + 1))?)
            }
            _ => bail!(
                "line {}: two columns are needed, BEFORE and AFTER, and {} stand there",
                index + 1,
                columns.len()
            ),
        }
    }
    ensure!(!answers.is_empty(), "wire diff: standard input has no pair of rates");
    Ok(answers)
}

fn difference(before: &str, after: &str) -> Result<Answer> {
    let (before_pps, after_pps) = (pps(before)?, pps(after)?);
    Ok(Answer::Difference {
        before_pps,
        after_pps,
        saved_ns: wire::saved_ns(before_pps, after_pps),
        change_percent: (after_pps / before_pps - 1.0) * 100.0,
    })
}

/// A packet rate: digits, in groups (977,414 or 977_414) or not, or with a unit (14.88Mpps).
fn pps(text: &str) -> Result<f64> {
    let plain = text.replace('_', "");
    let groups: Vec<&str> = plain.split(',').collect();
    let is_grouped =
        groups[1..].iter().all(|group| group.len() == 3 && group.bytes().all(|b| b.is_ascii_digit()));
    let plain = if is_grouped { groups.concat() } else { plain };
    match wire::parse_rate(&plain)? {
        Rate::Pps(pps) => Ok(pps),
        Rate::BitPerS(number) if plain.ends_with(|c: char| c.is_ascii_digit() || c == '.') => Ok(number),
        Rate::BitPerS(_) => bail!("`{text}` is a bit rate; packets per second are compared"),
    }
}

fn text(answers: &[Answer]) -> String {
    let mut out = String::new();
    let mut line = |text: String| {
        let _ = writeln!(out, "{text}"); // writing to a String cannot fail
    };
    for answer in answers {
        match *answer {
            Answer::Line { bit_per_s, frame_bytes, wire_bits, pps, ns_per_packet } => line(format!(
                "{frame_bytes} bytes at {:.3} Gbit/s: {pps:.0} pps, {ns_per_packet:.2} ns per packet, {wire_bits} bits on the wire",
                bit_per_s / 1e9
            )),
            Answer::Difference { before_pps, after_pps, saved_ns, change_percent } => line(format!(
                "{before_pps:.0} → {after_pps:.0} pps: {saved_ns:.2} ns saved per packet ({change_percent:+.2} % packets per second)"
            )),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(before: &str, after: &str) -> String {
        match difference(before, after).unwrap() {
            Answer::Difference { saved_ns, .. } => format!("{saved_ns:.2}"),
            Answer::Line { .. } => panic!("a difference is no line"),
        }
    }

    #[test]
    fn a_column_of_rates() {
        let input =
            "# before after\n977414 1025150\n\n2801058\t2885820\n2_800_896,2885820\n977,414  1,025,150\n";
        let answers = differences(input.as_bytes()).unwrap();
        let text = text(&answers);
        assert_eq!(answers.len(), 4);
        assert_eq!(answers[0], answers[3]);
        for ns in ["47.64 ns", "10.49 ns", "10.51 ns"] {
            assert!(text.contains(ns), "{text}");
        }
    }

    #[test]
    fn rates_with_units() {
        assert_eq!(saved("12.41Mpps", "12.95Mpps"), "3.36");
        assert!(difference("10Gbit/s", "1").is_err());
    }

    #[test]
    fn a_line() {
        let text = text(&lines("10G", &["64", "272"]).unwrap());
        assert!(text.contains("14880952 pps, 67.20 ns per packet, 672 bits"), "{text}");
        assert!(text.contains("4280822 pps"), "{text}");
    }

    #[test]
    fn what_is_no_rate_is_said() {
        for (before, after) in [("0", "1"), ("-1", "1"), ("x", "1"), ("1", "nan")] {
            assert!(difference(before, after).is_err(), "{before} {after}");
        }
        assert!(differences("1 2 3\n".as_bytes()).is_err());
        assert!(differences("".as_bytes()).is_err());
        assert!(lines("10G", &["63"]).is_err());
        assert!(lines("10G", &["x"]).is_err());
    }
}
