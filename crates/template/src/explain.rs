//! A packet field by field, as text.
//!
//! The same tables that fill headers read them back. What is known about a packet of a plan (where its headers are,
//! what varies) is used; a frame of unknown origin is followed from its Ethernet header on.

use std::fmt::Write as _;
use std::net::Ipv6Addr;
use std::ops::Range;

use crate::checksum;
use crate::layers::{self, Layer};
use crate::plan::{Packet, Plan, Source, Varying};
use crate::proto::{self, Field, Id, Show};

/// Decodes an Ethernet frame without FCS: a line for each header and field, with the offset in bytes in front.
/// Checksums that are not right are said to be wrong. What is not known is shown in hexadecimal.
pub fn explain(frame: &[u8]) -> String {
    Text { frame, layers: layers::follow(frame).0, packet: None, out: String::new() }.whole()
}

impl Plan {
    /// Explains packet number `packet` of the program as worker 0 of 1 sends it first with seed 0, and says what
    /// varies; none if there is no such packet.
    pub fn explain(&self, packet: usize) -> Option<String> {
        let known = self.packets.get(packet)?;
        let frame = self.first(packet);
        let layers = match known.layers.is_empty() {
            true => layers::follow(&frame).0,
            false => {
                known.layers.iter().map(|&(id, at, len)| Layer { proto: proto::of(id), at, len }).collect()
            }
        };
        Some(Text { frame: &frame, layers, packet: Some(known), out: String::new() }.whole())
    }
}

/// Bytes of a line of what is not decoded.
const LINE_BYTES: usize = 16;

struct Text<'a> {
    frame: &'a [u8],
    layers: Vec<Layer>,
    packet: Option<&'a Packet>,
    out: String,
}

