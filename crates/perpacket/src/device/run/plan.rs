//! A worker for each thread, and queues between threads.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use datapath::device::{
    CapturedRx, CapturedTx, Dummy, FaultSpec, FaultyLand, FaultyLend, Land, Lend, Lending, Transmit,
};
use datapath::queue::{Outlet, bounded};
use datapath::stage::filter::{Action, Filter};
use datapath::stage::forward::TableFacts;
use datapath::stage::steer::{Spread, Way};
use datapath::stage::udp::Unclaimed;
use datapath::stage::{EarlyDrop, Steer, Udp};
use datapath::steering::{CpuMap, FlowLimit, Key, Toeplitz};
use datapath::{Reason, Worker};
use linux::cpu;
use measure::record::Warning;

use super::open::{self, Facts, FrameSource, Ground, Opened, Use};
use super::pcap::CaptureSink;
use super::stages;
use super::threads::{Consumer, Lane, Role};
use crate::device::tables::MadeUp;
use crate::device::{Destinations, DeviceWord, RxMode, RxQueue, page_pool, ports, receiver};
use crate::scenario::{Datapath, StageName, Steering};

/// A run about to begin.
pub(super) struct Plan {
    pub(super) lanes: Vec<Lane>,
    pub(super) consumers: Vec<Consumer>,
    /// Frames after which all threads end, where they are counted together.
    pub(super) together: Option<u64>,
    pub(super) leftovers: Leftovers,
    pub(super) warnings: Vec<Warning>,
}

/// What is asked at the end.
#[derive(Default)]
pub(super) struct Leftovers {
    pub(super) dummies: Vec<Arc<Dummy>>,
    pub(super) sinks: Vec<CaptureSink>,
    pub(super) table: Option<TableFacts>,
}

impl Plan {
    /// Opens all devices, and joins them.
    ///
    /// # Errors
    /// Where a device cannot be opened, or the network that is described is none.
    pub(super) fn build(scenario: &Datapath) -> Result<Self> {
        let mut builder = Builder::new(scenario)?;
        let receivers = builder.cpus.clone();
        let mut workers = builder.receivers()?;
        if !scenario.drop.is_empty() {
            let rules = stages::rules(&scenario.drop)?;
            let filter = || Filter::new(rules.clone(), Action::Accept);
            workers = workers.into_iter().map(|worker| worker.stage(filter())).collect();
        }
        let (mut lanes, mut consumers) = (Vec::new(), Vec::new());
        let mut outlets = Vec::new();
        match scenario.stage {
            StageName::Drop => workers = workers.into_iter().map(|worker| worker.stage(EarlyDrop)).collect(),
            StageName::Forward => workers = builder.routed(workers)?,
            StageName::Udp => (workers, consumers, outlets) = builder.delivered(workers)?,
            StageName::Steer => (workers, lanes, outlets) = builder.steered(workers)?,
        }
        for (thread, (worker, cpu)) in workers.into_iter().zip(receivers).enumerate() {
            lanes.push(builder.lane(worker, thread, cpu, outlets.clone()));
        }
        let together = scenario.run.count.filter(|_| !builder.splits_count());
        Ok(Self { lanes, consumers, together, leftovers: builder.leftovers, warnings: builder.warnings })
    }
}

impl Plan {
    /// A device that delivers to receivers' queues, behind backlogs: flows are dealt out to these CPUs, whose threads deliver.
    ///
    /// # Errors
    /// As [`Plan::build`].
    pub(super) fn build_steered(scenario: &Datapath, steer: &Steering) -> Result<Self> {
        let mut builder = Builder::new(scenario)?;
        let receivers = builder.cpus.clone();
        let workers = builder.receivers()?;
        let (behind, outlets) = backlogs(steer);
        let (behind, consumers, _) = builder.delivered(behind)?;
        let mut lanes = builder.backlog_lanes(behind, &outlets, steer);
        let workers = dealt_out(workers, &outlets, steer)?;
        for (thread, (worker, cpu)) in workers.into_iter().zip(receivers).enumerate() {
            lanes.push(builder.lane(worker, thread, cpu, outlets.clone()));
        }
        Ok(Self {
            lanes,
            consumers,
            together: None,
            leftovers: builder.leftovers,
            warnings: builder.warnings,
        })
    }
}

struct Builder<'a> {
    scenario: &'a Datapath,
    /// The CPUs of threads that receive.
    cpus: Vec<usize>,
    /// Devices by port.
    rx: Vec<Opened>,
    /// Devices that are sent to beside those.
    tx: Option<Opened>,
    /// The file that all frames go to, where one was asked for.
    witness: Option<CaptureSink>,
    /// Receiving queues so far.
    queues: u64,
    table: Option<MadeUp>,
    leftovers: Leftovers,
    warnings: Vec<Warning>,
}

