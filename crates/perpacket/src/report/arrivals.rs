//! `perpacket.arrivals/1`: what arrived at a sink, as JSON and as tables for people.

use comfy_table::Table;
use serde::Serialize;

use super::numbers::thousands;
use super::tables::{align_right, plain};

/// The schema's name.
pub(crate) const SCHEMA: &str = "perpacket.arrivals/1";

/// What arrived. What the receiver cannot know is null.
#[derive(Debug, Serialize)]
pub(crate) struct Arrivals {
    pub(crate) schema: &'static str,
    pub(crate) program: String,
    pub(crate) version: &'static str,
    pub(crate) started: String,
    pub(crate) receiver: &'static str,
    pub(crate) device: Option<String>,
    pub(crate) address: Option<String>,
    /// `native` or `generic`.
    pub(crate) xdp_mode: Option<&'static str>,
    pub(crate) ended: Ended,
    pub(crate) listened_s: f64,
    /// From the first look that found frames to the last.
    pub(crate) active_s: Option<f64>,
    #[serde(flatten)]
    pub(crate) total: Amount,
    pub(crate) losses: Vec<Lost>,
    pub(crate) flows: Vec<FlowRow>,
    pub(crate) other_flows: Amount,
    pub(crate) queues: Option<Vec<Part>>,
    pub(crate) cpus: Option<Vec<Part>>,
    pub(crate) marks: Option<MarksPart>,
}

/// Why the sink ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Ended {
    Time,
    Count,
    Signal,
    Error,
}

/// Frames and bytes; the one of both kinds of bytes that is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Amount {
    pub(crate) frames: u64,
    pub(crate) l2_bytes: Option<u64>,
    pub(crate) payload_bytes: Option<u64>,
}

impl Amount {
    fn bytes(&self) -> u64 {
        self.l2_bytes.or(self.payload_bytes).unwrap_or(0)
    }
}

/// Frames dropped at the receiver.
#[derive(Debug, Serialize)]
pub(crate) struct Lost {
    pub(crate) reason: &'static str,
    pub(crate) counter: &'static str,
    pub(crate) frames: u64,
}

/// A flow: IP, or another EtherType.
#[derive(Debug, Serialize)]
pub(crate) struct FlowRow {
    #[serde(skip)]
    pub(crate) name: String,
    pub(crate) protocol: Option<u8>,
    pub(crate) source: Option<String>,
    pub(crate) destination: Option<String>,
    pub(crate) source_port: Option<u16>,
    pub(crate) destination_port: Option<u16>,
    pub(crate) ether_type: Option<u16>,
    #[serde(flatten)]
    pub(crate) amount: Amount,
}

/// A queue or a CPU.
#[derive(Debug, Serialize)]
pub(crate) struct Part {
    pub(crate) index: u32,
    #[serde(flatten)]
    pub(crate) amount: Amount,
}

/// What marks say.
#[derive(Debug, Serialize)]
pub(crate) struct MarksPart {
    pub(crate) streams: Vec<StreamRow>,
    /// As given, of all streams.
    pub(crate) sent: Option<u64>,
    pub(crate) received: u64,
    /// With `sent`, numbers before the first and after the last that arrived are among them. Null where more numbers
    /// arrived than were sent.
    pub(crate) lost: Option<u64>,
    pub(crate) duplicates: u64,
    pub(crate) too_old: u64,
    pub(crate) corrupted: u64,
    pub(crate) unmarked: u64,
    pub(crate) unfollowed: u64,
}

/// One stream of numbers.
#[derive(Debug, Serialize)]
pub(crate) struct StreamRow {
    pub(crate) stream: u16,
    pub(crate) first: Option<u64>,
    pub(crate) last: Option<u64>,
    pub(crate) received: u64,
    pub(crate) lost: u64,
    pub(crate) duplicates: u64,
    pub(crate) reordered: Option<u64>,
    pub(crate) extent_max: Option<u64>,
    pub(crate) too_old: u64,
}

/// Tables for people, with so many flows and streams.
pub(crate) fn arrivals_text(arrivals: &Arrivals, rows: usize) -> String {
    let mut text = totals(arrivals);
    if !arrivals.flows.is_empty() {
        text += &format!("\n{}", flow_table(arrivals, rows));
    }
    for (name, parts) in [("queue", &arrivals.queues), ("CPU", &arrivals.cpus)] {
        match parts {
            Some(parts) => text += &format!("\n{}\n", part_table(name, parts)),
            None => text += &format!("\n{name}: – ({} does not tell)\n", arrivals.receiver),
        }
    }
    if let Some(marks) = &arrivals.marks {
        text += &format!("\n{}", marks_text(marks, rows));
    }
    text
}

fn totals(arrivals: &Arrivals) -> String {
    let place = arrivals.device.as_ref().or(arrivals.address.as_ref()).map_or("", String::as_str);
    let unit = if arrivals.total.l2_bytes.is_some() { "bytes without FCS" } else { "bytes of payload" };
    let mode = arrivals.xdp_mode.map_or(String::new(), |mode| format!(" ({mode} XDP)"));
    let mut text = format!(
        "{place} by {}{mode}: {} frames, {} {unit}, in {:.1} s\n",
        arrivals.receiver,
        thousands(arrivals.total.frames),
        thousands(arrivals.total.bytes()),
        arrivals.listened_s,
    );
    if let Some(seconds) = arrivals.active_s.filter(|&seconds| seconds >= 0.1) {
        let pps = arrivals.total.frames as f64 / seconds;
        text += &format!("{} pps over the {seconds:.1} s in which frames came\n", thousands(pps as u64));
    }
    for lost in &arrivals.losses {
        text += &format!("{} dropped here: {} ({})\n", thousands(lost.frames), lost.reason, lost.counter);
    }
    text
}

