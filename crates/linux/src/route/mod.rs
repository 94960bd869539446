//! Links, addresses, routes, neighbours and queueing disciplines over NETLINK_ROUTE: what `ip`, `bridge` and `tc` do, as
//! calls.
//!
//! Requests are typed messages (`netlink-packet-route`). Answers are read attribute by attribute here: a
//! typed reader gives up on a whole message when one attribute is not as it expects, and then a device would
//! be missing because of an attribute that nobody asked for.

mod link;
pub(crate) mod netlink;
mod qdisc;

use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST, NetlinkMessage};
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags,
    LinkInfo, LinkMessage,
};
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::SyscallError;
use netlink::{Channel, Request, Until, attributes, u32_at};

pub use link::{Link, LinkStats, VethEnd, XdpMode};
pub use qdisc::QdiscStats;

const RTM_NEWLINK: u16 = 16;
const RTM_NEWROUTE: u16 = 24;
const RTM_NEWSTATS: u16 = 92;
const RTM_GETSTATS: u16 = 94;
/// `IFLA_STATS_FILTER_BIT(IFLA_STATS_LINK_64)` (include/uapi/linux/if_link.h, 6.18).
const STATS_FILTER_LINK_64: u32 = 1;

/// A NETLINK_ROUTE socket. It belongs to the network namespace of the thread that opened it, and stays there
/// whatever thread uses it.
#[derive(Debug)]
pub struct RouteSocket {
    channel: Channel,
}

impl RouteSocket {
    /// Opens a socket in the calling thread's namespace.
    ///
    /// # Errors
    /// Where no more descriptors are to be had.
    pub fn open() -> Result<Self, SyscallError> {
        Ok(Self { channel: Channel::open(libc::NETLINK_ROUTE as isize, "open route netlink socket")? })
    }

