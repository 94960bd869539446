//! A lab for one setting: a sender, the system under test with its steering, and receivers; and runs in it.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use lab::counters::{Reader, Snapshot, diff};
use lab::journal::{Guard, JournalError};
use lab::plan::Offload;
use lab::{HostSettings, Lab, Plan, Port};
use linux::netns::Netns;
use linux::procfs::{self, CpuTimes};
use measure::ledger::Count;
use measure::record::FlowRun;
use template::{Addresses, CheckedFrame, UdpFrame};
use traffic::BackendKind;

use super::receivers::{Receivers, Streams};
use super::setting::FlowSetting;
use super::steering;
use super::{account, rows};
use crate::cell::FIRST_PORT;
use crate::ledger::{self, Grown, WayIn};
use crate::paths::topology::{IP_G0, IP_IN0, MAC_G0, MAC_IN0};
use crate::paths::{GEN, INGRESS, INGRESS_PEER, SYS};
use crate::rig::kernel::seen_by;
use crate::scenario::Dut;
use crate::stop::{Deadline, Stop};
use crate::trial::imix::Imix;
use crate::trial::sender::{Handover, Offered, Sender, Turn};
use crate::trial::{Course, Load, Trial};

/// First source address of a flood, and the network of all of them.
const FIRST_SOURCE: std::net::Ipv4Addr = std::net::Ipv4Addr::new(10, 0, 0, 1);
const SOURCES: (std::net::Ipv4Addr, u8) = (std::net::Ipv4Addr::new(10, 0, 0, 0), 8);
/// How long packets may take that are injected at once, in ns, and how many they may be.
const BURST_NS: f64 = 25_000.0;
const MOST_BATCH: u32 = 16;
/// Source port of all packets.
pub(super) const SOURCE_PORT: u16 = 1024;
/// How long is waited for packets that are on their way: since the last one came, and in all.
pub(super) const QUIET: Duration = Duration::from_secs(1);
pub(super) const DRAIN: Duration = Duration::from_secs(20);
/// Time between two looks meanwhile.
pub(super) const LOOK: Duration = Duration::from_millis(2);

/// What an arena is made for.
#[derive(Debug, Clone)]
pub(crate) struct Blueprint {
    /// Who receives.
    pub(crate) dut: Dut,
    /// With its way in settled.
    pub(crate) setting: FlowSetting,
    /// Whether the receiving device is polled (NAPI), as packets of one of the settings need it.
    pub(crate) napi: bool,
    /// Whether packets carry number and time.
    pub(crate) stamp: bool,
    /// Whether sockets are connected to the only source of their packets: receive flow steering knows the readers of such
    /// sockets alone (`sock_rps_record_flow`, include/net/rps.h, read at 0a7de4a8f898, between 6.14 and 6.18).
    pub(crate) connected: bool,
    /// Whether sizes are mixed; the frame size is the longest then.
    pub(crate) imix: bool,
    /// Ports, the last ones, that nobody listens on.
    pub(crate) closed_ports: u32,
    /// The CPU of the sender.
    pub(crate) sender_cpu: usize,
    /// Those of the receivers, in turn.
    pub(crate) receiver_cpus: Vec<usize>,
}

/// A lab with receivers, into which flows are sent.
pub(crate) struct Arena {
    blueprint: Blueprint,
    backend: BackendKind,
    frame: CheckedFrame,
    imix: Option<Imix>,
    receivers: Receivers,
    counters: Vec<(&'static str, Reader)>,
    /// Settings of the host, put back when this goes.
    held: Vec<Guard>,
    // Last, so that sockets go before the namespaces that they are in.
    lab: Lab,
}

/// What a run left: for the record, and its ledger.
#[derive(Debug, Clone)]
pub(crate) struct FlowTrial {
    pub(crate) run: FlowRun,
    pub(crate) trial: Trial,
}

impl Blueprint {
    /// The lab that it asks for.
    pub(crate) fn plan(&self) -> Result<Plan> {
        let setting = &self.setting;
        let mut plan = Plan::new();
        plan.namespace(GEN).namespace(SYS);
        for which in ["all", "default"] {
            plan.setting(SYS, &format!("net.ipv4.conf.{which}.rp_filter"), "0");
        }
        steering::plan(setting, &mut plan)?;
        let queues = steering::queues(setting)?;
        plan.veth(
            Port::new(GEN, INGRESS_PEER).mac(MAC_G0).queues(queues),
            Port::new(SYS, INGRESS).mac(MAC_IN0).queues(queues),
        );
        plan.address(GEN, INGRESS_PEER, IP_G0.into(), 24);
        plan.address(SYS, INGRESS, IP_IN0.into(), 24);
        plan.neighbour(GEN, INGRESS_PEER, IP_IN0.into(), MAC_IN0);
        plan.neighbour(SYS, INGRESS, IP_G0.into(), MAC_G0);
        if setting.source_count() > 1 {
            // Answers, such as those of a port without a socket, need no neighbour for each source.
            plan.route(SYS, (SOURCES.0.into(), SOURCES.1), Some(IP_G0.into()), INGRESS);
        }
        if self.napi {
            // A veth takes a packet into NAPI and GRO only if its sender does no segmentation (veth_xmit, 6.18).
            plan.offload(GEN, INGRESS_PEER, Offload::Tso, false);
            plan.offload(SYS, INGRESS, Offload::Gro, true);
        }
        Ok(plan)
    }

