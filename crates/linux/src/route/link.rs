//! What the kernel says about a network device: its description and its counters.

use std::os::fd::BorrowedFd;

use super::netlink::{attribute, attributes, i32_at, text_of, u16_at, u32_at, u64_at};

/// Bytes before the attributes of a link message: `struct ifinfomsg` (include/uapi/linux/rtnetlink.h, 6.18).
const LINK_HEADER_BYTES: usize = 16;
/// Bytes before the attributes of a statistics message: `struct if_stats_msg` (include/uapi/linux/if_link.h).
const STATS_HEADER_BYTES: usize = 12;
const IFLA_STATS_LINK_64: u16 = 1;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
const IFLA_OPERSTATE: u16 = 16;
const IFLA_LINKINFO: u16 = 18;
const IFLA_NUM_TX_QUEUES: u16 = 31;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_CARRIER: u16 = 33;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_XDP: u16 = 43;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_XDP_ATTACHED: u16 = 2;
const IFLA_XDP_PROG_ID: u16 = 4;

/// One end of a veth pair that is to be made. What is `None` is left to the kernel.
#[derive(Debug, Clone, Copy)]
pub struct VethEnd<'a> {
    /// Name of the device, at most 15 bytes.
    pub name: &'a str,
    /// Hardware address.
    pub mac: Option<[u8; 6]>,
    /// Largest payload of a frame in bytes, without the Ethernet header (1500 by default).
    pub mtu: Option<u32>,
    /// Number of transmit queues (by default as many as there are CPUs).
    pub tx_queues: Option<u32>,
    /// Number of receive queues.
    pub rx_queues: Option<u32>,
    /// The namespace to make the device in; `None`: that of the socket.
    pub netns: Option<BorrowedFd<'a>>,
}

impl<'a> VethEnd<'a> {
    /// An end with this name and nothing else asked for.
    pub fn new(name: &'a str) -> Self {
        Self { name, mac: None, mtu: None, tx_queues: None, rx_queues: None, netns: None }
    }
}

/// Where an XDP program sits on a device (include/uapi/linux/if_link.h, `XDP_ATTACHED_*`, 6.18).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver.
    Driver,
    /// After the driver, on a socket buffer ("generic").
    Generic,
    /// In the hardware.
    Hardware,
    /// In more than one of these.
    Multiple,
    /// A mode that this program does not know.
    Unknown(u8),
}

/// A network device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Number of the device in its namespace.
    pub ifindex: u32,
    /// Its name.
    pub name: String,
    /// Largest payload of a frame in bytes, without the Ethernet header.
    pub mtu: u32,
    /// Hardware address; `None` for a device that has none of six bytes.
    pub mac: Option<[u8; 6]>,
    /// Kind of a software device ("veth", "bridge"); `None` for hardware and the loopback. The driver of a
    /// device is what [`crate::ethtool::EthtoolSocket::driver`] says.
    pub kind: Option<String>,
    /// Transmit queues that the device was made with.
    pub tx_queues: Option<u32>,
    /// Receive queues that the device was made with.
    pub rx_queues: Option<u32>,
    /// Where an XDP program is attached.
    pub xdp: Option<XdpMode>,
    /// The number of that program, where there is exactly one.
    pub xdp_program_id: Option<u32>,
    /// The other end of a veth pair, or the device below this one; numbered in its own namespace.
    pub peer_ifindex: Option<u32>,
    /// Whether that other device is in another namespace than this one.
    pub peer_in_other_netns: bool,
    /// The bridge or other device that this one is a port of.
    pub master_ifindex: Option<u32>,
    /// Whether the device was switched on (IFF_UP).
    pub up: bool,
    /// Whether the device has a carrier.
    pub carrier: Option<bool>,
    /// Operational state, RFC 2863: 6 is up, 2 is down, 0 is unknown.
    pub oper_state: Option<u8>,
    /// Whether it is the loopback device.
    pub loopback: bool,
}

impl Link {
    /// Whether the device takes frames and carries them: up, with a carrier, and its queues in place (`IF_OPER_UP`, RFC 2863).
    pub fn is_operational(&self) -> bool {
        const IF_OPER_UP: u8 = 6;
        self.oper_state == Some(IF_OPER_UP)
    }