impl<'a> Builder<'a> {
    fn new(scenario: &'a Datapath) -> Result<Self> {
        let table = stages::made_up(scenario)?;
        let destinations = match &table {
            Some(table) => Destinations::List(Arc::clone(&table.destinations)),
            None => Destinations::One(crate::device::hosts::BEHIND),
        };
        let ground = Ground::new(scenario, destinations)?;
        let threads = scenario.run.threads;
        let devices = &scenario.devices;
        // Answers leave by the device that was received from.
        let answers = !devices.ports.is_empty();
        let wanted = Use { receivers: threads, senders: if answers { threads } else { 0 } };
        let open = |word: &&DeviceWord| open::open(word, &ground, wanted);
        let rx: Vec<Opened> = devices.receiving().iter().map(open).collect::<Result<_>>()?;
        let wanted = Use { receivers: 0, senders: scenario.senders() };
        let tx = devices.tx.as_ref().map(|word| open::open(word, &ground, wanted)).transpose()?;
        let witness = scenario.capture.as_deref().map(CaptureSink::create).transpose()?;
        let mut leftovers = Leftovers { sinks: witness.iter().cloned().collect(), ..Leftovers::default() };
        for opened in rx.iter().chain(&tx) {
            leftovers.dummies.extend(opened.dummy.clone());
            leftovers.sinks.extend(opened.sink.clone());
        }
        let cpus = cpus(scenario)?;
        let warnings = ground.frames.as_ref().map_or(Vec::new(), FrameSource::warnings);
        Ok(Self { scenario, cpus, rx, tx, witness, queues: 0, table, leftovers, warnings })
    }

    /// A worker for each thread, with its receiving queues and without stages and ports.
    fn receivers(&mut self) -> Result<Vec<Worker>> {
        let receive = &self.scenario.receive;
        let mut workers: Vec<Option<Worker>> = (0..self.scenario.run.threads).map(|_| None).collect();
        for opened in &mut self.rx {
            let longest = opened.facts.longest;
            for (queue, worker) in opened.rx.drain(..).zip(&mut workers) {
                let queue =
                    decorated(queue, self.scenario, self.witness.as_ref(), &mut self.queues, longest)?;
                let side = receiver(queue, receive.alloc.unwrap_or_default(), receive.mode, longest)?;
                *worker = Some(match worker.take() {
                    Some(worker) => worker.receive(side),
                    None => Worker::new(side),
                });
            }
        }
        workers.into_iter().map(|worker| worker.context("a thread has nothing to receive from")).collect()
    }

    /// What is known of each port. With `rx` and `tx` there is one: frames come by the first, and must fit the second.
    fn facts(&self) -> Vec<Facts> {
        let mut facts: Vec<Facts> = self.rx.iter().map(|opened| opened.facts).collect();
        if let (Some(tx), [facts]) = (&self.tx, &mut facts[..]) {
            facts.mtu_bytes = tx.facts.mtu_bytes;
            facts.mac = facts.mac.or(tx.facts.mac);
        }
        facts
    }

    /// The sending queues of all devices, by port and then by thread.
    fn senders(&mut self) -> Vec<Vec<Box<dyn Transmit>>> {
        let devices = self.rx.iter_mut().chain(&mut self.tx);
        let queues = devices.map(|opened| std::mem::take(&mut opened.tx)).filter(|queues| !queues.is_empty());
        let seen = |queue: Box<dyn Transmit>| match &self.witness {
            Some(sink) => Box::new(CapturedTx::new(queue, sink.taker())),
            None => queue,
        };
        queues.map(|queues| queues.into_iter().map(seen).collect()).collect()
    }

    fn routed(&mut self, workers: Vec<Worker>) -> Result<Vec<Worker>> {
        let (routers, table) =
            stages::forward(self.scenario, &self.facts(), self.table.as_ref(), workers.len())?;
        self.leftovers.table = Some(table);
        let workers = workers.into_iter().zip(routers).map(|(worker, router)| worker.stage(router)).collect();
        with_ports(workers, self.senders())
    }