    /// Where packets come in, and how the device takes them.
    pub(crate) fn ingress(&self, kind: BackendKind) -> String {
        match kind {
            _ if self.dut == Dut::Datapath => format!("veth {INGRESS_PEER} to {INGRESS}, af-xdp"),
            BackendKind::Inject => format!("netif_receive_skb_list of {INGRESS}"),
            _ if self.napi => format!("veth {INGRESS_PEER} to {INGRESS}, napi"),
            _ => format!("veth {INGRESS_PEER} to {INGRESS}, netif_rx"),
        }
    }

    /// What is sent.
    pub(super) fn frame(&self) -> UdpFrame {
        let setting = &self.setting;
        let source = if setting.source_count() > 1 { FIRST_SOURCE } else { IP_G0 };
        UdpFrame {
            source_mac: MAC_G0,
            destination_mac: MAC_IN0,
            addresses: Addresses::V4 { source, destination: IP_IN0 },
            source_port: SOURCE_PORT,
            destination_port: FIRST_PORT,
            flows: setting.port_count() as u16,
            sources: setting.source_count(),
            stamp: self.stamp,
            frame_bytes: setting.frame,
        }
    }
}

impl Arena {
    /// Builds the lab, steers its device and the host, and starts the receivers.
    ///
    /// # Errors
    /// What could not be made, and why.
    pub(crate) fn build(blueprint: &Blueprint, host: Option<&HostSettings>) -> Result<Self> {
        let setting = &blueprint.setting;
        let backend = setting.backend.context("the backend is not resolved")?;
        let frame = blueprint.frame().check()?;
        let lab = Lab::build(&blueprint.plan()?).context("build the lab for flows")?;
        let held = steering::apply(setting, &lab, host)?;
        let receivers = Receivers::start(&lab, blueprint).context("start the receivers")?;
        let open = |role| Ok((role, Reader::open(&lab, role, &[])?));
        let counters = [GEN, SYS].map(open).into_iter().collect::<Result<_>>()?;
        let imix = blueprint.imix.then(|| Imix::of(&blueprint.frame())).transpose()?;
        Ok(Self { blueprint: blueprint.clone(), backend, frame, imix, receivers, counters, held, lab })
    }

    /// Sends a load, waits for what is on its way, and counts.
    ///
    /// # Errors
    /// Where sending, receiving or reading a counter fails.
    pub(crate) fn run(&mut self, load: &Load, stop: &Stop, mut watch: impl FnMut(u64)) -> Result<FlowTrial> {
        drop(self.receivers.collect()?);
        let received_before = self.receivers.received();
        let before = self.read_counters()?;
        let cpus_before = read_cpu_times();
        let offered = self.sender(load).send(load, stop, &mut watch)?;
        let (received, grown, refused) = self.drain(&offered, received_before, &before)?;
        let cpus = cpus_before.zip(read_cpu_times()).map(|(then, now)| account::cpu_use(&then, &now));
        let tallies = self.receivers.collect()?;
        let sent = Count { packets: offered.packets, seen_by: seen_by(self.backend).into() };
        let trial = Trial {
            load: *load,
            sent: offered.packets,
            received,
            wall_ns: offered.wall_ns,
            ledger: account::ledger(
                self.blueprint.setting.frame,
                sent,
                received,
                &grown,
                refused.unwrap_or(0),
            ),
            refused,
            gaps: offered.gaps.clone(),
        };
        let run = rows::run(&self.blueprint, &trial, &offered, &tallies, cpus.unwrap_or_default());
        Ok(FlowTrial { run, trial })
    }

    /// Takes the lab down and puts the host's settings back: why that did not work, of each.
    pub(crate) fn finish(self) -> Vec<JournalError> {
        // What was set last is put back first.
        self.held.into_iter().rev().filter_map(|guard| guard.release().err()).collect()
    }

    fn sender(&self, load: &Load) -> Sender<'_> {
        let (role, device) = home(self.backend);
        Sender {
            kind: self.backend,
            frame: &self.frame,
            imix: self.imix.as_ref(),
            turn: self.turn(),
            netns: Some(self.netns(role)),
            ifindex: self.lab.device(role, device).ifindex,
            cpu: self.blueprint.sender_cpu,
            batch: (self.backend == BackendKind::Inject).then(|| batch(load.interval_ns())),
            handover: Handover::default(),
        }
    }

