//! A device under test in user space, between the two veth pairs of a lab: what is sent into the one it drops, delivers or sends
//! out of the other, where a program counts it.

use ::datapath::Reason;
use ::datapath::wire::ethernet::MacAddress;
use anyhow::{Context, Result, bail};
use lab::counters::{Key, Place};
use lab::plan::Offload;
use lab::{Lab, Plan};
use linux::bpf::Link;
use measure::ledger::{Count, Ledger};
use template::{CheckedFrame, UdpFrame};
use traffic::BackendKind;
use traffic::programs::Action;

use super::account::{Arrivals, Counters, settle};
use super::{Cpus, Laid};
use crate::cell::{Cell, FIRST_PORT, PathName};
use crate::device::{
    AddressWord, DeviceWord, NeighbourWord, Prefix, RouteWord, RxMode, Standing, Standings, forget,
};
use crate::ledger::Grown;
use crate::paths::XDP_DROPS;
use crate::paths::ending::{Hook, ProgramCount, Terminal, attach_counter};
use crate::paths::topology::{self, EGRESS, EGRESS_PEER, FAR, GEN, INGRESS, INGRESS_PEER, SYS};
use crate::scenario::{
    DATAPATH_JOB, Datapath, Devices, Network, PortKind, Receiving, Running, SCHEMA, StageName, UdpQueues,
};
use crate::stop::Stop;
use crate::trial::imix::Imix;
use crate::trial::sender::{Handover, Sender, Turn};
use crate::trial::{Course, Load, Trial};

/// Packets that wait for a receiver at most: as the kernel's default for a queue of this kind.
pub(crate) const QUEUE_LIMIT: usize = 1_024;

/// The ways to send into a device under test, best first: out of the veth's other end.
pub(crate) const WAYS: [BackendKind; 4] =
    [BackendKind::XdpLive, BackendKind::Mmsg, BackendKind::TxRing, BackendKind::AfXdp];

/// A lab with a device under test in it.
struct DatapathCourse {
    cell: Cell,
    frame: CheckedFrame,
    imix: Option<Imix>,
    kind: BackendKind,
    cpu: usize,
    end: End,
    counters: Counters,
    // Last, so that programs and sockets go before the namespaces that they are in.
    lab: Lab,
}

/// The device, and who counts behind it.
struct End {
    path: PathName,
    ports: PortKind,
    device: Standing,
    /// The next hop's program, where packets are to get there.
    next_hop: Option<(ProgramCount, Link)>,
}

/// Builds the lab and the device of a resolved cell.
pub(super) fn lay(cell: &Cell, mix: bool, ports: PortKind, cpus: &Cpus) -> Result<Laid> {
    let what = || format!("build the device for {} at {} bytes", cell.path, cell.frame_bytes);
    let kind = cell.setting.backend.context("the backend is not resolved")?;
    let lab = Lab::build(&plan(cell, ports)?).with_context(what)?;
    let next_hop = match cell.path {
        PathName::DatapathForward => {
            let name = "XDP program at the next hop";
            Some(attach_counter(&lab, (FAR, EGRESS_PEER), Hook::Xdp, Action::XdpDrop, name)?)
        }
        _ => None,
    };
    let scenario = scenario(cell, ports, cpus.others[0])?.checked().with_context(what)?;
    let device = lab.netns(SYS).run(|| Standing::start(&scenario, None, forget()))?.with_context(what)?;
    let shared = cpus.is_one().then(|| "there is one CPU for the sender and the device".to_owned());
    let course = DatapathCourse {
        cell: cell.clone(),
        imix: mix.then(|| Imix::of(&frame(cell))).transpose()?,
        frame: frame(cell).check()?,
        kind,
        cpu: cpus.sender,
        end: End { path: cell.path, ports, device, next_hop },
        counters: Counters::open(&lab)?,
        lab,
    };
    Ok(Laid { course: Box::new(course), shared })
}

