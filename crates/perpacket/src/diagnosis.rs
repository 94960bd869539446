//! A short run that asks the kernel why packets end, for when a ledger does not close.
//!
//! A program on the tracepoint `skb:kfree_skb` counts drops by reason. It is never attached while something is timed.
//! Only drops of the lab's own namespaces are counted: those whose packet still names a device there, or, where it names
//! none any more, those that happen on the sending thread.

use std::fmt;

use anyhow::{Context, Result};
use ebpf::{AluOp, AssembleError, Assembler, Condition, Insn, Reg, Size};
use linux::bpf::{Link, Map, Program, ProgramKind, ProgramSpec};
use linux::btf::Btf;
use measure::ledger::Ledger;

use crate::cell::Cell;
use crate::paths::{FAR, GEN, SYS};
use crate::report;
use crate::rig::Rig;
use crate::rig::kernel::KernelRig;
use crate::scenario::Clock;

/// Packets of the diagnosis run.
const PACKETS: u64 = 5_000;
/// Core drop reasons are below this (include/net/dropreason-core.h, 6.18); what is not is counted in the last entry.
const REASONS: u32 = 256;

/// `bpf_probe_read_kernel`, `bpf_get_current_pid_tgid`, `bpf_map_lookup_elem` (enum bpf_func_id).
const HELPER_PROBE_READ_KERNEL: i32 = 113;
const HELPER_CURRENT_PID_TGID: i32 = 14;
const HELPER_MAP_LOOKUP: i32 = 1;

/// Sends a few thousand packets through a new lab of the same kind, and adds to the ledger's notes how many arrived there
/// and why the kernel says that packets ended. What cannot be asked is said, and is no error.
pub(crate) fn explain(cell: &Cell, clock: Clock, book: &mut Ledger) {
    if cell.path.is_datapath() {
        return; // the kernel knows nothing of its packets
    }
    book.notes.push(match ask(cell, clock) {
        Ok(found) => found.to_string(),
        Err(error) => {
            format!("diagnosis: the kernel's drop reasons cannot be read: {}", report::chain(&error))
        }
    });
}

/// What the kernel said about packets that were sent for that.
struct Found {
    sent: u64,
    arrived: u64,
    reasons: Vec<(String, u64)>,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "diagnosis: of {} more packets through a new lab, {} arrived; ", self.sent, self.arrived)?;
        if self.reasons.is_empty() {
            return f.write_str(
                "the kernel dropped none as a packet of the stack (XDP and redirects give no reason)",
            );
        }
        let reasons: Vec<String> =
            self.reasons.iter().map(|(name, packets)| format!("{name} {packets}")).collect();
        write!(
            f,
            "the kernel's drop reasons, arrival by a rule that drops among them: {}",
            reasons.join(", ")
        )
    }
}

fn ask(cell: &Cell, clock: Clock) -> Result<Found> {
    let btf = Btf::kernel()?;
    let mut rig = KernelRig::build(cell, clock, false, None)?;
    let counts = Map::percpu_array(8, REASONS)?;
    let namespaces = [GEN, SYS, FAR].map(|role| rig.lab().netns(role).inum());
    let filter = Filter {
        namespaces: namespaces.into_iter().collect::<Result<_, _>>()?,
        thread: linux::cpu::thread_id(),
        skb_dev: offset(&btf, "sk_buff.dev")?,
        device_net: offset(&btf, "net_device.nd_net.net")?,
        net_inum: offset(&btf, "net.ns.inum")?,
    };
    let insns: Vec<[u8; 8]> = filter.assemble(counts.fd())?.into_iter().map(Insn::to_bytes).collect();
    let program = Program::load(&ProgramSpec::new(ProgramKind::RawTracepoint, "perpacket_drops", &insns))?;
    let link = Link::attach_raw_tracepoint(&program, "kfree_skb")?;
    let shape = rig.shape(PACKETS);
    rig.slice(shape)?;
    drop(link);
    let book = rig.ledger()?;

    let names = btf.enum_values("skb_drop_reason")?;
    let name = |reason: u32| {
        let known = names.iter().find(|(_, value)| u32::try_from(*value) == Ok(reason));
        known.map_or(format!("reason {reason}"), |(name, _)| {
            name.trim_start_matches("SKB_DROP_REASON_").to_owned()
        })
    };
    let mut reasons = Vec::new();
    for reason in 0..REASONS {
        let packets = counts.percpu_sum(reason)?;
        if packets > 0 {
            reasons.push((name(reason), packets));
        }
    }
    Ok(Found { sent: book.sent.packets, arrived: book.received_packets(), reasons })
}

