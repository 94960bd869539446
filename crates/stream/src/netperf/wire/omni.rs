//! The three messages of netperf's general engine (nettest_bsd.h of netperf 2.7.1): what is asked, what was arranged, what came of
//! it.
//!
//! The names of the fields are netperf's. *send* and *recv* are what the server does with its data socket; −1 as a size leaves
//! it to the server.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Field, MESSAGE_BYTES, Message, message_type};

/// `ipfamily`: IPv4.
pub const FAMILY_INET: u32 = 4;
/// `ipfamily`: IPv6.
pub const FAMILY_INET6: u32 = 6;
/// `socket_type`: a stream.
pub const SOCKET_STREAM: u32 = 1;
/// `socket_type`: datagrams.
pub const SOCKET_DATAGRAM: u32 = 2;
/// `protocol`: TCP (the number of IANA).
pub const PROTOCOL_TCP: u32 = 6;
/// `protocol`: UDP.
pub const PROTOCOL_UDP: u32 = 17;
/// `direction`: the server sends.
pub const TRANSMIT: u32 = 2;
/// `direction`: the server receives.
pub const RECEIVE: u32 = 4;

/// `flags`: `TCP_NODELAY` on the server's socket.
pub const NO_DELAY: u32 = 1;
/// `flags`: a connection for each transaction.
pub const CONNECT_TEST: u32 = 4;
/// `flags`: measure CPU time.
pub const MEASURE_CPU: u32 = 8;
/// `flags`: datagrams may be routed. The same bit asks for the name of the congestion control in the results
/// (`OMNI_WANT_REM_CONG`, nettest_omni.c).
pub const ROUTING_ALLOWED: u32 = 0x20;
/// `flags`: connect the UDP socket.
pub const USE_CONNECTED: u32 = 0x4000;
/// `flags`: `SO_KEEPALIVE`.
pub const KEEPALIVE: u32 = 0x8000_0000;