    /// The device of this name, if there is one.
    ///
    /// # Errors
    /// Any refusal except that there is no such device (ENODEV).
    pub fn link_by_name(&mut self, name: &str) -> Result<Option<Link>, SyscallError> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        match self.links_matching(message, NLM_F_ACK, name) {
            Ok(links) => Ok(links.into_iter().next()),
            Err(error) if error.errno() == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All devices of the namespace.
    ///
    /// # Errors
    /// EINTR where devices came or went meanwhile: ask again.
    pub fn links(&mut self) -> Result<Vec<Link>, SyscallError> {
        self.links_matching(LinkMessage::default(), NLM_F_DUMP, "")
    }

    fn links_matching(
        &mut self,
        message: LinkMessage,
        flags: u16,
        on: &str,
    ) -> Result<Vec<Link>, SyscallError> {
        let mut links = Vec::new();
        self.ask(RouteNetlinkMessage::GetLink(message), flags, "read link", on, |kind, payload| {
            links.extend((kind == RTM_NEWLINK).then(|| Link::parse(payload)).flatten());
        })?;
        Ok(links)
    }

    /// Makes a veth pair, each end in its namespace.
    ///
    /// # Errors
    /// EEXIST (a name is taken), ERANGE (a name is too long), EOPNOTSUPP (the kernel has no veth), EPERM.
    pub fn create_veth(&mut self, a: &VethEnd<'_>, b: &VethEnd<'_>) -> Result<(), SyscallError> {
        let mut peer = LinkMessage::default();
        peer.attributes = end_attributes(b);
        let mut message = LinkMessage::default();
        message.attributes = end_attributes(a);
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
        ]));
        self.create_link(message, "create veth pair", &format!("{} and {}", a.name, b.name))
    }

    /// Makes a bridge without spanning tree, the kernel's defaults otherwise.
    ///
    /// # Errors
    /// EEXIST (the name is taken), EOPNOTSUPP (the kernel has no bridge), EPERM.
    pub fn create_bridge(&mut self, name: &str) -> Result<(), SyscallError> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        message.attributes.push(LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Bridge)]));
        self.create_link(message, "create bridge", name)
    }

    fn create_link(
        &mut self,
        message: LinkMessage,
        call: &'static str,
        on: &str,
    ) -> Result<(), SyscallError> {
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
        self.ask(RouteNetlinkMessage::NewLink(message), flags, call, on, |_, _| {})
    }

    /// Deletes a device. A veth takes its peer with it.
    ///
    /// # Errors
    /// ENODEV, EPERM, EOPNOTSUPP for a device that is not software.
    pub fn delete_link(&mut self, ifindex: u32) -> Result<(), SyscallError> {
        let mut message = LinkMessage::default();
        message.header.index = ifindex;
        let message = RouteNetlinkMessage::DelLink(message);
        self.ask(message, NLM_F_ACK, "delete link", &format!("ifindex {ifindex}"), |_, _| {})
    }

    /// Makes a device a port of a bridge (or of another master).
    ///
    /// # Errors
    /// EBUSY, EINVAL, ELOOP where the two do not fit.
    pub fn set_master(&mut self, ifindex: u32, master_ifindex: u32) -> Result<(), SyscallError> {
        self.set_link(ifindex, LinkAttribute::Controller(master_ifindex), "set master of link")
    }

    /// Switches a device on.
    ///
    /// # Errors
    /// ENODEV, EPERM, or what the driver answers.
    pub fn set_up(&mut self, ifindex: u32) -> Result<(), SyscallError> {
        self.set_flags(ifindex, LinkFlags::Up, LinkFlags::Up, "set link up")
    }

    /// Whether all of these devices carry frames, waiting for it as long as `patience`. A veth end that is up drops what it is
    /// given, and says that it was sent, until the kernel has noticed that its peer is up as well (`linkwatch_event`,
    /// net/core/link_watch.c; the qdisc is `noop` until then, net/sched/sch_generic.c, 6.18).
    ///
    /// # Errors
    /// When the kernel does not list its devices.
    pub fn wait_until_carrying(
        &mut self,
        ifindexes: &[u32],
        patience: std::time::Duration,
    ) -> Result<bool, SyscallError> {
        let start = std::time::Instant::now();
        loop {
            let links = self.links()?;
            let carries =
                |index: &&u32| links.iter().any(|link| link.ifindex == **index && link.is_operational());
            if ifindexes.iter().filter(carries).count() == ifindexes.len() {
                return Ok(true);
            }
            if start.elapsed() > patience {
                return Ok(false);
            }
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
    }

    /// Switches a device off.
    ///
    /// # Errors
    /// ENODEV, EPERM.
    pub fn set_down(&mut self, ifindex: u32) -> Result<(), SyscallError> {
        self.set_flags(ifindex, LinkFlags::empty(), LinkFlags::Up, "set link down")
    }

    /// Keeps a device out of multicast groups and address resolution (IFF_MULTICAST off, IFF_NOARP on), so
    /// that IPv6 reports no membership of its own accord. Neighbours must then be given (`add_neighbour`). It
    /// works on what comes after it: addresses, forwarding, switching on.
    ///
    /// The groups of solicited nodes and of routers are joined, and reported, otherwise
    /// (`addrconf_join_solict`, `dev_forward_change`, net/ipv6/addrconf.c, 6.18), and no setting turns that
    /// off.
    ///
    /// # Errors
    /// ENODEV, EPERM.
    pub fn set_silent(&mut self, ifindex: u32) -> Result<(), SyscallError> {
        self.set_flags(ifindex, LinkFlags::Noarp, LinkFlags::Noarp | LinkFlags::Multicast, "silence link")
    }

    fn set_flags(
        &mut self,
        ifindex: u32,
        flags: LinkFlags,
        change_mask: LinkFlags,
        call: &'static str,
    ) -> Result<(), SyscallError> {
        let mut message = LinkMessage::default();
        message.header.index = ifindex;
        message.header.flags = flags;
        message.header.change_mask = change_mask;
        let message = RouteNetlinkMessage::SetLink(message);
        self.ask(message, NLM_F_ACK, call, &format!("ifindex {ifindex}"), |_, _| {})
    }

    /// Sets the largest payload of a frame, in bytes without the Ethernet header.
    ///
    /// # Errors
    /// EINVAL outside of what the device can do.
    pub fn set_mtu(&mut self, ifindex: u32, mtu_bytes: u32) -> Result<(), SyscallError> {
        self.set_link(ifindex, LinkAttribute::Mtu(mtu_bytes), "set MTU of link")
    }

    /// Sets the hardware address.
    ///
    /// # Errors
    /// EADDRNOTAVAIL for a multicast or zero address, EBUSY where it must be down first.
    pub fn set_mac(&mut self, ifindex: u32, mac: [u8; 6]) -> Result<(), SyscallError> {
        self.set_link(ifindex, LinkAttribute::Address(mac.to_vec()), "set hardware address of link")
    }

    /// Keeps the kernel from giving the device an IPv6 link-local address, and with it from the
    /// packets that announce one.
    ///
    /// # Errors
    /// EAFNOSUPPORT where the kernel or the device has no IPv6.
    pub fn set_no_link_local(&mut self, ifindex: u32) -> Result<(), SyscallError> {
        let mode = AfSpecInet6::AddrGenMode(In6AddrGenMode::None);
        let attribute = LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(vec![mode])]);
        self.set_link(ifindex, attribute, "set IPv6 address generation of link")
    }

    fn set_link(
        &mut self,
        ifindex: u32,
        what: LinkAttribute,
        call: &'static str,
    ) -> Result<(), SyscallError> {
        let mut message = LinkMessage::default();
        message.header.index = ifindex;
        message.attributes.push(what);
        let message = RouteNetlinkMessage::SetLink(message);
        self.ask(message, NLM_F_ACK, call, &format!("ifindex {ifindex}"), |_, _| {})
    }

    /// Gives a device an address and, by its prefix length, the route to its neighbours. An IPv6 address is
    /// usable at once (no duplicate address detection, so no packet is sent for it).
    ///
    /// # Errors
    /// EEXIST, EINVAL (prefix too long), EACCES or EPERM (IPv6 is off on the device).
    pub fn add_address(
        &mut self,
        ifindex: u32,
        address: IpAddr,
        prefix_bits: u8,
    ) -> Result<(), SyscallError> {
        let mut message = AddressMessage::default();
        message.header.family = family(address);
        message.header.prefix_len = prefix_bits;
        message.header.index = ifindex;
        if address.is_ipv6() {
            message.header.flags = AddressHeaderFlags::Nodad;
        }
        message.attributes = vec![AddressAttribute::Local(address), AddressAttribute::Address(address)];
        let on = format!("{address}/{prefix_bits}, ifindex {ifindex}");
        let message = RouteNetlinkMessage::NewAddress(message);
        self.ask(message, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, "add address", &on, |_, _| {})
    }

    /// Adds a route to the main table: `destination`/`prefix_bits`, to the next hop `via` where there is one,
    /// out of device `oif`.
    ///
    /// # Errors
    /// EEXIST, ENETUNREACH (next hop not reachable), ENETDOWN (device off).
    pub fn add_route(
        &mut self,
        (destination, prefix_bits): (IpAddr, u8),
        via: Option<IpAddr>,
        oif: u32,
    ) -> Result<(), SyscallError> {
        let mut message = RouteMessage::default();
        message.header.address_family = family(destination);
        message.header.destination_prefix_length = prefix_bits;
        message.header.table = RouteHeader::RT_TABLE_MAIN;
        message.header.protocol = RouteProtocol::Static;
        message.header.kind = RouteType::Unicast;
        message.header.scope = if via.is_some() { RouteScope::Universe } else { RouteScope::Link };
        message.attributes.push(RouteAttribute::Destination(RouteAddress::from(destination)));
        message.attributes.push(RouteAttribute::Oif(oif));
        message.attributes.extend(via.map(|via| RouteAttribute::Gateway(RouteAddress::from(via))));
        let on = format!("{destination}/{prefix_bits}, ifindex {oif}");
        let message = RouteNetlinkMessage::NewRoute(message);
        self.ask(message, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, "add route", &on, |_, _| {})
    }

    /// Adds a permanent neighbour: the address is never asked for with ARP or neighbour discovery.
    ///
    /// # Errors
    /// EEXIST, ENODEV, ENETDOWN.
    pub fn add_neighbour(&mut self, ifindex: u32, address: IpAddr, mac: [u8; 6]) -> Result<(), SyscallError> {
        let mut message = NeighbourMessage::default();
        message.header.family = family(address);
        message.header.ifindex = ifindex;
        message.header.state = NeighbourState::Permanent;
        message.attributes.push(NeighbourAttribute::Destination(address.into()));
        message.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.to_vec()));
        self.new_neighbour(message, "add neighbour", &format!("{address}, ifindex {ifindex}"))
    }

    /// Tells a bridge behind which of its ports a station is; the entry does not age.
    ///
    /// # Errors
    /// EOPNOTSUPP where the device is no port of a bridge, EEXIST.
    pub fn add_fdb(&mut self, port_ifindex: u32, mac: [u8; 6]) -> Result<(), SyscallError> {
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Bridge;
        message.header.ifindex = port_ifindex;
        message.header.state = NeighbourState::Noarp;
        message.header.flags = NeighbourFlags::Controller;
        message.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.to_vec()));
        let on = format!("{}, ifindex {port_ifindex}", mac_text(mac));
        self.new_neighbour(message, "add forwarding entry", &on)
    }

    fn new_neighbour(
        &mut self,
        message: NeighbourMessage,
        call: &'static str,
        on: &str,
    ) -> Result<(), SyscallError> {
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
        self.ask(RouteNetlinkMessage::NewNeighbour(message), flags, call, on, |_, _| {})
    }

    /// The counters of a device. Cheap (RTM_GETSTATS for these counters alone), for use around every slice.
    ///
    /// # Errors
    /// ENODEV; EOPNOTSUPP before Linux 4.7.
    pub fn link_stats(&mut self, ifindex: u32) -> Result<LinkStats, SyscallError> {
        let on = || format!("ifindex {ifindex}");
        let mut header = [0_u8; 12];
        header[4..8].copy_from_slice(&ifindex.to_ne_bytes());
        header[8..12].copy_from_slice(&STATS_FILTER_LINK_64.to_ne_bytes());
        let mut stats = None;
        self.channel
            .ask(Request::new(RTM_GETSTATS, 0, &header).bytes(), Until::FirstAnswer, |kind, payload| {
                stats = (kind == RTM_NEWSTATS).then(|| LinkStats::parse(payload)).flatten();
            })
            .map_err(|refusal| refusal.about("read counters of link", on()))?;
        stats.ok_or_else(|| {
            let error = io::Error::from(io::ErrorKind::InvalidData);
            SyscallError::new("read counters of link", on(), error)
        })
    }

    /// The devices that a default route of any table uses, IPv4 and IPv6, in ascending order. A test must not
    /// be run on these: the machine may be reached over them. A route to so much of the addresses that a few
    /// are as good as a default route counts as one: half of them, or `2000::/3`, all that are in use.
    ///
    /// # Errors
    /// EINTR where routes changed meanwhile; EOPNOTSUPP where a default route goes through a next hop object
    /// whose device the kernel does not tell here (`net.ipv4.nexthop_compat_mode` is 0).
    pub fn default_route_ifindexes(&mut self) -> Result<Vec<u32>, SyscallError> {
        const CALL: &str = "read default routes";
        let mut found = Vec::new();
        let mut hidden = false;
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut message = RouteMessage::default();
            message.header.address_family = family;
            let message = RouteNetlinkMessage::GetRoute(message);
            self.ask(message, NLM_F_DUMP, CALL, "", |kind, payload| {
                if kind == RTM_NEWROUTE {
                    match default_route_devices(payload) {
                        Some(devices) => found.extend(devices),
                        None => hidden = true,
                    }
                }
            })?;
        }
        if hidden {
            let error = io::Error::from_raw_os_error(libc::EOPNOTSUPP);
            return Err(SyscallError::new(CALL, "", error).with_detail("a next hop object hides its device"));
        }
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    fn ask(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
        call: &'static str,
        on: &str,
        on_answer: impl FnMut(u16, &[u8]),
    ) -> Result<(), SyscallError> {
        let mut message = NetlinkMessage::from(message);
        message.header.flags = NLM_F_REQUEST | flags;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        let until = if flags & NLM_F_DUMP == NLM_F_DUMP { Until::Done } else { Until::Acknowledged };
        self.channel.ask(&mut bytes, until, on_answer).map_err(|refusal| refusal.about(call, on))
    }
}

