//! What each backend costs per frame, over a veth pair whose peer counts and drops in XDP.
//!
//! ```text
//! cargo run --release -p traffic --example backends -- [ROUNDS] [FRAMES] [L2_BYTES]
//! ```
//!
//! Needs root. Each round runs every backend once, in turn, with that many frames; every frame is counted at the far
//! end. Where `trafgen` (netsniff-ng) is installed it takes part, with the difference of a long and a short run, and
//! the ratio of its CPU time to that of each backend is printed too: medians over rounds, and quartiles. CPU time is
//! compared, since wall time beside other work says little; trafgen's is known to 10 ms, so let it send enough.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::process::Command;
use std::time::{Duration, Instant};

use linux::bpf::{Link, Map, Program, ProgramKind, ProgramSpec, XdpMode};
use linux::netns::Netns;
use linux::route::{RouteSocket, VethEnd};
use traffic::{
    AfXdp, AfXdpSpec, Backend, BackendKind, Frames, Inject, InjectSpec, Mmsg, MmsgSpec, ProgramSink, Sink,
    TxRingBackend, TxRingSpec,
};

const KINDS: [BackendKind; 4] =
    [BackendKind::XdpLive, BackendKind::AfXdp, BackendKind::TxRing, BackendKind::Mmsg];
const ARRIVAL: Duration = Duration::from_secs(5);

fn main() {
    let argument = |index, default| std::env::args().nth(index).map_or(default, |text| text.parse().unwrap());
    let (rounds, count, l2_bytes) = (argument(1, 15), argument(2, 500_000) as u64, argument(3, 60));
    let netns = Netns::unnamed().unwrap();
    netns.run(|| compare(rounds, count, l2_bytes)).unwrap();
}

fn compare(rounds: usize, count: u64, l2_bytes: usize) {
    linux::cpu::pin(*linux::cpu::allowed().unwrap().last().unwrap()).unwrap();
    let mut pair = Pair::make(l2_bytes);
    let has_trafgen = Command::new("trafgen").arg("--version").output().is_ok();
    let mut cpu_ns = [const { Vec::new() }; KINDS.len()];
    let mut wall_ns = [const { Vec::new() }; KINDS.len()];
    let mut ratio = [const { Vec::new() }; KINDS.len()];
    let (mut trafgen_cpu_ns, mut trafgen_wall_ns) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let trafgen = has_trafgen.then(|| pair.trafgen_ns(count));
        trafgen_cpu_ns.extend(trafgen.map(|(cpu, _)| cpu));
        trafgen_wall_ns.extend(trafgen.map(|(_, wall)| wall));
        for (index, kind) in KINDS.into_iter().enumerate() {
            let (cpu, wall) = pair.send_ns(kind, count);
            cpu_ns[index].push(cpu);
            wall_ns[index].push(wall);
            ratio[index].extend(trafgen.map(|(trafgen, _)| trafgen / cpu));
        }
    }
    println!("{count} frames of {l2_bytes} bytes (without FCS), {rounds} rounds: median [quartiles]");
    let (cpu, wall) = (quartiles(trafgen_cpu_ns), quartiles(trafgen_wall_ns));
    println!("trafgen   CPU {cpu} ns  wall {wall} ns");
    for (index, kind) in KINDS.into_iter().enumerate() {
        let [cpu, wall, ratio] = [&mut cpu_ns, &mut wall_ns, &mut ratio]
            .map(|columns| quartiles(std::mem::take(&mut columns[index])));
        println!("{kind:9} CPU {cpu} ns  wall {wall} ns  trafgen's CPU by its own {ratio}");
    }
}

fn quartiles(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => "-".to_owned(),
        len => format!("{:.2} [{:.2}, {:.2}]", values[len / 2], values[len / 4], values[(len - 1) * 3 / 4]),
    }
}

/// A veth pair in the calling thread's namespace, its far end counting and dropping in XDP.
struct Pair {
    near: u32,
    sink: ProgramSink,
    frame: Vec<u8>,
    _link: Link,
}

impl Pair {
    fn make(l2_bytes: usize) -> Self {
        let mut route = RouteSocket::open().unwrap();
        route.create_veth(&VethEnd::new("near"), &VethEnd::new("far")).unwrap();
        let [near, far] = ["near", "far"].map(|name| route.link_by_name(name).unwrap().unwrap().ifindex);
        for ifindex in [near, far] {
            route.set_no_link_local(ifindex).unwrap();
            route.set_up(ifindex).unwrap();
        }
        let map = Map::percpu_array(8, 1).unwrap();
        let program = counting_program(map.fd(), &[insn(0xb7, 0, 0, 0, 1)]);
        let link = Link::attach_xdp(&program, far, XdpMode::Native).unwrap();
        let mut frame = vec![0x5a; l2_bytes];
        frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
        Self { near, sink: ProgramSink::new(map, 0).unwrap(), frame, _link: link }
    }