    /// Workers that give datagrams to queues, and the threads that read these. Where answers can be sent, a router behind that
    /// stage sends them: hosts then find the addresses, and learn that nobody has a port.
    fn delivered(&mut self, workers: Vec<Worker>) -> Result<(Vec<Worker>, Vec<Consumer>, Vec<Outlet>)> {
        let udp = self.scenario.udp.as_ref().context("no queues are described")?;
        let ports: Vec<u16> = ports(&udp.ports)?.collect();
        let allowed = cpu::allowed()?;
        let (mut consumers, mut outlets) = (Vec::new(), Vec::new());
        for (number, &port) in ports.iter().enumerate() {
            let (outlet, inlet) = bounded(udp.limit, Reason::SocketFull);
            outlets.push(outlet);
            // From the first CPU on: the last ones receive.
            consumers.push(Consumer { port, cpu: allowed[number % allowed.len()], inlet });
        }
        let answers = !self.scenario.devices.ports.is_empty();
        let mut routers = Vec::new().into_iter();
        if answers {
            let (all, table) = stages::forward(self.scenario, &self.facts(), None, workers.len())?;
            routers = all.into_iter();
            self.leftovers.table = Some(table);
        }
        let addresses: Vec<IpAddr> =
            self.scenario.network.addresses.iter().map(|word| word.prefix.address).collect();
        let with_stages = |worker: Worker| {
            let receivers = ports.iter().enumerate().map(|(queue, port)| (*port, queue as u16));
            let stage = Udp::new(receivers).with_addresses(addresses.clone());
            let worker = outlets.iter().fold(worker, |worker, outlet| worker.outlet(outlet.clone()));
            match routers.next() {
                Some(router) => worker.stage(stage.with_unclaimed(Unclaimed::Pass)).stage(router),
                None => worker.stage(stage),
            }
        };
        let workers = workers.into_iter().map(with_stages).collect();
        Ok((with_ports(workers, self.senders())?, consumers, outlets))
    }

    /// Workers that deal flows out to the backlogs of CPUs, and the threads that work on these.
    fn steered(&mut self, workers: Vec<Worker>) -> Result<(Vec<Worker>, Vec<Lane>, Vec<Outlet>)> {
        let steer = self.scenario.steer.as_ref().context("no CPUs are named")?;
        let (mut behind, outlets) = backlogs(steer);
        behind = match self.scenario.devices.tx {
            Some(_) => self.routed(behind)?,
            None => behind.into_iter().map(|worker| worker.stage(EarlyDrop)).collect(),
        };
        let lanes = self.backlog_lanes(behind, &outlets, steer);
        Ok((dealt_out(workers, &outlets, steer)?, lanes, outlets))
    }

    /// The threads that work on backlogs.
    fn backlog_lanes(&self, behind: Vec<Worker>, outlets: &[Outlet], steer: &Steering) -> Vec<Lane> {
        let lane = |((worker, &cpu), outlet): ((Worker, &usize), &Outlet)| Lane {
            role: Role::Backlog,
            cpu,
            worker,
            count: None,
            budget: self.scenario.receive.budget,
            sleeps: !self.scenario.receive.busy,
            outlets: Vec::new(),
            backlog: Some(outlet.clone()),
        };
        behind.into_iter().zip(&steer.cpus).zip(outlets).map(lane).collect()
    }
}

/// A backlog for each CPU that is steered to: a worker that takes from it, and the end that packets are put in.
fn backlogs(steer: &Steering) -> (Vec<Worker>, Vec<Outlet>) {
    let one = |_| {
        let (outlet, inlet) = bounded(steer.backlog, Reason::BacklogFull);
        (Worker::new(Box::new(inlet)), outlet)
    };
    steer.cpus.iter().map(one).unzip()
}

/// The workers that receive, with the stage that deals flows out to backlogs.
fn dealt_out(workers: Vec<Worker>, outlets: &[Outlet], steer: &Steering) -> Result<Vec<Worker>> {
    let hash = Toeplitz::new(&Key::MICROSOFT);
    let with_stage = |worker: Worker| -> Result<Worker> {
        let spread = Spread::Cpus(CpuMap::new((0..outlets.len() as u16).collect())?);
        let ways = (0..).zip(outlets).map(|(queue, outlet)| Way::Queue(queue, outlet.clone())).collect();
        let mut stage = Steer::new(hash.clone(), spread, ways)?;
        if steer.flow_limit {
            stage = stage.with_flow_limit(&FlowLimit::default());
        }
        Ok(outlets.iter().fold(worker, |worker, outlet| worker.outlet(outlet.clone())).stage(stage))
    };
    workers.into_iter().map(with_stage).collect()
}

