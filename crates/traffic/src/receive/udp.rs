//! A UDP socket: what a program on this host would get.

use std::net::SocketAddr;
use std::time::Duration;

use linux::udp::{ReceiverSpec, UdpReceiver};

use super::tally::Tally;
use super::{Loss, ReceiveError, Receiver, ReceiverKind, failed};
use crate::headers::{Flow, UDP};

/// Batches that one call takes at most, so that a fast sender cannot keep it for ever.
const BATCHES_MAX: usize = 1024;

/// Receives datagrams. A flow's destination is the address that the socket is bound to, which may be the unspecified one.
#[derive(Debug)]
pub struct Udp {
    socket: UdpReceiver,
}

impl Udp {
    /// Binds a socket, with 16 MiB of memory where that is allowed; whole datagrams are kept.
    ///
    /// # Errors
    /// Those of [`UdpReceiver::bind`].
    pub fn bind(address: SocketAddr) -> Result<Self, ReceiveError> {
        let spec = ReceiverSpec { sources: true, datagram_bytes: 1 << 16, ..ReceiverSpec::new(address) };
        let socket = UdpReceiver::bind(&spec).map_err(failed(ReceiverKind::Udp))?;
        Ok(Self { socket })
    }

    /// The address, with the port that the kernel chose.
    pub fn address(&self) -> SocketAddr {
        self.socket.address()
    }

    /// Socket memory as the kernel counts it.
    pub fn receive_buffer_bytes(&self) -> usize {
        self.socket.receive_buffer_bytes()
    }

    fn take(&mut self, tally: &mut Tally) -> Result<u64, ReceiveError> {
        let to = self.socket.address();
        let mut datagrams = 0;
        for _ in 0..BATCHES_MAX {
            let batch = self.socket.recv_batch().map_err(failed(ReceiverKind::Udp))?;
            if batch.datagrams == 0 {
                break;
            }
            for index in 0..batch.datagrams {
                // Of an IP socket the kernel always tells the sender.
                let from = self.socket.source(index).unwrap_or(to);
                let flow = Flow::Ip {
                    protocol: UDP,
                    source: from.ip(),
                    destination: to.ip(),
                    ports: Some((from.port(), to.port())),
                };
                tally.datagram(flow, self.socket.datagram(index));
            }
            datagrams += batch.datagrams as u64;
        }
        Ok(datagrams)
    }
}

impl Receiver for Udp {
    fn kind(&self) -> ReceiverKind {
        ReceiverKind::Udp
    }

    fn poll(&mut self, timeout: Duration, tally: &mut Tally) -> Result<u64, ReceiveError> {
        self.socket.wait_readable(timeout).map_err(failed(ReceiverKind::Udp))?;
        self.take(tally)
    }

    fn finish(&mut self, tally: &mut Tally) -> Result<(), ReceiveError> {
        self.take(tally).map(|_| ())
    }

    fn losses(&mut self) -> Result<Vec<Loss>, ReceiveError> {
        let frames = self.socket.drops().map_err(failed(ReceiverKind::Udp))?;
        Ok(vec![Loss {
            reason: "no room in the socket, or a wrong checksum",
            counter: "SO_MEMINFO drops",
            frames,
        }])
    }
}