message_type! {
    /// What the client asks for.
    Request, request {
        /// [`OMNI`](crate::netperf::wire::kind::OMNI).
        kind, KIND: u32 = word(0);
        /// The CPU that the server is to run on, or −1.
        cpu, CPU: i32 = word(1);
        /// `SO_SNDBUF`, or −1.
        send_buf_size, SEND_BUF_SIZE: i32 = body_word(0);
        /// Bytes in one call that sends, or −1.
        send_size, SEND_SIZE: i32 = body_word(1);
        /// Alignment of what is sent.
        send_alignment, SEND_ALIGNMENT: u32 = body_word(2);
        /// Offset from it.
        send_offset, SEND_OFFSET: u32 = body_word(3);
        /// How many buffers are sent in turn.
        send_width, SEND_WIDTH: u32 = body_word(4);
        /// Bytes of a request, or −1.
        request_size, REQUEST_SIZE: i32 = body_word(5);
        /// `SO_RCVBUF`, or −1.
        recv_buf_size, RECV_BUF_SIZE: i32 = body_word(6);
        /// Bytes in one call that receives, or −1.
        receive_size, RECEIVE_SIZE: i32 = body_word(7);
        /// Alignment of where is received.
        recv_alignment, RECV_ALIGNMENT: u32 = body_word(8);
        /// Offset from it.
        recv_offset, RECV_OFFSET: u32 = body_word(9);
        /// How many buffers take in turn.
        recv_width, RECV_WIDTH: u32 = body_word(10);
        /// Bytes of a response, or −1.
        response_size, RESPONSE_SIZE: i32 = body_word(11);
        /// See the constants.
        flags, FLAGS: u32 = body_word(12);
        /// How fast the server's CPUs count, where it is known.
        cpu_rate, CPU_RATE: f32 = body_word(13);
        /// Seconds; below 0: bytes or transactions.
        test_length, TEST_LENGTH: i32 = body_word(14);
        /// Receive without copying.
        so_rcvavoid, SO_RCVAVOID: u32 = body_word(15);
        /// Send without copying.
        so_sndavoid, SO_SNDAVOID: u32 = body_word(16);
        /// Bytes to write to before sending.
        send_dirty_count, SEND_DIRTY_COUNT: u32 = body_word(17);
        /// Bytes to write to before receiving.
        recv_dirty_count, RECV_DIRTY_COUNT: u32 = body_word(18);
        /// Bytes to read before receiving.
        recv_clean_count, RECV_CLEAN_COUNT: u32 = body_word(19);
        /// The port that the server is to take, or 0. netperf repeats here what it was given in the run before.
        data_port, DATA_PORT: u32 = body_word(20);
        /// [`FAMILY_INET`] or [`FAMILY_INET6`].
        ipfamily, IPFAMILY: u32 = body_word(21);
        /// [`SOCKET_STREAM`] or [`SOCKET_DATAGRAM`].
        socket_type, SOCKET_TYPE: u32 = body_word(22);
        /// [`PROTOCOL_TCP`] or [`PROTOCOL_UDP`].
        protocol, PROTOCOL: u32 = body_word(23);
        /// [`TRANSMIT`] and [`RECEIVE`].
        direction, DIRECTION: u32 = body_word(24);
        /// The client's port.
        netperf_port, NETPERF_PORT: u32 = body_word(25);
        /// How many messages in an interval.
        interval_burst, INTERVAL_BURST: u32 = body_word(26);
        /// How long an interval is.
        interval_usecs, INTERVAL_USECS: u32 = body_word(27);
        /// The client's address, or zeros. See [`address`].
        netperf_ip, NETPERF_IP: [u8; 16] = body_word(28).start..body_word(31).end;
        /// The address that the server is to take, or zeros.
        netserver_ip, NETSERVER_IP: [u8; 16] = body_word(32).start..body_word(35).end;
        /// `SO_PRIORITY`, or −1.
        socket_prio, SOCKET_PRIO: i32 = body_word(36);
        /// `IP_TOS`, or −1.
        socket_tos, SOCKET_TOS: i32 = body_word(37);
        /// The congestion control that the server is to use, or empty.
        cong_control, CONG_CONTROL: [u8; 16] = 160..176;
        /// A file of the server with which it is to fill its buffers, or empty.
        fill_file, FILL_FILE: [u8; 32] = 176..208;
        /// What stands behind it.
        rest, REST: [u8; 448] = 208..656;
    }
}

message_type! {
    /// What the server has arranged.
    Response, response {
        /// [`OMNI_RESPONSE`](crate::netperf::wire::kind::OMNI_RESPONSE).
        kind, KIND: u32 = word(0);
        /// 0, or why nothing was arranged.
        errno, ERRNO: u32 = word(1);
        /// `SO_RCVBUF` as it is.
        recv_buf_size, RECV_BUF_SIZE: i32 = body_word(0);
        /// Bytes in one call that receives.
        receive_size, RECEIVE_SIZE: i32 = body_word(1);
        /// How many buffers take in turn.
        recv_width, RECV_WIDTH: i32 = body_word(2);
        /// `SO_SNDBUF` as it is.
        send_buf_size, SEND_BUF_SIZE: i32 = body_word(3);
        /// Bytes in one call that sends.
        send_size, SEND_SIZE: i32 = body_word(4);
        /// How many buffers are sent in turn.
        send_width, SEND_WIDTH: i32 = body_word(5);
        /// What of the flags is done.
        flags, FLAGS: u32 = body_word(6);
        /// How fast the server's CPUs count, where CPU time is measured.
        cpu_rate, CPU_RATE: f32 = body_word(7);
        /// Not set.
        test_length, TEST_LENGTH: u32 = body_word(8);
        /// As asked.
        so_rcvavoid, SO_RCVAVOID: u32 = body_word(9);
        /// As asked.
        so_sndavoid, SO_SNDAVOID: u32 = body_word(10);
        /// Where the server waits for data.
        data_port, DATA_PORT: u32 = body_word(11);
        /// As asked, where netserver was built for it.
        interval_burst, INTERVAL_BURST: u32 = body_word(12);
        /// As asked, where netserver was built for it.
        interval_usecs, INTERVAL_USECS: u32 = body_word(13);
        /// Not set.
        cpu_frequency, CPU_FREQUENCY: u32 = body_word(14);
        /// Not set.
        security_info, SECURITY_INFO: u32 = body_word(15);
        /// `SO_PRIORITY`, or −1.
        socket_prio, SOCKET_PRIO: i32 = body_word(16);
        /// `IP_TOS`, or −1.
        socket_tos, SOCKET_TOS: i32 = body_word(17);
        /// Not set.
        system_model, SYSTEM_MODEL: [u8; 33] = 80..113;
        /// Not set.
        cpu_model, CPU_MODEL: [u8; 80] = 113..193;
        /// Not set.
        security_string, SECURITY_STRING: [u8; 16] = 193..209;
        /// What stands behind it.
        rest, REST: [u8; 447] = 209..656;
    }
}