    fn netns(&self, role: &str) -> &Netns {
        self.lab.netns(role)
    }

    fn turn(&self) -> Turn {
        Streams::of(&self.blueprint.setting).turn
    }

    fn read_counters(&mut self) -> Result<Vec<(&'static str, Snapshot)>> {
        self.counters.iter_mut().map(|(role, reader)| Ok((*role, reader.read()?))).collect()
    }

    /// Waits until every packet is accounted for, or nothing has come for a while. Packets received, the counters' growth without
    /// what was refused and sent again, and how often that was.
    fn drain(
        &mut self,
        offered: &Offered,
        received_before: u64,
        before: &[(&'static str, Snapshot)],
    ) -> Result<(u64, Grown, Option<u64>)> {
        let way = WayIn::by(self.backend, self.blueprint.napi);
        let frame_bytes = self.blueprint.setting.frame;
        let deadline = Deadline::after(DRAIN);
        let (mut last, mut changed_at, mut is_empty) = (None, Duration::ZERO, false);
        loop {
            let now = self.read_counters()?;
            let received = self.receivers.received() - received_before;
            let mut grown: Grown =
                before.iter().zip(&now).map(|((role, then), (_, now))| (*role, diff(then, now))).collect();
            let refused = ledger::take_refusals(&mut grown, way);
            let sent = Count { packets: offered.packets, seen_by: String::new() };
            let book = account::ledger(frame_bytes, sent, received, &grown, refused.unwrap_or(0));
            let open = book.unaccounted();
            if last != Some((received, open)) {
                (last, changed_at) = (Some((received, open)), deadline.elapsed());
                is_empty = false;
            }
            // Quiet may be that receivers get no CPU: what they have left is asked once more.
            if !is_empty && deadline.elapsed() - changed_at > QUIET / 2 && !book.closes() {
                self.receivers.wait_until_empty();
                is_empty = true;
                continue;
            }
            if book.closes() || deadline.elapsed() - changed_at > QUIET || deadline.passed() {
                return Ok((received, grown, refused));
            }
            thread::sleep(LOOK);
        }
    }
}

impl Course for Arena {
    fn run(&mut self, load: &Load, stop: &Stop) -> Result<Trial> {
        Ok(Arena::run(self, load, stop, |_| ())?.trial)
    }
}

/// Packets that are injected at once: those of a short time, as a network card hands over between two interrupts. One by
/// one, each would be paid for as a batch.
fn batch(interval_ns: f64) -> u32 {
    let most = (BURST_NS / interval_ns).clamp(1.0, f64::from(MOST_BATCH)) as u32;
    1 << most.ilog2()
}

/// The namespace and the device that a way in sends from.
fn home(kind: BackendKind) -> (&'static str, &'static str) {
    if kind == BackendKind::Inject { (SYS, INGRESS) } else { (GEN, INGRESS_PEER) }
}

/// None where the kernel does not show them.
pub(super) fn read_cpu_times() -> Option<Vec<CpuTimes>> {
    Some(procfs::cpu_times(&procfs::read("/proc/stat").ok()?))
}

/// What a setting is made of, as the record has it.
pub(crate) fn settings_of(setting: &FlowSetting) -> BTreeMap<String, String> {
    use super::setting::FlowFactor;
    FlowFactor::ALL.into_iter().map(|(name, factor)| (name.to_owned(), setting.value(factor))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blueprint(setting: FlowSetting) -> Blueprint {
        Blueprint {
            dut: Dut::Kernel,
            setting: FlowSetting { backend: Some(BackendKind::Inject), ..setting },
            napi: false,
            stamp: true,
            connected: false,
            imix: false,
            closed_ports: 0,
            sender_cpu: 1,
            receiver_cpus: vec![0],
        }
    }

    #[test]
    fn a_flood_comes_from_addresses_that_the_lab_accepts() {
        let flood = blueprint(FlowSetting { sources: 1_000_000, ..FlowSetting::default() });
        let plan = flood.plan().unwrap().to_string();
        assert!(plan.contains("10.0.0.0/8") && plan.contains("rp_filter"), "{plan}");
        assert_eq!(flood.frame().sources, 1_000_000);
        assert!(flood.frame().check().is_ok());
        assert!(!blueprint(FlowSetting::default()).plan().unwrap().to_string().contains("10.0.0.0"));
    }

    #[test]
    fn packets_of_a_short_time_are_injected_at_once() {
        assert_eq!([750e3, 10e6, 200e3, 10e3].map(|pps| batch(1e9 / pps)), [16, 16, 4, 1]);
    }

    #[test]
    fn polling_is_on_where_a_setting_needs_it() {
        let polled = Blueprint { napi: true, ..blueprint(FlowSetting::default()) };
        assert!(polled.plan().unwrap().to_string().contains("GRO"), "{}", polled.plan().unwrap());
        assert!(!blueprint(FlowSetting::default()).plan().unwrap().to_string().contains("GRO"));
    }
}
