//! The program of a generator: writes packets one after the other, each when it is due, and counts the gaps.
//!
//! It runs on live frames. The kernel takes them in batches and hands a batch on when it is full, so that the
//! program waits before the first frame of a batch only. It waits in a bounded loop; where the time that a packet is due
//! lies further ahead, the loop ends, the batch is given back unused, and the next one goes on waiting. Meanwhile
//! the kernel looks for signals and lets others run. User space therefore asks for more runs than packets, and the program
//! stops at the limit that it was given.

use ebpf::{AluOp, AssembleError, Assembler, Condition, Label, Reg, Size};
use thiserror::Error;

use super::gaps::{GAP_BUCKETS, lower_gap_bucket};
use super::{Destination, HELPER_REDIRECT, XDP_MD_DATA, XDP_MD_DATA_END, encoded, xdp};

/// `bpf_ktime_get_ns` (enum bpf_func_id).
const HELPER_KTIME_GET_NS: i32 = 5;
/// `bpf_xdp_adjust_tail` (enum bpf_func_id).
const HELPER_XDP_ADJUST_TAIL: i32 = 65;

/// How often the clock is read before a batch is given up, at most. The verifier follows every turn.
const TURNS: i32 = 4096;
/// What that takes at least, in ns: a clock is not read in less than 10 ns.
pub(crate) const WAIT_NS: u64 = TURNS as u64 * 10;

/// Bits behind the point of [`GeneratorWord::Step`] and [`GeneratorWord::Fraction`]. Half of the last one is the error of
/// an interval: 0.06 ns after two million packets, and each call from user space starts without.
pub(crate) const FRACTION_BITS: u32 = 24;

/// The words of a generator's control map: one array element, all of them `u64`.
#[derive(Debug, Clone, Copy)]
#[repr(usize)]
pub enum GeneratorWord {
    /// Packets made, which is the index of the next one. Written by the program alone.
    Produced = 0,
    /// Not 0: every further frame is dropped at once, uncounted.
    Stop,
    /// Packets that are made in all before every further frame is dropped.
    Limit,
    /// Index of the packet that [`Self::Base`] belongs to.
    First,
    /// When packet `First` is due, in ns of `CLOCK_MONOTONIC`.
    Base,
    /// The fraction of it, in 2⁻²⁴ ns.
    Fraction,
    /// From one packet to the next, in 2⁻²⁴ ns.
    Step,
    /// What lies at least between two batches, in ns.
    LeastGap,
    /// When the last batch was released; 0 before the first. Written by the program.
    Last,
    /// Frames of this call, which tells where in a batch the program is. Written by the program.
    Runs,
    /// The batch at work was given up. Written by the program.
    GivenUp,
}

/// Words in the control map.
pub const GENERATOR_WORDS: usize = GeneratorWord::GivenUp as usize + 1;

/// Emits the instructions that write a packet: to what the first register points to, for the index in the second (both are
/// kept), with five more registers to work in.
pub type WritePacket<'a, E> = dyn Fn(&mut Assembler, Reg, Reg, [Reg; 5]) -> Result<(), E> + 'a;

/// What a generator's program is made for.
pub struct GeneratorProgram<'a, E> {
    /// Length of every frame as it is handed over, without FCS.
    pub l2_bytes: usize,
    /// Bytes from its start that `write_packet` may touch.
    pub header_bytes: usize,
    /// What writes a packet.
    pub write_packet: &'a WritePacket<'a, E>,
    /// Whether `write_packet` leaves the length of the packet in [`GeneratorProgram::LENGTH`].
    pub shortens: bool,
    /// Where packets go.
    pub destination: Destination,
    /// Frames in a batch, a power of two, if packets are paced.
    pub paced_batch: Option<u32>,
    /// Descriptor of the control map.
    pub control_fd: i32,
    /// Descriptor of the array whose one value has [`GAP_BUCKETS`] words; not used without a pace.
    pub gaps_fd: i32,
}

/// Why there is no program.
#[derive(Debug, Error)]
pub enum GeneratorProgramError<E> {
    /// The packet cannot be written by instructions.
    #[error("the packet has no form as instructions: {0}")]
    Write(E),
    /// The instructions are no program.
    #[error("the packet's instructions are no program: {0}")]
    Assemble(#[from] AssembleError),
}

impl<E> GeneratorProgram<'_, E> {
    /// Where `write_packet` leaves the length of the packet without FCS: at least 14, at most `l2_bytes`. Otherwise the
    /// packet is not sent.
    pub const LENGTH: Reg = Reg::R2;
    /// What `write_packet` is given: the packet, the index, and the registers to work in.
    const PACKET: Reg = Reg::R6;
    const INDEX: Reg = Reg::R8;
    const SCRATCH: [Reg; 5] = [Reg::R3, Reg::R4, Reg::R5, Reg::R0, Reg::R1];

