//! Header functions: the header itself, those below it that are missing, and its fields.

use super::fields::Place;
use super::{Builder, Layer, PendingChecksum, Pseudo};
use crate::language::ast::{Header, Item, Value, ValueKind};
use crate::language::error::{Checked, Fault, WarningKind};
use crate::language::source::Span;
use crate::proto::{self, Default, Field, Id, Proto};

/// Headers of one packet.
const MOST_HEADERS: usize = 16;

impl Builder<'_> {
    pub(super) fn header(&mut self, header: &Header) -> Checked<()> {
        let Some(proto) = proto::find(&header.name) else {
            return Err(Fault::at(header.span, "no such header").nearest(&header.name, proto::names()));
        };
        self.add_lowers(proto, header.span)?;
        let mut words = [false; 3];
        for item in &header.items {
            let field = proto.field(&item.name);
            if let Some(word) = field.and_then(|field| field.word) {
                words[usize::from(word)] = true;
            }
        }
        self.add_layer(proto, words, header.span)?;
        let mut records = Vec::new();
        for item in &header.items {
            match &item.inner {
                Some(_) if proto.id == Id::Dns => records.push(item),
                Some(_) => return Err(unknown(proto, item)),
                None => self.item(item)?,
            }
        }
        if proto.id == Id::Dns { self.dns_records(&records) } else { Ok(()) }
    }

    /// Adds the headers that `proto` needs below it.
    fn add_lowers(&mut self, proto: &'static Proto, span: Span) -> Checked<()> {
        let last = self.layers.last().map(|layer| layer.proto.id);
        let Some(lower) = proto.lower_default() else { return Ok(()) };
        if last.is_some_and(|last| proto.lowers().contains(&last)) {
            return Ok(());
        }
        if !may_add(lower, last) {
            let name = |id: Id| format!("{}()", proto::of(id).names[0]);
            let below = last.map_or(String::new(), name);
            let possible: Vec<String> = proto.lowers().iter().map(|&id| name(id)).collect();
            let message = format!("{} cannot follow {below}", name(proto.id));
            return Err(Fault::at(span, message).expected(format!("one of {} below it", possible.join(", "))));
        }
        self.add_lowers(proto::of(lower), span)?;
        if proto.id == Id::Ipv6 {
            let message = "an Ethernet header is added below; trafgen adds none when it writes to a file";
            self.warnings.add(WarningKind::Ipv6Ethernet, span, message);
        }
        self.add_layer(proto::of(lower), [false; 3], span)
    }

    /// Adds a header with its defaults and tells the one below what follows it.
    fn add_layer(&mut self, proto: &'static Proto, words: [bool; 3], span: Span) -> Checked<()> {
        if self.layers.len() >= MOST_HEADERS {
            return Err(Fault::at(span, format!("the packet has more than {MOST_HEADERS} headers here")));
        }
        let at = self.bytes.len();
        self.check_adjacent(proto, span)?;
        let mut len = proto.bytes;
        let mut places = [None; 3];
        for (word, place) in words.iter().zip(&mut places) {
            if *word {
                *place = Some(at + len);
                len += 4;
            }
        }
        self.grow(len, span)?;
        self.layers.push(Layer { proto, at, len, given: 0, words: places, span });
        if proto.id == Id::Vlan {
            self.bytes.copy_within(at - 2..at, at + 2);
            for known in self.varying.iter_mut().filter(|known| known.varying.at == (at - 2..at)) {
                known.varying.at = at + 2..at + 4;
            }
        }
        let layer = self.layers.len() - 1;
        for field in proto.fields {
            self.set_default(layer, field);
        }
        if proto.id == Id::Gre {
            for (word, name) in words.iter().zip(["c", "k", "s"]) {
                self.set(layer, name, u32::from(*word), false);
            }
        }
        self.tell_lower(proto.id, span);
        Ok(())
    }

    /// A VLAN tag lies in the header below it; other headers may have bytes in front.
    fn check_adjacent(&mut self, proto: &Proto, span: Span) -> Checked<()> {
        let Some(last) = self.layers.last() else { return Ok(()) };
        if last.at + last.len == self.bytes.len() {
            return Ok(());
        }
        if proto.id == Id::Vlan {
            return Err(Fault::at(span, "vlan() must directly follow the header that it is a part of"));
        }
        let message = "the bytes before this header stay before it; trafgen writes the header over them";
        self.warnings.add(WarningKind::BytesBetweenHeaders, span, message);
        Ok(())
    }

    fn tell_lower(&mut self, upper: Id, span: Span) {
        let Some(lower) = self.layers.len().checked_sub(2) else { return };
        let id = self.layers[lower].proto.id;
        if let Some((name, value)) = proto::next_protocol(id, upper) {
            self.set(lower, name, value, false);
        }
        if let Some(address) = proto::group_address(upper)
            && id == Id::Eth
            && !self.layers[lower].is_given("da")
        {
            let at = self.layers[lower].at;
            self.bytes[at..at + 6].copy_from_slice(&address);
        }
        if id == Id::Ipv6 && matches!(upper, Id::Ipv4 | Id::Ipv6) {
            let message = "IP within IPv6 is possible here; trafgen aborts";
            self.warnings.add(WarningKind::InsideIpv6, span, message);
        }
    }

    fn set_default(&mut self, layer: usize, field: &'static Field) {
        let Some(at) = self.layers[layer].place(field) else { return };
        let target = at..at + usize::from(field.bytes);
        let device = self.device;
        match field.default {
            Default::Number(0) | Default::Computed => {}
            Default::Number(number) => self.put(Place { at, field }, u128::from(number)),
            Default::Mac(mac) => self.bytes[target].copy_from_slice(&mac),
            Default::DeviceMac => self.bytes[target].copy_from_slice(&device.mac.unwrap_or_default()),
            Default::DeviceIpv4 => {
                let address = device.ipv4.map_or([0; 4], |address| address.octets());
                self.bytes[target].copy_from_slice(&address);
            }
            Default::DeviceIpv6 => {
                let address = device.ipv6.map_or([0; 16], |address| address.octets());
                self.bytes[target].copy_from_slice(&address);
            }
        }
    }

    /// Sets a field that the packet gives itself, unless it was given.
    pub(super) fn set(&mut self, layer: usize, name: &str, value: u32, given: bool) {
        let target = &mut self.layers[layer];
        let Some(index) = target.proto.fields.iter().position(|field| field.names.contains(&name)) else {
            return;
        };
        let field = &target.proto.fields[index];
        if given {
            target.given |= 1 << index;
        } else if target.given & 1 << index != 0 {
            return;
        }
        if let Some(at) = target.place(field) {
            self.put(Place { at, field }, u128::from(value));
        }
    }

    fn item(&mut self, item: &Item) -> Checked<()> {
        let layer = self.layers.len() - 1;
        let proto = self.layers[layer].proto;
        let Some(value) = &item.value else {
            let Some(flag) = proto.flag(&item.name).filter(|_| item.offset.is_none()) else {
                if proto.field(&item.name).is_some() {
                    return Err(Fault::at(item.span, format!("{} needs a value", item.name)).expected("`=`"));
                }
                return Err(unknown(proto, item));
            };
            for (name, number) in flag.sets {
                self.set(layer, name, *number, true);
            }
            return Ok(());
        };
        let Some(index) = proto.fields.iter().position(|field| field.names.contains(&item.name.as_str()))
        else {
            return Err(unknown(proto, item));
        };
        let field = &proto.fields[index];
        let named = named_value(proto, field, value)?;
        let Some(at) = self.layers[layer].place(field) else { return Err(unknown(proto, item)) };
        self.layers[layer].given |= 1 << index;
        match named {
            Some(number) => self.put(Place { at, field }, u128::from(number)),
            None => self.assign(Place { at, field }, item, value)?,
        }
        Ok(())
    }

    /// Fills in the lengths that were not given.
    pub(super) fn set_lengths(&mut self) -> Checked<()> {
        for layer in 0..self.layers.len() {
            let Layer { proto, at, span, .. } = self.layers[layer];
            let ttl = if proto.id == Id::Ipv4 { "ttl" } else { "hl" };
            if matches!(proto.id, Id::Ipv4 | Id::Ipv6) && !self.layers[layer].is_given(ttl) {
                let message =
                    format!("{ttl} is not given and stays 0, as in trafgen; routers drop the packet");
                self.warnings.add(WarningKind::TtlZero, span, message);
            }
            let bytes = match proto.id {
                Id::Ipv4 | Id::Udp => self.bytes.len() - at,
                Id::Ipv6 => self.bytes.len() - at - proto.bytes,
                _ => continue,
            };
            if self.layers[layer].is_given("len") {
                continue;
            }
            let Ok(len) = u16::try_from(bytes) else {
                let message = format!("{bytes} bytes are more than the length of {} can say", proto.names[0]);
                return Err(
                    Fault::at(span, message).expected("at most 65535 bytes, or a length that is given")
                );
            };
            self.set(layer, "len", u32::from(len), false);
        }
        Ok(())
    }

    /// Notes the checksums that were not given.
    pub(super) fn header_checksums(&mut self) -> Checked<()> {
        for index in (0..self.layers.len()).rev() {
            let layer = &self.layers[index];
            let (id, at, span) = (layer.proto.id, layer.at, layer.span);
            let place = layer.proto.field("csum").and_then(|field| layer.place(field));
            let Some(place) = place.filter(|_| !layer.is_given("csum")) else { continue };
            let end = self.bytes.len();
            let cover = match id {
                Id::Ipv4 => at..at + self.ipv4_header_bytes(index),
                _ => at..end,
            };
            let pseudo = match id {
                Id::Udp => Some(self.pseudo(index, 17)),
                Id::Tcp => Some(self.pseudo(index, 6)),
                Id::Icmp6 => Some(self.pseudo(index, 58)),
                _ => None,
            };
            if id == Id::Icmp4 && !cover.len().is_multiple_of(2) {
                let message = "the checksum covers the last byte of an odd number; trafgen leaves it out";
                self.warnings.add(WarningKind::OddChecksum, span, message);
            }
            let udp = id == Id::Udp;
            self.checksums.push(PendingChecksum { at: place, cover, pseudo, udp, header: Some(id), span });
        }
        Ok(())
    }

    /// Bytes of an IPv4 header with its options, if they are there.
    fn ipv4_header_bytes(&mut self, index: usize) -> usize {
        let (at, span) = (self.layers[index].at, self.layers[index].span);
        let bytes = usize::from(self.bytes[at] & 15) * 4;
        if bytes <= 20 || at + bytes > self.bytes.len() {
            return 20;
        }
        let message = "the checksum covers the options too; trafgen's covers 20 bytes";
        self.warnings.add(WarningKind::Ipv4Options, span, message);
        bytes
    }

    fn pseudo(&self, index: usize, protocol: u8) -> Pseudo {
        let lower = &self.layers[index.saturating_sub(1)];
        let addresses = match lower.proto.id {
            Id::Ipv4 => lower.at + 12..lower.at + 20,
            _ => lower.at + 8..lower.at + 40,
        };
        Pseudo { addresses, protocol, bytes: 0 }
    }
}

