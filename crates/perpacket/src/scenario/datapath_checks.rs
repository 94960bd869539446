//! What does not go together in a run of the device under test, and what would.

use anyhow::{Result, bail, ensure};
use traffic::capture::CaptureFormat;

use super::datapath::{Datapath, Network, StageName};
use super::{MAX_SEED, TIME_S};
use crate::cell::MAX_FLOWS;
use crate::device::{self, DeviceWord, FRAME_BYTES, MAX_PREFIXES, is_same_file};

/// The most threads of one kind.
const MAX_THREADS: usize = 256;
/// The most packets of a run: as many as can be counted in TOML.
const MAX_COUNT: u64 = i64::MAX as u64;
/// The most packets that a queue can be made for.
const MAX_QUEUE: usize = 1 << 20;
/// Ports of a device under test: a verdict names one in 8 bits.
const MAX_PORTS: usize = 64;

/// Refuses what does not go together.
pub(super) fn check(scenario: &Datapath) -> Result<()> {
    check_directions(scenario)?;
    check_devices(scenario)?;
    check_files(scenario)?;
    check_receiving(scenario)?;
    check_running(scenario)?;
    check_threads(scenario)?;
    check_network(scenario)?;
    check_stage(scenario)
}

/// Which devices a stage needs.
fn check_directions(scenario: &Datapath) -> Result<()> {
    let (stage, devices) = (scenario.stage, &scenario.devices);
    ensure!(
        devices.ports.is_empty() || (devices.rx.is_none() && devices.tx.is_none()),
        "--port beside --rx or --tx: with --port each device is received from and sent to; use --port for all of them"
    );
    ensure!(devices.ports.len() <= MAX_PORTS, "{} ports: at most {MAX_PORTS}", devices.ports.len());
    ensure!(
        devices.rx.is_some() || !devices.ports.is_empty(),
        "nothing to receive from: use --rx DEVICE, or --port DEVICE"
    );
    match stage {
        StageName::Forward => ensure!(
            devices.tx.is_some() || !devices.ports.is_empty(),
            "forward sends packets on: use --tx DEVICE, or --port DEVICE for both directions"
        ),
        StageName::Drop => ensure!(
            devices.tx.is_none() && devices.ports.is_empty(),
            "drop sends nothing: use --rx DEVICE alone"
        ),
        StageName::Udp => ensure!(
            devices.tx.is_none(),
            "udp delivers to queues and sends only answers, by the device that it receives from: leave --tx out"
        ),
        StageName::Steer => ensure!(
            devices.ports.is_empty(),
            "steer receives from one device: use --rx DEVICE, and --tx DEVICE where packets are to be sent on"
        ),
    }
    Ok(())
}

/// Which device can do what, and whether it may be used.
fn check_devices(scenario: &Datapath) -> Result<()> {
    let devices = &scenario.devices;
    for word in devices.receiving() {
        ensure!(
            !matches!(word, DeviceWord::Dummy { .. }),
            "{word} receives nothing: receive from synthetic, pcap:FILE, af-packet:INTERFACE, af-xdp:INTERFACE or tap:NAME"
        );
    }
    for word in devices.sending() {
        ensure!(
            *word != DeviceWord::Synthetic,
            "synthetic only makes frames: send to dummy, pcap:FILE, af-packet:INTERFACE, af-xdp:INTERFACE or tap:NAME"
        );
    }
    if let Some(file) = devices.ports.iter().find(|word| matches!(word, DeviceWord::Pcap(_))) {
        bail!("--port {file}: a capture file goes one way; use it with --rx or with --tx");
    }
    for (index, word) in devices.ports.iter().enumerate() {
        let same = |other: &DeviceWord| match (word.host_device(), other.host_device()) {
            (Some(one), Some(other)) => one == other,
            _ => word == other,
        };
        ensure!(
            !devices.ports[..index].iter().any(same),
            "--port {word}: this device is a port already; one port is enough to send packets back where they came from"
        );
    }
    if let (Some(rx), Some(tx)) = (&devices.rx, &devices.tx)
        && let (true, true) = (rx.is_kernel(), tx.is_kernel())
    {
        ensure!(
            rx.host_device() != tx.host_device() || rx.host_device().is_none() && rx != tx,
            "--rx {rx} --tx {tx}: both are one device; use --port {rx}, which is received from and sent to"
        );
    }
    for name in devices.all().filter_map(DeviceWord::host_device) {
        ensure!(
            devices.allow.iter().any(|allowed| allowed == name),
            "{name} is a device of this host, and using one needs --allow-device {name}"
        );
    }
    if let Some(name) =
        devices.allow.iter().find(|name| devices.all().all(|word| word.host_device() != Some(name)))
    {
        bail!("--allow-device {name}: no --rx, --tx or --port uses it as af-packet:{name} or af-xdp:{name}");
    }
    Ok(())
}

