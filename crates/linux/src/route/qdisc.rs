//! The queueing discipline of a device: what `tc qdisc` does and shows, as calls.

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_ECHO, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage};

use super::RouteSocket;
use super::netlink::{attribute, text_of, u32_at, u64_at};
use crate::SyscallError;

const RTM_NEWQDISC: u16 = 36;
/// Bytes before the attributes of a message: `struct tcmsg` (include/uapi/linux/rtnetlink.h, 6.18).
const HEADER_BYTES: usize = 20;
const TCA_KIND: u16 = 1;
const TCA_STATS2: u16 = 7;
/// Within TCA_STATS2 (include/uapi/linux/gen_stats.h, 6.18).
const TCA_STATS_BASIC: u16 = 1;
const TCA_STATS_QUEUE: u16 = 3;
const TCA_STATS_PKT64: u16 = 8;

/// What a queueing discipline counted since it was installed.
///
/// A packet that it let through is in `packets` from the moment at which it is taken out to be sent; one that the
/// device then could not take, and that was put back, is in `queued` as well. Some kinds (`noqueue`) count nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QdiscStats {
    /// Its kind.
    pub kind: String,
    /// Packets taken out of it, or let past it while it was empty.
    pub packets: u64,
    /// Packets that it dropped. Those that it refused to take are among them; the sender was told of these.
    pub drops: u32,
    /// Packets that wait in it now.
    pub queued: u32,
}

impl QdiscStats {
    /// Reads the payload of an RTM_NEWQDISC message; what a kind does not count is 0.
    fn parse(payload: &[u8]) -> Option<Self> {
        let payload = payload.get(HEADER_BYTES..)?;
        let stats = attribute(payload, TCA_STATS2).unwrap_or_default();
        let queue = attribute(stats, TCA_STATS_QUEUE).unwrap_or_default();
        // struct gnet_stats_basic: bytes (8 bytes), packets (4). The second attribute is there from 2^32 packets on.
        let many = attribute(stats, TCA_STATS_PKT64).and_then(|packets| u64_at(packets, 0));
        let few = attribute(stats, TCA_STATS_BASIC).and_then(|basic| u32_at(basic, 8));
        Some(Self {
            kind: attribute(payload, TCA_KIND).map(text_of)?,
            packets: many.or(few.map(u64::from)).unwrap_or_default(),
            // struct gnet_stats_queue: qlen, backlog, drops, requeues, overlimits, 4 bytes each.
            queued: u32_at(queue, 0).unwrap_or_default(),
            drops: u32_at(queue, 8).unwrap_or_default(),
        })
    }
}

impl RouteSocket {
    /// Installs a queueing discipline with its default parameters for all that a device sends (as its root).
    ///
    /// # Errors
    /// ENOENT where the kernel has no such kind, with the option that it lacks; EINVAL for a kind that has no default
    /// parameters; EOPNOTSUPP for one that the device cannot have.
    pub fn set_root_qdisc(&mut self, ifindex: u32, kind: &str) -> Result<(), SyscallError> {
        let mut message = root_of(ifindex);
        message.attributes.push(TcAttribute::Kind(kind.to_owned()));
        let message = RouteNetlinkMessage::NewQueueDiscipline(message);
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
        let on = format!("{kind}, ifindex {ifindex}");
        self.ask(message, flags, "install queueing discipline", &on, |_, _| {}).map_err(|error| {
            let said = error.detail.clone().map_or(String::new(), |text| format!("{}; ", text.trim()));
            match error.errno() {
                Some(libc::ENOENT) => {
                    error.with_detail(format!("{said}the kernel lacks {}, or its module", option(kind)))
                }
                Some(libc::EINVAL) => error.with_detail(format!(
                    "{said}it has no default parameters, or is not for what a device sends"
                )),
                _ => error,
            }
        })
    }

    /// What the queueing discipline of a device counted; `None` for one that stands for none, which the kernel does not tell about (a
    /// device that is off). A software device that is on has `noqueue` by itself.
    ///
    /// # Errors
    /// ENODEV; EOPNOTSUPP without CONFIG_NET_SCHED.
    pub fn root_qdisc_stats(&mut self, ifindex: u32) -> Result<Option<QdiscStats>, SyscallError> {
        let mut stats = None;
        let message = RouteNetlinkMessage::GetQueueDiscipline(root_of(ifindex));
        let on = format!("ifindex {ifindex}");
        // Without NLM_F_ECHO only those who listen to all changes get the answer (net/sched/sch_api.c, qdisc_get_notify).
        self.ask(message, NLM_F_ACK | NLM_F_ECHO, "read queueing discipline", &on, |kind, payload| {
            if kind == RTM_NEWQDISC {
                stats = QdiscStats::parse(payload);
            }
        })?;
        Ok(stats)
    }
}

fn root_of(ifindex: u32) -> TcMessage {
    let mut message = TcMessage::with_index(ifindex.cast_signed());
    message.header.parent = TcHandle::ROOT;
    message
}

/// The kernel's option for a kind (net/sched/Makefile, 6.18).
fn option(kind: &str) -> String {
    match kind {
        "pfifo" | "bfifo" | "pfifo_head_drop" => "CONFIG_NET_SCH_FIFO".to_owned(),
        "pfifo_fast" | "noqueue" | "mq" | "blackhole" => "CONFIG_NET_SCHED".to_owned(),
        other => format!("CONFIG_NET_SCH_{}", other.to_uppercase()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::netlink::{self, Request};
    use super::*;

    #[test]
    fn what_a_discipline_counted_is_read() {
        let mut request = Request::new(RTM_NEWQDISC, 0, &[0; HEADER_BYTES]);
        request.put_text(TCA_KIND, "pfifo").nest(TCA_STATS2, |stats| {
            stats.put(TCA_STATS_BASIC, &[[60, 0, 0, 0], [0; 4], [7, 0, 0, 0]].concat());
            stats.put(TCA_STATS_QUEUE, &[3_u32, 180, 5, 1, 0].map(u32::to_ne_bytes).concat());
        });
        let payload = request.bytes()[netlink::HEADER_BYTES..].to_vec();
        let expected = QdiscStats { kind: "pfifo".to_owned(), packets: 7, drops: 5, queued: 3 };
        assert_eq!(QdiscStats::parse(&payload), Some(expected));

        let mut request = Request::new(RTM_NEWQDISC, 0, &[0; HEADER_BYTES]);
        request.put_text(TCA_KIND, "noqueue");
        let payload = request.bytes()[netlink::HEADER_BYTES..].to_vec();
        let expected = QdiscStats { kind: "noqueue".to_owned(), ..QdiscStats::default() };
        assert_eq!(QdiscStats::parse(&payload), Some(expected));
    }

    #[test]
    fn the_option_that_is_lacking_is_named() {
        assert_eq!(option("fq_codel"), "CONFIG_NET_SCH_FQ_CODEL");
        assert_eq!(option("pfifo"), "CONFIG_NET_SCH_FIFO");
        assert_eq!(option("pfifo_fast"), "CONFIG_NET_SCHED");
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = QdiscStats::parse(&bytes);
        }
    }
}
