//! What the kernel tells of a TCP connection.

use std::os::fd::{AsFd, AsRawFd};

use crate::SyscallError;
use crate::packet::sockopt;

/// Room for `struct tcp_info`, which has grown with every few kernels; 6.18 has 256 bytes.
const WORDS: usize = 128;

/// `TCP_INFO` (struct tcp_info, include/uapi/linux/tcp.h, 6.18). What the kernel did not write, or has not measured, is None.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// Segments sent again, in all. The kernel's counter has 32 bits.
    pub retransmits: Option<u32>,
    /// Smoothed round-trip time, µs.
    pub rtt_us: Option<u32>,
    /// Its variation, µs.
    pub rtt_variation_us: Option<u32>,
    /// The least round-trip time that was seen, µs.
    pub min_rtt_us: Option<u32>,
    /// Congestion window, segments.
    pub cwnd_segments: Option<u32>,
    /// Maximum segment size for sending, bytes.
    pub mss_bytes: Option<u32>,
    /// Path MTU, bytes.
    pub path_mtu_bytes: Option<u32>,
    /// The peer's window, bytes (Linux 5.4).
    pub peer_window_bytes: Option<u32>,
    /// Most recent delivery rate, bytes in a second (Linux 4.9).
    pub delivery_bytes_per_second: Option<u64>,
    /// Time with something to send, µs (Linux 4.9).
    pub busy_us: Option<u64>,
    /// Of it, held up by the peer's window, µs.
    pub window_limited_us: Option<u64>,
    /// Of it, held up by the send buffer, µs.
    pub buffer_limited_us: Option<u64>,
    /// Bytes sent and acknowledged (Linux 4.1).
    pub acknowledged_bytes: Option<u64>,
}

/// Reads `TCP_INFO`.
///
/// # Errors
/// EOPNOTSUPP and the like where the socket is not one of TCP.
pub fn tcp_info(socket: impl AsFd) -> Result<TcpInfo, SyscallError> {
    let socket = socket.as_fd();
    let (words, bytes) =
        sockopt::words32::<WORDS>(socket, libc::IPPROTO_TCP, libc::TCP_INFO).map_err(|error| {
            SyscallError::new("read TCP_INFO", format!("socket {}", socket.as_raw_fd()), error)
        })?;
    Ok(TcpInfo::parse(&words, bytes))
}

impl TcpInfo {
    /// `bytes` of the words are what the kernel wrote.
    fn parse(words: &[u32; WORDS], bytes: usize) -> Self {
        let word = |at: usize| (at + 4 <= bytes).then(|| words.get(at / 4).copied()).flatten();
        let long = |at: usize| {
            let mut whole = [0; 8];
            whole[..4].copy_from_slice(&word(at)?.to_ne_bytes());
            whole[4..].copy_from_slice(&word(at + 4)?.to_ne_bytes());
            Some(u64::from_ne_bytes(whole))
        };
        let measured = |at| word(at).filter(|&value| value > 0);
        Self {
            retransmits: word(100),
            rtt_us: measured(68),
            rtt_variation_us: measured(68).and(word(72)),
            // All ones until one was measured.
            min_rtt_us: word(148).filter(|&us| us != u32::MAX),
            cwnd_segments: measured(80),
            mss_bytes: measured(16),
            path_mtu_bytes: measured(60),
            peer_window_bytes: word(228),
            delivery_bytes_per_second: long(160).filter(|&rate| rate > 0),
            busy_us: long(168),
            window_limited_us: long(176),
            buffer_limited_us: long(184),
            acknowledged_bytes: long(120),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_connection_tells_of_itself() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _far = listener.accept().unwrap();
        near.write_all(&[1; 1000]).unwrap();
        let info = tcp_info(&near).unwrap();
        assert_eq!(info.retransmits, Some(0));
        assert!(info.mss_bytes.unwrap() > 500 && info.rtt_us.is_some(), "{info:?}");
        assert!(tcp_info(UnixStream::pair().unwrap().0).is_err());
    }

    #[test]
    fn what_an_old_kernel_does_not_know_is_missing() {
        let mut words = [7; WORDS];
        let info = TcpInfo::parse(&words, 104); // struct tcp_info of Linux 3.10
        assert_eq!((info.retransmits, info.cwnd_segments), (Some(7), Some(7)));
        assert_eq!((info.min_rtt_us, info.busy_us, info.peer_window_bytes), (None, None, None));
        assert_eq!(TcpInfo::parse(&words, 172).busy_us, None); // a half
        assert_eq!(TcpInfo::parse(&words, 0), TcpInfo::default());
        assert_eq!(TcpInfo::parse(&words, usize::MAX - 10).busy_us, Some((7 << 32) + 7));
        words[148 / 4] = u32::MAX;
        assert_eq!(TcpInfo::parse(&words, 512).min_rtt_us, None);
    }
}
