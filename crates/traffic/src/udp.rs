//! UDP sockets and sendmmsg(2): what a program that uses the network as everybody does would send.
//!
//! Frames are given as to every other backend, and their headers say only where from and where to: a socket is bound to each
//! source address and port, and the payload goes to the destination address and port. **All else in the headers is the kernel's
//! business**: MAC addresses, VLAN tags, TTL, TOS, identification, options, padding and checksums are those that it writes for a
//! socket, and routes and neighbours say which station of the device's link a packet goes to. A frame that is no whole UDP packet
//! is refused.
//!
//! Confirmed are the datagrams that sendmmsg accepted: IP handed them to the queueing discipline or the driver, which did not
//! report a drop. That is no delivery. A datagram that passes sockets passes the packet filter's output hooks, routes,
//! neighbours and the queueing discipline, none of which a packet socket needs to meet: it costs more, and it is what
//! applications pay.
//!
//! Frames of one call are handed over socket by socket, and with GSO destination by destination, so that many can go at once:
//! the order within a flow is kept, that among flows only from call to call.
//!
//! ICMP errors that come back for earlier datagrams end a call early and are passed over.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use linux::SyscallError;
use linux::udp::{DatagramBatch, Handed, SenderSpec, UdpSender};
use thiserror::Error;

use crate::backend::{Backend, BackendKind, STALL, SendError, Sent};
use crate::frames::Frames;
use crate::headers::{self, Flow, UDP};

/// The kernel takes at most 1024 messages in a call (UIO_MAXIOV, net/socket.c, 6.18).
const BATCH_MAX: usize = 1024;
/// The most source addresses and ports: each is a socket, with memory of its own in the kernel.
const SOURCES_MAX: usize = 1024;
/// Room for what else the process has open.
const OTHER_FILES: u64 = 256;

/// How to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UdpSpec {
    /// The device, in the calling thread's namespace: the only one that datagrams leave by, also where routes lead elsewhere.
    pub ifindex: u32,
    /// Datagrams in a call, at most 1024.
    pub batch: usize,
    /// One message for up to 64 datagrams of a call that have one source, one destination and one size (UDP_SEGMENT). The
    /// kernel takes or refuses them together; where the device has no segmentation of its own, they are cut before it gets them,
    /// and of drops among them only that of the last is reported.
    pub gso: bool,
}

impl UdpSpec {
    /// 64 datagrams a call, without GSO.
    pub fn new(ifindex: u32) -> Self {
        Self { ifindex, batch: 64, gso: false }
    }
}

/// Why a frame cannot be sent by a socket.
#[derive(Debug, Error)]
pub enum UdpError {
    /// It is something else.
    #[error(
        "packet {packet} is no whole UDP packet ({found}), and a UDP socket sends nothing else: use tx-ring, mmsg or af-xdp"
    )]
    NotUdp {
        /// Its number, from 0.
        packet: u64,
        /// What it is.
        found: String,
    },
    /// It has a VLAN tag.
    #[error(
        "packet {packet} has a VLAN tag, which a UDP socket cannot write: send out of a VLAN device, or use tx-ring, mmsg or af-xdp"
    )]
    Tagged {
        /// Its number, from 0.
        packet: u64,
    },
    /// It has a port that a socket cannot have.
    #[error(
        "packet {packet} has {which} port 0, which no socket sends {from_or_to}: give it a port, or use tx-ring or mmsg"
    )]
    NoPort {
        /// Its number, from 0.
        packet: u64,
        /// `source` or `destination`.
        which: &'static str,
        /// `from` or `to`.
        from_or_to: &'static str,
    },
    /// There are too many sources.
    #[error(
        "packet {packet} comes from another source than {SOURCES_MAX} before it, and each source address and port is a \
         socket: use tx-ring, mmsg or af-xdp, which write any source"
    )]
    Sources {
        /// Its number, from 0.
        packet: u64,
    },
    /// The kernel refused.
    #[error(transparent)]
    Syscall(#[from] SyscallError),
}

