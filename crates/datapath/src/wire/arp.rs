//! ARP for IPv4 on Ethernet (RFC 826, RFC 5227).

use super::{
    Malformed, NoRoom,
    ethernet::{self, MacAddress, ether_type},
    field::{u16_at, u32_at},
    room,
};

/// Bytes of a packet.
pub const PACKET_BYTES: usize = 28;
/// Bytes of a frame; devices pad it to 60.
pub const FRAME_BYTES: usize = ethernet::HEADER_BYTES + PACKET_BYTES;

/// Where the fields are.
pub mod fields {
    use std::ops::Range;

    /// 1: Ethernet.
    pub const HARDWARE: Range<usize> = 0..2;
    /// 0x0800: IPv4.
    pub const PROTOCOL: Range<usize> = 2..4;
    /// 6 and 4.
    pub const ADDRESS_BYTES: Range<usize> = 4..6;
    /// 1 asks, 2 answers.
    pub const OPERATION: Range<usize> = 6..8;
    /// Who sends it, on the link.
    pub const SENDER_LINK: Range<usize> = 8..14;
    /// Who sends it.
    pub const SENDER: Range<usize> = 14..18;
    /// Who is asked for, on the link.
    pub const TARGET_LINK: Range<usize> = 18..24;
    /// Who is asked for.
    pub const TARGET: Range<usize> = 24..28;
}

const ETHERNET: u16 = 1;

/// What it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Asks.
    Request,
    /// Answers.
    Reply,
    /// Something else (RARP and the like).
    Other(u16),
}

impl Operation {
    fn number(self) -> u16 {
        match self {
            Operation::Request => 1,
            Operation::Reply => 2,
            Operation::Other(number) => number,
        }
    }
}

/// A packet as values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arp {
    /// What it does.
    pub operation: Operation,
    /// Who sends it, on the link.
    pub sender_link: MacAddress,
    /// Who sends it. 0 in a probe (RFC 5227), from which nothing is learnt.
    pub sender: u32,
    /// Who is asked for, on the link.
    pub target_link: MacAddress,
    /// Who is asked for.
    pub target: u32,
}

impl Arp {
    /// From the start of a packet, behind the Ethernet header.
    pub fn read(packet: &[u8]) -> Result<Arp, Malformed> {
        let packet: &[u8; PACKET_BYTES] = packet.first_chunk().ok_or(Malformed::ArpShort)?;
        let kind = (u16_at(packet, fields::HARDWARE), u16_at(packet, fields::PROTOCOL));
        if kind != (ETHERNET, ether_type::IPV4) || packet[fields::ADDRESS_BYTES] != [6, 4] {
            return Err(Malformed::ArpKind);
        }
        let mut sender_link = MacAddress::ZERO;
        sender_link.0.copy_from_slice(&packet[fields::SENDER_LINK]);
        let mut target_link = MacAddress::ZERO;
        target_link.0.copy_from_slice(&packet[fields::TARGET_LINK]);
        let operation = match u16_at(packet, fields::OPERATION) {
            1 => Operation::Request,
            2 => Operation::Reply,
            other => Operation::Other(other),
        };
        let (sender, target) = (u32_at(packet, fields::SENDER), u32_at(packet, fields::TARGET));
        Ok(Arp { operation, sender_link, sender, target_link, target })
    }

    /// Asks who has `target`.
    pub fn request(sender_link: MacAddress, sender: u32, target: u32) -> Arp {
        Arp { operation: Operation::Request, sender_link, sender, target_link: MacAddress::ZERO, target }
    }

    /// The answer to this, by who has its target.
    #[must_use]
    pub fn answered_by(&self, link: MacAddress) -> Arp {
        Arp {
            operation: Operation::Reply,
            sender_link: link,
            sender: self.target,
            target_link: self.sender_link,
            target: self.sender,
        }
    }

    /// A whole frame: a request to everyone, anything else to its target. How long it is ([`FRAME_BYTES`]).
    pub fn write_frame(&self, frame: &mut [u8]) -> Result<usize, NoRoom> {
        let frame = room(frame, FRAME_BYTES, "an ARP frame")?;
        let destination = match self.operation {
            Operation::Request => MacAddress::BROADCAST,
            _ => self.target_link,
        };
        ethernet::Header { destination, source: self.sender_link, ether_type: ether_type::ARP }
            .write(frame)?;
        let packet = &mut frame[ethernet::HEADER_BYTES..];
        packet[fields::HARDWARE].copy_from_slice(&ETHERNET.to_be_bytes());
        packet[fields::PROTOCOL].copy_from_slice(&ether_type::IPV4.to_be_bytes());
        packet[fields::ADDRESS_BYTES].copy_from_slice(&[6, 4]);
        packet[fields::OPERATION].copy_from_slice(&self.operation.number().to_be_bytes());
        packet[fields::SENDER_LINK].copy_from_slice(&self.sender_link.0);
        packet[fields::SENDER].copy_from_slice(&self.sender.to_be_bytes());
        packet[fields::TARGET_LINK].copy_from_slice(&self.target_link.0);
        packet[fields::TARGET].copy_from_slice(&self.target.to_be_bytes());
        Ok(FRAME_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Frame, parse};

    const US: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
    const THEM: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);

    #[test]
    fn a_request_and_its_answer_byte_by_byte() {
        let request = Arp::request(US, 0x0a00_0001, 0x0a00_0002);
        let mut frame = [0xee; 60];
        assert_eq!(request.write_frame(&mut frame), Ok(42));
        #[rustfmt::skip]
        assert_eq!(frame[..43], [
            0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 0x08, 0x06,
            0, 1, 8, 0, 6, 4, 0, 1,
            2, 0, 0, 0, 0, 1, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2,
            0xee,
        ]);
        assert_eq!(parse(&frame), Ok(Frame::Arp(request)));
        let reply = request.answered_by(THEM);
        reply.write_frame(&mut frame).unwrap();
        #[rustfmt::skip]
        assert_eq!(frame[..42], [
            2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x06,
            0, 1, 8, 0, 6, 4, 0, 2,
            2, 0, 0, 0, 0, 2, 10, 0, 0, 2, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1,
        ]);
        assert_eq!(parse(&frame), Ok(Frame::Arp(reply)));
    }

    #[test]
    fn other_kinds_and_short_ones_are_refused() {
        let mut frame = [0; 42];
        Arp::request(US, 1, 2).write_frame(&mut frame).unwrap();
        for at in 14..20 {
            let mut other = frame;
            other[at] ^= 1;
            assert_eq!(parse(&other), Err(Malformed::ArpKind), "{at}");
        }
        for short in 14..42 {
            assert_eq!(parse(&frame[..short]), Err(Malformed::ArpShort));
        }
        frame[21] = 3;
        let Ok(Frame::Arp(arp)) = parse(&frame) else { panic!() };
        assert_eq!(arp.operation, Operation::Other(3));
        assert!(arp.write_frame(&mut frame[..41]).is_err());
    }
}
