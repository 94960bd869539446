//! What the kernel tells of TCP connections, in the words of an outcome.

use linux::socket::{self, TcpInfo};

use super::{Endpoint, Flow};
use crate::outcome::Tcp;

/// Asks for a flow's connection; none where it has none, or the kernel does not tell.
pub(super) fn info(flow: &Flow) -> Option<TcpInfo> {
    let Endpoint::Tcp(socket) = &flow.endpoint else { return None };
    socket::tcp_info(socket).ok()
}

/// The congestion control of a flow.
pub(super) fn congestion(flow: &Flow) -> Option<String> {
    let Endpoint::Tcp(socket) = &flow.endpoint else { return None };
    socket::congestion(socket).ok()
}

/// As an outcome has it, with the segments that were sent again since `before`. The kernel's counter has 32 bits and wraps.
pub(super) fn outcome(info: &TcpInfo, before: Option<u32>) -> Tcp {
    let retransmits = info.retransmits.zip(before).map(|(now, before)| u64::from(now.wrapping_sub(before)));
    Tcp {
        retransmits,
        rtt_us: info.rtt_us,
        rtt_variation_us: info.rtt_variation_us,
        min_rtt_us: info.min_rtt_us,
        cwnd_segments: info.cwnd_segments,
        mss_bytes: info.mss_bytes,
        path_mtu_bytes: info.path_mtu_bytes,
        peer_window_bytes: info.peer_window_bytes,
        delivery_bytes_per_second: info.delivery_bytes_per_second,
        busy_us: info.busy_us,
        window_limited_us: info.window_limited_us,
        buffer_limited_us: info.buffer_limited_us,
        congestion: None,
        series: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retransmits_are_those_since_and_survive_a_wrap() {
        let info = |retransmits| TcpInfo { retransmits, ..TcpInfo::default() };
        assert_eq!(outcome(&info(Some(7)), Some(5)).retransmits, Some(2));
        assert_eq!(outcome(&info(Some(3)), Some(u32::MAX - 1)).retransmits, Some(5));
        assert_eq!(outcome(&info(None), Some(5)).retransmits, None);
        assert_eq!(outcome(&info(Some(3)), None).retransmits, None);
    }
}