    /// Thread CPU time and wall time of a frame.
    fn send_ns(&mut self, kind: BackendKind, count: u64) -> (f64, f64) {
        let expected = self.sink.received().unwrap() + count;
        let mut backend = self.open(kind);
        let (cpu, wall) = (linux::clock::thread_cpu_ns(), Instant::now());
        let sent = backend.send(count).unwrap() + backend.flush().unwrap();
        let (cpu, wall) = (linux::clock::thread_cpu_ns() - cpu, wall.elapsed());
        assert_eq!(sent.confirmed, Some(count), "{kind}");
        assert_eq!(self.sink.wait_until(expected, ARRIVAL).unwrap(), expected, "{kind}");
        (cpu as f64 / count as f64, wall.as_nanos() as f64 / count as f64)
    }

    /// CPU time and wall time of a frame of trafgen's, its start taken off by a run of one frame.
    fn trafgen_ns(&mut self, count: u64) -> (f64, f64) {
        let (short, long) = (self.trafgen(1), self.trafgen(1 + count));
        ((long.0 - short.0) / count as f64, (long.1 - short.1) / count as f64)
    }

    /// CPU time and wall time of a run of trafgen's.
    fn trafgen(&mut self, count: u64) -> (f64, f64) {
        let config = std::env::temp_dir().join(format!("backends-{}.cfg", std::process::id()));
        let bytes: Vec<String> = self.frame.iter().map(u8::to_string).collect();
        std::fs::write(&config, format!("{{ {} }}", bytes.join(","))).unwrap();
        let expected = self.sink.received().unwrap() + count;
        let (cpu, start) = (children_cpu_ns(), Instant::now());
        let output = Command::new("trafgen")
            .args(["--dev", "near", "--cpus", "1", "--num", &count.to_string(), "--conf"])
            .arg(&config)
            .output()
            .unwrap();
        let used = (children_cpu_ns() - cpu, start.elapsed().as_nanos() as f64);
        std::fs::remove_file(&config).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(self.sink.wait_until(expected, ARRIVAL).unwrap(), expected, "trafgen");
        used
    }

    fn open(&self, kind: BackendKind) -> Box<dyn Backend> {
        let frames = || Frames::constant(self.frame.clone()).unwrap();
        match kind {
            BackendKind::AfXdp => Box::new(AfXdp::new(&AfXdpSpec::new(self.near), frames()).unwrap()),
            BackendKind::TxRing => {
                Box::new(TxRingBackend::new(&TxRingSpec::new(self.near), frames()).unwrap())
            }
            BackendKind::Mmsg => Box::new(Mmsg::new(&MmsgSpec::new(self.near), frames()).unwrap()),
            _ => Box::new(self.xdp_live()),
        }
    }

    /// Redirects live frames out of the near end, always the same.
    fn xdp_live(&self) -> Inject {
        let control = Map::array(8, 1, true).unwrap();
        let redirect =
            [insn(0xb7, 1, 0, 0, self.near.cast_signed()), insn(0xb7, 2, 0, 0, 0), insn(0x85, 0, 0, 0, 23)];
        Inject::new(InjectSpec {
            kind: BackendKind::XdpLive,
            program: counting_program(control.fd(), &redirect),
            control: control.mmap_array().unwrap(),
            frame: self.frame.clone(),
            ingress_ifindex: self.near,
            rx_queue: 0,
            batch: 64,
        })
    }
}

/// User and system time of the child processes that ended: fields 16 and 17 of proc_pid_stat(5), in ticks of 10 ms.
fn children_cpu_ns() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
    fields.skip(13).take(2).map(|ticks| ticks.parse::<f64>().unwrap() * 1e7).sum()
}

/// `struct bpf_insn`.
fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> [u8; 8] {
    let mut bytes = [code, src << 4 | dst, 0, 0, 0, 0, 0, 0];
    bytes[2..4].copy_from_slice(&off.to_ne_bytes());
    bytes[4..8].copy_from_slice(&imm.to_ne_bytes());
    bytes
}

/// An XDP program that adds 1 to entry 0 of the map, then runs `verdict`, which sets r0.
fn counting_program(map_fd: i32, verdict: &[[u8; 8]]) -> Program {
    let mut code = vec![
        insn(0x62, 10, 0, -4, 0),
        insn(0xbf, 2, 10, 0, 0),
        insn(0x07, 2, 0, 0, -4),
        insn(0x18, 1, 1, 0, map_fd),
        insn(0, 0, 0, 0, 0),
        insn(0x85, 0, 0, 0, 1),
        insn(0x15, 0, 0, 3, 0),
        insn(0x79, 1, 0, 0, 0),
        insn(0x07, 1, 0, 0, 1),
        insn(0x7b, 0, 1, 0, 0),
    ];
    code.extend_from_slice(verdict);
    code.push(insn(0x95, 0, 0, 0, 0));
    Program::load(&ProgramSpec::new(ProgramKind::Xdp, "backends", &code)).unwrap()
}
