//! Frames on the wire of a synthetic device.

use std::net::Ipv4Addr;
use std::sync::Arc;

use anyhow::Result;
use datapath::device::{Frames, Synthetic};
use datapath::wire::checksum::Sum;
use template::{Addresses, CheckedFrame, UdpFrame};

use crate::cell::FIRST_PORT;

/// Entries of a receiving ring where pages are landed in, as drivers have them by default (IGB_DEFAULT_RXD, Linux 6.18).
pub(crate) const RING_ENTRIES: usize = 256;

/// Bytes of a frame that are written anew each time: all headers of ours.
const HEAD_BYTES: usize = 64;

/// Where the fields are that differ between frames (Ethernet, IPv4 without options, UDP).
const IP_CHECKSUM: usize = 24;
const IP_SOURCE: usize = 26;
const IP_DESTINATION: usize = 30;
const UDP: usize = 34;
const UDP_DESTINATION: usize = 36;
const UDP_CHECKSUM: usize = 40;
const UDP_PROTOCOL: u16 = 17;

/// The hosts on the synthetic wire, from the addresses set aside for benchmarks (RFC 2544 appendix C.2.2).
pub(crate) const SENDER_MAC: [u8; 6] = [2, 0, 0, 0, 1, 1];
/// The MAC address of the device under test: of its first port.
pub(crate) const PORT_MAC: [u8; 6] = [2, 0, 0, 0, 1, 2];
pub(crate) const SENDER: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// The address of the device under test on its first port.
pub(crate) const PORT_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);

/// Where the frames are addressed to.
#[derive(Debug, Clone)]
pub(crate) enum Destinations {
    /// To one address.
    One(Ipv4Addr),
    /// To one of these after the other. A list, and not a random number for each frame: only so is every one of them sure to be
    /// within a table, and it is read in order, which costs a sixteenth of a cache line for each frame, where picking a prefix at
    /// random would cost a miss. It must be much longer than the CPU's caches have lines, or they would hold
    /// what is looked up.
    List(Arc<[u32]>),
}

/// UDP frames, as the kernel's paths get them.
#[derive(Debug, Clone)]
pub(crate) struct Wire {
    /// With the FCS.
    pub(crate) frame_bytes: u32,
    /// Flows, which differ in the destination port.
    pub(crate) flows: u16,
    pub(crate) destinations: Destinations,
}

impl Wire {
    /// Bytes of a frame without FCS.
    pub(crate) fn l2_bytes(&self) -> usize {
        self.frame().l2_bytes()
    }

    /// A receiving queue with these frames.
    ///
    /// # Errors
    /// Where there is no such frame.
    pub(crate) fn queue(&self) -> Result<Synthetic> {
        let checked = self.frame().check()?;
        let frames = match &self.destinations {
            Destinations::One(_) => Frames::Cycle(
                (0..self.copies())
                    .map(|frame| empty_behind_the_head(&checked, frame % self.flows).into())
                    .collect(),
            ),
            Destinations::List(addresses) => {
                let mut maker = Maker::new(&checked, Arc::clone(addresses));
                Frames::Made { l2_bytes: checked.l2_bytes(), make: Box::new(move |frame| maker.write(frame)) }
            }
        };
        Ok(Synthetic::new(frames, RING_ENTRIES)?)
    }

    /// Frames in memory of their own, the flows in turn: as many as a ring has, so that copying reads what is not at hand.
    fn copies(&self) -> u16 {
        self.flows.saturating_mul((RING_ENTRIES as u16).div_ceil(self.flows).max(1))
    }

    fn frame(&self) -> UdpFrame {
        let destination = match &self.destinations {
            Destinations::One(address) => *address,
            Destinations::List(_) => Ipv4Addr::UNSPECIFIED,
        };
        UdpFrame {
            source_mac: SENDER_MAC,
            destination_mac: PORT_MAC,
            addresses: Addresses::V4 { source: SENDER, destination },
            source_port: 1024,
            destination_port: FIRST_PORT,
            flows: self.flows,
            sources: 1,
            stamp: false,
            frame_bytes: self.frame_bytes,
        }
    }
}

/// A frame whose payload is zeros behind the head, as in a page that only heads were written to; with the checksum of that.
fn empty_behind_the_head(checked: &CheckedFrame, flow: u16) -> Vec<u8> {
    let mut frame = checked.to_vec(flow.into());
    if frame.len() > HEAD_BYTES {
        frame[HEAD_BYTES..].fill(0);
        frame[UDP_CHECKSUM..UDP_CHECKSUM + 2].fill(0);
        let datagram = &frame[UDP..];
        let sum = Sum::ZERO.bytes(&frame[IP_SOURCE..UDP]).word(UDP_PROTOCOL).word(datagram.len() as u16);
        let checksum = sum.bytes(datagram).finish_udp();
        frame[UDP_CHECKSUM..UDP_CHECKSUM + 2].copy_from_slice(&checksum.to_be_bytes());
    }
    frame
}

