//! The packets of a plan as eBPF instructions that write them.
//!
//! The instructions do what [`Emitter::emit`] does, step by step: the bytes that stay, the fields that vary, the
//! checksums. As for a [`UdpFrame`](crate::UdpFrame), what lies behind the last header, the last varying byte and the last
//! byte in which two packets differ is not written: it is handed over once with the run.

use ebpf::{AluOp, Assembler, Condition, Label, Reg, Size};
use thiserror::Error;

use crate::counter::{Counter, Powers, SmallCounter};
use crate::plan::{Checksum, Emitter, Packet, Share, Source, Varying};
use crate::random::{MIX, ODD, STEP};
use crate::schedule::Slot;

/// Random bytes of one packet that are drawn by instructions.
const MOST_RANDOM_BYTES: usize = 1500;
/// Bytes of one packet that are written or read by instructions.
const MOST_BYTES: usize = 2048;
/// Packets of one program.
const MOST_PACKETS: usize = 64;
/// Packets after which their order begins again.
const MOST_SLOTS: usize = 1024;
/// Bytes written of a packet that has no headers.
const PLAIN_BYTES: usize = 64;

/// Why a plan has no form as instructions; it can still be emitted as bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LowerError {
    /// The instructions write one length, unless they are made by [`Emitter::lower_with_length`].
    #[error("the packets have different lengths, and this program in the kernel writes one length")]
    Lengths,
    /// More than 64.
    #[error("{0} packets are too many for a program in the kernel, which can have {MOST_PACKETS}")]
    Packets(usize),
    /// Weights that are exact after more than 1,024 packets only.
    #[error(
        "the weights are exact after {0} packets only, too many for a program in the kernel, which can have {MOST_SLOTS}"
    )]
    Weights(usize),
    /// What varies, or a checksum of it, lies too far behind.
    #[error("the packet varies in its first {0} bytes, too many for a program in the kernel")]
    Bytes(usize),
    /// Too many random bytes.
    #[error("{0} random bytes a packet are too many for a program in the kernel")]
    Random(usize),
    /// A counter or range that needs more than 64 bits.
    #[error("the field at byte {0} needs numbers of more than 64 bits")]
    Wide(usize),
}

/// The length of a packet that instructions have written, without FCS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoweredLength {
    /// All packets have this one.
    Fixed(usize),
    /// It is in this register, the first of the scratch registers.
    InRegister(Reg),
}

impl Emitter {
    /// Bytes from the start of the packet that [`lower`](Self::lower) writes at most; the program must have checked that
    /// the packet is as long as the longest one. Those behind must be there already, as in
    /// [`longest`](Self::longest).
    pub fn lowered_bytes(&self) -> usize {
        let longest = self.longest_packet();
        let own = |packet: &Packet| {
            let differs = packet.bytes.iter().zip(&longest.bytes).rposition(|(own, other)| own != other);
            varying_bytes(packet).max(read_bytes(packet)).max(differs.map_or(0, |last| last + 1))
        };
        self.lowered_packets().map(own).max().unwrap_or(0)
    }

    /// The bytes to hand over once with the run: a packet of the greatest length, any of whose bytes behind
    /// [`lowered_bytes`](Self::lowered_bytes) is the same in all packets that reach so far.
    pub fn longest(&self) -> Vec<u8> {
        self.longest_packet().bytes.clone()
    }

    /// Emits the instructions that write this worker's packet number `index` to the packet that `packet` points to.
    ///
    /// Both registers are kept; the five of `scratch`, which must be others, are overwritten. There is no call, no
    /// loop, and no memory beside the packet.
    ///
    /// # Errors
    /// What cannot be done by instructions. Some may have been emitted by then.
    pub fn lower(
        &self,
        asm: &mut Assembler,
        packet: Reg,
        index: Reg,
        scratch: [Reg; 5],
    ) -> Result<(), LowerError> {
        match self.fixed_length() {
            Some(_) => self.lower_with_length(asm, packet, index, scratch).map(|_| ()),
            None => {
                self.check_lowering()?;
                Err(LowerError::Lengths)
            }
        }
    }

