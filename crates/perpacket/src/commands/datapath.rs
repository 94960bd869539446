//! `perpacket datapath`: from arguments to a scenario.

use std::ffi::OsStr;
use std::str::FromStr;

use anyhow::{Context, Result, ensure};

use crate::cli::datapath::{
    DatapathArgs, DeviceArgs, FrameArgs, NetworkArgs, QueueArgs, ReceiveArgs, RunningArgs,
};
use crate::device::{self, DeviceWord, FaultWord, RxMode};
use crate::generate::read_program;
use crate::report::Outcome;
use crate::scenario::{
    DATAPATH_JOB, Datapath, Devices, FramesOf, Network, Receiving, Running, SCHEMA, StageName, Steering,
    UdpQueues,
};
use crate::session::fresh_seed;

/// How long a run takes that nothing else ends, in seconds.
const TIME_S: f64 = 2.0;
/// Where nothing is said: the port that the frames of a synthetic device go to.
const PORTS: &str = "5000";
/// Packets that wait in a receiver's queue where nothing is said.
const QUEUE_LIMIT: usize = 1024;
/// The kernel's net.core.netdev_max_backlog (net/core/hotdata.c, Linux 6.18).
const BACKLOG: usize = 1000;

/// From arguments to a scenario, and on.
pub(crate) fn run(args: &DatapathArgs) -> Result<Outcome> {
    device::run(&scenario(args)?.checked()?, &args.output)
}

fn scenario(args: &DatapathArgs) -> Result<Datapath> {
    let stage: StageName = named("STAGE", &args.stage)?;
    let devices = devices(&args.devices, stage)?;
    let fault = args.devices.fault.as_deref().map(|text| one("--fault", text)).transpose()?;
    let steers = stage == StageName::Steer;
    Ok(Datapath {
        schema: SCHEMA.into(),
        job: DATAPATH_JOB.into(),
        stage,
        drop: all("--drop", &args.network.drop)?,
        fault,
        capture: args.devices.capture.clone(),
        frames: frames(&args.frames, &devices)?,
        receive: receiving(&args.receive, &devices, fault)?,
        run: running(&args.run, &devices, steers),
        network: network(&args.network, &devices, stage)?,
        udp: udp(&args.queues, stage)?,
        steer: steering(&args.queues, &args.run, steers)?,
        devices,
    })
}

fn devices(args: &DeviceArgs, stage: StageName) -> Result<Devices> {
    let word =
        |flag: &'static str, text: &Option<String>| text.as_deref().map(|text| one(flag, text)).transpose();
    let mut devices = Devices {
        rx: word("--rx", &args.rx)?,
        tx: word("--tx", &args.tx)?,
        ports: all("--port", &args.port)?,
        allow: args.allow_device.clone(),
        again: args.again,
        lock: args.lock.as_deref().map(|text| named("--lock", text)).transpose()?,
    };
    if devices.ports.is_empty() {
        devices.rx.get_or_insert(DeviceWord::Synthetic);
        if stage == StageName::Forward {
            devices.tx.get_or_insert(DeviceWord::Dummy { queues: None });
        }
    }
    Ok(devices)
}

fn frames(args: &FrameArgs, devices: &Devices) -> Result<Option<FramesOf>> {
    if !devices.receiving().contains(&&DeviceWord::Synthetic) {
        let given = [
            ("--template", args.template.is_some()),
            ("--frame", args.frame.is_some()),
            ("--flows", args.flows.is_some()),
        ];
        let given = given.into_iter().find(|(_, given)| *given);
        ensure!(
            given.is_none(),
            "{} is for frames of a synthetic device: use --rx synthetic, or leave it out",
            given.map_or("", |(flag, _)| flag)
        );
        return Ok(None);
    }
    let defaults = FramesOf::default();
    let (program, name) = match args.template.as_deref().map(OsStr::to_string_lossy) {
        Some(text) if text.contains('{') => (Some(text.into_owned()), None),
        Some(name) => (Some(read_program(&name)?), Some(name.into_owned()).filter(|name| name != "-")),
        None => (None, None),
    };
    Ok(Some(FramesOf {
        frame_bytes: args.frame.unwrap_or(defaults.frame_bytes),
        flows: args.flows.unwrap_or(defaults.flows),
        program,
        name,
    }))
}