/// Whether `lower` may be added on top of `last`.
fn may_add(lower: Id, last: Option<Id>) -> bool {
    let Some(last) = last else { return true };
    let direct = match lower {
        Id::Eth => matches!(last, Id::Vxlan | Id::Gre),
        Id::Ipv4 | Id::Ipv6 => matches!(last, Id::Eth | Id::Vlan | Id::Mpls | Id::Gre),
        _ => proto::of(lower).lowers().contains(&last),
    };
    direct || proto::of(lower).lower_default().is_some_and(|below| may_add(below, Some(last)))
}

/// The number that a word stands for as the value of a field, as in `op=reply`.
fn named_value(proto: &Proto, field: &Field, value: &Value) -> Checked<Option<u32>> {
    let ValueKind::Word(word) = &value.kind else { return Ok(None) };
    let sets = |flag: &'static proto::Flag| flag.sets.iter().find(|(name, _)| field.names.contains(name));
    match proto.flag(word).and_then(sets) {
        Some((_, number)) => Ok(Some(*number)),
        None => {
            let known = proto.flags.iter().filter(|flag| sets(flag).is_some()).flat_map(|flag| flag.names);
            let message = format!("`{word}` is no value of {}", field.names[0]);
            Err(Fault::at(value.span, message)
                .expected("a number, an address or a function")
                .nearest(word, known.copied())
                .unknown(word))
        }
    }
}

fn unknown(proto: &Proto, item: &Item) -> Box<Fault> {
    let fields = proto.fields.iter().flat_map(|field| field.names);
    let flags = proto.flags.iter().flat_map(|flag| flag.names);
    let message = format!("{} has no {}", proto.names[0], item.name);
    let shown: Vec<&str> = proto.fields.iter().map(|field| field.names[0]).collect();
    let fault = Fault::at(item.span, message).expected(format!("one of {}", shown.join(", ")));
    fault.nearest(&item.name, fields.chain(flags).copied())
}