    /// Reads the payload of an RTM_NEWLINK message; `None` where it lacks an index or a name.
    pub(super) fn parse(payload: &[u8]) -> Option<Self> {
        let flags = u32_at(payload, 8)?;
        let mut link = Self {
            ifindex: u32::try_from(i32_at(payload, 4)?).ok()?,
            name: String::new(),
            mtu: 0,
            mac: None,
            kind: None,
            tx_queues: None,
            rx_queues: None,
            xdp: None,
            xdp_program_id: None,
            peer_ifindex: None,
            peer_in_other_netns: false,
            master_ifindex: None,
            up: flags & libc::IFF_UP as u32 != 0,
            carrier: None,
            oper_state: None,
            loopback: u16_at(payload, 2)? == libc::ARPHRD_LOOPBACK,
        };
        for (kind, value) in attributes(payload.get(LINK_HEADER_BYTES..)?) {
            link.take(kind, value);
        }
        (!link.name.is_empty()).then_some(link)
    }

    fn take(&mut self, kind: u16, value: &[u8]) {
        match kind {
            IFLA_ADDRESS => self.mac = value.try_into().ok(),
            IFLA_IFNAME => self.name = text_of(value),
            IFLA_MTU => self.mtu = u32_at(value, 0).unwrap_or_default(),
            IFLA_LINK => self.peer_ifindex = u32_at(value, 0).filter(|&index| index != 0),
            IFLA_LINK_NETNSID => self.peer_in_other_netns = true,
            IFLA_MASTER => self.master_ifindex = u32_at(value, 0),
            IFLA_OPERSTATE => self.oper_state = value.first().copied(),
            IFLA_LINKINFO => self.kind = attribute(value, IFLA_INFO_KIND).map(text_of),
            IFLA_NUM_TX_QUEUES => self.tx_queues = u32_at(value, 0),
            IFLA_NUM_RX_QUEUES => self.rx_queues = u32_at(value, 0),
            IFLA_CARRIER => self.carrier = value.first().map(|&state| state != 0),
            IFLA_XDP => {
                self.xdp = attribute(value, IFLA_XDP_ATTACHED).and_then(|mode| xdp_mode(*mode.first()?));
                self.xdp_program_id = attribute(value, IFLA_XDP_PROG_ID).and_then(|id| u32_at(id, 0));
            }
            _ => {}
        }
    }
}

fn xdp_mode(attached: u8) -> Option<XdpMode> {
    match attached {
        0 => None,
        1 => Some(XdpMode::Driver),
        2 => Some(XdpMode::Generic),
        3 => Some(XdpMode::Hardware),
        4 => Some(XdpMode::Multiple),
        other => Some(XdpMode::Unknown(other)),
    }
}

