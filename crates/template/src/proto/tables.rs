//! The tables. Sources: IEEE 802.1Q and 802.3, RFC 791, 792, 768, 826, 1035, 2784, 2890, 3032, 4443, 7348, 8200, 9293.

use super::{Default, Field, Flag, Id, Proto, Show};

const PAUSE_ADDRESS: [u8; 6] = [0x01, 0x80, 0xc2, 0x00, 0x00, 0x01];
const BROADCAST: [u8; 6] = [0xff; 6];

type Names = &'static [&'static str];

/// A decimal number of whole bytes, 0 if not given.
const fn num(names: Names, at: i16, bytes: u8) -> Field {
    Field { names, at, bytes, mask: 0, default: Default::Number(0), show: Show::Decimal, word: None }
}

const fn hex(names: Names, at: i16, bytes: u8) -> Field {
    Field { show: Show::Hex, ..num(names, at, bytes) }
}

const fn bits(names: Names, at: i16, bytes: u8, mask: u32) -> Field {
    Field { mask, ..num(names, at, bytes) }
}

const fn computed(names: Names, at: i16, show: Show) -> Field {
    Field { default: Default::Computed, show, ..num(names, at, 2) }
}

const fn address(names: Names, at: i16, show: Show, default: Default) -> Field {
    let bytes = match show {
        Show::Mac => 6,
        Show::Ipv6 => 16,
        _ => 4,
    };
    Field { show, default, ..num(names, at, bytes) }
}

impl Field {
    const fn or(self, number: u32) -> Field {
        Field { default: Default::Number(number), ..self }
    }

    const fn in_word(self, word: u8) -> Field {
        Field { word: Some(word), ..self }
    }
}

const fn flag(names: Names, sets: &'static [(&'static str, u32)]) -> Flag {
    Flag { names, sets }
}

