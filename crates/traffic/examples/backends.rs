//! Thread CPU time and wall time per frame of each backend, over a veth pair whose peer drops in XDP.
//!
//! Needs root. Rounds are interleaved, medians are printed, and every frame is counted at the far end. An argument
//! that begins with `trafgen` runs that program in each round as well.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::time::{Duration, Instant};

use linux::bpf::{Link, Map, Program, ProgramKind, ProgramSpec, XdpMode};
use linux::netns::Netns;
use linux::route::{RouteSocket, VethEnd};
use traffic::*;

fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> [u8; 8] {
    let mut bytes = [code, src << 4 | dst, 0, 0, 0, 0, 0, 0];
    bytes[2..4].copy_from_slice(&off.to_ne_bytes());
    bytes[4..8].copy_from_slice(&imm.to_ne_bytes());
    bytes
}
fn counting(map_fd: i32, verdict: &[[u8; 8]]) -> Vec<[u8; 8]> {
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
    code
}
fn xdp(code: &[[u8; 8]]) -> Program {
    Program::load(&ProgramSpec::new(ProgramKind::Xdp, "bench", code)).unwrap()
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let rounds: usize = args[0].parse().unwrap();
    let count: u64 = args[1].parse().unwrap();
    Netns::unnamed()
        .unwrap()
        .run(|| {
            linux::cpu::pin(1).unwrap();
            let mut route = RouteSocket::open().unwrap();
            route.create_veth(&VethEnd::new("near"), &VethEnd::new("far")).unwrap();
            let [near, far] = ["near", "far"].map(|name| route.link_by_name(name).unwrap().unwrap().ifindex);
            for i in [1, near, far] {
                route.set_no_link_local(i).unwrap();
                route.set_up(i).unwrap();
            }
            let map = Map::percpu_array(8, 1).unwrap();
            let program = xdp(&counting(map.fd(), &[insn(0xb7, 0, 0, 0, 1)]));
            let _link = Link::attach_xdp(&program, far, XdpMode::Native).unwrap();
            let mut sink = ProgramSink::new(map, 0).unwrap();
            let size: usize = std::env::var("SIZE").map_or(60, |t| t.parse().unwrap());
            let mut frame = vec![0x5a; size];
            frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
            let constant = || Frames::constant(frame.clone()).unwrap();
            let varying = || {
                let f = frame.clone();
                Frames::generated(size, move |n, b| {
                    b.copy_from_slice(&f);
                    b[14..22].copy_from_slice(&n.to_be_bytes())
                })
                .unwrap()
            };
            let mut all: Vec<(String, Vec<f64>, Vec<f64>)> = Vec::new();
            let open = |name: &str| {
                let p: Vec<&str> = name.split(':').collect();
                let n = |i: usize, d: usize| p.get(i).and_then(|t| t.parse().ok()).unwrap_or(d);
                let flag = |f: &str| p.contains(&f);
                let frames = if flag("vary") { varying() } else { constant() };
                let backend: Option<Box<dyn Backend>> = match p[0] {
                    "af" => Some(Box::new(
                        AfXdp::new(&AfXdpSpec { entries: n(1, 512) as u32, ..AfXdpSpec::new(near) }, frames)
                            .unwrap(),
                    )),
                    "ring" => Some(Box::new(
                        TxRingBackend::new(
                            &TxRingSpec {
                                slots: n(1, 256),
                                qdisc_bypass: !flag("q"),
                                linear: !flag("paged"),
                                ..TxRingSpec::new(near)
                            },
                            frames,
                        )
                        .unwrap(),
                    )),
                    "mmsg" => Some(Box::new(
                        Mmsg::new(
                            &MmsgSpec { batch: n(1, 64), qdisc_bypass: !flag("q"), ..MmsgSpec::new(near) },
                            frames,
                        )
                        .unwrap(),
                    )),
                    "live" => {
                        let control = Map::array(8, 1, true).unwrap();
                        let code = counting(
                            control.fd(),
                            &[
                                insn(0xb7, 1, 0, 0, near as i32),
                                insn(0xb7, 2, 0, 0, 0),
                                insn(0x85, 0, 0, 0, 23),
                            ],
                        );
                        Some(Box::new(Inject::new(InjectSpec {
                            kind: BackendKind::XdpLive,
                            program: xdp(&code),
                            control: control.mmap_array().unwrap(),
                            frame: frame.clone(),
                            ingress_ifindex: near,
                            rx_queue: 0,
                            batch: n(1, 64) as u32,
                        })))
                    }
                    _ => None,
                };
                backend
            };
            for name in &args[2..] {
                all.push((name.clone(), vec![], vec![]));
            }
            std::fs::write("/tmp/traf.cfg", format!("{{ 0x02,0,0,0,0,2, 2,0,0,0,0,1, 0x88,0xb5, fill(0x5a, {}) }}", size - 14))
                .unwrap();
            let trafgen = |extra: &[&str], num: u64| {
                let before = rusage_children();
                let t = Instant::now();
                let out = std::process::Command::new("trafgen")
                    .args(["-o", "near", "-i", "/tmp/traf.cfg", "-P", "1", "-n", &num.to_string()])
                    .args(extra)
                    .output()
                    .unwrap();
                assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
                (rusage_children() - before, t.elapsed().as_nanos() as f64)
            };
            let len = all.len();
            for round in 0..rounds {
                for k in 0..len {
                    let (name, cpu, wall) = &mut all[(k + round) % len];
                    let mut backend = open(name);
                    let before = sink.received().unwrap();
                    if let Some(backend) = &mut backend {
                        backend.send(1).unwrap();
                        backend.flush().unwrap();
                        let (c, t) = (linux::clock::thread_cpu_ns(), Instant::now());
                        let sent = backend.send(count).unwrap() + backend.flush().unwrap();
                        assert_eq!(sent.confirmed, Some(count), "{name}");
                        cpu.push((linux::clock::thread_cpu_ns() - c) as f64 / count as f64);
                        wall.push(t.elapsed().as_nanos() as f64 / count as f64);
                    } else {
                        let extra: Vec<&str> = name.split(':').skip(1).collect();
                        let (c1, w1) = trafgen(&extra, 1);
                        let (c2, w2) = trafgen(&extra, count + 1);
                        cpu.push((c2 - c1) / count as f64);
                        wall.push((w2 - w1) / count as f64);
                    }
                    let expected = before + count + if backend.is_none() { 2 } else { 1 };
                    assert_eq!(
                        sink.wait_until(expected, Duration::from_secs(5)).unwrap(),
                        expected,
                        "{name}"
                    );
                }
            }
            for (name, mut cpu, mut wall) in all {
                cpu.sort_by(f64::total_cmp);
                wall.sort_by(f64::total_cmp);
                let q = |v: &Vec<f64>, p: f64| v[((v.len() - 1) as f64 * p) as usize];
                println!(
                    "{name:24} cpu {:7.1} [{:.0} {:.0}]  wall {:7.1} [{:.0} {:.0}]",
                    q(&cpu, 0.5),
                    q(&cpu, 0.1),
                    q(&cpu, 0.9),
                    q(&wall, 0.5),
                    q(&wall, 0.1),
                    q(&wall, 0.9)
                );
            }
        })
        .unwrap();
}

fn rusage_children() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap();
    let f: Vec<&str> = text.rsplit_once(')').unwrap().1.split_whitespace().collect();
    (f[13].parse::<f64>().unwrap() + f[14].parse::<f64>().unwrap()) * 1e7
}