    /// As [`lower`](Self::lower), for packets of any lengths: where these differ, the length of the packet that was
    /// written is left in the first register of `scratch`.
    ///
    /// The packet in hand must have the length of the longest one; the program then shortens it by the difference
    /// (`bpf_xdp_adjust_tail`).
    ///
    /// # Errors
    /// What cannot be done by instructions. Some may have been emitted by then.
    pub fn lower_with_length(
        &self,
        asm: &mut Assembler,
        packet: Reg,
        index: Reg,
        scratch: [Reg; 5],
    ) -> Result<LoweredLength, LowerError> {
        self.check_lowering()?;
        let [k, state, a, b, c] = scratch;
        let length = match self.fixed_length() {
            Some(bytes) => LoweredLength::Fixed(bytes),
            None => LoweredLength::InRegister(k),
        };
        let written = self.lowered_bytes();
        let mut lower =
            Lower { asm, emitter: self, written, length, packet, index, k, state, a, b, c, seeded: false };
        match *self.shares {
            [share] => {
                lower.asm.mov(k, index);
                lower.packet(share)?;
            }
            _ => lower.in_turn()?,
        }
        Ok(length)
    }

    fn lowered_packets(&self) -> impl Iterator<Item = &Packet> {
        self.shares.iter().map(|share| &self.packets[share.packet])
    }

    fn longest_packet(&self) -> &Packet {
        let first = &self.packets[self.shares[0].packet];
        self.lowered_packets().max_by_key(|packet| packet.bytes.len()).unwrap_or(first)
    }

    /// The length of all packets, if it is one.
    fn fixed_length(&self) -> Option<usize> {
        let longest = self.longest_packet().bytes.len();
        self.lowered_packets().all(|packet| packet.bytes.len() == longest).then_some(longest)
    }

    fn check_lowering(&self) -> Result<(), LowerError> {
        if self.shares.len() > MOST_PACKETS {
            return Err(LowerError::Packets(self.shares.len()));
        }
        let slots = self.schedule.as_ref().map_or(0, |schedule| schedule.slots.len());
        if slots > MOST_SLOTS {
            return Err(LowerError::Weights(slots));
        }
        for packet in self.lowered_packets() {
            let random = packet.varying.iter().filter(|varying| matches!(varying.source, Source::Bytes));
            let random: usize = random.map(|varying| varying.at.len()).sum();
            if random > MOST_RANDOM_BYTES {
                return Err(LowerError::Random(random));
            }
        }
        match self.lowered_bytes() {
            bytes if bytes > MOST_BYTES => Err(LowerError::Bytes(bytes)),
            _ => Ok(()),
        }
    }
}

/// Headers, and everything that varies.
fn varying_bytes(packet: &Packet) -> usize {
    let headers = packet.layers.iter().map(|&(_, at, len)| at + len).max().unwrap_or(PLAIN_BYTES);
    let varying = packet.varying.iter().map(|varying| varying.at.end).max().unwrap_or(0);
    let checksums = packet.checksums.iter().map(|checksum| checksum.at + 2).max().unwrap_or(0);
    headers.max(varying).max(checksums).min(packet.bytes.len())
}

/// What checksums read; up to a byte more than what varies.
fn read_bytes(packet: &Packet) -> usize {
    let pairs = packet.checksums.iter().flat_map(|checksum| &checksum.pairs).map(|&at| at as usize + 2);
    let ranges = packet.checksums.iter().flat_map(|checksum| &checksum.ranges).map(|range| range.end);
    pairs.chain(ranges).max().unwrap_or(0)
}

struct Lower<'a> {
    asm: &'a mut Assembler,
    emitter: &'a Emitter,
    /// Bytes that are written of each packet.
    written: usize,
    length: LoweredLength,
    packet: Reg,
    index: Reg,
    /// Number within the packet's own sequence.
    k: Reg,
    /// State of the random numbers.
    state: Reg,
    /// The number at work.
    a: Reg,
    b: Reg,
    /// Holds numbers that do not fit into an instruction.
    c: Reg,
    /// `state` has been set for this packet.
    seeded: bool,
}