/// Writes one frame after the other: the head from a template, then address, port and checksums. What is behind
/// the head lies in the page already, or is zeros, as no checksum of UDP is written.
struct Maker {
    head: Vec<u8>,
    ip_sum: u32,
    addresses: Arc<[u32]>,
    next: usize,
    flow: u16,
    flows: u16,
}

impl Maker {
    fn new(frame: &CheckedFrame, addresses: Arc<[u32]>) -> Self {
        let mut head = frame.to_vec(0);
        head.truncate(HEAD_BYTES);
        // No checksum (RFC 768): the payload behind the head is not known here.
        head[UDP_CHECKSUM..UDP_CHECKSUM + 2].fill(0);
        let ip_sum = u32::from(!u16::from_be_bytes([head[IP_CHECKSUM], head[IP_CHECKSUM + 1]]));
        Self { head, ip_sum, addresses, next: 0, flow: 0, flows: frame.flows() }
    }

    #[inline]
    fn write(&mut self, frame: &mut [u8]) {
        let head = self.head.len().min(frame.len());
        frame[..head].copy_from_slice(&self.head[..head]);
        let address = self.addresses[self.next];
        self.next = if self.next + 1 == self.addresses.len() { 0 } else { self.next + 1 };
        // The template is for the address 0, so that its sum grows by just this one's (RFC 1071 section 2).
        let sum = self.ip_sum + (address >> 16) + (address & 0xffff);
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = (sum & 0xffff) + (sum >> 16);
        frame[IP_CHECKSUM..IP_CHECKSUM + 2].copy_from_slice(&(!(sum as u16)).to_be_bytes());
        frame[IP_DESTINATION..IP_DESTINATION + 4].copy_from_slice(&address.to_be_bytes());
        if self.flows > 1 {
            frame[UDP_DESTINATION..UDP_DESTINATION + 2]
                .copy_from_slice(&(FIRST_PORT + self.flow).to_be_bytes());
            self.flow = if self.flow + 1 == self.flows { 0 } else { self.flow + 1 };
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use datapath::device::Lend;

    use super::*;

    fn frames(wire: &Wire, count: usize) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        Lend::lend(&mut wire.queue().unwrap(), count, &mut |frame| frames.push(frame.to_vec())).unwrap();
        frames
    }

    /// The sum over a header with its checksum in it (RFC 1071).
    fn folded_sum(header: &[u8]) -> u32 {
        let words = header.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
        words.fold(0, |sum, word| (sum + word) % 0xffff)
    }

    #[test]
    fn listed_destinations_come_in_order_with_right_checksums() {
        let addresses = [0x0a00_0001, 0xffff_ffff, 0, 0xc612_fffe];
        for frame_bytes in [64, 272, 9_018] {
            let wire = Wire { frame_bytes, flows: 3, destinations: Destinations::List(addresses.into()) };
            let frames = frames(&wire, 9);
            assert_eq!(frames.len(), 9);
            for (number, frame) in frames.iter().enumerate() {
                assert_eq!(frame.len(), frame_bytes as usize - 4);
                assert_eq!(folded_sum(&frame[14..34]), 0, "frame {number}: {frame:02x?}");
                assert_eq!(frame[30..34], addresses[number % 4].to_be_bytes());
                assert_eq!(frame[36..38], (FIRST_PORT + number as u16 % 3).to_be_bytes());
            }
        }
    }

    #[test]
    fn what_is_behind_the_head_is_zeros_and_in_the_checksum() {
        for frame_bytes in [64, 68, 69, 272, 9_018] {
            let wire = Wire { frame_bytes, flows: 2, destinations: Destinations::One(PORT_ADDRESS) };
            for frame in frames(&wire, 2) {
                assert!(frame[64.min(frame.len())..].iter().all(|byte| *byte == 0));
                let mut summed = frame[26..].to_vec(); // addresses and datagram, and what else is in a pseudo header
                summed.extend([0, 17]);
                summed.extend((frame.len() as u16 - 34).to_be_bytes());
                let padded = if summed.len() % 2 == 0 { summed } else { padded(summed, frame.len() - 26) };
                assert_eq!(folded_sum(&padded), 0, "{frame_bytes}");
            }
        }
    }

    /// A zero behind an odd number of bytes (RFC 768).
    fn padded(mut bytes: Vec<u8>, at: usize) -> Vec<u8> {
        bytes.insert(at, 0);
        bytes
    }

    #[test]
    fn one_destination_has_a_frame_for_each_flow() {
        let wire = Wire { frame_bytes: 64, flows: 2, destinations: Destinations::One(PORT_ADDRESS) };
        let frames = frames(&wire, 3);
        assert_eq!(frames[0], frames[2]);
        assert_ne!(frames[0], frames[1]);
        assert_eq!((frames[0].len(), wire.l2_bytes()), (60, 60));
    }
}