/// Sends through UDP sockets, in batches.
#[derive(Debug)]
pub struct UdpSockets {
    sockets: Sockets,
    batch: DatagramBatch,
    frames: Frames,
    /// The most datagrams in one call.
    per_call: usize,
    gso: bool,
    /// Whether each slot always holds the same datagram, written once.
    fixed: bool,
    /// Of each slot, its socket.
    senders: Vec<usize>,
    /// Where the next round of slots begins.
    next: usize,
    /// Slots with datagrams that were not taken yet, in the order of their frames.
    pending: Vec<usize>,
    /// The same in the order in which they are handed over.
    order: Vec<usize>,
    /// Number of the frame that is written next.
    sequence: u64,
}

impl UdpSockets {
    /// Opens a socket for each source of the frames where these are given beforehand; for those that are written one by one,
    /// when they come up.
    ///
    /// # Errors
    /// Frames that no socket can send; an address that is not one of the calling thread's namespace.
    pub fn new(spec: &UdpSpec, mut frames: Frames) -> Result<Self, UdpError> {
        linux::limits::raise_open_files(SOURCES_MAX as u64 + OTHER_FILES);
        let per_call = spec.batch.clamp(1, BATCH_MAX);
        let fixed = frames.fixed_slots(per_call, per_call, BATCH_MAX);
        let slots = fixed.unwrap_or(per_call);
        let mut sockets = Sockets { ifindex: spec.ifindex, gso: spec.gso, ..Sockets::default() };
        let mut batch = DatagramBatch::new(slots, frames.l2_bytes_max())?;
        let mut senders = vec![0; slots];
        if fixed.is_some() {
            for (slot, sender) in senders.iter_mut().enumerate() {
                if let Some(socket) = sockets.write_slot(&mut batch, &mut frames, slot, slot as u64)? {
                    *sender = socket;
                }
            }
        }
        Ok(Self {
            sockets,
            batch,
            frames,
            per_call,
            gso: spec.gso,
            fixed: fixed.is_some(),
            senders,
            next: 0,
            pending: Vec::with_capacity(per_call),
            order: Vec::with_capacity(per_call),
            sequence: 0,
        })
    }

    /// Fills slots with the next frames, up to a call's worth; none when the frames have come to an end.
    fn refill(&mut self, wanted: u64) -> Result<(), UdpError> {
        let most = self.per_call.min(self.batch.len() - self.next);
        let count = usize::try_from(wanted).unwrap_or(usize::MAX).min(most);
        for slot in self.next..self.next + count {
            if !self.fixed {
                let (batch, frames) = (&mut self.batch, &mut self.frames);
                let Some(socket) = self.sockets.write_slot(batch, frames, slot, self.sequence)? else {
                    break;
                };
                self.senders[slot] = socket;
                self.sequence += 1;
            }
            self.pending.push(slot);
        }
        self.next = if self.fixed { (self.next + count) % self.batch.len() } else { 0 };
        Ok(())
    }

    /// Hands the first `count` pending datagrams over. What was taken is pending no more, whatever the result.
    fn hand_over(&mut self, count: usize, handed: &mut Handed) -> Result<(), SyscallError> {
        self.order.clear();
        self.order.extend_from_slice(&self.pending[..count]);
        let (senders, batch) = (&self.senders, &self.batch);
        if self.gso {
            // Slots of one round rise with their frames.
            self.order.sort_unstable_by_key(|&slot| (senders[slot], batch.destination(slot), slot));
        } else if self.sockets.open.len() > 1 {
            self.order.sort_unstable_by_key(|&slot| (senders[slot], slot));
        }
        let mut at = 0;
        let mut result = Ok(());
        while at < self.order.len() && result.is_ok() {
            let socket = self.senders[self.order[at]];
            let run = self.order[at..].iter().take_while(|&&slot| self.senders[slot] == socket).count();
            let before = handed.datagrams;
            let sender = &self.sockets.open[socket];
            result = sender.send(&mut self.batch, &self.order[at..at + run], STALL, handed);
            let taken = (handed.datagrams - before) as usize;
            at += taken;
            if taken < run {
                break;
            }
        }
        if at == count {
            self.pending.drain(..count);
        } else {
            let taken = &self.order[..at];
            self.pending.retain(|slot| !taken.contains(slot));
        }
        result
    }
}