impl Lower<'_> {
    /// Several packets: the remainder of the index says which, and how often it came before in this round; the
    /// quotient is the number of rounds before.
    fn in_turn(&mut self) -> Result<(), LowerError> {
        let emitter = self.emitter;
        let round = emitter.round_packets();
        let labels: Vec<Label> = emitter.shares.iter().map(|_| self.asm.label()).collect();
        let slots: Vec<Slot> = match &emitter.schedule {
            Some(schedule) => schedule.slots.clone(),
            None => (0..round).map(|member| Slot { member: member as u32, rank: 0 }).collect(),
        };
        self.asm.mov(self.a, self.index);
        self.alu(AluOp::Mod, self.a, round);
        self.choose(&slots, 0, &labels);
        let end = self.asm.label();
        for (member, share) in emitter.shares.iter().enumerate() {
            self.asm.bind(labels[member]);
            self.asm.mov(self.a, self.index);
            self.alu(AluOp::Div, self.a, round);
            if let Some(schedule) = &emitter.schedule {
                self.alu(AluOp::Mul, self.a, u64::from(schedule.weights[member]));
            }
            self.asm.alu(AluOp::Add, self.k, self.a);
            self.seeded = false;
            self.packet(*share)?;
            self.asm.jump(end);
        }
        self.asm.bind(end);
        Ok(())
    }

    /// Halves the slots by comparisons until one is left: `k` becomes its rank, and its packet is jumped to.
    fn choose(&mut self, slots: &[Slot], first: usize, labels: &[Label]) {
        match slots {
            [] => {}
            [slot] => {
                self.asm.mov_imm(self.k, slot.rank as i32);
                self.asm.jump(labels[slot.member as usize]);
            }
            _ => {
                let (low, high) = slots.split_at(slots.len() / 2);
                let middle = first + low.len();
                let below = self.asm.label();
                self.asm.jump_if_imm(Condition::Lt, self.a, middle as i32, below);
                self.choose(high, middle, labels);
                self.asm.bind(below);
                self.choose(low, first, labels);
            }
        }
    }

    /// One packet, whose round is in `k`.
    fn packet(&mut self, share: Share) -> Result<(), LowerError> {
        let packets = self.emitter.packets.clone();
        let packet = &packets[share.packet];
        if share.stride != 1 {
            self.alu(AluOp::Mul, self.k, share.stride);
        }
        if share.offset != 0 {
            self.alu(AluOp::Add, self.k, share.offset);
        }
        self.fixed(&packet.bytes[..self.written.min(packet.bytes.len())]);
        for varying in &packet.varying {
            self.varying(varying)?;
        }
        for checksum in &packet.checksums {
            self.checksum(checksum);
        }
        if let LoweredLength::InRegister(reg) = self.length {
            self.asm.mov_imm(reg, packet.bytes.len() as i32);
        }
        Ok(())
    }

    fn fixed(&mut self, bytes: &[u8]) {
        let mut at = 0;
        while at < bytes.len() {
            let (size, imm, len) = match bytes[at..] {
                [a, b, c, d, ..] => (Size::W, i32::from_ne_bytes([a, b, c, d]), 4),
                [a, b, ..] => (Size::H, i32::from(u16::from_ne_bytes([a, b])), 2),
                [a, ..] => (Size::B, i32::from(a), 1),
                [] => return,
            };
            self.asm.store_imm(size, self.packet, at as i16, imm);
            at += len;
        }
    }

    /// A number in a register; 64 bits take three or four instructions.
    fn number(&mut self, reg: Reg, number: u64) {
        if let Ok(small) = u32::try_from(number) {
            return self.asm.mov32_imm(reg, small);
        }
        self.asm.mov32_imm(reg, (number >> 32) as u32);
        // The lower half in two steps, because an instruction extends the sign of its number.
        self.asm.alu_imm(AluOp::Lsh, reg, 16);
        self.asm.alu_imm(AluOp::Or, reg, ((number >> 16) & 0xffff) as i32);
        self.asm.alu_imm(AluOp::Lsh, reg, 16);
        self.asm.alu_imm(AluOp::Or, reg, (number & 0xffff) as i32);
    }

    /// An operation with a number of any size; overwrites `c` if it is large.
    fn alu(&mut self, op: AluOp, reg: Reg, number: u64) {
        match i32::try_from(number) {
            Ok(small) => self.asm.alu_imm(op, reg, small),
            Err(_) => {
                self.number(self.c, number);
                self.asm.alu(op, reg, self.c);
            }
        }
    }

    fn varying(&mut self, varying: &Varying) -> Result<(), LowerError> {
        let wide = LowerError::Wide(varying.at.start);
        match &varying.source {
            Source::Bytes if varying.mask == 0 => {
                for at in varying.at.clone().step_by(8) {
                    self.random();
                    self.store_bytes(at, (varying.at.end - at).min(8), 8);
                }
                return Ok(());
            }
            Source::Bytes => self.random(),
            Source::Small(counter) => {
                self.asm.mov(self.a, self.k);
                self.small(counter);
            }
            Source::Counter(counter) => {
                self.asm.mov(self.a, self.k);
                self.counter(counter, varying.at.len()).ok_or(wide)?;
            }
            Source::Held(held) => {
                self.asm.mov(self.a, self.k);
                if let Some(again) = held.again() {
                    self.alu(AluOp::Mod, self.a, again);
                }
                if held.hold() > 1 {
                    self.alu(AluOp::Div, self.a, held.hold());
                }
                self.counter(held.counter(), varying.at.len()).ok_or(wide)?;
            }
            Source::Range(first, last) => self.range(*first, last - first).ok_or(wide)?,
            Source::WideRange(..) => return Err(wide),
        }
        self.store(varying);
        Ok(())
    }

    /// `a` becomes the next random number.
    fn random(&mut self) {
        if !std::mem::replace(&mut self.seeded, true) {
            self.number(self.state, ODD);
            self.asm.alu(AluOp::Mul, self.state, self.index);
            self.alu(AluOp::Add, self.state, self.emitter.streams.key());
        }
        self.alu(AluOp::Add, self.state, STEP);
        self.asm.mov(self.a, self.state);
        for (shift, factor) in MIX {
            self.asm.mov(self.b, self.a);
            self.asm.alu_imm(AluOp::Rsh, self.b, shift as i32);
            self.asm.alu(AluOp::Xor, self.a, self.b);
            if factor != 1 {
                self.alu(AluOp::Mul, self.a, factor);
            }
        }
    }

    /// `a` becomes `first` plus the upper half of the 128-bit product of a random number and the range's length,
    /// which must have at most 32 bits: the products of both halves then have 64.
    fn range(&mut self, first: u64, span: u64) -> Option<()> {
        let count = span.checked_add(1).filter(|&count| count <= 1 << 32)?;
        self.random();
        self.asm.mov(self.b, self.a);
        self.asm.alu_imm(AluOp::Lsh, self.b, 32);
        self.asm.alu_imm(AluOp::Rsh, self.b, 32);
        self.alu(AluOp::Mul, self.b, count);
        self.asm.alu_imm(AluOp::Rsh, self.b, 32);
        self.asm.alu_imm(AluOp::Rsh, self.a, 32);
        self.alu(AluOp::Mul, self.a, count);
        self.asm.alu(AluOp::Add, self.a, self.b);
        self.asm.alu_imm(AluOp::Rsh, self.a, 32);
        self.alu(AluOp::Add, self.a, first);
        Some(())
    }

    /// `a`, a number of steps, becomes the value of a counter; none if that needs more than 64 bits.
    fn counter(&mut self, counter: &Counter, bytes: usize) -> Option<()> {
        match counter.small() {
            _ if bytes > 8 => None,
            Some(small) => {
                self.small(&small);
                Some(())
            }
            None => {
                self.powers(counter.powers()?);
                Some(())
            }
        }
    }

    /// As [`counter`](Self::counter), for one whose numbers have at most 64 bits.
    fn small(&mut self, counter: &SmallCounter) {
        self.remainder(counter.period_number());
        self.alu(AluOp::Mul, self.a, counter.step);
        self.alu(AluOp::Add, self.a, counter.start);
        self.remainder(counter.modulus_number());
        if counter.down {
            self.number(self.b, counter.base);
            self.asm.alu(AluOp::Sub, self.b, self.a);
            self.asm.mov(self.a, self.b);
        } else if counter.base != 0 {
            self.alu(AluOp::Add, self.a, counter.base);
        }
    }

    fn powers(&mut self, counter: Powers) {
        self.alu(AluOp::Mul, self.a, counter.step);
        self.alu(AluOp::Add, self.a, counter.start);
        self.alu(AluOp::And, self.a, counter.mask);
    }

    /// The remainder of `a`, by a division only if it is not smaller.
    fn remainder(&mut self, divisor: u64) {
        if divisor.is_power_of_two() {
            return self.alu(AluOp::And, self.a, divisor - 1);
        }
        let smaller = self.asm.label();
        self.number(self.c, divisor);
        self.asm.jump_if(Condition::Lt, self.a, self.c, smaller);
        self.asm.alu(AluOp::Mod, self.a, self.c);
        self.asm.bind(smaller);
    }

    /// Stores `a` in the bits of a field.
    fn store(&mut self, varying: &Varying) {
        let (at, len) = (varying.at.start, varying.at.len());
        if varying.mask != 0 {
            let mask = u64::from(varying.mask);
            self.alu(AluOp::Lsh, self.a, u64::from(mask.trailing_zeros()));
            self.alu(AluOp::And, self.a, mask);
            for byte in 0..len {
                // The other bits stay: they may have been written by another field.
                let shift = 8 * (len - 1 - byte) as i32;
                let keep = !(varying.mask >> shift) & 0xff;
                let offset = (at + byte) as i16;
                self.asm.load(Size::B, self.b, self.packet, offset);
                self.asm.alu_imm(AluOp::And, self.b, keep as i32);
                self.asm.mov(self.c, self.a);
                self.asm.alu_imm(AluOp::Rsh, self.c, shift);
                self.asm.alu(AluOp::Or, self.b, self.c);
                self.asm.store(Size::B, self.packet, offset, self.b);
            }
            return;
        }
        self.store_bytes(at, len, len);
    }

    /// Stores the first `count` bytes of `a` as a number of `len` bytes, most significant first.
    fn store_bytes(&mut self, at: usize, count: usize, len: usize) {
        let size = match (count, len) {
            (1, 1) => Size::B,
            (2, 2) => Size::H,
            (4, 4) => Size::W,
            (8, 8) => Size::DW,
            _ => {
                for byte in 0..count {
                    self.asm.mov(self.b, self.a);
                    self.asm.alu_imm(AluOp::Rsh, self.b, 8 * (len - 1 - byte) as i32);
                    self.asm.store(Size::B, self.packet, (at + byte) as i16, self.b);
                }
                return;
            }
        };
        if len > 1 {
            self.asm.to_big_endian(self.a, 8 * len as i32);
        }
        self.asm.store(size, self.packet, at as i16, self.a);
    }

    fn checksum(&mut self, checksum: &Checksum) {
        self.number(self.a, u64::from(checksum.partial));
        for &at in &checksum.pairs {
            self.add(Size::H, at as usize);
        }
        for range in &checksum.ranges {
            let mut at = range.start;
            while at < range.end {
                let (size, len) = match range.end - at {
                    4.. => (Size::W, 4),
                    2 | 3 => (Size::H, 2),
                    _ => (Size::B, 1),
                };
                self.add(size, at);
                at += len;
            }
        }
        self.asm.mov(self.b, self.a);
        self.asm.alu_imm(AluOp::Rsh, self.b, 32);
        self.asm.alu_imm(AluOp::Lsh, self.a, 32);
        self.asm.alu_imm(AluOp::Rsh, self.a, 32);
        self.asm.alu(AluOp::Add, self.a, self.b);
        for _ in 0..3 {
            self.asm.mov(self.b, self.a);
            self.asm.alu_imm(AluOp::Rsh, self.b, 16);
            self.asm.alu_imm(AluOp::And, self.a, 0xffff);
            self.asm.alu(AluOp::Add, self.a, self.b);
        }
        self.asm.alu_imm(AluOp::Xor, self.a, 0xffff);
        if checksum.udp {
            let not_zero = self.asm.label();
            self.asm.jump_if_imm(Condition::Ne, self.a, 0, not_zero);
            self.asm.mov_imm(self.a, 0xffff);
            self.asm.bind(not_zero);
        }
        self.asm.store(Size::H, self.packet, checksum.at as i16, self.a);
    }

    /// Adds bytes of the packet, as the host reads them, to `a`. A single byte is the first of a pair.
    fn add(&mut self, size: Size, at: usize) {
        self.asm.load(size, self.b, self.packet, at as i16);
        if size == Size::B && cfg!(target_endian = "big") {
            self.asm.alu_imm(AluOp::Lsh, self.b, 8);
        }
        self.asm.alu(AluOp::Add, self.a, self.b);
    }
}
