//! The eBPF programs of a measurement, instruction by instruction.
//!
//! Three kinds: the *injector* writes one frame and says where it goes (this is where frames come from), the
//! *generator* writes packets of any kind when they are due, and the
//! *counter* ends or returns a frame and counts it (this is where a path's ledger closes). Their control words
//! live in array maps, so that two variants of a comparison can be the very same code with other numbers.

mod gaps;
pub(crate) mod generator;

pub use gaps::{GAP_BUCKETS, gap_bucket, gap_bucket_range, lower_gap_bucket};
pub use generator::{GENERATOR_WORDS, GeneratorProgram, GeneratorProgramError, GeneratorWord, WritePacket};

use std::net::Ipv4Addr;

use ebpf::{AluOp, AssembleError, Assembler, AtomicOp, Condition, Insn, Reg, Size};

/// Result codes of XDP programs (enum xdp_action, include/uapi/linux/bpf.h, 6.18).
mod xdp {
    pub(super) const ABORTED: i32 = 0;
    pub(super) const DROP: i32 = 1;
    pub(super) const PASS: i32 = 2;
    pub(super) const TX: i32 = 3;
}
/// The program ends the packet here (TC_ACT_SHOT, include/uapi/linux/pkt_cls.h; TCX_DROP has the same value).
const TC_ACT_SHOT: i32 = 2;
/// `bpf_map_lookup_elem`; inlined by the kernel for arrays (enum bpf_func_id).
const HELPER_MAP_LOOKUP: i32 = 1;
/// `bpf_redirect` (enum bpf_func_id).
const HELPER_REDIRECT: i32 = 23;
/// Offsets of the packet's bounds in struct xdp_md.
const XDP_MD_DATA: i16 = 0;
const XDP_MD_DATA_END: i16 = 4;

/// The words of an injector's control map: one array element, all of them `u64`.
#[derive(Debug, Clone, Copy)]
#[repr(usize)]
pub enum Control {
    /// Frames that the program produced. Written by the program alone.
    Frames = 0,
    /// Number of flows; must not exceed what the frame was checked for.
    Flows = 1,
    /// Flow of the next frame. Written by the program.
    NextFlow = 2,
    /// Steps of work added to every two frames; an odd number gives one of them a step more. At most [`MAX_SPIN`].
    Spin = 3,
    /// Where the two exchanges around the added work meet.
    Fence = 4,
}

/// Words in the control map.
pub const CONTROL_WORDS: usize = 5;

/// The most steps, each of a multiplication and two additions, that two frames can be burdened with: about 1 ns a frame each.
/// The time until a locked exchange goes on has a grain of some cycles, so single steps differ; two together do less.
pub const MAX_SPIN: u32 = 128;

/// Instructions without effect in a padded program: a cache line and more.
pub const PADDING: u8 = 24;

/// Multiplications that are done in every variant.
const SPIN_BASE: u32 = 64;
/// Steps that are done in every variant: the first ones do not cost what the others do.
const SPIN_FIRST: u32 = 8;

/// Where an injected frame goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// Nowhere: dropped by the injector itself. What is left is the cost of injecting.
    Drop,
    /// Up the receive path of the ingress device, from `netif_receive_skb_list` on.
    Stack,
    /// Out of the device with this index.
    Device(u32),
}

/// Emits the instructions that write every header byte of a frame: to the packet that the first register points to, for the
/// flow whose number is in the second (both are kept), with two more registers to work in.
pub type WriteHeaders<'a> = dyn Fn(&mut Assembler, Reg, Reg, [Reg; 2]) + 'a;

/// What the injector is made for.
pub struct Injector<'a> {
    /// Length of the headers; a shorter packet is dropped.
    pub header_bytes: usize,
    /// What writes them. The number of flows that it was made for is the most that [`Control::Flows`] may say.
    pub write_headers: &'a WriteHeaders<'a>,
    /// Where frames go.
    pub destination: Destination,
    /// Whether the program can burden a frame with added work ([`Control::Spin`]). Two locked exchanges
    /// stand around the work in every variant, so that none of it hides behind other work.
    pub spin: bool,
    /// [`PADDING`] instructions without effect, so many of them in front and the others at the end. They shift the
    /// program in memory: where code lies decides over a nanosecond, and only many layouts together tell what it
    /// costs as such. None: no such instructions.
    pub padding: Option<u8>,
    /// Descriptor of the control map.
    pub control_fd: i32,
}