    /// The program as the kernel takes it. R7 is the context, R9 the control words.
    ///
    /// # Errors
    /// What `write_packet` says, or a jump that is too long.
    pub fn assemble(&self) -> Result<Vec<[u8; 8]>, GeneratorProgramError<E>> {
        let mut asm = Assembler::new();
        let exits = Exits { drop: asm.label(), give_up: asm.label(), abort: asm.label() };
        asm.mov(Reg::R7, Reg::R1);
        asm.load_map_value(Reg::R9, self.control_fd, 0);
        load(&mut asm, Reg::R2, GeneratorWord::Stop);
        exits.emit(&mut asm, self.paced_batch.is_some());
        if let Some(batch) = self.paced_batch {
            wait(&mut asm, &exits, batch, self.gaps_fd);
        }
        self.packet(&mut asm, &exits)?;
        if self.shortens {
            self.shorten(&mut asm);
        }
        asm.alu_imm(AluOp::Add, Self::INDEX, 1);
        store(&mut asm, GeneratorWord::Produced, Self::INDEX);
        match self.destination {
            Destination::Drop => asm.mov_imm(Reg::R0, xdp::DROP),
            Destination::Stack => asm.mov_imm(Reg::R0, xdp::PASS),
            Destination::Device(ifindex) => {
                asm.mov_imm(Reg::R1, ifindex as i32);
                asm.mov_imm(Reg::R2, 0);
                asm.call(HELPER_REDIRECT);
            }
        }
        asm.exit();
        Ok(encoded(asm)?)
    }

    /// Writes the next packet.
    fn packet(&self, asm: &mut Assembler, exits: &Exits) -> Result<(), GeneratorProgramError<E>> {
        asm.load(Size::W, Self::PACKET, Reg::R7, XDP_MD_DATA);
        asm.load(Size::W, Reg::R2, Reg::R7, XDP_MD_DATA_END);
        asm.mov(Reg::R3, Self::PACKET);
        asm.alu_imm(AluOp::Add, Reg::R3, self.header_bytes as i32);
        asm.jump_if(Condition::Gt, Reg::R3, Reg::R2, exits.abort);
        load(asm, Self::INDEX, GeneratorWord::Produced);
        (self.write_packet)(asm, Self::PACKET, Self::INDEX, Self::SCRATCH)
            .map_err(GeneratorProgramError::Write)
    }

    /// Takes off what the packet is shorter than the frame. The frame has its length back when it comes the next
    /// time: the kernel compares its end with that of the first time (net/bpf/test_run.c, `ctx_was_changed` and
    /// `reset_ctx`, 6.18), and what was cut off is as it was.
    fn shorten(&self, asm: &mut Assembler) {
        let (whole, refused, done) = (asm.label(), asm.label(), asm.label());
        asm.jump_if_imm(Condition::Gt, Self::LENGTH, self.l2_bytes as i32, refused);
        asm.alu_imm(AluOp::Sub, Self::LENGTH, self.l2_bytes as i32);
        asm.jump_if_imm(Condition::Eq, Self::LENGTH, 0, whole);
        asm.mov(Reg::R1, Reg::R7);
        asm.call(HELPER_XDP_ADJUST_TAIL);
        asm.jump_if_imm(Condition::Eq, Reg::R0, 0, done);
        asm.bind(refused);
        asm.mov_imm(Reg::R0, xdp::ABORTED);
        asm.exit();
        asm.bind(whole);
        asm.bind(done);
    }
}

/// Where the program ends without a packet. They stand in front of it, since a packet's instructions may be longer than a
/// jump.
struct Exits {
    drop: Label,
    give_up: Label,
    abort: Label,
}

impl Exits {
    /// Emits them; the program goes on behind if R2 is 0. The verifier refuses what is never reached.
    fn emit(&self, asm: &mut Assembler, paced: bool) {
        let go_on = asm.label();
        asm.jump_if_imm(Condition::Eq, Reg::R2, 0, go_on);
        asm.bind(self.drop);
        asm.mov_imm(Reg::R0, xdp::DROP);
        asm.exit();
        if paced {
            asm.bind(self.give_up);
            asm.store_imm(Size::DW, Reg::R9, offset(GeneratorWord::GivenUp), 1);
            asm.mov_imm(Reg::R0, xdp::DROP);
            asm.exit();
        }
        asm.bind(self.abort);
        asm.mov_imm(Reg::R0, xdp::ABORTED);
        asm.exit();
        asm.bind(go_on);
    }
}