message_type! {
    /// What the server counted, since netperf 2.7.0.
    Results, results {
        /// See [`results_kind_as_sent`](crate::netperf::wire::results_kind_as_sent).
        kind, KIND: u32 = word(0);
        /// 0, or what went wrong.
        errno, ERRNO: u32 = word(1);
        /// Bytes that the server received.
        bytes_received, BYTES_RECEIVED: u64 = body_word(0).start..body_word(1).end;
        /// Calls that received something.
        recv_calls, RECV_CALLS: u32 = body_word(2);
        /// `SO_RCVBUF` at the end.
        recv_buf_size, RECV_BUF_SIZE: i32 = body_word(3);
        /// Bytes that the server sent.
        bytes_sent, BYTES_SENT: u64 = body_word(4).start..body_word(5).end;
        /// Calls that sent something.
        send_calls, SEND_CALLS: u32 = body_word(6);
        /// `SO_SNDBUF` at the end.
        send_buf_size, SEND_BUF_SIZE: i32 = body_word(7);
        /// Not set.
        failed_sends, FAILED_SENDS: u32 = body_word(8);
        /// Transactions.
        trans_received, TRANS_RECEIVED: u32 = body_word(9);
        /// Seconds, in the server's clock.
        elapsed_time, ELAPSED_TIME: f32 = body_word(10);
        /// Busy share of all CPUs, percent. Not set without [`MEASURE_CPU`], like the next seven.
        cpu_util, CPU_UTIL: f32 = body_word(11);
        /// Of it, user.
        cpu_percent_user, CPU_PERCENT_USER: f32 = body_word(12);
        /// System.
        cpu_percent_system, CPU_PERCENT_SYSTEM: f32 = body_word(13);
        /// Waiting for disks, which netserver counts as busy.
        cpu_percent_iowait, CPU_PERCENT_IOWAIT: f32 = body_word(14);
        /// Hard interrupts.
        cpu_percent_irq, CPU_PERCENT_IRQ: f32 = body_word(15);
        /// Soft interrupts.
        cpu_percent_swintr, CPU_PERCENT_SWINTR: f32 = body_word(16);
        /// Not set.
        serv_dem, SERV_DEM: f32 = body_word(17);
        /// How CPU time was measured; 0 where it was not.
        cpu_method, CPU_METHOD: u32 = body_word(18);
        /// CPUs of the server; 0 where CPU time was not measured.
        num_cpus, NUM_CPUS: u32 = body_word(19);
        /// The busiest.
        peak_cpu_id, PEAK_CPU_ID: i32 = body_word(20);
        /// Its busy share, percent.
        peak_cpu_util, PEAK_CPU_UTIL: f32 = body_word(21);
        /// Not set.
        vendor, VENDOR: i32 = body_word(22);
        /// Not set.
        device, DEVICE: i32 = body_word(23);
        /// Not set.
        subvendor, SUBVENDOR: i32 = body_word(24);
        /// Not set.
        subdevice, SUBDEVICE: i32 = body_word(25);
        /// Segments of TCP that were sent again; −1 where it cannot be told.
        transport_retrans, TRANSPORT_RETRANS: i32 = body_word(26);
        /// Not set.
        ifname, IFNAME: [u8; 16] = 116..132;
        /// Not set.
        driver, DRIVER: [u8; 32] = 132..164;
        /// Not set.
        version, VERSION: [u8; 32] = 164..196;
        /// Not set.
        firmware, FIRMWARE: [u8; 32] = 196..228;
        /// Not set.
        bus, BUS: [u8; 32] = 228..260;
        /// Not set.
        ifslot, IFSLOT: [u8; 16] = 260..276;
        /// The congestion control that was in force.
        cong_control, CONG_CONTROL: [u8; 16] = 276..292;
        /// What stands behind it.
        rest, REST: [u8; 364] = 292..656;
    }
}

