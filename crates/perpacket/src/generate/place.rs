//! Where generated packets go, and who counts them there.

use anyhow::{Context, Result, bail};
use lab::{Lab, Plan, Port};
use linux::ethtool::EthtoolSocket;
use linux::netns::Netns;
use linux::nft::Family;
use linux::route::{Link, LinkStats, RouteSocket};
use measure::ledger::{Count, Drop, Ledger};
use traffic::BackendKind;
use traffic::programs::Action;

use super::ETHERNET_BYTES;
use crate::paths::ending::{Ending, Hook, RuleCount, attach_counter};
use crate::paths::topology::{self, GEN, INGRESS, INGRESS_PEER, MAC_G0, MAC_IN0, SYS, count_and_drop};

/// Largest payload of a frame that a device of the lab takes without being told, in bytes.
const MTU_BYTES: usize = 1500;

/// A device that packets leave by, or arrive at, and the counters at both sides of it.
pub(crate) struct Place {
    /// Name of the device.
    pub(crate) name: String,
    /// Its number.
    pub(crate) ifindex: u32,
    /// Its transmit queues, where the kernel says so.
    pub(crate) queues: Option<u32>,
    pub(crate) home: Home,
    pub(crate) meter: Meter,
}

/// The counters at both sides of a device.
pub(crate) struct Meter {
    socket: RouteSocket,
    ifindex: u32,
    before: LinkStats,
    /// Whether packets are injected behind the device, whose counters do not see them then.
    injected: bool,
    /// Who counts what arrives; nobody behind a device of the host.
    ending: Option<Ending>,
}

/// The namespace that is sent from.
pub(crate) enum Home {
    /// That of a lab, with its role.
    Lab(Lab, &'static str),
    /// The one that the program was started in.
    Here,
}

impl Home {
    /// The namespace to be entered by threads that send; none for that of the program.
    pub(crate) fn netns(&self) -> Option<&Netns> {
        match self {
            Self::Lab(lab, role) => Some(lab.netns(role)),
            Self::Here => None,
        }
    }
}

impl Place {
    /// A lab of two namespaces, for packets of at most `longest` bytes (without FCS) by `kind`. Its devices have so many
    /// `queues`. Packets end at a program of ours at the other end where BPF works (`programs`), else at a packet-filter rule.
    pub(crate) fn lab(kind: BackendKind, longest: usize, queues: u32, programs: bool) -> Result<Self> {
        let injected = kind == BackendKind::Inject;
        let (role, device) = if injected { (SYS, INGRESS) } else { (GEN, INGRESS_PEER) };
        let mtu = longest.saturating_sub(ETHERNET_BYTES).max(MTU_BYTES) as u32;
        let mut plan = Plan::new();
        if kind == BackendKind::Udp {
            plan.namespace_with_ipv6(GEN);
        } else {
            plan.namespace(GEN);
        }
        plan.namespace(SYS);
        plan.veth(
            Port::new(GEN, INGRESS_PEER).mac(MAC_G0).mtu_bytes(mtu).queues(queues),
            Port::new(SYS, INGRESS).mac(MAC_IN0).mtu_bytes(mtu).queues(queues),
        );
        if kind == BackendKind::Udp {
            topology::sockets_to_anywhere(&mut plan);
        }
        if !programs {
            count_and_drop(&mut plan, SYS, INGRESS);
        }
        let lab = Lab::build(&plan).context("build the lab that packets are sent into")?;
        let ending = match (programs, injected) {
            (false, _) => {
                Ending::of(RuleCount::open(&lab, SYS, Family::Netdev, "packet-filter rule at the other end")?)
            }
            (true, true) => {
                let name = "tc program that drops";
                let (count, link) = attach_counter(&lab, (SYS, INGRESS), Hook::Tcx, Action::TcDrop, name)?;
                Ending::of(count).holding(link)
            }
            (true, false) => {
                let name = "XDP program at the other end";
                let (count, link) = attach_counter(&lab, (SYS, INGRESS), Hook::Xdp, Action::XdpDrop, name)?;
                Ending::of(count).holding(link)
            }
        };
        let ifindex = lab.device(role, device).ifindex;
        let socket = lab.netns(role).run(RouteSocket::open)??;
        let meter = Meter::new(socket, ifindex, injected, Some(ending))?;
        Ok(Self { name: device.into(), ifindex, queues: Some(queues), home: Home::Lab(lab, role), meter })
    }