fn receiving(args: &ReceiveArgs, devices: &Devices, fault: Option<FaultWord>) -> Result<Receiving> {
    let duplicates = fault.is_some_and(|fault| fault.duplicate_ppm > 0);
    let mode = match &args.receive {
        Some(text) => named("--receive", text)?,
        None if !duplicates && devices.receiving().into_iter().all(device::lands) => RxMode::default(),
        None => RxMode::Copy,
    };
    let alloc = match &args.alloc {
        Some(text) => Some(named("--alloc", text)?),
        None => mode.copies().then(Default::default),
    };
    Ok(Receiving { mode, alloc, budget: args.budget, busy: args.busy })
}

fn running(args: &RunningArgs, devices: &Devices, steers: bool) -> Running {
    let endless = devices.receiving().iter().any(|word| match word {
        DeviceWord::Synthetic => true,
        DeviceWord::Pcap(_) => devices.again,
        _ => false,
    });
    let time_s = args.time.map(|time| time.as_secs_f64());
    Running {
        threads: args.threads,
        cpus: if steers { Vec::new() } else { args.cpus.clone() },
        count: args.count,
        time_s: time_s.or((endless && args.count.is_none()).then_some(TIME_S)),
        seed: args.seed.unwrap_or_else(fresh_seed),
    }
}

fn network(args: &NetworkArgs, devices: &Devices, stage: StageName) -> Result<Network> {
    let routes = stage == StageName::Forward || (stage == StageName::Steer && devices.tx.is_some());
    let untold =
        [&args.address, &args.route, &args.neighbour, &args.mac].iter().all(|words| words.is_empty());
    if routes && untold && devices.rx == Some(DeviceWord::Synthetic) {
        return Ok(Network { prefixes: args.prefixes, ..device::hosts::network() });
    }
    Ok(Network {
        prefixes: args.prefixes,
        routes: all("--route", &args.route)?,
        addresses: all("--address", &args.address)?,
        neighbours: all("--neighbour", &args.neighbour)?,
        macs: all("--mac", &args.mac)?,
    })
}

fn udp(args: &QueueArgs, stage: StageName) -> Result<Option<UdpQueues>> {
    if stage != StageName::Udp {
        ensure!(
            args.ports.is_none() && args.queue_limit.is_none(),
            "--ports and --queue-limit are for receivers' queues: use udp"
        );
        return Ok(None);
    }
    let ports = args.ports.clone().unwrap_or_else(|| PORTS.into());
    Ok(Some(UdpQueues { ports, limit: args.queue_limit.unwrap_or(QUEUE_LIMIT) }))
}

fn steering(args: &QueueArgs, run: &RunningArgs, steers: bool) -> Result<Option<Steering>> {
    if !steers {
        ensure!(
            args.backlog.is_none() && !args.flow_limit,
            "--backlog and --flow-limit are for the queues of CPUs: use steer"
        );
        return Ok(None);
    }
    let cpus = if run.cpus.is_empty() { linux::cpu::allowed()? } else { run.cpus.clone() };
    Ok(Some(Steering { cpus, backlog: args.backlog.unwrap_or(BACKLOG), flow_limit: args.flow_limit }))
}

/// The value of a flag whose type says what is wrong in a sentence.
fn named<T: FromStr<Err = String>>(flag: &'static str, text: &str) -> Result<T> {
    text.parse().map_err(anyhow::Error::msg).context(flag)
}

fn one<T: FromStr<Err = anyhow::Error>>(flag: &'static str, text: &str) -> Result<T> {
    text.parse().context(flag)
}

fn all<T: FromStr<Err = anyhow::Error>>(flag: &'static str, texts: &[String]) -> Result<Vec<T>> {
    texts.iter().map(|text| one(flag, text)).collect()
}
