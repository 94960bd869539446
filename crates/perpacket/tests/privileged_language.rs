//! The two ways out of the packet language held against each other in the kernel: packet i of the eBPF program equals packet
//! i of `emit`, byte for byte, for the corpus and for generated configurations, those of several lengths included.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use ebpf::{AluOp, Assembler, Condition, Insn, Reg, Size};
use linux::bpf::{Program as BpfProgram, ProgramKind, ProgramSpec};
use linux::privilege::test_may_run;
use template::{Emitter, LoweredLength, ParseOptions, Program};

/// XDP_PASS, and XDP_DROP for a packet that is too short.
const PASS: i32 = 2;
const DROP: i32 = 1;
/// Moves the end of a packet (enum bpf_func_id, include/uapi/linux/bpf.h, 6.18).
const BPF_XDP_ADJUST_TAIL: i32 = 65;
/// Indexes at which a counter or a word overflows, beside the first ones.
const FAR_INDEXES: [u64; 5] = [65_535, 65_536, 4_294_967_295, 4_294_967_296, 1 << 40];

#[test]
fn the_program_and_the_bytes_are_the_same_packets() {
    if !test_may_run("the_program_and_the_bytes_are_the_same_packets") {
        return;
    }
    let (mut compared, mut refused) = (0, Vec::new());
    for (name, text) in corpus().into_iter().chain(generated()).chain(of_several_lengths()) {
        let plan = Program::parse(&text, &ParseOptions::default()).unwrap().plan;
        for (worker, workers) in [(0, 1), (1, 3)] {
            let Ok(emitter) = plan.emitter(worker, workers, 5) else { continue };
            // The index is handed over in the packet itself; a live run takes 14 bytes at least.
            if shortest(&emitter) < 14 || emitter.lowered_bytes() < 8 {
                continue;
            }
            match lowered(&emitter) {
                Ok(insns) => {
                    compare(&name, &emitter, &insns);
                    compared += 1;
                }
                Err(why) => refused.push(format!("{name}: {why}")),
            }
        }
    }
    assert!(compared > 330, "only {compared} programs were compared; not lowered: {refused:?}");
}

/// Every configuration of the corpus.
fn corpus() -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../template/tests/corpus");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "cfg"));
    files.sort();
    files.into_iter().map(|path| (path.display().to_string(), fs::read(path).unwrap())).collect()
}

/// Configurations that combine fields which vary with payloads which vary.
fn generated() -> Vec<(String, Vec<u8>)> {
    let below = [
        "ipv4(ttl=drnd(1, 255), sa=drnd())",
        "ipv4(sa=dinc(10.0.0.1, 10.0.0.9), da=drnd(0, 0xffffffff), frag=dinc(), dscp=drnd())",
        "eth(da=dinc(), sa=drnd()), vlan(id=drnd(), pcp=dinc(1, 6)), ipv6(sa=drnd(), fl=dinc(), hl=ddec(3, 9))",
        "mpls(label=dinc(5, 90000, 7), tc=drnd()), ipv4(id=dinc(3), sa[1:2]=drnd(3, 70))",
    ];
    let fields =
        ["sp=drnd()", "sp=drnd(7, 1000)", "dp=dinc(9, 16)", "dp=ddec()", "sp=dinc(1, 10, 4)", "sp[1]=drnd()"];
    let payloads = ["", "drnd(1)", "1, drnd(13)", "fill(7, 100), dinc(0, 9)", "drnd(512)"];
    let mut all = Vec::new();
    for header in below {
        for field in fields {
            for payload in payloads {
                let text = format!("{{ {header}, udp({field}), {payload} }}");
                all.push((text.clone(), text.into_bytes()));
            }
        }
    }
    all
}

/// Packets of several lengths and weights, and counters with a pace of their own.
fn of_several_lengths() -> Vec<(String, Vec<u8>)> {
    let packets = [
        "weight(7): size(80): { F } weight(4): size(594): { F } weight(1): size(1518): { F }",
        "weight(500): { F } { F, 1 } size(200): { F, 2, drnd(7) } weight(500): size(1000): { F }",
        "size(80-143): { F }",
        "size(1518): { F, 1 } size(80): { F, 2 } { F, drnd(40) } { F }",
        "weight(600): { F } weight(424): { F, 5 }",
    ];
    let fields = [
        "ipv4(ttl=1, sa=10.0.0.1), udp(sp=dinc(1, 3), dp=dinc(9, 16, 1, 3))",
        "ipv4(ttl=1, sa=dinc(10.0.0.1, 10.0.0.9, 1, 2), id=drnd()), tcp(sp=dinc(1, 5, 2, 3, 7), dp=drnd())",
        "eth(), ipv6(hl=1, sa=dinc(fd00::1, fd00::9), da=fd00::1), udp(sp=ddec(7, 9, 1, 4), dp=2)",
    ];
    let text = |fields: &str, packets: &str| format!("#define F {fields}\n{packets}");
    let all = fields.iter().flat_map(|fields| packets.iter().map(move |packets| text(fields, packets)));
    all.map(|text| (text.clone(), text.into_bytes())).collect()
}

/// Of the first packets.
fn shortest(emitter: &Emitter) -> usize {
    (0..64).map(|index| emitter.to_vec(index).len()).min().unwrap()
}

/// A program that writes the packet whose index stands in the first eight bytes, and gives it its length.
fn lowered(emitter: &Emitter) -> Result<Vec<[u8; 8]>, String> {
    let mut asm = Assembler::new();
    let short = asm.label();
    asm.mov(Reg::R9, Reg::R1);
    asm.load(Size::W, Reg::R6, Reg::R1, 0);
    asm.load(Size::W, Reg::R7, Reg::R1, 4);
    asm.mov(Reg::R2, Reg::R6);
    asm.alu_imm(AluOp::Add, Reg::R2, emitter.lowered_bytes() as i32);
    asm.jump_if(Condition::Gt, Reg::R2, Reg::R7, short);
    asm.load(Size::DW, Reg::R2, Reg::R6, 0);
    let scratch = [Reg::R3, Reg::R4, Reg::R5, Reg::R0, Reg::R8];
    let length =
        emitter.lower_with_length(&mut asm, Reg::R6, Reg::R2, scratch).map_err(|error| error.to_string())?;
    if let LoweredLength::InRegister(length) = length {
        asm.mov(Reg::R2, length);
        asm.alu_imm(AluOp::Sub, Reg::R2, emitter.longest().len() as i32);
        asm.mov(Reg::R1, Reg::R9);
        asm.call(BPF_XDP_ADJUST_TAIL);
    }
    asm.mov_imm(Reg::R0, PASS);
    asm.exit();
    asm.bind(short);
    asm.mov_imm(Reg::R0, DROP);
    asm.exit();
    Ok(asm.finish().unwrap().into_iter().map(Insn::to_bytes).collect())
}

fn compare(name: &str, emitter: &Emitter, insns: &[[u8; 8]]) {
    let program = BpfProgram::load(&ProgramSpec::new(ProgramKind::Xdp, "language", insns))
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    for index in (0..20).chain(FAR_INDEXES) {
        let wanted = emitter.to_vec(index);
        let mut packet = emitter.longest();
        packet[..emitter.lowered_bytes()].fill(0xee);
        packet[..8].copy_from_slice(&index.to_ne_bytes());
        let ran =
            program.run_plain(&packet).unwrap_or_else(|error| panic!("{name}, packet {index}: {error}"));
        assert_eq!((ran.retval, &ran.data), (PASS as u32, &wanted), "{name}, packet {index}");
    }
}