/// The lab: the common one, in which the kernel of the system under test does nothing with the packets.
fn plan(cell: &Cell, ports: PortKind) -> Result<Plan> {
    let mut plan = topology::common(cell, false)?;
    topology::around_a_device(&mut plan);
    if ports == PortKind::AfPacket {
        if !cell.setting.gro {
            // A veth takes redirected frames only with NAPI on.
            plan.offload(GEN, INGRESS_PEER, Offload::Tso, false);
            plan.offload(SYS, INGRESS, Offload::Gro, true);
        }
        // Packet sockets see a frame before this rule; the stack, which would look at it as well, does not get it.
        topology::count_and_drop(&mut plan, SYS, INGRESS);
    }
    Ok(plan)
}

/// What the device does, as `datapath` would run it in the system under test.
fn scenario(cell: &Cell, ports: PortKind, cpu: usize) -> Result<Datapath> {
    let setting = &cell.setting;
    let port = |name: &str| match ports {
        PortKind::AfXdp => DeviceWord::AfXdp { name: name.into(), queue: Some(0) },
        PortKind::AfPacket => DeviceWord::AfPacket(name.into()),
    };
    let mode = match ports {
        // These keep their frames, so that all must be copied.
        PortKind::AfPacket => RxMode::Copy,
        PortKind::AfXdp => setting.rx,
    };
    let (stage, rx, both) = match cell.path {
        PathName::DatapathDrop => (StageName::Drop, Some(port(INGRESS)), vec![]),
        PathName::DatapathUdp => (StageName::Udp, Some(port(INGRESS)), vec![]),
        PathName::DatapathForward => (StageName::Forward, None, vec![port(INGRESS), port(EGRESS)]),
        other => bail!("{other} is joined to no network"),
    };
    let allow = match stage {
        StageName::Forward => vec![INGRESS.into(), EGRESS.into()],
        _ => vec![INGRESS.into()],
    };
    let last_port = FIRST_PORT + setting.flows - 1;
    let queues = UdpQueues { ports: format!("{FIRST_PORT}-{last_port}"), limit: QUEUE_LIMIT };
    Ok(Datapath {
        schema: SCHEMA.into(),
        job: DATAPATH_JOB.into(),
        stage,
        drop: vec![],
        fault: None,
        capture: None,
        devices: Devices { rx, ports: both, allow, ..Devices::default() },
        frames: None,
        receive: Receiving {
            mode,
            alloc: mode.copies().then_some(setting.alloc),
            budget: setting.batch as usize,
            busy: true,
        },
        run: Running { threads: 1, cpus: vec![cpu], count: None, time_s: None, seed: 0 },
        network: if stage == StageName::Forward { network() } else { Network::default() },
        udp: (stage == StageName::Udp).then_some(queues),
        steer: None,
    })
}

/// The addresses of the lab, as the kernel has them on the path `forward`.
fn network() -> Network {
    let address = |port, address: std::net::Ipv4Addr| AddressWord {
        port,
        prefix: Prefix { address: address.into(), bits: 24 },
    };
    let neighbour = |port, address: std::net::Ipv4Addr, mac| NeighbourWord {
        port,
        address: address.into(),
        mac: MacAddress(mac),
    };
    Network {
        addresses: vec![address(0, topology::IP_IN0), address(1, topology::IP_OUT0)],
        routes: vec![RouteWord {
            prefix: Prefix { address: topology::network(topology::IP_BEYOND.into()), bits: 24 },
            port: 1,
            via: Some(topology::IP_F0.into()),
        }],
        neighbours: vec![
            neighbour(0, topology::IP_G0, topology::MAC_G0),
            neighbour(1, topology::IP_F0, topology::MAC_F0),
        ],
        ..Network::default()
    }
}

fn frame(cell: &Cell) -> UdpFrame {
    UdpFrame {
        source_mac: topology::MAC_G0,
        destination_mac: topology::MAC_IN0,
        addresses: match cell.path {
            PathName::DatapathForward => topology::beyond_the_next_hop(),
            _ => topology::to_this_host(),
        },
        source_port: 1024,
        destination_port: FIRST_PORT,
        flows: cell.setting.flows,
        sources: 1,
        stamp: false,
        frame_bytes: cell.frame_bytes,
    }
}

