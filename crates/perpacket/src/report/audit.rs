//! What the first packets of a program or a capture file are, for people and programs.

use serde::Serialize;
use template::Audit;

use super::numbers::thousands;

/// The most sizes that are listed one by one.
const SIZES: usize = 20;

/// Sizes, flows, and what is wrong.
pub(crate) fn audit_text(audit: &Audit) -> String {
    let flows = audit.flows();
    let mut text = format!(
        "{} packets, {} bytes (without FCS)\n",
        thousands(audit.packets()),
        thousands(audit.l2_bytes())
    );
    let beyond = if flows.beyond > 0 { " and more" } else { "" };
    text += &match flows.smallest == flows.largest {
        true => format!(
            "{}{beyond} flows of {} packets each\n",
            thousands(flows.distinct),
            thousands(flows.largest)
        ),
        false => format!(
            "{}{beyond} flows of {} to {} packets\n",
            thousands(flows.distinct),
            thousands(flows.smallest),
            thousands(flows.largest)
        ),
    };
    let all = audit.packets().max(1) as f64;
    let sizes = audit.sizes();
    if let (true, Some((least, _)), Some((most, _))) =
        (sizes.len() > SIZES, sizes.first_key_value(), sizes.last_key_value())
    {
        let (fewest, highest) = (sizes.values().min().unwrap_or(&0), sizes.values().max().unwrap_or(&0));
        text += &format!(
            "{} sizes from {least} to {most} bytes with FCS, of {} to {} packets\n",
            thousands(sizes.len() as u64),
            thousands(*fewest),
            thousands(*highest)
        );
    } else {
        for (&frame_bytes, &packets) in sizes {
            let share = packets as f64 / all * 100.0;
            text += &format!(
                "  {frame_bytes:>6} bytes with FCS: {:>12} packets, {share:>7.3} %\n",
                thousands(packets)
            );
        }
    }
    if audit.without_udp_checksum() > 0 {
        text += &format!("{} packets have no UDP checksum\n", thousands(audit.without_udp_checksum()));
    }
    let mut problems = audit.problems().peekable();
    if problems.peek().is_none() {
        text += "all checksums and lengths are right\n";
    }
    for (problem, found) in problems {
        let (packets, first) = (thousands(found.packets), thousands(found.first + 1));
        text += &format!("{problem}: {packets} packets, first in packet {first}\n");
    }
    text
}

/// The same as JSON.
#[derive(Debug, Serialize)]
pub(crate) struct AuditJson {
    packets: u64,
    l2_bytes: u64,
    /// Frame size with FCS, and how many packets have it.
    sizes: Vec<(usize, u64)>,
    flows: Flows,
    without_udp_checksum: u64,
    problems: Vec<Found>,
}

#[derive(Debug, Serialize)]
struct Flows {
    distinct: u64,
    smallest: u64,
    largest: u64,
    beyond: u64,
}

#[derive(Debug, Serialize)]
struct Found {
    problem: String,
    packets: u64,
    /// Number of the first packet, from 0.
    first: u64,
}

impl AuditJson {
    /// Of what was counted.
    pub(crate) fn of(audit: &Audit) -> Self {
        let flows = audit.flows();
        let found = |(problem, found): (template::Problem, template::Occurrences)| Found {
            problem: problem.to_string(),
            packets: found.packets,
            first: found.first,
        };
        Self {
            packets: audit.packets(),
            l2_bytes: audit.l2_bytes(),
            sizes: audit.sizes().iter().map(|(&bytes, &packets)| (bytes, packets)).collect(),
            flows: Flows {
                distinct: flows.distinct,
                smallest: flows.smallest,
                largest: flows.largest,
                beyond: flows.beyond,
            },
            without_udp_checksum: audit.without_udp_checksum(),
            problems: audit.problems().map(found).collect(),
        }
    }
}