impl Results {
    /// What speaks against these being the results of netperf 2.7.0 or later, where CPU time was asked for or not.
    ///
    /// 2.6.0 has no `cpu_percent_*`: its method and number of CPUs stand where 2.7 has two shares in percent, and everything
    /// behind them is shifted by five words, in a message of the same length and kind. The small integers there are floats
    /// that no share can be.
    #[must_use]
    pub fn implausible(&self, cpu_asked: bool) -> Option<Implausible> {
        let small = |share: f32| (1..=0xffff).contains(&share.to_bits());
        if small(self.cpu_percent_system) && self.cpu_percent_system.to_bits() <= 12 {
            return Some(Implausible::Older);
        }
        if !self.elapsed_time.is_finite() || self.elapsed_time < 0.0 {
            return Some(Implausible::Value { field: "elapsed_time", value: self.elapsed_time });
        }
        if !cpu_asked {
            return None;
        }
        if self.cpu_method == 0 || self.cpu_method > 64 || self.num_cpus == 0 || self.num_cpus > 1 << 20 {
            let shifted = small(self.cpu_percent_iowait);
            let value = self.num_cpus as f32;
            return Some(if shifted {
                Implausible::Older
            } else {
                Implausible::Value { field: "num_cpus", value }
            });
        }
        // Ticks may make it a little more than all. Where netserver waited 4 s for more (a connection for each transaction), it
        // has what its CPUs did in them too, over the time without them.
        let most = 101.0 * (self.elapsed_time + 5.0) / self.elapsed_time;
        (!(-1.0..=most).contains(&self.cpu_util))
            .then_some(Implausible::Value { field: "cpu_util", value: self.cpu_util })
    }
}

/// Why results cannot be what they seem.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum Implausible {
    /// The layout is that of netperf 2.6.0.
    #[error(
        "they have the layout of netperf 2.6.0, which 2.7.0 changed without telling; use netserver 2.7.0 or later"
    )]
    Older,
    /// A value that cannot be.
    #[error("they say {field} is {value}, which cannot be; is the other end netserver 2.7.0 or later?")]
    Value {
        /// Which field.
        field: &'static str,
        /// What it says.
        value: f32,
    },
}

/// The address in `netperf_ip` and `netserver_ip`, `None` for zeros.
///
/// An IPv4 address is in network order. The words of an IPv6 address are turned round by a little-endian netperf, which
/// takes care of IPv4 only ("do nothing, bz", nettest_omni.c), and are read here as it means them.
#[must_use]
pub fn address(family: u32, bytes: &[u8; 16]) -> Option<IpAddr> {
    if bytes.iter().all(|&byte| byte == 0) {
        return None;
    }
    if family == FAMILY_INET6 {
        return Some(IpAddr::V6(Ipv6Addr::from(turn_words(bytes))));
    }
    Some(IpAddr::V4(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3])))
}

/// The inverse of [`address`].
#[must_use]
pub fn address_field(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&ip.octets());
            bytes
        }
        IpAddr::V6(ip) => turn_words(&ip.octets()),
    }
}