impl Backend for UdpSockets {
    fn kind(&self) -> BackendKind {
        BackendKind::Udp
    }

    fn send(&mut self, packets: u64) -> Result<Sent, SendError> {
        let mut sent = Sent::default();
        while sent.offered < packets {
            let left = packets - sent.offered;
            if self.pending.is_empty() {
                self.refill(left).map_err(|error| refused(error, sent))?;
            }
            let count = self.pending.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            if count == 0 {
                break;
            }
            let mut handed = Handed::default();
            let result = self.hand_over(count, &mut handed);
            sent += Sent { offered: handed.datagrams, confirmed: handed.datagrams, calls: handed.calls };
            result.map_err(|error| refused(error.into(), sent))?;
            if handed.datagrams < count as u64 {
                break; // it has waited long enough
            }
        }
        Ok(sent)
    }

    fn ended(&self) -> bool {
        self.frames.ended() && self.pending.is_empty()
    }

    /// Nothing is ever open: what the kernel took is confirmed.
    fn flush(&mut self) -> Result<Sent, SendError> {
        Ok(Sent::default())
    }
}

fn refused(error: UdpError, sent: Sent) -> SendError {
    match error {
        UdpError::Syscall(source) => SendError::Syscall { backend: BackendKind::Udp, sent, source },
        other => SendError::Refused { backend: BackendKind::Udp, sent, reason: other.to_string() },
    }
}

/// A socket for each source.
#[derive(Debug, Default)]
struct Sockets {
    open: Vec<UdpSender>,
    by_source: HashMap<SocketAddr, usize>,
    /// The source of the last frame: it is mostly that of the next one.
    last: Option<(SocketAddr, usize)>,
    ifindex: u32,
    gso: bool,
}

impl Sockets {
    /// Writes a frame into a slot, and says by which socket it goes; none where there are no more frames.
    fn write_slot(
        &mut self,
        batch: &mut DatagramBatch,
        frames: &mut Frames,
        slot: usize,
        packet: u64,
    ) -> Result<Option<usize>, UdpError> {
        let Some(l2_bytes) = frames.write(packet, batch.slot_mut(slot)) else { return Ok(None) };
        let found = Datagram::of(&batch.slot_mut(slot)[..l2_bytes], packet)?;
        batch.set(slot, found.payload, found.destination);
        self.of(found.source, packet).map(Some)
    }

    fn of(&mut self, source: SocketAddr, packet: u64) -> Result<usize, UdpError> {
        if let Some((last, socket)) = self.last
            && last == source
        {
            return Ok(socket);
        }
        let socket = match self.by_source.get(&source) {
            Some(&socket) => socket,
            None => self.bind(source, packet)?,
        };
        self.last = Some((source, socket));
        Ok(socket)
    }

    fn bind(&mut self, source: SocketAddr, packet: u64) -> Result<usize, UdpError> {
        if self.open.len() == SOURCES_MAX {
            return Err(UdpError::Sources { packet });
        }
        // Several threads send the same frames, each by sockets of its own.
        let (ifindex, gso) = (Some(self.ifindex), self.gso);
        let spec = SenderSpec { ifindex, gso, reuse_port: true, ..SenderSpec::new(source) };
        self.open.push(UdpSender::bind(&spec)?);
        self.by_source.insert(source, self.open.len() - 1);
        Ok(self.open.len() - 1)
    }
}

/// What a socket needs to know of a frame.
#[derive(Debug, PartialEq, Eq)]
struct Datagram {
    source: SocketAddr,
    destination: SocketAddr,
    payload: std::ops::Range<usize>,
}