fn offset(btf: &Btf, path: &str) -> Result<i32> {
    let member = btf.member(path).with_context(|| format!("find {path} in the kernel's types"))?;
    Ok(i32::try_from(member.offset_bytes)?)
}

/// Whose drops count, and where the kernel keeps what tells it.
struct Filter {
    namespaces: Vec<u64>,
    thread: u32,
    skb_dev: i32,
    device_net: i32,
    net_inum: i32,
}

impl Filter {
    /// The program for `kfree_skb(skb, location, reason, …)`. R6 is the context, R7 what is looked at, R8 the reason.
    fn assemble(&self, counts_fd: i32) -> Result<Vec<Insn>, AssembleError> {
        let mut asm = Assembler::new();
        let (no_device, count, ignore) = (asm.label(), asm.label(), asm.label());
        asm.mov(Reg::R6, Reg::R1);
        asm.load(Size::DW, Reg::R7, Reg::R6, 0);
        asm.load(Size::DW, Reg::R8, Reg::R6, 16);
        for (member, size) in [(self.skb_dev, 8), (self.device_net, 8), (self.net_inum, 4)] {
            follow(&mut asm, member, size);
            asm.jump_if_imm(Condition::Eq, Reg::R7, 0, no_device);
        }
        for &namespace in &self.namespaces {
            asm.mov32_imm(Reg::R1, namespace as u32);
            asm.jump_if(Condition::Eq, Reg::R7, Reg::R1, count);
        }
        asm.jump(ignore);

        asm.bind(no_device);
        asm.call(HELPER_CURRENT_PID_TGID);
        asm.alu_imm(AluOp::Lsh, Reg::R0, 32);
        asm.alu_imm(AluOp::Rsh, Reg::R0, 32);
        asm.mov32_imm(Reg::R1, self.thread);
        asm.jump_if(Condition::Ne, Reg::R0, Reg::R1, ignore);

        asm.bind(count);
        let known = asm.label();
        asm.alu_imm(AluOp::Lsh, Reg::R8, 32);
        asm.alu_imm(AluOp::Rsh, Reg::R8, 32);
        asm.jump_if_imm(Condition::Lt, Reg::R8, REASONS as i32, known);
        asm.mov_imm(Reg::R8, REASONS as i32 - 1);
        asm.bind(known);
        asm.store(Size::W, Reg::R10, -4, Reg::R8);
        asm.mov(Reg::R2, Reg::R10);
        asm.alu_imm(AluOp::Add, Reg::R2, -4);
        asm.load_map(Reg::R1, counts_fd);
        asm.call(HELPER_MAP_LOOKUP);
        asm.jump_if_imm(Condition::Eq, Reg::R0, 0, ignore);
        asm.load(Size::DW, Reg::R1, Reg::R0, 0);
        asm.alu_imm(AluOp::Add, Reg::R1, 1);
        asm.store(Size::DW, Reg::R0, 0, Reg::R1);
        asm.bind(ignore);
        asm.mov_imm(Reg::R0, 0);
        asm.exit();
        asm.finish()
    }
}

/// R7 = the `size` bytes at `member` bytes behind R7; 0 where they cannot be read.
fn follow(asm: &mut Assembler, member: i32, size: i32) {
    asm.store_imm(Size::DW, Reg::R10, -16, 0);
    asm.mov(Reg::R1, Reg::R10);
    asm.alu_imm(AluOp::Add, Reg::R1, -16);
    asm.mov_imm(Reg::R2, size);
    asm.mov(Reg::R3, Reg::R7);
    asm.alu_imm(AluOp::Add, Reg::R3, member);
    asm.call(HELPER_PROBE_READ_KERNEL);
    asm.load(Size::DW, Reg::R7, Reg::R10, -16);
}
