//! Names of link types: <https://www.tcpdump.org/linktypes.html>.

use std::fmt;

/// What the packets of a capture begin with, as registered by tcpdump.org.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinkType(pub u16);

impl LinkType {
    /// Ethernet.
    pub const ETHERNET: Self = Self(1);

    /// The usual name, where it is one that is often met.
    pub fn name(self) -> Option<&'static str> {
        Some(match self.0 {
            0 => "BSD loopback",
            1 => "Ethernet",
            6 => "token ring",
            9 => "PPP",
            10 => "FDDI",
            12 | 14 | 101 => "raw IP",
            50 => "PPP in HDLC",
            51 => "PPP over Ethernet",
            104 => "Cisco HDLC",
            105 => "IEEE 802.11",
            107 => "frame relay",
            108 => "OpenBSD loopback",
            113 => "Linux cooked",
            117 => "OpenBSD pflog",
            127 => "IEEE 802.11 with radiotap",
            147..=162 => "reserved for private use",
            187 | 201 => "Bluetooth HCI",
            189 | 220 => "Linux USB",
            195 | 230 => "IEEE 802.15.4",
            227 => "CAN",
            228 => "raw IPv4",
            229 => "raw IPv6",
            239 => "nflog",
            247 => "InfiniBand",
            253 => "netlink",
            276 => "Linux cooked, version 2",
            _ => return None,
        })
    }

    /// How to come to a capture that can be sent.
    pub(super) fn hint(self) -> &'static str {
        match self.0 {
            12 | 14 | 101 | 113 | 228 | 229 => {
                "Give the packets an Ethernet header with `tcprewrite --dlt=enet --enet-dmac=MAC --enet-smac=MAC -i IN -o OUT`, \
                 or record on one Ethernet device instead of `any` or a tunnel"
            }
            276 => "Record on one Ethernet device instead of `any`",
            _ => {
                "Record on an Ethernet device, or convert with `tcprewrite --dlt=enet`; if the packets do begin with an \
                 Ethernet header, `editcap -T ether IN OUT` says so in the file"
            }
        }
    }
}

impl fmt::Display for LinkType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({})", self.0),
            None => write!(f, "{}", self.0),
        }
    }
}
