//! A tree to a plan: bytes, fields that vary, lengths and checksums.

mod checksums;
mod dns;
mod fields;
mod functions;
mod headers;

use std::ops::Range;

use crate::language::Parsed;
use crate::language::ast::{Element, Interval, PacketNode};
use crate::language::error::{Checked, Error, Fault, WarningKind, Warnings};
use crate::language::source::Span;
use crate::plan::{Packet, Plan, Varying};
use crate::proto::{Field, Id, Proto};
use crate::random::{Random, Streams};
use crate::{Compiled, Device, ParseOptions};
use crate::{schedule, step};

/// The longest packet, without FCS: an Ethernet header and what an IPv4 length can say.
pub(crate) const MOST_PACKET_BYTES: usize = 14 + 65_535;
/// All packets of a program together.
const MOST_PLAN_BYTES: usize = 64 << 20;
/// Packets of a program that have sizes.
const MOST_SIZED_PACKETS: u64 = 65_536;
/// Packets after which weights must be exact.
const MOST_PERIOD: u64 = 65_536;
/// Bytes of the frame check sequence, which a size includes and a packet does not.
const FCS_BYTES: usize = 4;

/// Compiles a program.
pub(crate) fn compile(parsed: Parsed, options: &ParseOptions<'_>) -> Result<Compiled, Error> {
    let Parsed { packets: nodes, sources, mut warnings, defined } = parsed;
    let mut random = Streams::new(options.seed, 0).of_packet(0);
    let mut packets = Vec::with_capacity(nodes.len());
    let mut total = 0_usize;
    let mut sized = 0;
    for node in &nodes {
        let sizes = sizes(node, &mut sized).map_err(|fault| fault.locate(&sources))?;
        let before = random;
        for (number, size) in sizes.into_iter().enumerate() {
            random = before; // so that rnd() is the same in all sizes
            let mut packet = one(node, size, options, &mut warnings, &mut random)
                .map_err(|fault| fault.or_defined(&defined).locate(&sources))?;
            packet.first = number as u64;
            total += packet.bytes.len();
            if total > MOST_PLAN_BYTES {
                let message = format!("the packets together have more than {MOST_PLAN_BYTES} bytes");
                return Err(Fault::at(node.span, message).locate(&sources));
            }
            packets.push(packet);
        }
    }
    check_weights(&nodes, &packets).map_err(|fault| fault.locate(&sources))?;
    let plan = Plan { packets: packets.into() };
    Ok(Compiled { plan, warnings: warnings.locate(&sources) })
}

/// The sizes that a packet is made in: none if nothing is said. `all` counts those of the program.
fn sizes(node: &PacketNode, all: &mut u64) -> Checked<Vec<Option<u32>>> {
    let Some(Interval { first, last, span }) = node.prefixes.sizes else { return Ok(vec![None]) };
    *all += u64::from(last - first) + 1;
    if *all > MOST_SIZED_PACKETS {
        let message =
            format!("with these sizes there are {all} packets, and {MOST_SIZED_PACKETS} are possible");
        return Err(Fault::at(span, message));
    }
    Ok((first..=last).map(Some).collect())
}

/// The order of packets is a table, which must be short.
fn check_weights(nodes: &[PacketNode], packets: &[Packet]) -> Checked<()> {
    let Some(weight) = nodes.iter().filter_map(|node| node.prefixes.weight).max_by_key(|weight| weight.first)
    else {
        return Ok(());
    };
    let weights: Vec<u32> = packets.iter().map(|packet| packet.weight).collect();
    let period = schedule::period(&weights);
    let equal = period == packets.len() as u64;
    if equal || period <= MOST_PERIOD {
        return Ok(());
    }
    let message =
        format!("the weights are exact after {period} packets only, and {MOST_PERIOD} are possible");
    Err(Fault::at(weight.span, message).expected("smaller weights"))
}

fn one(
    node: &PacketNode,
    size: Option<u32>,
    options: &ParseOptions<'_>,
    warnings: &mut Warnings,
    random: &mut Random,
) -> Checked<Packet> {
    if node.prefixes.workers.is_some() {
        let message =
            "cpu() applies to the packet it stands before; trafgen applies it to the one after that";
        warnings.add(WarningKind::CpuLate, node.span, message);
    }
    let mut builder = Builder {
        device: &options.device,
        warnings,
        random,
        bytes: Vec::new(),
        layers: Vec::new(),
        varying: Vec::new(),
        checksums: Vec::new(),
    };
    for element in &node.elements {
        match element {
            Element::Byte(number) => {
                let byte = functions::byte(*number, "a byte")?;
                builder.append(&[byte], number.span)?;
            }
            Element::Bytes(bytes, span) => builder.append(bytes, *span)?,
            Element::Function(function) => builder.function(function)?,
            Element::Header(header) => builder.header(header)?,
        }
    }
    if let (Some(size), Some(Interval { span, .. })) = (size, node.prefixes.sizes) {
        builder.pad(size as usize, span)?;
    }
    builder.finish(node)
}