/// Makes [`LinkStats`] and the list of its fields from one table, in the order of the kernel's structure.
macro_rules! link_stats {
    ($($(#[$doc:meta])* $name:ident = $at:literal,)*) => {
        /// The counters of a device: `struct rtnl_link_stats64` (include/uapi/linux/if_link.h, 6.18).
        ///
        /// What a driver counts under which name is its own affair; what is known is said at the field. Bytes
        /// are without the FCS for veth, and with it for some hardware.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct LinkStats {
            $($(#[$doc])* pub $name: u64,)*
            /// Frames for another host's address, dropped. `None` before Linux 5.19.
            pub rx_otherhost_dropped: Option<u64>,
        }

        impl LinkStats {
            /// Reads the kernel's structure; `None` where it is shorter than that of Linux 4.6.
            fn from_bytes(bytes: &[u8]) -> Option<Self> {
                Some(Self {
                    $($name: u64_at(bytes, 8 * $at)?,)*
                    rx_otherhost_dropped: u64_at(bytes, 8 * 24),
                })
            }

            /// Names and values of all counters that this kernel has.
            pub fn fields(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*]
                    .into_iter()
                    .chain(self.rx_otherhost_dropped.map(|value| ("rx_otherhost_dropped", value)))
            }
        }
    };
}

link_stats! {
    /// Good packets received.
    rx_packets = 0,
    /// Packets sent.
    tx_packets = 1,
    /// Good bytes received.
    rx_bytes = 2,
    /// Bytes sent.
    tx_bytes = 3,
    /// Bad packets received.
    rx_errors = 4,
    /// Packets that could not be sent.
    tx_errors = 5,
    /// Received and then dropped before a protocol saw them. Includes losses in the backlog, which
    /// `softnet_stat` counts as well.
    rx_dropped = 6,
    /// Dropped on the way out. veth counts here the frames for which its peer's ring had no room.
    tx_dropped = 7,
    /// Multicast packets received.
    multicast = 8,
    /// Collisions.
    collisions = 9,
    /// Frames of a wrong length.
    rx_length_errors = 10,
    /// Overruns of the receiver.
    rx_over_errors = 11,
    /// Frames with a wrong checksum.
    rx_crc_errors = 12,
    /// Frames that were misaligned.
    rx_frame_errors = 13,
    /// Overruns of the receive FIFO.
    rx_fifo_errors = 14,
    /// Packets that the host missed: no buffer was there.
    rx_missed_errors = 15,
    /// Transmissions given up.
    tx_aborted_errors = 16,
    /// Transmissions that failed for want of a carrier.
    tx_carrier_errors = 17,
    /// Underruns of the transmit FIFO.
    tx_fifo_errors = 18,
    /// Heartbeat errors.
    tx_heartbeat_errors = 19,
    /// Late collisions.
    tx_window_errors = 20,
    /// Compressed packets received.
    rx_compressed = 21,
    /// Compressed packets sent.
    tx_compressed = 22,
    /// Packets that no protocol wanted, or that arrived on an inactive device.
    rx_nohandler = 23,
}

impl LinkStats {
    /// Reads the payload of an RTM_NEWSTATS message.
    pub(super) fn parse(payload: &[u8]) -> Option<Self> {
        let attributes = payload.get(STATS_HEADER_BYTES..)?;
        attribute(attributes, IFLA_STATS_LINK_64).and_then(Self::from_bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::netlink::{HEADER_BYTES, Request};
    use super::*;

    #[test]
    fn a_link_message_is_read() {
        let mut header = [0_u8; LINK_HEADER_BYTES];
        header[2..4].copy_from_slice(&1_u16.to_ne_bytes());
        header[4..8].copy_from_slice(&7_i32.to_ne_bytes());
        header[8..12].copy_from_slice(&1_u32.to_ne_bytes());
        let mut message = Request::new(16, 0, &header);
        message.put_text(IFLA_IFNAME, "va").put(IFLA_MTU, &1500_u32.to_ne_bytes());
        message.put(IFLA_ADDRESS, &[2, 0, 0, 0, 0, 1]).put(IFLA_LINK, &3_u32.to_ne_bytes());
        message.nest(IFLA_XDP, |xdp| {
            xdp.put(IFLA_XDP_ATTACHED, &[1]).put(IFLA_XDP_PROG_ID, &9_u32.to_ne_bytes());
        });
        let link = Link::parse(&message.bytes()[HEADER_BYTES..]).unwrap();
        assert_eq!((link.ifindex, link.name.as_str(), link.mtu), (7, "va", 1500));
        assert_eq!(
            (link.peer_ifindex, link.xdp, link.xdp_program_id),
            (Some(3), Some(XdpMode::Driver), Some(9))
        );
        assert!(link.up && !link.loopback && link.mac == Some([2, 0, 0, 0, 0, 1]) && link.carrier.is_none());
    }

    #[test]
    fn an_older_kernel_lacks_the_last_counter() {
        let words: Vec<u8> = (0..24_u64).flat_map(u64::to_ne_bytes).collect();
        let stats = LinkStats::from_bytes(&words).unwrap();
        assert_eq!((stats.tx_packets, stats.rx_nohandler, stats.rx_otherhost_dropped), (1, 23, None));
        assert_eq!(stats.fields().count(), 24);
        assert_eq!(LinkStats::from_bytes(&words[..100]), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parsers_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Link::parse(&bytes);
            let _ = LinkStats::parse(&bytes);
        }
    }
}
