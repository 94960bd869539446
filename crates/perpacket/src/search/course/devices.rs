//! Two devices of the host that the user names, and what is between them: frames are sent out of one and counted where they come in
//! by the other.

use std::net::Ipv4Addr;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use linux::bpf::{Link as Attached, Program, ProgramKind, ProgramSpec, XdpMode};
use linux::privilege;
use linux::route::{Link, RouteSocket};
use measure::ledger::{Count, Drop, Ledger};
use template::{Addresses, CheckedFrame, UdpFrame};
use traffic::{BackendKind, ProgramSink, programs};

use super::super::place::Place;
use super::{Cpus, Laid};
use crate::cell::{Cell, FIRST_PORT, Setting};
use crate::device::parse_mac;
use crate::host::Abilities;
use crate::rig::kernel::seen_by;
use crate::scenario::{DevicePair, FrameWord};
use crate::stop::{Deadline, Stop};
use crate::trial::imix::Imix;
use crate::trial::sender::{Handover, Sender, Turn};
use crate::trial::{Course, Load, Trial};

/// The ways out of a device, best first where none is asked for. A redirect (xdp-live) is taken only where it is asked for: not every
/// driver takes one, and a veth loses all of it where its other end does not poll.
const WAYS: [BackendKind; 4] =
    [BackendKind::Mmsg, BackendKind::TxRing, BackendKind::AfXdp, BackendKind::XdpLive];
/// Addresses of the frames: from one half of what RFC 2544 (appendix C.2.2) keeps for tests into the other.
const SOURCE: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const DESTINATION: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 1);
/// How long packets may take after the last one was sent, and after how much time without a new one the rest is taken to be lost:
/// a device under test may have long queues.
const DRAIN: Duration = Duration::from_secs(5);
const QUIET: Duration = Duration::from_millis(500);
const LOOK: Duration = Duration::from_millis(1);
const ETHERNET_BYTES: u32 = 14;
const LOST: &str = "it did not come back: lost in the device under test, or on the way to it and from it";

/// Both devices, and the program that counts.
struct DevicesCourse {
    frame: CheckedFrame,
    frame_bytes: u32,
    imix: Option<Imix>,
    kind: BackendKind,
    cpu: usize,
    to: Link,
    from: Link,
    socket: RouteSocket,
    sink: ProgramSink,
    _attached: Attached,
}

/// The cell with its way out settled.
///
/// # Errors
/// Where there is none, or something is asked for that is made of a lab.
pub(crate) fn resolve(mut cell: Cell, abilities: &Abilities) -> Result<Cell> {
    let kept = Setting { backend: cell.setting.backend, flows: cell.setting.flows, ..Setting::default() };
    if let Some((name, value)) =
        cell.setting.changed().into_iter().find(|pair| !kept.changed().contains(pair))
    {
        bail!(
            "{name} = {value} on devices: what is between them is not made here; they take backend and flows"
        );
    }
    ensure!(
        privilege::full(),
        "devices: frames are counted by an XDP program on a device of the host, which only root may attach"
    );
    let kind = match cell.setting.backend {
        Some(kind) if WAYS.contains(&kind) => {
            if let Some(why) = abilities.lacking(kind) {
                bail!("{kind} is not available here: {why}");
            }
            kind
        }
        Some(kind) => bail!("{kind} does not send out of a device: use mmsg, tx-ring, af-xdp or xdp-live"),
        None => WAYS
            .into_iter()
            .find(|&kind| abilities.lacking(kind).is_none())
            .context("no way out of a device is available here")?,
    };
    cell.setting.backend = Some(kind);
    Ok(cell)
}