fn flow_table(arrivals: &Arrivals, rows: usize) -> String {
    let mut table = plain(&["flow", "frames", "bytes"]);
    for flow in arrivals.flows.iter().take(rows) {
        table.add_row(row(flow.name.clone(), &flow.amount));
    }
    align_right(&mut table, 1);
    let mut text = format!("{table}\n");
    let hidden = arrivals.flows.get(rows..).unwrap_or_default();
    if !hidden.is_empty() {
        let frames = hidden.iter().map(|flow| flow.amount.frames).sum();
        text +=
            &format!("and {} more flows with {} frames\n", thousands(hidden.len() as u64), thousands(frames));
    }
    if arrivals.other_flows.frames > 0 {
        let frames = thousands(arrivals.other_flows.frames);
        text += &format!("and {frames} frames of flows for which there was no room in the table\n");
    }
    text
}

fn part_table(name: &str, parts: &[Part]) -> Table {
    let mut table = plain(&[name, "frames", "bytes"]);
    for part in parts {
        table.add_row(row(part.index.to_string(), &part.amount));
    }
    align_right(&mut table, 1);
    table
}

fn row(name: String, amount: &Amount) -> [String; 3] {
    [name, thousands(amount.frames), thousands(amount.bytes())]
}

fn marks_text(marks: &MarksPart, rows: usize) -> String {
    let mut table =
        plain(&["stream", "numbers", "received", "lost", "duplicates", "reordered", "extent", "too old"]);
    let known = |value: Option<u64>| value.map_or("–".to_owned(), thousands);
    for stream in marks.streams.iter().take(rows) {
        table.add_row([
            stream.stream.to_string(),
            format!("{} – {}", known(stream.first), known(stream.last)),
            thousands(stream.received),
            thousands(stream.lost),
            thousands(stream.duplicates),
            known(stream.reordered),
            known(stream.extent_max),
            thousands(stream.too_old),
        ]);
    }
    align_right(&mut table, 1);
    let mut text = format!("{table}\n");
    if marks.streams.len() > rows {
        text += &format!("and {} more streams\n", thousands((marks.streams.len() - rows) as u64));
    }
    match (marks.sent, marks.lost) {
        (Some(sent), Some(lost)) => {
            text += &format!("{} sent, {} lost in all\n", thousands(sent), thousands(lost));
        }
        (Some(sent), None) => {
            text += &format!("{} sent, and more numbers arrived than that\n", thousands(sent));
        }
        (None, _) => {}
    }
    if marks.corrupted > 0 {
        text += &format!(
            "{} corrupted: their numbers are not known and are among the lost\n",
            thousands(marks.corrupted)
        );
    }
    if marks.too_old > 0 {
        text += &format!(
            "{} too old to tell a late packet from a second copy; did the sender start anew?\n",
            thousands(marks.too_old)
        );
    }
    if marks.unfollowed > 0 {
        text += &format!("{} marked frames of streams too many to follow\n", thousands(marks.unfollowed));
    }
    text += &format!("{} frames without a mark\n", thousands(marks.unmarked));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amount(frames: u64) -> Amount {
        Amount { frames, l2_bytes: Some(60 * frames), payload_bytes: None }
    }

    fn arrivals() -> Arrivals {
        let flow = |port: u16| FlowRow {
            name: format!("udp 10.0.0.1:{port} > 10.0.0.2:9"),
            protocol: Some(17),
            source: Some("10.0.0.1".into()),
            destination: Some("10.0.0.2".into()),
            source_port: Some(port),
            destination_port: Some(9),
            ether_type: None,
            amount: amount(500),
        };
        let stream = StreamRow {
            stream: 0,
            first: Some(0),
            last: Some(1500),
            received: 1499,
            lost: 2,
            duplicates: 1,
            reordered: None,
            extent_max: None,
            too_old: 0,
        };
        Arrivals {
            schema: SCHEMA,
            program: "perpacket".into(),
            version: "1",
            started: "2026-01-01T00:00:00Z".into(),
            receiver: "af-xdp",
            device: Some("veth1".into()),
            address: None,
            xdp_mode: Some("native"),
            ended: Ended::Time,
            listened_s: 10.0,
            active_s: Some(2.0),
            total: amount(1501),
            losses: vec![Lost {
                reason: "receive ring full",
                counter: "XDP_STATISTICS rx_ring_full",
                frames: 2,
            }],
            flows: vec![flow(5000), flow(5001), flow(5002)],
            other_flows: amount(1),
            queues: Some(vec![Part { index: 0, amount: amount(1501) }]),
            cpus: None,
            marks: Some(MarksPart {
                streams: vec![stream],
                sent: Some(1510),
                received: 1499,
                lost: Some(11),
                duplicates: 1,
                too_old: 0,
                corrupted: 1,
                unmarked: 1,
                unfollowed: 0,
            }),
        }
    }

    #[test]
    fn tables_show_what_is_known_and_say_what_is_not() {
        insta::assert_snapshot!(arrivals_text(&arrivals(), 2));
    }

    #[test]
    fn json_has_null_for_what_is_not_known() {
        let json = serde_json::to_value(arrivals()).unwrap();
        assert_eq!((json["schema"].as_str(), json["cpus"].is_null()), (Some(SCHEMA), true));
        assert_eq!((json["l2_bytes"].as_u64(), json["payload_bytes"].is_null()), (Some(90060), true));
        assert!(json["marks"]["streams"][0]["reordered"].is_null());
        assert_eq!(json["flows"][0]["source_port"], 5000);
        assert_eq!(json["ended"], "time");
    }
}