impl Text<'_> {
    fn whole(mut self) -> String {
        let mut done = 0;
        for index in 0..self.layers.len() {
            let layer = self.layers[index];
            self.bytes(done..layer.at, "bytes");
            self.layer(index);
            done = layer.at + layer.len;
        }
        self.bytes(done..self.frame.len(), if self.layers.is_empty() { "bytes" } else { "payload" });
        self.out
    }

    fn layer(&mut self, index: usize) {
        let layer = self.layers[index];
        let _ = writeln!(self.out, "{:>5}  {}", layer.at, layer.proto.names[0]);
        let mut shown = layer.at + layer.proto.bytes;
        for field in layer.proto.fields {
            let Some(at) = self.place(layer, field) else { continue };
            let end = at + usize::from(field.bytes);
            if end > self.frame.len() || self.hidden(layer, field) {
                continue;
            }
            shown = shown.max(end);
            let mut line =
                format!("{at:>5}    {:<10} {}", field.names[0], value(&self.frame[at..end], field));
            if field.names[0] == "csum"
                && let Some(wanted) = self.wanted_checksum(index, at)
            {
                line += &match u16::from_be_bytes([self.frame[at], self.frame[at + 1]]) {
                    found if found == wanted => "  right".to_owned(),
                    _ => format!("  wrong, {wanted:#06x} would be right"),
                };
            }
            line += &self.varies(at..end, field);
            let _ = writeln!(self.out, "{line}");
        }
        let end = (layer.at + layer.len).min(self.frame.len());
        self.bytes(shown.min(end)..end, if layer.proto.id == Id::Dns { "records" } else { "options" });
    }

    /// First byte of a field; none if it lies in a word that is not there.
    fn place(&self, layer: Layer, field: &Field) -> Option<usize> {
        let Some(word) = field.word else { return layer.at.checked_add_signed(isize::from(field.at)) };
        let start = layer.at + layer.proto.bytes;
        let before = match layer.proto.id {
            Id::Gre => {
                let flags = *self.frame.get(layer.at)?;
                let there = |word: usize| flags & [0x80, 0x20, 0x10][word] != 0;
                there(usize::from(word))
                    .then(|| (0..usize::from(word)).filter(|&word| there(word)).count())?
            }
            _ if layer.len > layer.proto.bytes => 0,
            _ => return None,
        };
        Some(start + before * 4 + field.at as usize)
    }

    /// Fields that others show better, or that this type of message does not have.
    fn hidden(&self, layer: Layer, field: &Field) -> bool {
        let (first, second) = (self.frame[layer.at], self.frame.get(layer.at + 1).copied().unwrap_or(0));
        match (layer.proto.id, field.names[0]) {
            (Id::Ipv4, "tos" | "flags") | (Id::Vlan, "tci") | (Id::Pfc, "prio") => true,
            (Id::Icmp4, "id" | "seq") => !matches!(first, 0 | 8 | 13..=18),
            (Id::Icmp4, "mtu") => (first, second) != (3, 4),
            (Id::Icmp4, "addr") => first != 5,
            (Id::Icmp6, "mtu") => first != 2,
            (Id::Icmp6, "id" | "seq") => first == 2,
            _ => false,
        }
    }

    /// What varies in these bits, or a checksum that follows.
    fn varies(&self, at: Range<usize>, field: &Field) -> String {
        let mask = field.mask;
        let Some(packet) = self.packet else { return String::new() };
        if packet.checksums.iter().any(|checksum| checksum.at == at.start && at.len() == 2) {
            return "  computed for every packet".to_owned();
        }
        let touches = |varying: &&Varying| {
            let bits = mask == 0 || varying.mask == 0 || mask & varying.mask != 0;
            varying.at.start < at.end && at.start < varying.at.end && bits
        };
        match packet.varying.iter().find(touches) {
            Some(varying)
                if varying.at == at
                    || varying.mask == 0 && varying.at.start >= at.start && varying.at.end == at.end =>
            {
                let show = |number: u128| {
                    // Of a long field only the last bytes may vary.
                    let mut whole = self.frame[at.clone()].to_vec();
                    whole[varying.at.start - at.start..]
                        .copy_from_slice(&number.to_be_bytes()[16 - varying.at.len()..]);
                    value(&whole, &Field { mask: 0, ..*field })
                };
                format!("  varies: {}", source(varying, packet.first, show))
            }
            Some(varying) => format!("  varies: {}", plain(varying, packet.first)),
            None => String::new(),
        }
    }

    fn bytes(&mut self, range: Range<usize>, what: &str) {
        if range.is_empty() || range.end > self.frame.len() {
            return;
        }
        let _ = writeln!(self.out, "{:>5}  {what} ({} bytes)", range.start, range.len());
        for at in range.clone().step_by(LINE_BYTES) {
            let line = &self.frame[at..(at + LINE_BYTES).min(range.end)];
            let hex: String = line.iter().map(|byte| format!("{byte:02x} ")).collect();
            let letter =
                |byte: &u8| if byte.is_ascii_graphic() || *byte == b' ' { char::from(*byte) } else { '.' };
            let letters: String = line.iter().map(letter).collect();
            let _ = writeln!(self.out, "{at:>5}    {hex:<49}{letters}");
        }
        let Some(packet) = self.packet else { return };
        for varying in
            packet.varying.iter().filter(|known| known.at.start >= range.start && known.at.end <= range.end)
        {
            let (start, end) = (varying.at.start, varying.at.end - 1);
            let _ = writeln!(
                self.out,
                "{start:>5}    bytes {start} to {end} vary: {}",
                plain(varying, packet.first)
            );
        }
    }

    /// The checksum that belongs to a header, if everything that it covers is there.
    fn wanted_checksum(&self, index: usize, at: usize) -> Option<u16> {
        let Layer { proto, at: start, len } = self.layers[index];
        let lower = index.checked_sub(1).map(|lower| self.layers[lower]);
        let end = match proto.id {
            Id::Ipv4 => start + len,
            _ => layers::end_of_datagram(self.frame, &self.layers, index)?,
        };
        let mut sum = checksum::add(0, self.frame.get(start..at)?);
        sum = checksum::add(sum, self.frame.get(at + 2..end)?);
        let protocol = match proto.id {
            Id::Udp if self.frame[at..at + 2] == [0, 0] => return None,
            Id::Udp => 17,
            Id::Tcp => 6,
            Id::Icmp6 => 58,
            _ => return Some(u16::from_be_bytes(checksum::finish(sum).to_ne_bytes())),
        };
        let lower = lower?;
        let addresses = match lower.proto.id {
            Id::Ipv4 => lower.at + 12..lower.at + 20,
            Id::Ipv6 => lower.at + 8..lower.at + 40,
            _ => return None,
        };
        let [a, b, c, d] = ((end - start) as u32).to_be_bytes();
        sum = checksum::add(sum, &[a, b, c, d, 0, protocol]);
        sum = checksum::add(sum, self.frame.get(addresses)?);
        let value = if protocol == 17 { checksum::finish_udp(sum) } else { checksum::finish(sum) };
        Some(u16::from_be_bytes(value.to_ne_bytes()))
    }
}

