//! Receivers that count.

use std::time::{Duration, Instant};

use linux::SyscallError;
use linux::bpf::Map;
use linux::udp::{ReceiverSpec, UdpReceiver};

/// Something that frames arrive at.
pub trait Sink {
    /// Frames that arrived since the sink was made.
    fn received(&mut self) -> Result<u64, SyscallError>;

    /// Frames that reached the sink and found no room in it, since it was made; `None` for one that cannot tell.
    fn dropped(&mut self) -> Result<Option<u64>, SyscallError>;
}

/// A UDP socket that the calling thread drains.
#[derive(Debug)]
pub struct UdpSink {
    receiver: UdpReceiver,
    received: u64,
    bytes: u64,
}

impl UdpSink {
    /// Binds a socket in the calling thread's namespace.
    pub fn bind(spec: &ReceiverSpec) -> Result<Self, SyscallError> {
        Ok(Self { receiver: UdpReceiver::bind(spec)?, received: 0, bytes: 0 })
    }

    /// The socket.
    pub fn receiver(&self) -> &UdpReceiver {
        &self.receiver
    }

    /// Payload bytes received.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes what is there without waiting; how many datagrams.
    pub fn drain(&mut self) -> Result<u64, SyscallError> {
        let mut taken = 0;
        loop {
            let batch = self.receiver.recv_batch()?;
            if batch.datagrams == 0 {
                self.received += taken;
                return Ok(taken);
            }
            taken += batch.datagrams as u64;
            self.bytes += batch.bytes as u64;
        }
    }

    /// Takes datagrams until `expected` have arrived or were dropped in all, or `timeout` is over; how many
    /// arrived in all. Waits only when nothing is there.
    pub fn drain_until(&mut self, expected: u64, timeout: Duration) -> Result<u64, SyscallError> {
        let deadline = Instant::now() + timeout;
        loop {
            self.drain()?;
            let left = deadline.saturating_duration_since(Instant::now());
            if self.received >= expected || left.is_zero() {
                return Ok(self.received);
            }
            if self.received + self.receiver.drops()? >= expected {
                // The last datagrams may have come between the two questions.
                self.drain()?;
                return Ok(self.received);
            }
            self.receiver.wait_readable(left)?;
        }
    }
}

impl Sink for UdpSink {
    /// Drains the socket first.
    fn received(&mut self) -> Result<u64, SyscallError> {
        self.drain()?;
        Ok(self.received)
    }

    /// The socket's drop counter; the same drops stand in the namespace's `RcvbufErrors` or `InCsumErrors`.
    fn dropped(&mut self) -> Result<Option<u64>, SyscallError> {
        self.receiver.drops().map(Some)
    }
}

/// A BPF program somewhere that counts in a per-CPU map.
#[derive(Debug)]
pub struct ProgramSink {
    map: Map,
    key: u32,
    start: u64,
}

impl ProgramSink {
    /// Counts from now on what the program adds to the first word of entry `key`.
    pub fn new(map: Map, key: u32) -> Result<Self, SyscallError> {
        let start = map.percpu_sum(key)?;
        Ok(Self { map, key, start })
    }

    /// Waits until `expected` frames have arrived, or `timeout` is over; how many have.
    pub fn wait_until(&mut self, expected: u64, timeout: Duration) -> Result<u64, SyscallError> {
        let deadline = Instant::now() + timeout;
        loop {
            let received = self.received()?;
            if received >= expected || Instant::now() >= deadline {
                return Ok(received);
            }
            std::thread::yield_now();
        }
    }
}

impl Sink for ProgramSink {
    fn received(&mut self) -> Result<u64, SyscallError> {
        Ok(self.map.percpu_sum(self.key)?.wrapping_sub(self.start))
    }

    fn dropped(&mut self) -> Result<Option<u64>, SyscallError> {
        Ok(None)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};

    use super::*;

    #[test]
    fn the_udp_sink_counts_across_drains_and_knows_its_drops() {
        let spec =
            ReceiverSpec { receive_buffer_bytes: 1, ..ReceiverSpec::new((Ipv4Addr::LOCALHOST, 0).into()) };
        let mut sink = UdpSink::bind(&spec).unwrap();
        let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        for _ in 0..2 {
            sender.send_to(&[0; 10], sink.receiver().address()).unwrap();
        }
        assert_eq!(sink.drain_until(2, Duration::from_secs(5)).unwrap(), 2);
        for _ in 0..100 {
            sender.send_to(&[0; 1000], sink.receiver().address()).unwrap();
        }
        let received = sink.drain_until(102, Duration::from_secs(5)).unwrap();
        let dropped = sink.dropped().unwrap().unwrap();
        assert!(dropped > 0);
        assert_eq!(received + dropped, 102);
        assert_eq!(sink.bytes(), 2 * 10 + (received - 2) * 1000);
    }

    #[test]
    fn waiting_ends_at_the_deadline() {
        let mut sink = UdpSink::bind(&ReceiverSpec::new((Ipv4Addr::LOCALHOST, 0).into())).unwrap();
        assert_eq!(sink.drain_until(1, Duration::from_millis(20)).unwrap(), 0);
    }
}
