//! The three messages with which TCP_SENDFILE asks for a receiver (nettest_bsd.h of netperf 2.7.1, `struct tcp_stream_*`). All 164
//! words of them are turned into network order, and the one `double` ends up big-endian as a whole.

use super::{Field, MESSAGE_BYTES, Message, message_type};

message_type! {
    /// What the client asks for.
    Request, request {
        /// [`TCP_STREAM`](crate::netperf::wire::kind::TCP_STREAM).
        kind, KIND: u32 = word(0);
        /// The CPU that the server is to run on, or −1.
        cpu, CPU: i32 = word(1);
        /// `SO_SNDBUF`, or −1.
        send_buf_size, SEND_BUF_SIZE: i32 = body_word(0);
        /// `SO_RCVBUF`, or −1.
        recv_buf_size, RECV_BUF_SIZE: i32 = body_word(1);
        /// Bytes in one call that receives; 0 leaves it to the server.
        receive_size, RECEIVE_SIZE: i32 = body_word(2);
        /// Alignment of where is received.
        recv_alignment, RECV_ALIGNMENT: i32 = body_word(3);
        /// Offset from it.
        recv_offset, RECV_OFFSET: i32 = body_word(4);
        /// `TCP_NODELAY`.
        no_delay, NO_DELAY: i32 = body_word(5);
        /// Whether to measure CPU time.
        measure_cpu, MEASURE_CPU: i32 = body_word(6);
        /// How fast the server's CPUs count, where it is known.
        cpu_rate, CPU_RATE: f32 = body_word(7);
        /// Seconds; with a number of bytes asked for, that number.
        test_length, TEST_LENGTH: i32 = body_word(8);
        /// Receive without copying.
        so_rcvavoid, SO_RCVAVOID: i32 = body_word(9);
        /// Send without copying.
        so_sndavoid, SO_SNDAVOID: i32 = body_word(10);
        /// Numbers to write to before receiving.
        dirty_count, DIRTY_COUNT: i32 = body_word(11);
        /// Numbers to read before receiving.
        clean_count, CLEAN_COUNT: i32 = body_word(12);
        /// The port that the server is to take, or 0.
        port, PORT: i32 = body_word(13);
        /// [`FAMILY_INET`](crate::netperf::wire::omni::FAMILY_INET) or [`FAMILY_INET6`](crate::netperf::wire::omni::FAMILY_INET6).
        ipfamily, IPFAMILY: u32 = body_word(14);
        /// Receive by `aio_read`.
        recv_aio, RECV_AIO: i32 = body_word(15);
        /// What stands behind it.
        rest, REST: [u8; 584] = 72..656;
    }
}

message_type! {
    /// What the server has arranged.
    Response, response {
        /// [`TCP_STREAM_RESPONSE`](crate::netperf::wire::kind::TCP_STREAM_RESPONSE).
        kind, KIND: u32 = word(0);
        /// 0, or why nothing was arranged.
        errno, ERRNO: u32 = word(1);
        /// `SO_RCVBUF` as it is.
        recv_buf_size, RECV_BUF_SIZE: i32 = body_word(0);
        /// Bytes in one call that receives.
        receive_size, RECEIVE_SIZE: i32 = body_word(1);
        /// As asked.
        no_delay, NO_DELAY: i32 = body_word(2);
        /// As asked.
        measure_cpu, MEASURE_CPU: i32 = body_word(3);
        /// Not set.
        test_length, TEST_LENGTH: i32 = body_word(4);
        /// `SO_SNDBUF` as it is.
        send_buf_size, SEND_BUF_SIZE: i32 = body_word(5);
        /// Where the server waits for data.
        data_port_number, DATA_PORT_NUMBER: i32 = body_word(6);
        /// How fast the server's CPUs count, where CPU time is measured.
        cpu_rate, CPU_RATE: f32 = body_word(7);
        /// As asked.
        so_rcvavoid, SO_RCVAVOID: i32 = body_word(8);
        /// As asked.
        so_sndavoid, SO_SNDAVOID: i32 = body_word(9);
        /// What stands behind it.
        rest, REST: [u8; 608] = 48..656;
    }
}

message_type! {
    /// What the server counted.
    Results, results {
        /// See [`results_kind_as_sent`](crate::netperf::wire::results_kind_as_sent).
        kind, KIND: u32 = word(0);
        /// 0, or what went wrong.
        errno, ERRNO: u32 = word(1);
        /// Bytes that the server received.
        bytes_received, BYTES_RECEIVED: f64 = body_word(0).start..body_word(1).end;
        /// Calls that received something.
        recv_calls, RECV_CALLS: u32 = body_word(2);
        /// Seconds, in the server's clock.
        elapsed_time, ELAPSED_TIME: f32 = body_word(3);
        /// Busy share of all CPUs, percent. Not set where CPU time was not measured.
        cpu_util, CPU_UTIL: f32 = body_word(4);
        /// Not set.
        serv_dem, SERV_DEM: f32 = body_word(5);
        /// How CPU time was measured; 0 where it was not.
        cpu_method, CPU_METHOD: i32 = body_word(6);
        /// CPUs of the server; 0 where CPU time was not measured.
        num_cpus, NUM_CPUS: i32 = body_word(7);
        /// Not set.
        recv_buf_size, RECV_BUF_SIZE: i32 = body_word(8);
        /// Not set.
        send_buf_size, SEND_BUF_SIZE: i32 = body_word(9);
        /// What stands behind it.
        rest, REST: [u8; 608] = 48..656;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_message_is_read_and_written_back_the_same(bytes in proptest::collection::vec(any::<u8>(), MESSAGE_BYTES)) {
            let message = Message(bytes.try_into().unwrap());
            prop_assert_eq!(&Request::decode(&message).encode(), &message);
            prop_assert_eq!(&Response::decode(&message).encode(), &message);
            prop_assert_eq!(&Results::decode(&message).encode(), &message);
        }
    }
}