impl Injector<'_> {
    /// The program as the kernel takes it. R6 is the packet, R8 the flow, R9 the control words.
    pub fn assemble(&self) -> Result<Vec<[u8; 8]>, AssembleError> {
        let mut asm = Assembler::new();
        let short = asm.label();
        asm.load(Size::W, Reg::R6, Reg::R1, XDP_MD_DATA);
        let in_front = self.padding.map_or(0, |count| count.min(PADDING));
        pad(&mut asm, in_front);
        asm.load(Size::W, Reg::R2, Reg::R1, XDP_MD_DATA_END);
        asm.mov(Reg::R3, Reg::R6);
        asm.alu_imm(AluOp::Add, Reg::R3, self.header_bytes as i32);
        asm.jump_if(Condition::Gt, Reg::R3, Reg::R2, short);
        asm.load_map_value(Reg::R9, self.control_fd, 0);

        next_flow(&mut asm);
        (self.write_headers)(&mut asm, Reg::R6, Reg::R8, [Reg::R3, Reg::R4]);
        asm.load(Size::DW, Reg::R3, Reg::R9, word(Control::Frames));
        asm.alu_imm(AluOp::Add, Reg::R3, 1);
        asm.store(Size::DW, Reg::R9, word(Control::Frames), Reg::R3);
        if self.spin {
            spin(&mut asm, short);
        }
        pad(&mut asm, self.padding.map_or(0, |_| PADDING - in_front));
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
        asm.bind(short);
        asm.mov_imm(Reg::R0, xdp::ABORTED);
        asm.exit();
        encoded(asm)
    }
}

/// R8 = the flow of this frame; the next one is stored. A count and a comparison instead of a division.
fn next_flow(asm: &mut Assembler) {
    let keep = asm.label();
    asm.load(Size::DW, Reg::R8, Reg::R9, word(Control::NextFlow));
    asm.load(Size::DW, Reg::R2, Reg::R9, word(Control::Flows));
    asm.mov(Reg::R3, Reg::R8);
    asm.alu_imm(AluOp::Add, Reg::R3, 1);
    asm.jump_if(Condition::Lt, Reg::R3, Reg::R2, keep);
    asm.mov_imm(Reg::R3, 0);
    asm.bind(keep);
    asm.store(Size::DW, Reg::R9, word(Control::NextFlow), Reg::R3);
}

/// Work of a known cost on the critical path: a chain of dependent multiplications and additions between two exchanges
/// with memory. A locked exchange starts when what it stores is known, and what follows waits for it, so that
/// out-of-order execution cannot hide the chain. The program's verdict depends on the result.
///
/// The chain has a part that is always done: in the shadow of the first exchange the first twenty or so steps are
/// free. The other steps are skipped from the asked-for number on. They are no loop, whose end would be
/// predicted now well and now badly.
fn spin(asm: &mut Assembler, give_up: ebpf::Label) {
    let done = asm.label();
    asm.load(Size::DW, Reg::R3, Reg::R9, word(Control::Spin));
    asm.load(Size::DW, Reg::R4, Reg::R9, word(Control::Frames));
    asm.alu_imm(AluOp::And, Reg::R4, 1);
    asm.alu(AluOp::Add, Reg::R3, Reg::R4);
    asm.alu_imm(AluOp::Rsh, Reg::R3, 1);
    asm.mov_imm(Reg::R2, 1);
    asm.atomic(AtomicOp::Exchange, Reg::R9, word(Control::Fence), Reg::R2);
    for _ in 0..SPIN_BASE {
        asm.alu_imm(AluOp::Mul, Reg::R2, 3);
    }
    asm.alu_imm(AluOp::Add, Reg::R3, SPIN_FIRST as i32);
    for step in 0..SPIN_FIRST + MAX_SPIN / 2 {
        asm.jump_if_imm(Condition::Le, Reg::R3, step as i32, done);
        asm.alu_imm(AluOp::Mul, Reg::R2, 3);
        asm.alu_imm(AluOp::Add, Reg::R2, 2);
        asm.alu_imm(AluOp::Add, Reg::R2, 4);
    }
    asm.bind(done);
    asm.alu_imm(AluOp::Or, Reg::R2, 1);
    asm.atomic(AtomicOp::Exchange, Reg::R9, word(Control::Fence), Reg::R2);
    asm.jump_if_imm(Condition::Eq, Reg::R2, 0, give_up);
}