fn turn_words(bytes: &[u8; 16]) -> [u8; 16] {
    let mut turned = *bytes;
    for word in turned.chunks_exact_mut(4) {
        word.reverse();
    }
    turned
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_address_is_read_as_it_was_written() {
        let v4: IpAddr = "10.99.0.1".parse().unwrap();
        assert_eq!(address_field(v4)[..5], [10, 99, 0, 1, 0]);
        assert_eq!(address(FAMILY_INET, &address_field(v4)), Some(v4));
        let v6: IpAddr = "2001:db8::7".parse().unwrap();
        assert_eq!(address_field(v6)[..4], [0xb8, 0x0d, 0x01, 0x20]);
        assert_eq!(address(FAMILY_INET6, &address_field(v6)), Some(v6));
        assert_eq!(address(FAMILY_INET6, &[0; 16]), None);
    }

    fn of_270() -> Results {
        Results {
            elapsed_time: 1.0,
            cpu_util: 77.06,
            cpu_percent_user: 0.5,
            cpu_percent_system: 40.0,
            cpu_method: 8,
            num_cpus: 8,
            ..Results::default()
        }
    }

    /// The same as netserver 2.6.0 tells it: 22 numeric words, without the five shares.
    fn of_260(cpu_util: f32, method: u32, cpus: u32) -> Results {
        let mut message = Results { elapsed_time: 1.0, cpu_util, ..Results::default() }.encode();
        message.0[super::super::body_word(13)].copy_from_slice(&method.to_be_bytes());
        message.0[super::super::body_word(14)].copy_from_slice(&cpus.to_be_bytes());
        message.0[super::super::body_word(15)].copy_from_slice(&(-1i32).to_be_bytes());
        Results::decode(&message)
    }

    #[test]
    fn results_of_270_are_plausible_and_those_of_260_are_named() {
        assert_eq!(of_270().implausible(true), None);
        assert_eq!(of_270().implausible(false), None);
        assert_eq!(of_260(77.0, 8, 4).implausible(true), Some(Implausible::Older));
        assert_eq!(of_260(0.0, 8, 4).implausible(false), Some(Implausible::Older));
        assert_eq!(of_260(0.0, 0, 4).implausible(true), Some(Implausible::Older));
        let text = of_260(77.0, 8, 4).implausible(true).unwrap().to_string();
        assert!(text.contains("2.6.0") && text.contains("2.7.0"), "{text}");
    }

    #[test]
    fn what_cannot_be_is_named() {
        let wrong = |results: Results| results.implausible(true).unwrap().to_string();
        assert!(wrong(Results { elapsed_time: f32::NAN, ..of_270() }).contains("elapsed_time"));
        assert!(wrong(Results { elapsed_time: -3.0, ..of_270() }).contains("elapsed_time"));
        assert!(wrong(Results { cpu_util: 2500.0, ..of_270() }).contains("cpu_util is 2500"));
        assert!(wrong(Results { cpu_util: f32::NAN, ..of_270() }).contains("cpu_util"));
        assert!(wrong(Results { num_cpus: 0, ..of_270() }).contains("num_cpus"));
    }

    proptest! {
        #[test]
        fn any_message_is_read_and_written_back_the_same(bytes in proptest::collection::vec(any::<u8>(), MESSAGE_BYTES)) {
            let message = Message(bytes.try_into().unwrap());
            prop_assert_eq!(&Request::decode(&message).encode(), &message);
            prop_assert_eq!(&Response::decode(&message).encode(), &message);
            let results = Results::decode(&message);
            prop_assert_eq!(&results.encode(), &message);
            let _ = results.implausible(true);
            let _ = results.implausible(false);
            let request = Request::decode(&message);
            for family in [FAMILY_INET, FAMILY_INET6] {
                if let Some(ip) = address(family, &request.netperf_ip) {
                    prop_assert_eq!(address(family, &address_field(ip)), Some(ip));
                }
            }
        }
    }
}