/// A hardware address as people write it: `02:00:00:00:00:01`.
pub fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

fn end_attributes(end: &VethEnd<'_>) -> Vec<LinkAttribute> {
    let mut attributes = vec![LinkAttribute::IfName(end.name.to_owned())];
    attributes.extend(end.mac.map(|mac| LinkAttribute::Address(mac.to_vec())));
    attributes.extend(end.mtu.map(LinkAttribute::Mtu));
    attributes.extend(end.tx_queues.map(LinkAttribute::NumTxQueues));
    attributes.extend(end.rx_queues.map(LinkAttribute::NumRxQueues));
    attributes.extend(end.netns.map(|netns| LinkAttribute::NetNsFd(netns.as_raw_fd())));
    attributes
}

/// The devices of a route message (`struct rtmsg` and attributes) if it is a default route that forwards;
/// empty if it is not; `None` if it is one and its device cannot be told.
fn default_route_devices(payload: &[u8]) -> Option<Vec<u32>> {
    const HEADER_BYTES: usize = 12;
    const RTA_OIF: u16 = 4;
    const RTA_MULTIPATH: u16 = 9;
    const RTA_NH_ID: u16 = 30;
    let (Some(&family), Some(&prefix_bits), Some(&kind)) = (payload.first(), payload.get(1), payload.get(7))
    else {
        return Some(Vec::new());
    };
    let most_bits = if i32::from(family) == libc::AF_INET6 { 3 } else { 1 };
    if prefix_bits > most_bits || kind != libc::RTN_UNICAST {
        return Some(Vec::new());
    }
    let mut devices = Vec::new();
    let mut through_object = false;
    for (kind, value) in attributes(payload.get(HEADER_BYTES..).unwrap_or_default()) {
        match kind {
            RTA_OIF => devices.extend(u32_at(value, 0)),
            RTA_MULTIPATH => devices.extend(next_hop_devices(value)),
            RTA_NH_ID => through_object = true,
            _ => {}
        }
    }
    (!devices.is_empty() || !through_object).then_some(devices)
}