/// Capture files: none is read and written, none is written twice.
fn check_files(scenario: &Datapath) -> Result<()> {
    let devices = &scenario.devices;
    let path = |word: &Option<DeviceWord>| match word {
        Some(DeviceWord::Pcap(path)) => Some(path.clone()),
        _ => None,
    };
    let (read, written) = (path(&devices.rx), path(&devices.tx));
    for file in written.iter().chain(&scenario.capture) {
        CaptureFormat::of_name(file)?;
    }
    if let (Some(read), Some(written)) = (&read, &written) {
        ensure!(
            !is_same_file(read, written),
            "--tx pcap:{}: it is the file that is received from, which is read meanwhile; name another one",
            written.display()
        );
    }
    if let Some(capture) = &scenario.capture {
        ensure!(
            !read.iter().chain(&written).any(|file| is_same_file(file, capture)),
            "--capture {}: it is a file that is received from or sent to; name another one",
            capture.display()
        );
    }
    ensure!(
        !devices.again || read.is_some(),
        "--loop is for --rx pcap:FILE, and nothing is received from a capture file"
    );
    Ok(())
}

fn check_receiving(scenario: &Datapath) -> Result<()> {
    let receive = &scenario.receive;
    ensure!(
        (1..=datapath::BUDGET).contains(&receive.budget),
        "budget {}: 1 to {} packets a poll",
        receive.budget,
        datapath::BUDGET
    );
    ensure!(
        receive.alloc.is_some() == receive.mode.copies(),
        "--receive {}{}",
        receive.mode,
        if receive.alloc.is_some() {
            " hands up the page that a frame came in, and takes no other memory: leave --alloc out, or use --receive copy"
        } else {
            " copies: an allocator must be named"
        }
    );
    ensure!(
        scenario.fault.is_none_or(|fault| fault.duplicate_ppm == 0) || receive.mode == device::RxMode::Copy,
        "--fault duplicate with --receive {}: there is no second page for the second frame; use --receive copy",
        receive.mode
    );
    for word in scenario.devices.receiving() {
        ensure!(
            receive.mode != device::RxMode::Fragment || *word == DeviceWord::Synthetic,
            "--receive fragment with {word}: only a synthetic device writes several frames into one page; use --receive {}",
            if device::lands(word) { "page-pool" } else { "copy" }
        );
        ensure!(
            device::lands(word) || receive.mode == device::RxMode::Copy,
            "--receive {} with {word}: this device keeps its frames, so they must be copied; use --receive copy, or \
             receive from af-xdp or synthetic",
            receive.mode
        );
    }
    Ok(())
}

fn check_running(scenario: &Datapath) -> Result<()> {
    let (run, devices) = (&scenario.run, &scenario.devices);
    ensure!(run.seed <= MAX_SEED, "seed {}: at most {MAX_SEED}", run.seed);
    if let Some(count) = run.count {
        ensure!(count > 0, "count 0: there is nothing to receive");
        ensure!(count <= MAX_COUNT, "count {count}: at most {MAX_COUNT}");
    }
    if let Some(time_s) = run.time_s {
        ensure!(
            TIME_S.contains(&time_s),
            "time {time_s:?} s: {} s to {} s are possible",
            TIME_S.start(),
            TIME_S.end()
        );
    }
    let endless = devices.receiving().iter().any(|word| match word {
        DeviceWord::Synthetic => true,
        DeviceWord::Pcap(_) => devices.again,
        _ => false,
    });
    ensure!(
        !endless || run.count.is_some() || run.time_s.is_some(),
        "nothing ends the run: give a count or a time"
    );
    ensure!(
        !endless || run.time_s.is_some() || scenario.fault.is_none_or(|fault| fault.drop_ppm < 1_000_000),
        "--fault drop=100%: no frame is ever received, so that a count does not end the run; give a time"
    );
    if let Some(frames) = &scenario.frames {
        ensure!(
            FRAME_BYTES.contains(&frames.frame_bytes),
            "frame size {}: {} to {} bytes (with the 4-byte FCS)",
            frames.frame_bytes,
            FRAME_BYTES.start(),
            FRAME_BYTES.end()
        );
        ensure!((1..=MAX_FLOWS).contains(&frames.flows), "flows {}: 1 to {MAX_FLOWS}", frames.flows);
    }
    ensure!(
        scenario.frames.is_some() == devices.receiving().contains(&&DeviceWord::Synthetic),
        "frames are described for a synthetic device, and only for it: use --rx synthetic"
    );
    Ok(())
}