impl Datagram {
    fn of(frame: &[u8], packet: u64) -> Result<Self, UdpError> {
        if frame
            .get(12..14)
            .is_some_and(|kind| headers::ETHER_VLAN.map(u16::to_be_bytes).iter().any(|tag| tag == kind))
        {
            return Err(UdpError::Tagged { packet });
        }
        let found = headers::parse(frame);
        let (Flow::Ip { protocol: UDP, source, destination, ports: Some(ports) }, Some(segment)) =
            (found.flow, found.segment)
        else {
            return Err(UdpError::NotUdp { packet, found: found.flow.to_string() });
        };
        let with_port = |address: IpAddr, port, which, from_or_to| match port {
            0 => Err(UdpError::NoPort { packet, which, from_or_to }),
            port => Ok(SocketAddr::new(address, port)),
        };
        Ok(Self {
            source: with_port(source, ports.0, "source", "from")?,
            destination: with_port(destination, ports.1, "destination", "to")?,
            payload: segment.payload..segment.end,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::Ipv4Addr;

    use linux::udp::{ReceiverSpec, UdpReceiver};

    use super::*;
    use crate::headers::tests::{tcp6, udp4};

    /// The loopback's number in every namespace (net/core/dev.c, 6.18).
    const LOOPBACK: u32 = 1;

    /// A frame from a loopback address and port to a port there.
    fn frame(from: (u8, u16), to: u16, payload: &[u8]) -> Vec<u8> {
        let mut frame = udp4(payload);
        frame[26..30].copy_from_slice(&[127, 0, 0, from.0]);
        frame[30..34].copy_from_slice(&[127, 0, 0, 1]);
        frame[34..36].copy_from_slice(&from.1.to_be_bytes());
        frame[36..38].copy_from_slice(&to.to_be_bytes());
        frame
    }

    fn receivers<const N: usize>(gro: bool) -> [UdpReceiver; N] {
        let spec = ReceiverSpec {
            batch: 8,
            sources: true,
            gro,
            ..ReceiverSpec::new((Ipv4Addr::LOCALHOST, 0).into())
        };
        std::array::from_fn(|_| UdpReceiver::bind(&spec).unwrap())
    }

    /// Everything that a socket holds: source port and payload of each datagram.
    fn drain(receiver: &mut UdpReceiver) -> Vec<(u16, Vec<u8>)> {
        let mut all = Vec::new();
        loop {
            let batch = receiver.recv_batch().unwrap();
            if batch.slots == 0 {
                return all;
            }
            for slot in 0..batch.slots {
                let port = receiver.source(slot).unwrap().port();
                all.extend(receiver.segments(slot).map(|payload| (port, payload.to_vec())));
            }
        }
    }

    /// Ports that were free just now.
    fn free_ports<const N: usize>() -> [u16; N] {
        receivers::<N>(false).map(|receiver| receiver.address().port())
    }

    #[test]
    fn payloads_go_from_and_to_where_the_headers_say() {
        for (gso, generated) in [(false, false), (true, false), (false, true), (true, true)] {
            let (sources, mut ends) = (free_ports::<2>(), receivers::<2>(gso));
            let ports = ends.each_ref().map(|end| end.address().port());
            let of = move |number: u64| {
                let (source, end) = ((number % 2) as usize, (number / 2 % 2) as usize);
                frame((1, sources[source]), ports[end], &[number as u8; 30])
            };
            let frames = if generated {
                Frames::generated(72, move |number, room| room.copy_from_slice(&of(number)))
            } else {
                Frames::cycle((0..4).map(of).collect())
            };
            let mut backend =
                UdpSockets::new(&UdpSpec { batch: 8, gso, ..UdpSpec::new(LOOPBACK) }, frames.unwrap())
                    .unwrap();
            let sent = backend.send(21).unwrap() + backend.flush().unwrap();
            assert_eq!((sent.offered, sent.confirmed), (21, 21));
            let most = if generated { 21 } else { 4 };
            for (end, receiver) in ends.iter_mut().enumerate() {
                let got = drain(receiver);
                assert_eq!(got.len(), if end == 0 { 11 } else { 10 });
                for (source, own) in sources.iter().enumerate() {
                    let of_flow: Vec<_> = got.iter().filter(|(port, _)| port == own).collect();
                    let numbers = (0..21).filter(|number| number % 2 == source && number / 2 % 2 == end);
                    let expected: Vec<u8> = numbers.map(|number| (number % most) as u8).collect();
                    let found: Vec<u8> = of_flow.iter().map(|(_, payload)| payload[0]).collect();
                    assert_eq!(found, expected, "GSO {gso}, written {generated}, source {source}, end {end}");
                    assert!(of_flow.iter().all(|(_, payload)| payload.len() == 30));
                }
            }
        }
    }

    #[test]
    fn frames_have_an_end() {
        let (sources, mut ends) = (free_ports::<1>(), receivers::<1>(false));
        let port = ends[0].address().port();
        let frames = Frames::varied(60, move |number, room| {
            let frame = frame((1, sources[0]), port, &[7; 4]);
            room[..frame.len()].copy_from_slice(&frame);
            (number < 5).then_some(frame.len())
        });
        let mut backend = UdpSockets::new(&UdpSpec::new(LOOPBACK), frames.unwrap()).unwrap();
        assert_eq!((backend.send(3).unwrap().offered, backend.ended()), (3, false));
        assert_eq!((backend.send(3).unwrap().offered, backend.ended()), (2, true));
        assert_eq!(drain(&mut ends[0]).len(), 5);
    }

    #[test]
    fn what_no_socket_can_send_is_refused() {
        let refused = |frame: Vec<u8>| {
            UdpSockets::new(&UdpSpec::new(LOOPBACK), Frames::constant(frame).unwrap())
                .unwrap_err()
                .to_string()
        };
        assert!(refused(tcp6(b"1234")).contains("packet 0 is no whole UDP packet (tcp [fd00::1]:7"));
        let mut fragment = udp4(b"1234");
        fragment[20] = 0x20;
        assert!(refused(fragment).contains("no whole UDP packet"));
        let mut tagged = udp4(b"1234");
        tagged.splice(12..12, [0x81, 0, 0, 5]);
        assert!(refused(tagged).contains("packet 0 has a VLAN tag"));
        assert!(refused(frame((1, 0), 9, b"1")).contains("has source port 0"));
        assert!(refused(frame((1, 9), 0, b"1")).contains("has destination port 0"));
        let foreign = refused(udp4(b"1234"));
        assert!(foreign.contains("10.0.0.1 is no address of this namespace"), "{foreign}");
    }

    #[test]
    fn frames_written_one_by_one_are_refused_when_they_come_up() {
        let (sources, ends) = (free_ports::<1>(), receivers::<1>(false));
        let port = ends[0].address().port();
        let frames = Frames::generated(60, move |number, room| {
            let good = frame((1, sources[0]), port, &[1; 18]);
            let bad = udp4(&[1; 18]);
            room.copy_from_slice(if number < 3 { &good } else { &bad });
        });
        let mut backend =
            UdpSockets::new(&UdpSpec { batch: 3, ..UdpSpec::new(LOOPBACK) }, frames.unwrap()).unwrap();
        let error = backend.send(9).unwrap_err();
        assert_eq!(error.sent(), Sent { offered: 3, confirmed: 3, calls: 1 });
        assert!(error.to_string().contains("udp: bind socket on UDP 10.0.0.1:7"), "{error}");
    }

    #[test]
    fn sources_are_bounded() {
        // All of 127.0.0.0/8 is here.
        let ends = receivers::<1>(false);
        let (port, source) = (ends[0].address().port(), free_ports::<1>()[0]);
        let frames = Frames::generated(60, move |number, room| {
            let mut frame = frame((1, source), port, &[1; 18]);
            frame[28..30].copy_from_slice(&(number as u16 + 1).to_be_bytes());
            room.copy_from_slice(&frame);
        });
        let mut backend = UdpSockets::new(&UdpSpec::new(LOOPBACK), frames.unwrap()).unwrap();
        let error = backend.send(2000).unwrap_err();
        assert_eq!(error.sent().confirmed, SOURCES_MAX as u64);
        assert!(error.to_string().contains("packet 1024 comes from another source"), "{error}");
    }

    #[test]
    fn datagrams_are_read_from_headers() {
        let read = Datagram::of(&udp4(b"0123456789"), 0).unwrap();
        let expected = Datagram {
            source: "10.0.0.1:7".parse().unwrap(),
            destination: "10.0.0.2:9".parse().unwrap(),
            payload: 42..52,
        };
        assert_eq!(read, expected);
    }
}