/// Instructions of three bytes that do nothing. R6 holds the packet, wherever they stand.
fn pad(asm: &mut Assembler, count: u8) {
    for _ in 0..count {
        asm.mov(Reg::R6, Reg::R6);
    }
}

/// The program as the kernel takes it.
fn encoded(asm: Assembler) -> Result<Vec<[u8; 8]>, AssembleError> {
    Ok(asm.finish()?.into_iter().map(Insn::to_bytes).collect())
}

fn word(control: Control) -> i16 {
    8 * control as i16
}

/// What a counter does with the frames that it counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// XDP: drop.
    XdpDrop,
    /// XDP: send back out of the device that it came in by, addresses unchanged.
    XdpTx,
    /// tc ingress: drop.
    TcDrop,
}

/// A program that adds 1 to the first word of a per-CPU array for every frame, and ends it as `action` says.
pub fn counter(action: Action, map_fd: i32) -> Result<Vec<[u8; 8]>, AssembleError> {
    let mut asm = Assembler::new();
    count(&mut asm, action, map_fd);
    encoded(asm)
}

/// An XDP program that counts and drops UDP over IPv4 from this address, in frames without a VLAN tag, and lets all else pass.
pub fn counter_of_source(source: Ipv4Addr, map_fd: i32) -> Result<Vec<[u8; 8]>, AssembleError> {
    let mut asm = Assembler::new();
    let pass = asm.label();
    // struct xdp_md: data, data_end.
    asm.load(Size::W, Reg::R2, Reg::R1, 0);
    asm.load(Size::W, Reg::R3, Reg::R1, 4);
    asm.mov(Reg::R4, Reg::R2);
    asm.alu_imm(AluOp::Add, Reg::R4, 34);
    asm.jump_if(Condition::Gt, Reg::R4, Reg::R3, pass);
    // As they lie in memory: the type of the frame, the protocol, and the source address.
    asm.load(Size::H, Reg::R4, Reg::R2, 12);
    asm.jump_if_imm(Condition::Ne, Reg::R4, i32::from(u16::from_ne_bytes([0x08, 0x00])), pass);
    asm.load(Size::B, Reg::R4, Reg::R2, 23);
    asm.jump_if_imm(Condition::Ne, Reg::R4, 17, pass);
    asm.load(Size::W, Reg::R4, Reg::R2, 26);
    asm.mov32_imm(Reg::R5, u32::from_ne_bytes(source.octets()));
    asm.jump_if(Condition::Ne, Reg::R4, Reg::R5, pass);
    count(&mut asm, Action::XdpDrop, map_fd);
    asm.bind(pass);
    asm.mov_imm(Reg::R0, xdp::PASS);
    asm.exit();
    encoded(asm)
}

fn count(asm: &mut Assembler, action: Action, map_fd: i32) {
    let missing = asm.label();
    asm.store_imm(Size::W, Reg::R10, -4, 0);
    asm.mov(Reg::R2, Reg::R10);
    asm.alu_imm(AluOp::Add, Reg::R2, -4);
    asm.load_map(Reg::R1, map_fd);
    asm.call(HELPER_MAP_LOOKUP);
    asm.jump_if_imm(Condition::Eq, Reg::R0, 0, missing);
    asm.load(Size::DW, Reg::R1, Reg::R0, 0);
    asm.alu_imm(AluOp::Add, Reg::R1, 1);
    asm.store(Size::DW, Reg::R0, 0, Reg::R1);
    asm.bind(missing);
    asm.mov_imm(
        Reg::R0,
        match action {
            Action::XdpDrop => xdp::DROP,
            Action::XdpTx => xdp::TX,
            Action::TcDrop => TC_ACT_SHOT,
        },
    );
    asm.exit();
}