impl Course for DatapathCourse {
    fn run(&mut self, load: &Load, stop: &Stop) -> Result<Trial> {
        self.counters.begin()?;
        let sender = Sender {
            kind: self.kind,
            frame: &self.frame,
            imix: self.imix.as_ref(),
            turn: Turn::Flows,
            batch: None,
            handover: Handover::of(&self.cell.setting),
            netns: Some(self.lab.netns(GEN)),
            ifindex: self.lab.device(GEN, INGRESS_PEER).ifindex,
            cpu: self.cpu,
        };
        let mut end = Since::now(&mut self.end)?;
        let offered = sender.send(load, stop, |_| ())?;
        settle(&self.cell, load, offered, &mut end, &mut self.counters)
    }
}

/// The end, from the beginning of a trial on.
struct Since<'a> {
    end: &'a mut End,
    before: Standings,
    arrived: u64,
}

impl<'a> Since<'a> {
    fn now(end: &'a mut End) -> Result<Self> {
        let before = end.device.standings()?;
        let arrived = end.arrived(&before)?;
        Ok(Self { end, before, arrived })
    }
}

impl End {
    /// Packets that came to the end of the path since the device was made.
    fn arrived(&mut self, standings: &Standings) -> Result<u64> {
        match &mut self.next_hop {
            Some((program, _)) => program.count(),
            None if self.path == PathName::DatapathUdp => Ok(standings.read),
            None => Ok(standings.ledger.drops.of(Reason::Early)),
        }
    }

    fn name(&self) -> &'static str {
        match &self.next_hop {
            Some((program, _)) => program.name(),
            None if self.path == PathName::DatapathUdp => "read from the receivers' queues",
            None => Reason::Early.name(),
        }
    }
}

impl Arrivals for Since<'_> {
    fn arrived(&mut self) -> Result<Count> {
        let now = self.end.device.standings()?;
        let packets = self.end.arrived(&now)? - self.arrived;
        Ok(Count { packets, seen_by: self.end.name().into() })
    }

    fn add_known(&mut self, book: &mut Ledger) -> Result<()> {
        let now = self.end.device.standings()?;
        let is_end = self.end.path == PathName::DatapathDrop;
        book.drops.extend(now.losses_since(&self.before, is_end.then_some(Reason::Early)));
        if self.missed(&now).is_none() {
            book.notes.push("the device does not tell whether it missed frames".into());
        }
        if now.ledger.held > 0 {
            book.notes.push(format!("the device holds {} packets", now.ledger.held));
        }
        Ok(())
    }

    /// A veth counts a frame that its AF_XDP socket did not take as `rx_drops` of the queue, and so in its `rx_dropped`, beside
    /// those for which its own ring was full (drivers/net/veth.c, veth_xdp_rcv_one and
    /// veth_get_stats64: the first read in patches from 5.4 to 2025, the counts tried on 6.18).
    fn take_known(&mut self, grown: &mut Grown) {
        if self.end.ports != PortKind::AfXdp {
            return;
        }
        let missed = self.end.device.standings().ok().and_then(|now| self.missed(&now)).unwrap_or(0);
        let key = Key::new(Place::Link(INGRESS.into()), "rx_dropped");
        for (_, counters) in grown.iter_mut().filter(|(role, _)| *role == SYS) {
            if let Some(dropped) = counters.get_mut(&key) {
                *dropped -= missed as i64;
            }
        }
    }

    fn on_the_way(&self) -> &[(&'static str, &'static str)] {
        &[(FAR, XDP_DROPS)]
    }
}

impl Since<'_> {
    /// Frames that were lost before the device received them, as far as it tells.
    fn missed(&self, now: &Standings) -> Option<u64> {
        now.missed_since(&self.before)
    }
}