/// All headers.
#[rustfmt::skip]
pub(crate) const PROTOS: &[Proto] = &[
    Proto { id: Id::Eth, names: &["eth"], bytes: 14, flags: &[], fields: &[
        address(&["da", "daddr"], 0, Show::Mac, Default::Mac([0; 6])),
        address(&["sa", "saddr"], 6, Show::Mac, Default::DeviceMac),
        hex(&["type", "etype", "prot", "proto"], 12, 2),
    ]},
    Proto { id: Id::Pause, names: &["pause"], bytes: 4, flags: &[], fields: &[
        hex(&["code"], 0, 2).or(1),
        num(&["time"], 2, 2),
    ]},
    Proto { id: Id::Pfc, names: &["pfc"], bytes: 20, flags: &[], fields: &[
        hex(&["code"], 0, 2).or(0x0101),
        hex(&["prio", "pri"], 2, 2),
        bits(&["prio(0)", "pri(0)"], 2, 2, 0x01), bits(&["prio(1)", "pri(1)"], 2, 2, 0x02),
        bits(&["prio(2)", "pri(2)"], 2, 2, 0x04), bits(&["prio(3)", "pri(3)"], 2, 2, 0x08),
        bits(&["prio(4)", "pri(4)"], 2, 2, 0x10), bits(&["prio(5)", "pri(5)"], 2, 2, 0x20),
        bits(&["prio(6)", "pri(6)"], 2, 2, 0x40), bits(&["prio(7)", "pri(7)"], 2, 2, 0x80),
        num(&["time(0)"], 4, 2), num(&["time(1)"], 6, 2), num(&["time(2)"], 8, 2), num(&["time(3)"], 10, 2),
        num(&["time(4)"], 12, 2), num(&["time(5)"], 14, 2), num(&["time(6)"], 16, 2), num(&["time(7)"], 18, 2),
    ]},
    Proto { id: Id::Vlan, names: &["vlan"], bytes: 4, flags: &[
        flag(&["1q"], &[("tpid", 0x8100)]), flag(&["1ad"], &[("tpid", 0x88a8)]),
    ], fields: &[
        hex(&["tpid", "prot", "proto"], -2, 2).or(0x8100),
        hex(&["tci"], 0, 2),
        bits(&["pcp"], 0, 2, 0xe000), bits(&["dei", "cfi"], 0, 2, 0x1000), bits(&["id"], 0, 2, 0x0fff),
        hex(&["etype"], 2, 2),
    ]},
    Proto { id: Id::Mpls, names: &["mpls"], bytes: 4, flags: &[], fields: &[
        bits(&["label", "lbl"], 0, 4, 0xffff_f000), bits(&["tc", "tclass", "exp"], 0, 4, 0x0e00),
        bits(&["last"], 0, 4, 0x0100).or(1), bits(&["ttl"], 0, 4, 0x00ff),
    ]},
    Proto { id: Id::Arp, names: &["arp"], bytes: 28, flags: &[
        flag(&["req", "request"], &[("op", 1)]), flag(&["reply"], &[("op", 2)]),
    ], fields: &[
        num(&["htype"], 0, 2).or(1),
        hex(&["ptype"], 2, 2).or(0x0800),
        num(&["hlen"], 4, 1).or(6), num(&["plen"], 5, 1).or(4),
        num(&["op", "oper"], 6, 2).or(1),
        address(&["sha", "smac"], 8, Show::Mac, Default::DeviceMac),
        address(&["spa", "sip"], 14, Show::Ipv4, Default::DeviceIpv4),
        address(&["tha", "tmac"], 18, Show::Mac, Default::Mac([0; 6])),
        address(&["tpa", "tip"], 24, Show::Ipv4, Default::DeviceIpv4),
    ]},
    Proto { id: Id::Ipv4, names: &["ipv4", "ip4"], bytes: 20, flags: &[
        flag(&["df"], &[("df", 1)]), flag(&["mf"], &[("mf", 1)]),
    ], fields: &[
        bits(&["ver", "version"], 0, 1, 0xf0).or(4), bits(&["ihl"], 0, 1, 0x0f).or(5),
        hex(&["tos"], 1, 1),
        bits(&["dscp"], 1, 1, 0xfc), bits(&["ecn"], 1, 1, 0x03),
        computed(&["len", "length"], 2, Show::Decimal),
        num(&["id"], 4, 2),
        bits(&["flags"], 6, 2, 0xe000), bits(&["df"], 6, 2, 0x4000), bits(&["mf"], 6, 2, 0x2000),
        bits(&["frag"], 6, 2, 0x1fff),
        num(&["ttl"], 8, 1),
        num(&["proto", "prot"], 9, 1),
        computed(&["csum"], 10, Show::Hex),
        address(&["sa", "saddr"], 12, Show::Ipv4, Default::DeviceIpv4),
        address(&["da", "daddr"], 16, Show::Ipv4, Default::Number(0)),
    ]},
    Proto { id: Id::Ipv6, names: &["ipv6", "ip6"], bytes: 40, flags: &[], fields: &[
        bits(&["ver", "version"], 0, 4, 0xf000_0000).or(6), bits(&["tc", "tclass"], 0, 4, 0x0ff0_0000),
        bits(&["flow", "fl"], 0, 4, 0x000f_ffff),
        computed(&["len", "length"], 4, Show::Decimal),
        num(&["nh", "nexthdr"], 6, 1), num(&["hl", "hoplimit", "ttl"], 7, 1),
        address(&["sa", "saddr"], 8, Show::Ipv6, Default::DeviceIpv6),
        address(&["da", "daddr"], 24, Show::Ipv6, Default::Number(0)),
    ]},
    Proto { id: Id::Icmp4, names: &["icmp4", "icmpv4"], bytes: 8, flags: &[
        flag(&["echorequest"], &[("type", 8), ("code", 0)]), flag(&["echoreply"], &[("type", 0), ("code", 0)]),
    ], fields: &[
        num(&["type"], 0, 1), num(&["code"], 1, 1),
        computed(&["csum"], 2, Show::Hex),
        num(&["id"], 4, 2), num(&["seq"], 6, 2),
        num(&["mtu"], 6, 2),
        address(&["addr"], 4, Show::Ipv4, Default::Number(0)),
    ]},
    Proto { id: Id::Icmp6, names: &["icmp6", "icmpv6"], bytes: 4, flags: &[
        flag(&["echorequest"], &[("type", 128)]), flag(&["echoreply"], &[("type", 129)]),
    ], fields: &[
        num(&["type"], 0, 1), num(&["code"], 1, 1),
        computed(&["csum"], 2, Show::Hex),
        num(&["id"], 0, 2).in_word(0), num(&["seq"], 2, 2).in_word(0),
        num(&["mtu"], 0, 4).in_word(0),
    ]},
    Proto { id: Id::Udp, names: &["udp"], bytes: 8, flags: &[], fields: &[
        num(&["sport", "sp"], 0, 2), num(&["dport", "dp"], 2, 2),
        computed(&["len", "length"], 4, Show::Decimal), computed(&["csum"], 6, Show::Hex),
    ]},
    Proto { id: Id::Tcp, names: &["tcp"], bytes: 20, flags: &[
        flag(&["cwr"], &[("cwr", 1)]), flag(&["ece", "ecn"], &[("ece", 1)]), flag(&["urg"], &[("urg", 1)]),
        flag(&["ack"], &[("ack", 1)]), flag(&["psh"], &[("psh", 1)]), flag(&["rst"], &[("rst", 1)]),
        flag(&["syn"], &[("syn", 1)]), flag(&["fin"], &[("fin", 1)]),
    ], fields: &[
        num(&["sport", "sp"], 0, 2), num(&["dport", "dp"], 2, 2),
        num(&["seq"], 4, 4), num(&["ackseq", "aseq"], 8, 4),
        bits(&["doff", "hlen"], 12, 2, 0xf000).or(5),
        bits(&["cwr"], 12, 2, 0x80), bits(&["ece", "ecn"], 12, 2, 0x40), bits(&["urg"], 12, 2, 0x20),
        bits(&["ack"], 12, 2, 0x10), bits(&["psh"], 12, 2, 0x08), bits(&["rst"], 12, 2, 0x04),
        bits(&["syn"], 12, 2, 0x02), bits(&["fin"], 12, 2, 0x01),
        num(&["win", "window"], 14, 2),
        computed(&["csum"], 16, Show::Hex),
        num(&["urgptr"], 18, 2),
    ]},
    Proto { id: Id::Gre, names: &["gre"], bytes: 4, flags: &[
        flag(&["csum"], &[("c", 1)]), flag(&["key"], &[("k", 1)]), flag(&["seq"], &[("s", 1)]),
    ], fields: &[
        bits(&["c"], 0, 2, 0x8000), bits(&["k"], 0, 2, 0x2000), bits(&["s"], 0, 2, 0x1000),
        bits(&["ver", "version"], 0, 2, 0x0007),
        hex(&["proto", "prot", "type"], 2, 2),
        computed(&["csum"], 0, Show::Hex).in_word(0),
        num(&["key"], 0, 4).in_word(1),
        num(&["seq"], 0, 4).in_word(2),
    ]},
    Proto { id: Id::Vxlan, names: &["vxlan"], bytes: 8, flags: &[], fields: &[
        hex(&["flags"], 0, 1).or(0x08),
        bits(&["vni", "id"], 4, 4, 0xffff_ff00),
    ]},
    Proto { id: Id::Dns, names: &["dns"], bytes: 12, flags: &[], fields: &[
        num(&["id"], 0, 2),
        bits(&["qr"], 2, 2, 0x8000), bits(&["op", "oper"], 2, 2, 0x7800), bits(&["aa", "aanswer"], 2, 2, 0x0400),
        bits(&["trunc", "tc"], 2, 2, 0x0200), bits(&["rdesired", "rd"], 2, 2, 0x0100),
        bits(&["ravail", "ra"], 2, 2, 0x0080), bits(&["zero"], 2, 2, 0x0070), bits(&["rcode", "rc"], 2, 2, 0x000f),
        num(&["qdcount"], 4, 2), num(&["ancount"], 6, 2), num(&["nscount"], 8, 2), num(&["arcount"], 10, 2),
    ]},
];

/// The destination that ARP, and pause frames, give the Ethernet header below them.
pub(crate) const fn group_address(upper: Id) -> Option<[u8; 6]> {
    match upper {
        Id::Pause | Id::Pfc => Some(PAUSE_ADDRESS),
        Id::Arp => Some(BROADCAST),
        _ => None,
    }
}

/// What follows the name in a DNS question.
pub(crate) const QUESTION: &[Field] = &[num(&["type"], 0, 2).or(1), num(&["class"], 2, 2).or(1)];

/// What follows the name in a DNS record.
pub(crate) const RECORD: &[Field] = &[
    num(&["type"], 0, 2),
    num(&["class"], 2, 2).or(1),
    num(&["ttl"], 4, 4).or(1),
    num(&["len", "length"], 8, 2),
];