/// The devices of a list of `struct rtnexthop`: length (2 bytes), flags, hops, device (4 bytes), attributes.
fn next_hop_devices(mut list: &[u8]) -> Vec<u32> {
    let mut devices = Vec::new();
    while let (Some(length), Some(device)) = (netlink::u16_at(list, 0), u32_at(list, 4)) {
        devices.push(device);
        let step = usize::from(length).max(8).next_multiple_of(4);
        list = list.get(step..).unwrap_or_default();
    }
    devices
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn route(prefix_bits: u8, kind: u8, fill: impl FnOnce(&mut Request)) -> Vec<u8> {
        let mut request = Request::new(RTM_NEWROUTE, 0, &[2, prefix_bits, 0, 0, 254, 4, 0, kind, 0, 0, 0, 0]);
        fill(&mut request);
        request.bytes()[netlink::HEADER_BYTES..].to_vec()
    }

    #[test]
    fn only_default_routes_that_forward_count() {
        let device = |request: &mut Request| {
            request.put(4, &7_u32.to_ne_bytes());
        };
        assert_eq!(default_route_devices(&route(0, 1, device)), Some(vec![7]));
        assert_eq!(default_route_devices(&route(24, 1, device)), Some(vec![]));
        assert_eq!(default_route_devices(&route(0, 7, device)), Some(vec![]), "unreachable");
    }

    #[test]
    fn routes_that_make_a_default_route_together_count() {
        let devices = |family: u8, prefix_bits| {
            let mut message = route(prefix_bits, 1, |request| {
                request.put(4, &7_u32.to_ne_bytes());
            });
            message[0] = family;
            default_route_devices(&message).unwrap()
        };
        assert_eq!((devices(2, 1), devices(2, 2)), (vec![7], vec![]), "0.0.0.0/1 and 128.0.0.0/1");
        assert_eq!((devices(10, 1), devices(10, 3), devices(10, 7)), (vec![7], vec![7], vec![]), "2000::/3");
    }

    #[test]
    fn every_next_hop_counts_and_a_hidden_one_is_said() {
        let hops: Vec<u8> = [3_u32, 9]
            .iter()
            .flat_map(|device| [&[8, 0, 0, 0][..], &device.to_ne_bytes()].concat())
            .collect();
        let object = |request: &mut Request| {
            request.put(30, &[1, 0, 0, 0]);
        };
        let told = route(0, 1, |request| {
            request.put(9, &hops);
            object(request);
        });
        assert_eq!(default_route_devices(&told), Some(vec![3, 9]));
        assert_eq!(default_route_devices(&route(0, 1, object)), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_route_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = default_route_devices(&bytes);
        }
    }
}
