//! A path of the kernel in a lab.

use anyhow::{Context, Result};
use lab::Lab;
use measure::ledger::{Count, Ledger};
use template::CheckedFrame;
use traffic::BackendKind;

use super::account::{Arrivals, Counters, settle};
use super::reader::Readers;
use super::{Cpus, Laid};
use crate::cell::{Cell, PathName};
use crate::paths::{self, Ending, GEN, INGRESS, INGRESS_PEER, SYS, topology};
use crate::stop::Stop;
use crate::trial::imix::Imix;
use crate::trial::sender::{Handover, Sender, Turn};
use crate::trial::{Course, Load, Trial};

/// A lab along whose path packets are sent.
struct KernelCourse {
    cell: Cell,
    frame: CheckedFrame,
    imix: Option<Imix>,
    kind: BackendKind,
    /// The CPU that sends.
    cpu: usize,
    end: End,
    counters: Counters,
    // Last, so that programs and sockets go before the namespaces that they are in.
    lab: Lab,
}

/// Who counts what arrives.
enum End {
    /// A counter of the kernel, or a program.
    Kernel(Ending),
    /// Threads that read.
    Readers(Readers),
}

/// Builds the lab of a cell whose backend is resolved.
pub(super) fn lay(cell: &Cell, mix: bool, cpus: &Cpus) -> Result<Laid> {
    let what = || format!("build the lab for {} at {} bytes", cell.path, cell.frame_bytes);
    let path = paths::of(cell.path)?;
    let kind = cell.setting.backend.context("the backend is not resolved")?;
    let lab = Lab::build(&paths::lay(cell)?).with_context(what)?;
    let end = match cell.path {
        PathName::Udp => Readers::start(&lab, SYS, topology::IP_IN0.into(), cell.setting.flows, &cpus.others)
            .map(End::Readers),
        _ => path.open(&lab, cell).map(End::Kernel),
    };
    let end = end.with_context(what)?;
    let shared = shared(cell, cpus)?;
    let course = KernelCourse {
        cell: cell.clone(),
        imix: mix.then(|| Imix::of(&path.frame(cell))).transpose()?,
        frame: path.frame(cell).check()?,
        kind,
        cpu: cpus.sender,
        end,
        counters: Counters::open(&lab)?,
        lab,
    };
    Ok(Laid { course: Box::new(course), shared })
}

/// The same of packets that are delivered to a socket.
pub(super) fn shared_up_to_the_socket(cell: &Cell, cpus: &Cpus) -> Result<Option<String>> {
    shared(&Cell { path: PathName::Udp, ..cell.clone() }, cpus)
}

/// What of the path runs on the sender's CPU: all of it, in the call that injects or in a softirq on top of the one that sends,
/// unless it is steered away.
fn shared(cell: &Cell, cpus: &Cpus) -> Result<Option<String>> {
    if cpus.is_one() {
        return Ok(Some("there is one CPU for the sender and all that receives".into()));
    }
    if cell.setting.rps_mask()? != 0 {
        return Ok(None);
    }
    let others: Vec<String> = cpus.others.iter().map(ToString::to_string).collect();
    Ok(Some(match cell.path {
        PathName::Udp => format!(
            "sender and path share CPU {} up to the socket, which is read on CPU {}",
            cpus.sender,
            others.join(", ")
        ),
        _ => format!("sender and path share CPU {}", cpus.sender),
    }))
}

impl Course for KernelCourse {
    fn run(&mut self, load: &Load, stop: &Stop) -> Result<Trial> {
        self.counters.begin()?;
        let (role, device) = match self.kind {
            BackendKind::Inject => (SYS, INGRESS),
            _ => (GEN, INGRESS_PEER),
        };
        let sender = Sender {
            kind: self.kind,
            frame: &self.frame,
            imix: self.imix.as_ref(),
            turn: Turn::Flows,
            batch: None,
            handover: Handover::of(&self.cell.setting),
            netns: Some(self.lab.netns(role)),
            ifindex: self.lab.device(role, device).ifindex,
            cpu: self.cpu,
        };
        let mut end = Since::now(&mut self.end, self.cell.path)?;
        let offered = sender.send(load, stop, |_| ())?;
        settle(&self.cell, load, offered, &mut end, &mut self.counters)
    }
}

impl End {
    fn count(&mut self) -> Result<u64> {
        match self {
            Self::Kernel(ending) => ending.terminal.as_mut().map_or(Ok(0), |terminal| terminal.count()),
            Self::Readers(readers) => readers.received(),
        }
    }

    fn dropped(&mut self) -> Result<Vec<(&'static str, u64)>> {
        match self {
            Self::Kernel(ending) => {
                ending.terminal.as_mut().map_or(Ok(Vec::new()), |terminal| terminal.dropped())
            }
            Self::Readers(readers) => {
                Ok(vec![("socket receive buffer full (SO_MEMINFO)", readers.dropped())])
            }
        }
    }

    fn wait_until_empty(&self) {
        if let Self::Readers(readers) = self {
            readers.wait_until_empty();
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Kernel(ending) => ending.terminal.as_ref().map_or("nobody", |terminal| terminal.name()),
            Self::Readers(_) => "read from the socket",
        }
    }
}

/// The end, from the beginning of a trial on.
struct Since<'a> {
    end: &'a mut End,
    path: PathName,
    arrived: u64,
    dropped: Vec<(&'static str, u64)>,
}

impl<'a> Since<'a> {
    fn now(end: &'a mut End, path: PathName) -> Result<Self> {
        // What a reader has not told yet of the trial before is none of this one.
        end.wait_until_empty();
        let (arrived, dropped) = (end.count()?, end.dropped()?);
        Ok(Self { end, path, arrived, dropped })
    }
}

impl Arrivals for Since<'_> {
    fn arrived(&mut self) -> Result<Count> {
        let packets = self.end.count()? - self.arrived;
        Ok(Count { packets, seen_by: self.end.name().into() })
    }

    fn wait_until_empty(&mut self) {
        self.end.wait_until_empty();
    }

    fn add_known(&mut self, book: &mut Ledger) -> Result<()> {
        let before =
            |reason: &str| self.dropped.iter().find(|(known, _)| *known == reason).map_or(0, |(_, old)| *old);
        let since =
            self.end.dropped()?.into_iter().map(|(reason, now)| (reason, now - before(reason))).collect();
        crate::ledger::add_known(book, since);
        Ok(())
    }

    fn on_the_way(&self) -> &[(&'static str, &'static str)] {
        paths::about(self.path).on_the_way
    }
}
