//! A tree to a plan: bytes, fields that vary, lengths and checksums.

mod checksums;
mod dns;
mod fields;
mod functions;
mod headers;

use std::ops::Range;

use crate::language::Parsed;
use crate::language::ast::{Element, PacketNode};
use crate::language::error::{Checked, Error, Fault, WarningKind, Warnings};
use crate::language::source::Span;
use crate::plan::{Packet, Plan, Varying};
use crate::proto::{Field, Id, Proto};
use crate::random::{Random, Streams};
use crate::{Compiled, Device, ParseOptions};

/// The longest packet, without FCS: an Ethernet header and what an IPv4 length can say.
pub(crate) const MOST_PACKET_BYTES: usize = 14 + 65_535;
/// All packets of a program together.
const MOST_PLAN_BYTES: usize = 64 << 20;

/// Compiles a program.
pub(crate) fn compile(parsed: Parsed, options: &ParseOptions<'_>) -> Result<Compiled, Error> {
    let Parsed { packets: nodes, sources, mut warnings } = parsed;
    let mut random = Streams::new(options.seed, 0).of_packet(0);
    let mut packets = Vec::with_capacity(nodes.len());
    let mut total = 0_usize;
    for node in &nodes {
        let packet =
            one(node, options, &mut warnings, &mut random).map_err(|fault| fault.locate(&sources))?;
        total += packet.bytes.len();
        if total > MOST_PLAN_BYTES {
            let message = format!("the packets together have more than {MOST_PLAN_BYTES} bytes");
            return Err(Fault::at(node.span, message).locate(&sources));
        }
        packets.push(packet);
    }
    let plan = Plan { packets: packets.into() };
    Ok(Compiled { plan, warnings: warnings.locate(&sources) })
}

fn one(
    node: &PacketNode,
    options: &ParseOptions<'_>,
    warnings: &mut Warnings,
    random: &mut Random,
) -> Checked<Packet> {
    if node.workers.is_some() {
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

    fn finish(mut self, node: &PacketNode) -> Checked<Packet> {
        self.set_lengths()?;
        self.header_checksums()?;
        let mut varying: Vec<Varying> = Vec::with_capacity(self.varying.len());
        for pending in &self.varying {
            let resolved = fields::resolve(pending, &self.bytes);
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
            workers: node.workers,
            layers: self.layers.iter().map(|layer| (layer.proto.id, layer.at, layer.len)).collect(),
            bytes: self.bytes,
            varying,
            checksums,
        })
    }
}
