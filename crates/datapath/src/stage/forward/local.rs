//! Packets for the router itself.

use std::net::IpAddr;

use pagefrag::PacketBuf;

use super::neighbour::{Learnt, News};
use super::{Arrival, Event, Forward};
use crate::batch::Verdict;
use crate::reason::Reason;
use crate::stage::new_packet;
use crate::wire::arp::{Arp, Operation};
use crate::wire::ethernet::MacAddress;
use crate::wire::icmp::{self, error::Problem};
use crate::wire::neighbour::{FRAME_BYTES, Neighbour, Own, write_advertisement};
use crate::wire::{self, Family, Frame, Parsed, ipv6, neighbour, protocol};

const CONSUMED: Verdict = Verdict::Drop(Reason::Consumed);

impl Forward {
    /// As RFC 826 has it, but that only who asks for us is remembered unasked (`arp_accept` 0, net/ipv4/arp.c, 6.18), and
    /// that the port must have the address that is asked for (`arp_ignore` 1).
    pub(super) fn arp(&mut self, packet: &mut PacketBuf, arp: &Arp, arrival: Arrival) -> Verdict {
        let sender = IpAddr::V4(arp.sender.into());
        if self.is_own(sender) {
            self.events.count(Event::Conflict);
            return CONSUMED;
        }
        let is_host = !arp.sender_link.is_multicast() && arp.sender_link != MacAddress::ZERO;
        let is_for_us = self.has(arrival.ingress, IpAddr::V4(arp.target.into()));
        // A probe has no sender, and is answered all the same (RFC 5227 section 2.1.1).
        if is_host && arp.sender != 0 {
            let remember = is_for_us && arp.operation == Operation::Request;
            self.learn(sender, arp.sender_link, remember, true, arrival);
        }
        if !is_host || !is_for_us || arp.operation != Operation::Request {
            return CONSUMED;
        }
        let answer = arp.answered_by(self.ports[usize::from(arrival.ingress)].mac);
        let written = packet.make_mut().is_ok_and(|frame| answer.write_frame(frame).is_ok());
        if !written {
            return CONSUMED;
        }
        self.events.count(Event::ArpAnswered);
        Verdict::Transmit(arrival.ingress)
    }

    /// A packet to a group: nothing is forwarded, and only neighbour discovery is looked at.
    pub(super) fn for_group(&mut self, packet: &mut PacketBuf, parsed: &Parsed, arrival: Arrival) -> Verdict {
        let is_v6 = parsed.addresses.family() == Family::V6;
        if is_v6 && parsed.protocol == protocol::ICMPV6 {
            return self.neighbour_discovery(packet, parsed, arrival).unwrap_or(CONSUMED);
        }
        Verdict::Drop(Reason::NotForwarded)
    }

    /// As `local`, of a packet whose headers were read before.
    pub(super) fn local_unparsed(&mut self, packet: &mut PacketBuf, arrival: Arrival) -> Verdict {
        if packet.linearize().is_err() {
            return Verdict::Drop(Reason::NoBuffer);
        }
        match wire::parse(packet.data()) {
            Ok(Frame::Ip(parsed)) => self.local(packet, &parsed, arrival),
            Ok(_) => Verdict::Drop(Reason::Unsupported),
            Err(malformed) => Verdict::Drop(Reason::Malformed(malformed)),
        }
    }

    /// A packet to one of our addresses, in one piece.
    pub(super) fn local(&mut self, packet: &mut PacketBuf, parsed: &Parsed, arrival: Arrival) -> Verdict {
        if parsed.fragment.is_some() {
            // Nothing is put together here.
            return Verdict::Drop(Reason::Unsupported);
        }
        match (parsed.protocol, parsed.addresses.family()) {
            (protocol::ICMPV6, Family::V6) => match self.neighbour_discovery(packet, parsed, arrival) {
                Some(verdict) => verdict,
                None => self.echo(packet, parsed, arrival),
            },
            (protocol::ICMP, Family::V4) => self.echo(packet, parsed, arrival),
            (protocol::UDP, _) => match wire::udp::read(packet.data(), parsed, wire::udp::Verify::Checksum) {
                Ok(_) => self.answer(packet, Problem::NoPort, Reason::NoSocket, arrival),
                Err(malformed) => Verdict::Drop(Reason::Malformed(malformed)),
            },
            _ => Verdict::Drop(Reason::NoSocket),
        }
    }