fn value(bytes: &[u8], field: &Field) -> String {
    let pairs = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":");
    let number = bytes.iter().take(8).fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
    let number = if field.mask == 0 { number } else { (number & u64::from(field.mask)) >> field.shift() };
    match field.show {
        Show::Mac => pairs(bytes),
        Show::Ipv4 => bytes.iter().map(u8::to_string).collect::<Vec<_>>().join("."),
        Show::Ipv6 => {
            <[u8; 16]>::try_from(bytes).map_or_else(|_| pairs(bytes), |all| Ipv6Addr::from(all).to_string())
        }
        Show::Decimal => number.to_string(),
        Show::Hex => format!("{number:#0width$x}", width = bytes.len() * 2 + 2),
    }
}

fn plain(varying: &Varying, first: u64) -> String {
    source(varying, first, |number| number.to_string())
}

/// What a field holds from packet to packet, its values shown by `show`, from number `first` on.
fn source(varying: &Varying, first: u64, show: impl Fn(u128) -> String) -> String {
    match &varying.source {
        Source::Bytes => "random".to_owned(),
        Source::Range(least, most) => {
            format!("random from {} to {}", show((*least).into()), show((*most).into()))
        }
        Source::WideRange(range) => format!("random from {} to {}", show(range.0), show(range.1)),
        Source::Small(counter) => count(|k| show(counter.at(first + k).into()), counter.period()),
        Source::Counter(counter) => count(|k| show(counter.at(first + k)), counter.period()),
        Source::Held(counter) => {
            let held = match counter.hold() {
                1 => String::new(),
                hold => format!(", each for {hold} packets"),
            };
            let step = first / counter.hold();
            count(|k| show(counter.counter().at(step + k)), counter.period()) + &held
        }
    }
}

fn count(at: impl Fn(u64) -> String, period: Option<u64>) -> String {
    let first: Vec<String> = (0..3).map(at).collect();
    let again = period.map_or(String::new(), |period| format!(", again after {period}"));
    format!("counter {}, ...{again}", first.join(", "))
}

#[cfg(test)]
mod tests {
    use crate::{ParseOptions, Program};

    fn plan(text: &str) -> crate::Plan {
        Program::parse(text, &ParseOptions::default()).unwrap().plan
    }

    #[test]
    fn fields_stand_at_their_offsets_and_say_what_varies() {
        let plan = plan(
            "{ vlan(id=5), ipv4(ttl=3, sa=10.0.0.1, da=dinc(1, 4)), udp(sp=9, dp=2), \"abc\", drnd(2) }",
        );
        let text = plan.explain(0).unwrap();
        for line in [
            "    0  eth",
            "   14    id         5",
            "   18  ipv4",
            "   26    ttl        3",
            "   30    sa         10.0.0.1",
            "   34    da         0.0.0.1  varies: counter 0.0.0.1, 0.0.0.2, 0.0.0.3, ..., again after 4",
            "   38    sport      9",
            "   46  payload (5 bytes)",
            "   49    bytes 49 to 50 vary: random",
        ] {
            assert!(text.lines().any(|found| found.trim_end() == line), "{line}\n{text}");
        }
        assert_eq!(plan.explain(1), None);
    }

    #[test]
    fn a_frame_of_unknown_origin_is_followed() {
        let text = "{ ipv4(), udp(), vxlan(vni=7), vlan(), ipv6(), gre(key=3, csum), mpls(), mpls(), ipv4(), tcp(), 1 }";
        let frame = plan(text).emitter(0, 1, 0).unwrap().to_vec(0);
        let text = super::explain(&frame);
        let headers: Vec<&str> = text
            .lines()
            .filter(|line| line.as_bytes()[6] == b' ' && line.as_bytes()[7] != b' ')
            .map(|line| line[7..].trim())
            .collect();
        let wanted =
            ["eth", "ipv4", "udp", "vxlan", "eth", "vlan", "ipv6", "gre", "mpls", "mpls", "ipv4", "tcp"];
        assert_eq!(headers[..12], wanted, "{text}");
        assert!(!text.contains("wrong"), "{text}");
    }

    #[test]
    fn a_wrong_checksum_is_said() {
        let mut frame = plan("{ ipv4(), udp(), 1 }").emitter(0, 1, 0).unwrap().to_vec(0);
        frame[42] = 2;
        let text = super::explain(&frame);
        assert_eq!(text.matches("wrong").count(), 1, "{text}");
    }

    #[test]
    fn what_is_cut_is_shown_as_far_as_it_goes() {
        let frame = plan("{ ipv4(), tcp(), 1 }").emitter(0, 1, 0).unwrap().to_vec(0);
        for end in 0..frame.len() {
            assert_eq!(super::explain(&frame[..end]).is_empty(), end == 0);
        }
    }
}