/// Waits until the packet is due, if it is the first of a batch, and counts the gap.
fn wait(asm: &mut Assembler, exits: &Exits, batch: u32, gaps_fd: i32) {
    let (first, within) = (asm.label(), asm.label());
    load(asm, Reg::R6, GeneratorWord::Produced);
    load(asm, Reg::R2, GeneratorWord::Limit);
    asm.jump_if(Condition::Ge, Reg::R6, Reg::R2, exits.drop);
    if batch > 1 {
        load(asm, Reg::R2, GeneratorWord::Runs);
        asm.mov(Reg::R3, Reg::R2);
        asm.alu_imm(AluOp::Add, Reg::R3, 1);
        store(asm, GeneratorWord::Runs, Reg::R3);
        asm.alu_imm(AluOp::And, Reg::R2, batch as i32 - 1);
        asm.jump_if_imm(Condition::Eq, Reg::R2, 0, first);
        load(asm, Reg::R2, GeneratorWord::GivenUp);
        asm.jump_if_imm(Condition::Ne, Reg::R2, 0, exits.drop);
        asm.jump(within);
        asm.bind(first);
    }
    due(asm);
    until_due(asm, exits.give_up);
    if batch > 1 {
        asm.store_imm(Size::DW, Reg::R9, offset(GeneratorWord::GivenUp), 0);
    }
    count_gap(asm, gaps_fd);
    asm.bind(within);
}

/// R6 = when the packet whose index is in it may leave: when it is due, but not too soon after the last one.
fn due(asm: &mut Assembler) {
    let late_enough = asm.label();
    load(asm, Reg::R2, GeneratorWord::First);
    asm.alu(AluOp::Sub, Reg::R6, Reg::R2);
    load(asm, Reg::R2, GeneratorWord::Step);
    asm.alu(AluOp::Mul, Reg::R6, Reg::R2);
    load(asm, Reg::R2, GeneratorWord::Fraction);
    asm.alu(AluOp::Add, Reg::R6, Reg::R2);
    asm.alu_imm(AluOp::Rsh, Reg::R6, FRACTION_BITS as i32);
    load(asm, Reg::R2, GeneratorWord::Base);
    asm.alu(AluOp::Add, Reg::R6, Reg::R2);
    load(asm, Reg::R2, GeneratorWord::Last);
    load(asm, Reg::R3, GeneratorWord::LeastGap);
    asm.alu(AluOp::Add, Reg::R2, Reg::R3);
    asm.jump_if(Condition::Le, Reg::R2, Reg::R6, late_enough);
    asm.mov(Reg::R6, Reg::R2);
    asm.bind(late_enough);
}

/// R0 = the time, at R6 or later.
///
/// The jump goes back and the way out falls through: the verifier keeps the target of every jump for later, and would
/// otherwise have to keep as many ways out as there are turns.
fn until_due(asm: &mut Assembler, give_up: Label) {
    let again = asm.label();
    asm.mov_imm(Reg::R8, TURNS);
    asm.bind(again);
    asm.jump_if_imm(Condition::Eq, Reg::R8, 0, give_up);
    asm.alu_imm(AluOp::Sub, Reg::R8, 1);
    asm.call(HELPER_KTIME_GET_NS);
    asm.jump_if(Condition::Lt, Reg::R0, Reg::R6, again);
}

/// Counts the time since the last release; R0 is the time of this one.
fn count_gap(asm: &mut Assembler, gaps_fd: i32) {
    let none = asm.label();
    load(asm, Reg::R2, GeneratorWord::Last);
    store(asm, GeneratorWord::Last, Reg::R0);
    asm.jump_if_imm(Condition::Eq, Reg::R2, 0, none);
    asm.alu(AluOp::Sub, Reg::R0, Reg::R2);
    lower_gap_bucket(asm, Reg::R0, Reg::R2, Reg::R3);
    // Always so, which the verifier does not know.
    asm.jump_if_imm(Condition::Ge, Reg::R0, GAP_BUCKETS as i32, none);
    asm.alu_imm(AluOp::Lsh, Reg::R0, 3);
    asm.load_map_value(Reg::R1, gaps_fd, 0);
    asm.alu(AluOp::Add, Reg::R1, Reg::R0);
    asm.load(Size::DW, Reg::R2, Reg::R1, 0);
    asm.alu_imm(AluOp::Add, Reg::R2, 1);
    asm.store(Size::DW, Reg::R1, 0, Reg::R2);
    asm.bind(none);
}

fn load(asm: &mut Assembler, dst: Reg, word: GeneratorWord) {
    asm.load(Size::DW, dst, Reg::R9, offset(word));
}

fn store(asm: &mut Assembler, word: GeneratorWord, src: Reg) {
    asm.store(Size::DW, Reg::R9, offset(word), src);
}

fn offset(word: GeneratorWord) -> i16 {
    8 * word as i16
}
