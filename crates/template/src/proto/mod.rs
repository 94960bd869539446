//! The headers that the language knows, as tables: fields with their places, names, defaults and flags.
//!
//! The compiler fills headers from these tables, and the decoder reads them back with the same ones.

mod tables;

pub(crate) use tables::{PROTOS, QUESTION, RECORD, group_address};

/// Which header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Id {
    Eth,
    Pause,
    Pfc,
    Vlan,
    Mpls,
    Arp,
    Ipv4,
    Ipv6,
    Icmp4,
    Icmp6,
    Udp,
    Tcp,
    Gre,
    Vxlan,
    Dns,
}

/// A header.
#[derive(Debug)]
pub(crate) struct Proto {
    pub(crate) id: Id,
    /// The first is shown.
    pub(crate) names: &'static [&'static str],
    /// Bytes without optional words.
    pub(crate) bytes: usize,
    pub(crate) fields: &'static [Field],
    pub(crate) flags: &'static [Flag],
}

/// A field of a header.
#[derive(Debug)]
pub(crate) struct Field {
    /// The first is shown.
    pub(crate) names: &'static [&'static str],
    /// First byte from the header's start; negative only for the TPID of a VLAN tag, which stands in front of it.
    pub(crate) at: i16,
    /// Bytes that hold it.
    pub(crate) bytes: u8,
    /// Bits of these bytes that are its; 0 for all.
    pub(crate) mask: u32,
    pub(crate) default: Default,
    pub(crate) show: Show,
    /// The optional word of 4 bytes that it lies in, if any; `at` is from the start of that word.
    pub(crate) word: Option<u8>,
}

impl Field {
    /// Bits that it has.
    pub(crate) fn bits(&self) -> u32 {
        if self.mask == 0 { u32::from(self.bytes) * 8 } else { self.mask.count_ones() }
    }

    /// The place of its lowest bit.
    pub(crate) fn shift(&self) -> u32 {
        if self.mask == 0 { 0 } else { self.mask.trailing_zeros() }
    }
}

/// What a field holds if nothing is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Default {
    Number(u32),
    Mac([u8; 6]),
    DeviceMac,
    DeviceIpv4,
    DeviceIpv6,
    /// A length or a checksum, known when the packet is complete.
    Computed,
}

/// How a field is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Show {
    Decimal,
    Hex,
    Mac,
    Ipv4,
    Ipv6,
}

/// A word that sets fields.
#[derive(Debug)]
pub(crate) struct Flag {
    pub(crate) names: &'static [&'static str],
    pub(crate) sets: &'static [(&'static str, u32)],
}

/// The header of that name, in lower case.
pub(crate) fn find(name: &str) -> Option<&'static Proto> {
    PROTOS.iter().find(|proto| proto.names.contains(&name))
}

pub(crate) fn of(id: Id) -> &'static Proto {
    PROTOS.iter().find(|proto| proto.id == id).unwrap_or(&PROTOS[0])
}

/// All names of headers.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    PROTOS.iter().flat_map(|proto| proto.names.iter().copied())
}

impl Proto {
    pub(crate) fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.names.contains(&name))
    }

    pub(crate) fn flag(&self, name: &str) -> Option<&'static Flag> {
        self.flags.iter().find(|flag| flag.names.contains(&name))
    }

    /// Headers that may stand directly below.
    pub(crate) fn lowers(&self) -> &'static [Id] {
        match self.id {
            Id::Eth => &[],
            Id::Pause | Id::Pfc => &[Id::Eth],
            Id::Vlan => &[Id::Eth, Id::Vlan],
            Id::Mpls => &[Id::Eth, Id::Vlan, Id::Mpls, Id::Gre],
            Id::Arp => &[Id::Eth, Id::Vlan],
            // Within UDP and ICMP: a tunnel of the user's own, a packet that an error quotes.
            Id::Ipv4 | Id::Ipv6 => {
                &[Id::Eth, Id::Vlan, Id::Mpls, Id::Gre, Id::Ipv4, Id::Ipv6, Id::Udp, Id::Icmp4, Id::Icmp6]
            }
            Id::Icmp4 => &[Id::Ipv4],
            Id::Icmp6 => &[Id::Ipv6],
            Id::Udp | Id::Tcp | Id::Gre => &[Id::Ipv4, Id::Ipv6],
            Id::Vxlan => &[Id::Udp],
            Id::Dns => &[Id::Udp, Id::Tcp],
        }
    }

    /// The header that is put below if none of those is there.
    pub(crate) fn lower_default(&self) -> Option<Id> {
        match self.id {
            Id::Eth => None,
            Id::Pause | Id::Pfc | Id::Vlan | Id::Mpls | Id::Arp | Id::Ipv4 | Id::Ipv6 => Some(Id::Eth),
            Id::Icmp4 | Id::Udp | Id::Tcp | Id::Gre => Some(Id::Ipv4),
            Id::Icmp6 => Some(Id::Ipv6),
            Id::Vxlan | Id::Dns => Some(Id::Udp),
        }
    }
}