/// Asks whether both devices may be used, and attaches what counts.
///
/// # Errors
/// A device with a default route is refused, whatever was allowed.
pub(super) fn lay(place: &Place, pair: &DevicePair, cpus: &Cpus) -> Result<Laid> {
    let (to, from) = (device(&pair.to, pair, place)?, device(&pair.from, pair, place)?);
    ensure!(
        to.ifindex != from.ifindex,
        "devices: {} is both: frames go out of one and come in by another",
        to.name
    );
    let written = UdpFrame {
        source_mac: mac(&to)?,
        destination_mac: match &pair.destination_mac {
            Some(text) => {
                parse_mac(text)
                    .with_context(|| format!("--dst-mac {text}: six bytes in hexadecimal, with colons"))?
                    .0
            }
            None => mac(&from)?,
        },
        addresses: Addresses::V4 { source: SOURCE, destination: pair.destination.unwrap_or(DESTINATION) },
        source_port: 1024,
        destination_port: FIRST_PORT,
        flows: place.cell.setting.flows,
        sources: 1,
        stamp: false,
        frame_bytes: place.cell.frame_bytes,
    };
    let sink = ProgramSink::new()?;
    let code = programs::counter_of_source(SOURCE, sink.map_fd())?;
    let spec =
        ProgramSpec { has_frags: true, ..ProgramSpec::new(ProgramKind::Xdp, "perpacket_search", &code) };
    let program = Program::load(&spec)?;
    let attached = Attached::attach_xdp(&program, from.ifindex, XdpMode::Native)
        .or_else(|_| Attached::attach_xdp(&program, from.ifindex, XdpMode::Generic))
        .with_context(|| format!("attach the counting program to {}", from.name))?;
    let mixed = place.frame == FrameWord::Imix;
    let course = DevicesCourse {
        frame: written.clone().check()?,
        frame_bytes: place.cell.frame_bytes,
        imix: mixed.then(|| Imix::of(&written)).transpose()?,
        kind: place.cell.setting.backend.context("the backend is not resolved")?,
        cpu: cpus.sender,
        to,
        from,
        socket: RouteSocket::open()?,
        sink,
        _attached: attached,
    };
    Ok(Laid { course: Box::new(course), shared: None })
}

/// A device that the user has named and allowed, that carries no default route and takes the frames.
fn device(name: &str, pair: &DevicePair, place: &Place) -> Result<Link> {
    ensure!(
        pair.allow.iter().any(|allowed| allowed == name),
        "{name}: test traffic leaves a lab only by a device that is allowed to take it: --allow-device {name}"
    );
    let link = lab::named_device(name)?;
    ensure!(link.up, "{name} is not switched on: `ip link set {name} up`");
    let bytes = place.cell.frame_bytes - 4;
    ensure!(
        bytes <= link.mtu + ETHERNET_BYTES,
        "frames of {bytes} bytes (without FCS) do not fit {name}, whose MTU is {}",
        link.mtu
    );
    Ok(link)
}

fn mac(link: &Link) -> Result<[u8; 6]> {
    link.mac.with_context(|| format!("{} has no Ethernet address", link.name))
}

impl DevicesCourse {
    /// Frames that this end did not let out, and those that the other did not take.
    fn dropped(&mut self) -> Result<[u64; 2]> {
        let out = self.socket.link_stats(self.to.ifindex)?;
        let back = self.socket.link_stats(self.from.ifindex)?;
        Ok([out.tx_dropped, back.rx_dropped])
    }
}

impl Course for DevicesCourse {
    fn run(&mut self, load: &Load, stop: &Stop) -> Result<Trial> {
        let (before, dropped) = (self.sink.received()?, self.dropped()?);
        let sender = Sender {
            kind: self.kind,
            frame: &self.frame,
            imix: self.imix.as_ref(),
            turn: Turn::Flows,
            batch: None,
            handover: Handover::default(),
            netns: None,
            ifindex: self.to.ifindex,
            cpu: self.cpu,
        };
        let offered = sender.send(load, stop, |_| ())?;
        let deadline = Deadline::after(DRAIN);
        let (mut received, mut changed_at) = (0, Duration::ZERO);
        loop {
            let now = self.sink.received()? - before;
            if now != received {
                (received, changed_at) = (now, deadline.elapsed());
            }
            if now >= offered.packets || deadline.elapsed() - changed_at > QUIET || deadline.passed() {
                break;
            }
            thread::sleep(LOOK);
        }
        let sent = Count { packets: offered.packets, seen_by: seen_by(self.kind).into() };
        let mut book = Ledger::new("devices", Some(self.frame_bytes), sent);
        let seen_by = format!("XDP program on {}", self.from.name);
        book.received.push(Count { packets: received, seen_by });
        let now = self.dropped()?;
        let ends = [
            (0, "the device could not send it", format!("{} tx_dropped", self.to.name)),
            (1, "the receiving device could not take it", format!("{} rx_dropped", self.from.name)),
        ];
        for (end, reason, counter) in ends {
            // The counters are the devices', which others may use.
            let left = u64::try_from(book.unaccounted()).unwrap_or(0);
            let packets = now[end].saturating_sub(dropped[end]).min(left);
            if packets > 0 {
                book.drops.push(Drop { reason: reason.into(), counter, packets });
            }
        }
        // What is between the devices has no counters that are known here.
        let left = u64::try_from(book.unaccounted()).unwrap_or(0);
        if left > 0 {
            let counter = format!("sent out of {} less seen on {}", self.to.name, self.from.name);
            book.drops.push(Drop { reason: LOST.into(), counter, packets: left });
        }
        Ok(Trial {
            load: *load,
            sent: offered.packets,
            received,
            wall_ns: offered.wall_ns,
            refused: None,
            gaps: offered.gaps,
            ledger: book,
        })
    }
}