fn check_threads(scenario: &Datapath) -> Result<()> {
    let (run, devices) = (&scenario.run, &scenario.devices);
    ensure!((1..=MAX_THREADS).contains(&run.threads), "threads {}: 1 to {MAX_THREADS}", run.threads);
    ensure!(
        run.cpus.is_empty() || run.cpus.len() == run.threads,
        "{} CPUs for {} threads: name one for each",
        run.cpus.len(),
        run.threads
    );
    for word in devices.receiving().into_iter().chain(&devices.tx) {
        let sends = devices.tx.as_ref() == Some(word);
        let users = if sends { scenario.senders() } else { run.threads };
        let why = match word {
            _ if users == 1 => continue,
            DeviceWord::AfPacket(_) if !sends => "each thread would get every frame",
            DeviceWord::Pcap(_) if !sends => "a file has one order",
            DeviceWord::Tap(_) | DeviceWord::AfXdp { queue: Some(_), .. } => "it is one queue",
            _ => continue,
        };
        if users == run.threads {
            bail!("--threads {users} with {word}: {why}; use --threads 1");
        }
        bail!("{users} CPUs to steer to, and each sends to {word}: {why}; name one CPU with --cpus");
    }
    let dummies = devices.sending().iter().any(|word| matches!(word, DeviceWord::Dummy { .. }));
    ensure!(
        devices.lock.is_none() || dummies,
        "--lock is the lock of a dummy's queues, and nothing is sent to one: use --tx dummy"
    );
    if let (Some(DeviceWord::Dummy { queues: Some(queues) }), Some(device::Lock::None)) =
        (&devices.tx, devices.lock)
    {
        let users = scenario.senders();
        ensure!(
            *queues >= users,
            "--lock none with {users} threads and {queues} queues: without a lock each thread needs a queue of its own; use \
             --tx dummy:{users}, or --lock queue"
        );
    }
    Ok(())
}

/// Whether each port that is named is there, and whether anything looks at what is said.
fn check_network(scenario: &Datapath) -> Result<()> {
    let network = &scenario.network;
    let ports = scenario.devices.port_count();
    let named = (network.routes.iter().map(|word| (word.port, word.to_string())))
        .chain(network.addresses.iter().map(|word| (word.port, word.to_string())))
        .chain(network.neighbours.iter().map(|word| (word.port, word.to_string())))
        .chain(network.macs.iter().map(|word| (word.port, word.to_string())));
    for (port, word) in named {
        ensure!(
            usize::from(port) < ports,
            "`{word}`: there is no port {port}; {}",
            if ports == 1 { "the only one is 0".to_owned() } else { format!("they are 0 to {}", ports - 1) }
        );
    }
    ensure!(network.prefixes <= MAX_PREFIXES, "prefixes {}: at most {MAX_PREFIXES}", network.prefixes);
    let routes = scenario.stage == StageName::Forward
        || (scenario.stage == StageName::Steer && scenario.devices.tx.is_some());
    ensure!(
        routes || (network.prefixes == 0 && network.routes.is_empty()),
        "--prefixes and --route are for packets that are sent on: use forward"
    );
    ensure!(
        routes || scenario.stage == StageName::Udp || *network == Network::default(),
        "--address, --neighbour and --mac are for forward and udp: {} does not look at addresses",
        scenario.stage
    );
    ensure!(
        network.prefixes == 0 || scenario.devices.ports.is_empty(),
        "--prefixes with --port: made-up prefixes lead nowhere in a real network; use --route, or --rx and --tx"
    );
    Ok(())
}

fn check_stage(scenario: &Datapath) -> Result<()> {
    let stage = scenario.stage;
    ensure!(
        scenario.udp.is_some() == (stage == StageName::Udp),
        "the stage {stage}: a table [udp] is there with udp, and only with it"
    );
    ensure!(
        scenario.steer.is_some() == (stage == StageName::Steer),
        "the stage {stage}: a table [steer] is there with steer, and only with it"
    );
    if let Some(udp) = &scenario.udp {
        let queues = device::ports(&udp.ports)?.count();
        ensure!(
            queues <= MAX_THREADS,
            "--ports {}: {queues} queues, and at most {MAX_THREADS} are possible",
            udp.ports
        );
        check_queue("--queue-limit", udp.limit)?;
    }
    if let Some(steer) = &scenario.steer {
        ensure!(!steer.cpus.is_empty(), "steer: name the CPUs with --cpus 0,1");
        ensure!(steer.cpus.len() <= MAX_THREADS, "{} CPUs: at most {MAX_THREADS}", steer.cpus.len());
        check_queue("--backlog", steer.backlog)?;
    }
    Ok(())
}

fn check_queue(what: &str, limit: usize) -> Result<()> {
    ensure!((1..=MAX_QUEUE).contains(&limit), "{what} {limit}: 1 to {MAX_QUEUE} packets");
    Ok(())
}