/// A header in the packet.
struct Layer {
    proto: &'static Proto,
    at: usize,
    /// Bytes that belong to it (not its payload).
    len: usize,
    /// Fields that were given, by their number in the table.
    given: u32,
    /// Where its optional words begin.
    words: [Option<usize>; 3],
    span: Span,
}

impl Layer {
    /// First byte of a field; none if it lies in a word that is not there.
    fn place(&self, field: &Field) -> Option<usize> {
        match field.word {
            None => self.at.checked_add_signed(isize::from(field.at)),
            Some(word) => Some(self.words.get(usize::from(word)).copied()?? + field.at as usize),
        }
    }

    fn is_given(&self, name: &str) -> bool {
        let index = self.proto.fields.iter().position(|field| field.names.contains(&name));
        index.is_some_and(|index| self.given & 1 << index != 0)
    }
}

/// A field that varies, before its start is known.
struct PendingVarying {
    varying: Varying,
    /// It counts from what the bytes hold when the packet is complete, by this step, up or down.
    from_current: Option<(u128, bool)>,
    /// It comes from a function of bytes, not from a header's field.
    low_level: bool,
}

/// A checksum before it is known whether it varies.
struct PendingChecksum {
    at: usize,
    cover: Range<usize>,
    pseudo: Option<Pseudo>,
    udp: bool,
    /// The header that it belongs to; none for a function of bytes.
    header: Option<Id>,
    span: Span,
}

/// What a pseudo header adds (RFC 9293 section 3.1, RFC 8200 section 8.1).
struct Pseudo {
    /// Both addresses.
    addresses: Range<usize>,
    protocol: u8,
    bytes: u32,
}

/// A packet that is being put together.
struct Builder<'a> {
    device: &'a Device,
    warnings: &'a mut Warnings,
    random: &'a mut Random,
    bytes: Vec<u8>,
    layers: Vec<Layer>,
    varying: Vec<PendingVarying>,
    checksums: Vec<PendingChecksum>,
}

impl Builder<'_> {
    fn append(&mut self, bytes: &[u8], span: Span) -> Checked<()> {
        self.grow(bytes.len(), span)?.copy_from_slice(bytes);
        Ok(())
    }

    /// Adds `count` zeros and returns them.
    fn grow(&mut self, count: usize, span: Span) -> Checked<&mut [u8]> {
        let at = self.bytes.len();
        let len = at.checked_add(count).filter(|&len| len <= MOST_PACKET_BYTES);
        let Some(len) = len else {
            let message = format!("the packet has more than {MOST_PACKET_BYTES} bytes here");
            return Err(Fault::at(span, message));
        };
        self.bytes.resize(len, 0);
        Ok(&mut self.bytes[at..])
    }

    /// Whether nothing else varies in the bytes of one that varies.
    fn varies_alone(&self, index: usize) -> bool {
        let at = &self.varying[index].varying.at;
        self.varying.iter().enumerate().all(|(other, known)| {
            let known = &known.varying.at;
            other == index || known.end <= at.start || at.end <= known.start
        })
    }

    /// Fills the packet up with zeros to a frame of `frame_bytes`.
    fn pad(&mut self, frame_bytes: usize, span: Span) -> Checked<()> {
        let found = self.bytes.len() + FCS_BYTES;
        let Some(missing) = frame_bytes.checked_sub(found) else {
            let message =
                format!("the frame has {found} bytes with its FCS, and cannot be one of {frame_bytes}");
            return Err(Fault::at(span, message).expected(format!("{found} or more")));
        };
        self.grow(missing, span)?;
        Ok(())
    }

    fn finish(mut self, node: &PacketNode) -> Checked<Packet> {
        self.set_lengths()?;
        self.header_checksums()?;
        let mut varying: Vec<Varying> = Vec::with_capacity(self.varying.len());
        for (index, pending) in self.varying.iter().enumerate() {
            let mut resolved = fields::resolve(pending, &self.bytes);
            if fields::may_be_narrow(&resolved) && self.varies_alone(index) {
                fields::narrow(&mut resolved, &mut self.bytes);
            }
            match varying.last_mut() {
                Some(last) if fields::joins(last, &resolved) => last.at.end = resolved.at.end,
                _ => varying.push(resolved),
            }
        }
        for varying in &varying {
            fields::clear(varying, &mut self.bytes);
        }
        let checksums = self.plan_checksums()?;
        Ok(Packet {
            workers: node.prefixes.workers.map(|workers| (workers.first, workers.last)),
            weight: node.prefixes.weight.map_or(1, |weight| weight.first),
            first: 0,
            layers: self.layers.iter().map(|layer| (layer.proto.id, layer.at, layer.len)).collect(),
            bytes: self.bytes,
            steps: step::steps(&varying),
            varying,
            checksums,
        })
    }
}