/// The queue with what goes wrong on purpose in front of it, and somebody who sees what comes behind that.
fn decorated(
    queue: RxQueue,
    scenario: &Datapath,
    witness: Option<&CaptureSink>,
    queues: &mut u64,
    longest: usize,
) -> Result<RxQueue> {
    // Each queue has faults of its own.
    let seed = scenario.run.seed.wrapping_add(*queues);
    *queues += 1;
    let spec = scenario.fault.map(|fault| FaultSpec {
        drop_ppm: fault.drop_ppm,
        corrupt_ppm: fault.corrupt_ppm,
        duplicate_ppm: fault.duplicate_ppm,
        reorder_ppm: fault.reorder_ppm,
        delay_ppm: fault.delay_ppm,
        delay: Duration::from_micros(fault.delay_us.into()),
        seed,
    });
    let lend = |mut queue: Box<dyn Lend>| -> Result<Box<dyn Lend>> {
        if let Some(spec) = spec {
            queue = Box::new(FaultyLend::new(queue, spec)?);
        }
        Ok(match witness {
            Some(sink) => Box::new(CapturedRx::new(queue, sink.taker())),
            None => queue,
        })
    };
    let land = |mut queue: Box<dyn Land>| -> Result<Box<dyn Land>> {
        if let Some(spec) = spec {
            queue = Box::new(FaultyLand::new(queue, spec)?);
        }
        Ok(match witness {
            Some(sink) => Box::new(CapturedRx::new(queue, sink.taker())),
            None => queue,
        })
    };
    // Whatever copies can be handed a frame twice: a device that writes into pages then lends them.
    let lends = spec.is_some() && scenario.receive.mode == RxMode::Copy;
    Ok(match queue {
        RxQueue::Lands(queue) if lends => {
            RxQueue::Lends(lend(Box::new(Lending::new(queue, page_pool(longest))))?)
        }
        RxQueue::LandsIn(queue, pool) if lends => RxQueue::Lends(lend(Box::new(Lending::new(queue, *pool)))?),
        RxQueue::Lends(queue) => RxQueue::Lends(lend(queue)?),
        RxQueue::Lands(queue) => RxQueue::Lands(land(queue)?),
        RxQueue::LandsIn(queue, pool) => RxQueue::LandsIn(land(queue)?, pool),
    })
}

/// Each worker with its queue of each port.
fn with_ports(mut workers: Vec<Worker>, ports: Vec<Vec<Box<dyn Transmit>>>) -> Result<Vec<Worker>> {
    for queues in ports {
        ensure!(
            queues.len() == workers.len(),
            "{} threads send, and a device was opened with {} queues: each needs its own",
            workers.len(),
            queues.len()
        );
        let joined = workers.into_iter().zip(queues);
        workers = joined.map(|(worker, queue)| worker.port(queue)).collect();
    }
    Ok(workers)
}

impl Builder<'_> {
    /// The thread of a worker that receives.
    fn lane(&self, worker: Worker, thread: usize, cpu: usize, outlets: Vec<Outlet>) -> Lane {
        let Datapath { receive, run, devices, .. } = self.scenario;
        let (threads, thread) = (run.threads as u64, thread as u64);
        let share = run.count.map(|count| count / threads + u64::from(thread < count % threads));
        Lane {
            role: Role::Receive,
            cpu,
            worker,
            count: share.filter(|_| self.splits_count()),
            budget: receive.budget,
            sleeps: !receive.busy && devices.receiving().iter().all(|word| word.is_kernel()),
            outlets,
            backlog: None,
        }
    }

    /// Whether each thread has a number of frames of its own: where it is the thread that makes them come.
    fn splits_count(&self) -> bool {
        let receiving = self.scenario.devices.receiving();
        receiving.len() == 1 && (self.scenario.run.threads == 1 || *receiving[0] == DeviceWord::Synthetic)
    }
}

/// The CPUs of threads that receive.
fn cpus(scenario: &Datapath) -> Result<Vec<usize>> {
    let allowed = cpu::allowed()?;
    ensure!(!allowed.is_empty(), "no CPU is allowed to this process");
    let steered = scenario.steer.iter().flat_map(|steer| &steer.cpus);
    if let Some(other) = scenario.run.cpus.iter().chain(steered).find(|cpu| !allowed.contains(cpu)) {
        anyhow::bail!("CPU {other} is not allowed to this process; allowed: {allowed:?}");
    }
    if !scenario.run.cpus.is_empty() {
        return Ok(scenario.run.cpus.clone());
    }
    // The last CPUs: the first ones take most of the interrupts.
    let threads = 0..scenario.run.threads;
    Ok(threads.map(|number| allowed[allowed.len() - 1 - number % allowed.len()]).collect())
}
