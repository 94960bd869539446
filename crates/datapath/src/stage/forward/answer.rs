//! ICMP errors, and questions for neighbours.

use std::net::IpAddr;

use pagefrag::{HEADROOM, PacketBuf};

use super::config::same_family;
use super::neighbour::Ask;
use super::{Arrival, Event, Forward};
use crate::batch::Verdict;
use crate::reason::Reason;
use crate::stage::{PortAddress, new_packet};
use crate::wire::arp::Arp;
use crate::wire::ethernet::{self, MacAddress, ether_type};
use crate::wire::icmp::error::{self, Problem, Sender};
use crate::wire::neighbour::{Own, write_solicitation};
use crate::wire::{self, Family, Frame, Parsed, arp, neighbour};

/// The shortest frame that a device sends.
const FRAME_BYTES_MIN: usize = 60;

impl Forward {
    /// Makes a packet the ICMP error about it, which goes back to where it came from; or drops it for this reason, if no error may be
    /// sent about it, or no further one now.
    #[cold]
    pub(super) fn answer(
        &mut self,
        packet: &mut PacketBuf,
        problem: Problem,
        reason: Reason,
        arrival: Arrival,
    ) -> Verdict {
        let dropped = Verdict::Drop(reason);
        // Whether it is an error itself is in the transport header, wherever that lies.
        if packet.linearize().is_err() {
            return dropped;
        }
        let Ok(Frame::Ip(parsed)) = wire::parse(packet.data()) else { return dropped };
        if let Err(silence) = error::may_send(problem, packet.data(), &parsed) {
            self.events.silent(silence);
            return dropped;
        }
        let Some(address) = self.address_towards(arrival.ingress, parsed.addresses.source()) else {
            self.events.count(Event::NoAddress);
            return dropped;
        };
        if !self.limit.allows(arrival.now_ns) {
            self.events.count(Event::Limited);
            return dropped;
        }
        let own = self.ports[usize::from(arrival.ingress)].mac;
        if write_around(packet, problem, address, own, &parsed).is_none() {
            return dropped;
        }
        self.events.count(problem.into());
        Verdict::Transmit(arrival.ingress)
    }

    /// Our address for packets that leave by this port: best one of a network that this host is in, else one of the port, else
    /// another one (RFC 1812 section 4.3.2.4, RFC 5227 section 2.3).
    pub(super) fn address_towards(&self, port: u8, host: IpAddr) -> Option<IpAddr> {
        let of_port = || self.ports[usize::from(port)].addresses.iter();
        let all = || self.ports.iter().flat_map(|port| &port.addresses);
        let fits = |own: &&PortAddress| same_family(own.address, host);
        of_port()
            .find(|own| own.has(host))
            .or_else(|| of_port().find(fits))
            .or_else(|| all().find(fits))
            .map(|own| own.address)
    }

    /// The frame that asks. None if there is no address to ask from.
    pub(super) fn question(&mut self, ask: &Ask) -> Option<PacketBuf> {
        let link = self.ports[usize::from(ask.port)].mac;
        let mut frame = [0; neighbour::FRAME_BYTES];
        let (bytes, event) = match (ask.address, self.address_towards(ask.port, ask.address)?) {
            (IpAddr::V4(target), IpAddr::V4(own)) => {
                let request = Arp::request(link, own.to_bits(), target.to_bits());
                (request.write_frame(&mut frame).ok()?, Event::ArpAsked)
            }
            (IpAddr::V6(target), IpAddr::V6(own)) => {
                let own = Own { link, address: own.to_bits() };
                (write_solicitation(&mut frame, own, target.to_bits()).ok()?, Event::NdAsked)
            }
            _ => return None,
        };
        if let Some(whom) = ask.whom {
            ethernet::readdress(&mut frame, whom, link);
        }
        let mut question = new_packet(frame.len());
        let bytes = bytes.max(FRAME_BYTES_MIN);
        question.put(bytes).ok()?.copy_from_slice(&frame[..bytes]);
        self.events.count(event);
        Some(question)
    }
}

const _: () = assert!(error::front_bytes(Family::V6) <= HEADROOM);
const _: () = assert!(arp::FRAME_BYTES <= FRAME_BYTES_MIN && FRAME_BYTES_MIN <= neighbour::FRAME_BYTES);

/// Puts link header, network header and ICMP header in front of the packet, in its headroom, and cuts off what is not quoted.
fn write_around(
    packet: &mut PacketBuf,
    problem: Problem,
    address: IpAddr,
    own: MacAddress,
    parsed: &Parsed,
) -> Option<()> {
    let family = parsed.addresses.family();
    let front_bytes = error::front_bytes(family);
    packet.trim(parsed.l3_offset + error::quoted_bytes(parsed));
    // The old link header gives way to the last of what is put in front.
    make_headroom(packet, front_bytes)?;
    packet.push(front_bytes).ok()?;
    let frame = packet.make_mut().ok()?;
    let (sender, ether_type) = match address {
        IpAddr::V4(v4) => (Sender { v4: v4.to_bits(), ..Sender::default() }, ether_type::IPV4),
        IpAddr::V6(v6) => (Sender { v6: v6.to_bits(), ..Sender::default() }, ether_type::IPV6),
    };
    debug_assert_eq!(family == Family::V4, address.is_ipv4());
    let link = ethernet::Header { destination: parsed.link_source, source: own, ether_type };
    link.write(frame).ok()?;
    error::write_front(frame.get_mut(ethernet::HEADER_BYTES..)?, problem, &sender, parsed).ok()
}

/// Moves a packet whose buffer has too little room in front.
fn make_headroom(packet: &mut PacketBuf, bytes: usize) -> Option<()> {
    if packet.headroom() >= bytes && packet.make_mut().is_ok() {
        return Some(());
    }
    let mut moved = new_packet(packet.head_len());
    moved.put(packet.head_len()).ok()?.copy_from_slice(packet.data());
    *packet = moved;
    Some(())
}