    fn echo(&mut self, packet: &mut PacketBuf, parsed: &Parsed, arrival: Arrival) -> Verdict {
        if parsed.link_source.is_multicast() {
            return CONSUMED;
        }
        let Ok(frame) = packet.make_mut() else { return Verdict::Drop(Reason::NoBuffer) };
        match icmp::answer_echo(frame, parsed) {
            Ok(true) => {
                self.events.count(Event::Echo);
                Verdict::Transmit(arrival.ingress)
            }
            Ok(false) => CONSUMED,
            Err(malformed) => Verdict::Drop(Reason::Malformed(malformed)),
        }
    }

    /// None if it is something else that is not wrong.
    fn neighbour_discovery(
        &mut self,
        packet: &mut PacketBuf,
        parsed: &Parsed,
        arrival: Arrival,
    ) -> Option<Verdict> {
        let message = match neighbour::read(packet.data(), parsed) {
            Ok(message) => message?,
            Err(malformed) => return Some(Verdict::Drop(Reason::Malformed(malformed))),
        };
        let source = parsed.addresses.source();
        match message {
            Neighbour::Solicitation { target, source_link } => {
                let is_ours = self.has(arrival.ingress, IpAddr::V6(target.into()));
                if !is_ours || self.is_own(source) {
                    return Some(CONSUMED);
                }
                if let Some(link) = source_link.filter(|link| is_device(*link)) {
                    self.learn(source, link, true, true, arrival);
                }
                Some(self.advertise(packet, parsed, target, source_link, arrival))
            }
            Neighbour::Advertisement { target, target_link, replaces, .. } => {
                let target = IpAddr::V6(target.into());
                if self.is_own(target) {
                    self.events.count(Event::Conflict);
                } else if let Some(link) = target_link.filter(|link| is_device(*link)) {
                    self.learn(target, link, false, replaces, arrival);
                }
                Some(CONSUMED)
            }
        }
    }

    fn advertise(
        &mut self,
        packet: &mut PacketBuf,
        parsed: &Parsed,
        target: u128,
        source_link: Option<MacAddress>,
        arrival: Arrival,
    ) -> Verdict {
        if source_link.unwrap_or(parsed.link_source).is_multicast() {
            return CONSUMED;
        }
        let own = Own { link: self.ports[usize::from(arrival.ingress)].mac, address: target };
        let written = resized(packet, FRAME_BYTES)
            .is_some_and(|frame| write_advertisement(frame, own, parsed, source_link, true).is_ok());
        if !written {
            return CONSUMED;
        }
        self.events.count(Event::NdAnswered);
        Verdict::Transmit(arrival.ingress)
    }

    /// Whether this address is one of the port's.
    fn has(&self, port: u8, address: IpAddr) -> bool {
        self.ports[usize::from(port)].addresses.iter().any(|own| own.address == address)
    }

    /// Takes in whose link address this is, and tells the other workers. Only of hosts that are on this link.
    fn learn(&mut self, address: IpAddr, mac: MacAddress, remember: bool, replaces: bool, arrival: Arrival) {
        let port = arrival.ingress;
        let is_link_local = matches!(address, IpAddr::V6(address) if ipv6::is_link_local(address.to_bits()));
        let is_here =
            is_link_local || self.ports[usize::from(port)].addresses.iter().any(|own| own.has(address));
        // A gateway may be told to be on a link whose network it is not in.
        let is_wanted = self.neighbours.find(port, address).is_some();
        if !is_here && !is_wanted && self.others.is_empty() {
            return;
        }
        let news = News { port, address, mac, remember: remember && is_here, replaces };
        match self.neighbours.learn(&news, arrival.now_ns, &mut self.to_do) {
            Learnt::New => self.events.count(Event::Learnt),
            Learnt::Changed => self.events.count(Event::Changed),
            Learnt::Full => self.events.count(Event::Full),
            Learnt::Nothing | Learnt::Same => {}
        }
        for other in &self.others {
            // If it does not fit, the other one asks again.
            other.push(news).ok();
        }
    }
}

fn is_device(mac: MacAddress) -> bool {
    !mac.is_multicast() && mac != MacAddress::ZERO
}

/// A packet made this long, to be written anew.
fn resized(packet: &mut PacketBuf, bytes: usize) -> Option<&mut [u8]> {
    packet.trim(bytes);
    if let Some(missing) = bytes.checked_sub(packet.len())
        && packet.put(missing).is_err()
    {
        *packet = new_packet(bytes);
        packet.put(bytes).ok()?;
    }
    packet.make_mut().ok()
}