/// The field of `lower` that names what follows, and its value for `upper`.
pub(crate) fn next_protocol(lower: Id, upper: Id) -> Option<(&'static str, u32)> {
    let ethertype = match upper {
        Id::Eth => Some(0x6558),
        Id::Pause | Id::Pfc => Some(0x8808),
        Id::Vlan => Some(0x8100),
        Id::Mpls => Some(0x8847),
        Id::Arp => Some(0x0806),
        Id::Ipv4 => Some(0x0800),
        Id::Ipv6 => Some(0x86dd),
        _ => None,
    };
    let protocol = match upper {
        Id::Ipv4 => Some(4),
        Id::Ipv6 => Some(41),
        Id::Icmp4 => Some(1),
        Id::Icmp6 => Some(58),
        Id::Udp => Some(17),
        Id::Tcp => Some(6),
        Id::Gre => Some(47),
        _ => None,
    };
    match (lower, upper) {
        (Id::Eth, Id::Vlan | Id::Eth) | (Id::Vlan, Id::Vlan | Id::Eth) => None,
        (Id::Eth, _) => Some(("type", ethertype?)),
        (Id::Vlan, _) => Some(("etype", ethertype?)),
        (Id::Gre, _) => Some(("proto", ethertype?)),
        (Id::Mpls, Id::Mpls) => Some(("last", 0)),
        (Id::Ipv4, _) => Some(("proto", protocol?)),
        (Id::Ipv6, _) => Some(("nh", protocol?)),
        (Id::Udp | Id::Tcp, Id::Dns) => Some(("dport", 53)),
        (Id::Udp, Id::Vxlan) => Some(("dport", 4789)),
        _ => None,
    }
}

/// The header that follows `lower` when its field holds `value`; the reverse of [`next_protocol`].
pub(crate) fn upper_of(lower: Id, value: u32) -> Option<Id> {
    match (lower, value) {
        (Id::Eth | Id::Vlan | Id::Gre, 0x0800) | (Id::Ipv4 | Id::Ipv6, 4) => Some(Id::Ipv4),
        (Id::Eth | Id::Vlan | Id::Gre, 0x86dd) | (Id::Ipv4 | Id::Ipv6, 41) => Some(Id::Ipv6),
        (Id::Eth | Id::Vlan, 0x8100 | 0x88a8 | 0x9100) => Some(Id::Vlan),
        (Id::Eth | Id::Vlan | Id::Gre, 0x8847 | 0x8848) => Some(Id::Mpls),
        (Id::Eth | Id::Vlan, 0x0806) => Some(Id::Arp),
        (Id::Eth, 0x8808) => Some(Id::Pause),
        (Id::Gre, 0x6558) => Some(Id::Eth),
        (Id::Ipv4, 1) => Some(Id::Icmp4),
        (Id::Ipv6, 58) => Some(Id::Icmp6),
        (Id::Ipv4 | Id::Ipv6, 17) => Some(Id::Udp),
        (Id::Ipv4 | Id::Ipv6, 6) => Some(Id::Tcp),
        (Id::Ipv4 | Id::Ipv6, 47) => Some(Id::Gre),
        (Id::Udp | Id::Tcp, 53) => Some(Id::Dns),
        (Id::Udp, 4789) => Some(Id::Vxlan),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_within_their_headers_and_masks_within_their_bytes() {
        for proto in PROTOS {
            for field in proto.fields {
                let end = i32::from(field.at) + i32::from(field.bytes);
                let room = if field.word.is_some() { 4 } else { proto.bytes as i32 };
                assert!(end <= room, "{:?} {:?}", proto.id, field.names);
                assert!(field.mask == 0 || field.bytes <= 4, "{:?} {:?}", proto.id, field.names);
                let bits = u32::from(field.bytes) * 8;
                assert!(bits >= 32 || field.mask < 1 << bits, "{:?} {:?}", proto.id, field.names);
            }
        }
    }

    #[test]
    fn names_are_unique_and_flags_name_fields() {
        for proto in PROTOS {
            let mut seen = Vec::new();
            for name in proto.fields.iter().flat_map(|field| field.names) {
                assert!(!seen.contains(name), "{:?} {name}", proto.id);
                seen.push(name);
            }
            for flag in proto.flags {
                assert!(flag.sets.iter().all(|(name, _)| proto.field(name).is_some()), "{:?}", flag.names);
            }
        }
    }

    #[test]
    fn what_follows_is_found_again() {
        for lower in PROTOS {
            for upper in PROTOS.iter().filter(|upper| upper.lowers().contains(&lower.id)) {
                if let Some((name, value)) = next_protocol(lower.id, upper.id)
                    && name != "last"
                {
                    assert!(lower.field(name).is_some(), "{:?} {name}", lower.id);
                    let found = upper_of(lower.id, value);
                    let pfc = upper.id == Id::Pfc && found == Some(Id::Pause);
                    assert!(found == Some(upper.id) || pfc, "{:?} {:?}", lower.id, upper.id);
                }
            }
        }
    }
}