    /// A device of the namespace that the program was started in, which the user has allowed.
    ///
    /// # Errors
    /// Where there is none of this name, it carries a default route, or it is not switched on.
    pub(crate) fn device(name: &str, kind: BackendKind, longest: usize) -> Result<Self> {
        if kind == BackendKind::Inject {
            bail!(
                "inject into {name}: injected packets go up this host's own stack, which may send them on; use --to lab"
            );
        }
        let link = lab::named_device(name)?;
        if !link.up {
            bail!("{name} is not switched on: `ip link set {name} up`");
        }
        if longest > link.mtu as usize + ETHERNET_BYTES + 4 {
            bail!(
                "packets of {longest} bytes (without FCS) do not fit {name}, whose MTU is {}: make them shorter, or the MTU greater",
                link.mtu
            );
        }
        let meter = Meter::new(RouteSocket::open()?, link.ifindex, false, None)?;
        Ok(Self {
            name: name.into(),
            ifindex: link.ifindex,
            queues: transmit_queues(&link),
            home: Home::Here,
            meter,
        })
    }

    /// Runs `work` in the namespace that is sent from.
    pub(crate) fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> Result<R> {
        match &self.home {
            Home::Lab(lab, role) => Ok(lab.netns(role).run(work)?),
            Home::Here => Ok(work()),
        }
    }
}

/// Transmit queues in use: a device may have been made for more.
fn transmit_queues(link: &Link) -> Option<u32> {
    let channels = EthtoolSocket::open().and_then(|socket| socket.channels(&link.name));
    let in_use = channels.ok().map(|channels| channels.tx + channels.combined).filter(|&queues| queues > 0);
    in_use.or(link.tx_queues)
}

impl Meter {
    fn new(mut socket: RouteSocket, ifindex: u32, injected: bool, ending: Option<Ending>) -> Result<Self> {
        let before = socket.link_stats(ifindex)?;
        Ok(Self { socket, ifindex, before, injected, ending })
    }

    /// What was counted since the start.
    pub(crate) fn counted(&mut self) -> Result<Counted> {
        let now = self.socket.link_stats(self.ifindex)?;
        let terminal = self.ending.as_mut().and_then(|ending| ending.terminal.as_mut());
        Ok(Counted {
            left: (!self.injected).then(|| now.tx_packets.saturating_sub(self.before.tx_packets)),
            dropped: now.tx_dropped.saturating_sub(self.before.tx_dropped),
            arrived: terminal
                .map(|terminal| Ok::<_, anyhow::Error>((terminal.count()?, terminal.name())))
                .transpose()?,
        })
    }
}

/// What the kernel counted of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counted {
    /// Packets that left by the device (tx_packets); none where they do not pass it.
    pub(crate) left: Option<u64>,
    /// Packets that the device dropped (tx_dropped).
    pub(crate) dropped: u64,
    /// Packets that arrived at the other end, and who counted them there; none where nobody does.
    pub(crate) arrived: Option<(u64, &'static str)>,
}

impl Counted {
    /// Where the packets ended that `sent` says were sent by the device `name`.
    pub(crate) fn ledger(&self, sent: Count, name: &str, frame_bytes: Option<u32>) -> Ledger {
        let mut book = Ledger::new("gen", frame_bytes, sent);
        let counter = format!("tx_packets of {name}");
        let sent = book.sent.packets;
        match (self.arrived, self.left) {
            (Some((packets, seen_by)), left) => {
                book.received.push(Count { packets, seen_by: seen_by.into() });
                book.notes.extend(left.map(|left| format!("{counter} grew by {left}")));
            }
            (None, left) => {
                // What others send is in this counter too: it cannot show that a packet of ours is missing then.
                let left = left.unwrap_or(0);
                book.received.push(Count { packets: left.min(sent), seen_by: counter.clone() });
                if left > sent {
                    book.notes.push(format!("{counter} grew by {left}: {} are of others", left - sent));
                }
            }
        }
        if self.dropped > 0 && book.unaccounted() > 0 {
            let packets = self.dropped.min(book.unaccounted().unsigned_abs());
            let (reason, counter) = ("dropped by the device".to_owned(), format!("tx_dropped of {name}"));
            book.drops.push(Drop { reason, counter, packets });
        }
        book
    }

    /// By how many packets the device's counter differs from what was sent, where nobody else sends; none where it does not.
    pub(crate) fn disagreement(&self, sent: u64) -> Option<i64> {
        self.arrived?;
        Some(self.left? as i64 - sent as i64).filter(|&difference| difference != 0)
    }
}
