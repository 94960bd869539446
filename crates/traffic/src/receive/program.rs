//! The XDP programs of receivers: one counts and drops, the other hands frames to AF_XDP sockets.
//!
//! The first reads the same headers in the same way as [`crate::headers::parse`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ebpf::{AluOp, AssembleError, Assembler, Condition, Insn, Label, Reg, Size};

use crate::headers::{ETHER_IPV4, ETHER_IPV6, ETHER_VLAN, FRAGMENT, Flow, SCTP, TAGS_MAX, TCP, UDP};

/// Bytes of a flow's key: source and destination (16 each), ports or the EtherType of what is not IP (4, network order),
/// protocol, IP version or 0, whether there are ports, and nothing.
pub(super) const KEY_BYTES: usize = 40;
/// Words of a flow's value: frames and bytes.
pub(super) const FLOW_WORDS: usize = 2;
/// Words of a queue's value: frames and bytes, and how many of them belong to flows for which there was no room.
pub(super) const QUEUE_WORDS: usize = 4;

/// Result codes of XDP programs (enum xdp_action, include/uapi/linux/bpf.h, 6.18).
const XDP_DROP: i32 = 1;
const XDP_PASS: i32 = 2;
/// Helpers (enum bpf_func_id).
const MAP_LOOKUP: i32 = 1;
const MAP_UPDATE: i32 = 2;
const REDIRECT_MAP: i32 = 51;
const XDP_GET_BUFF_LEN: i32 = 188;
/// Only if the key is not there yet (`BPF_NOEXIST`).
const NO_EXIST: i32 = 1;
/// Fields of struct xdp_md.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const RX_QUEUE: i16 = 16;

/// Places in the key.
const SOURCE: i16 = 0;
const DESTINATION: i16 = 16;
const PORTS: i16 = 32;
const PROTOCOL: i16 = 36;
const VERSION: i16 = 37;
const HAS_PORTS: i16 = 38;

/// Places on the stack.
const KEY: i16 = -(KEY_BYTES as i16);
const ZERO_VALUE: i16 = KEY - 8 * FLOW_WORDS as i16;
const QUEUE: i16 = ZERO_VALUE - 8;

/// The maps of the counting program.
pub(super) struct CountingMaps {
    /// A hash map per CPU, from [`KEY_BYTES`] to [`FLOW_WORDS`].
    pub(super) flows_fd: i32,
    /// An array per CPU of [`QUEUE_WORDS`], with an entry more than there are queues, for all others.
    pub(super) queues_fd: i32,
    /// How many queues there are.
    pub(super) queues: u32,
}

/// A program that counts every frame by flow and queue, and drops it.
///
/// R6 is the packet, R7 its end, R8 its length, R9 the context.
pub(super) fn counting(maps: &CountingMaps) -> Result<Vec<[u8; 8]>, AssembleError> {
    let mut asm = Assembler::new();
    asm.mov(Reg::R9, Reg::R1);
    // All of it, also where it lies in several buffers.
    asm.call(XDP_GET_BUFF_LEN);
    asm.mov(Reg::R8, Reg::R0);
    asm.load(Size::W, Reg::R6, Reg::R9, DATA);
    asm.load(Size::W, Reg::R7, Reg::R9, DATA_END);
    for at in (ZERO_VALUE..0).step_by(8) {
        asm.store_imm(Size::DW, Reg::R10, at, 0);
    }
    let known = asm.label();
    ethernet(&mut asm, known);
    asm.bind(known);
    count_flow(&mut asm, maps.flows_fd);
    count_queue(&mut asm, maps);
    asm.mov_imm(Reg::R0, XDP_DROP);
    asm.exit();
    encoded(asm)
}

/// Fills the key on the stack, and goes to `known` when there is no more to find out.
fn ethernet(asm: &mut Assembler, known: Label) {
    need(asm, 14, known);
    asm.load(Size::H, Reg::R3, Reg::R6, 12);
    let untagged = asm.label();
    for _ in 0..TAGS_MAX {
        let tag = asm.label();
        ether_type(asm);
        for tag_type in ETHER_VLAN {
            asm.jump_if_imm(Condition::Eq, Reg::R4, i32::from(tag_type), tag);
        }
        asm.jump(untagged);
        asm.bind(tag);
        need(asm, 18, untagged);
        asm.load(Size::H, Reg::R3, Reg::R6, 16);
        asm.alu_imm(AluOp::Add, Reg::R6, 4);
    }
    asm.bind(untagged);
    let (v4, v6, ports) = (asm.label(), asm.label(), asm.label());
    asm.store(Size::H, Reg::R10, KEY + PORTS, Reg::R3);
    ether_type(asm);
    asm.jump_if_imm(Condition::Eq, Reg::R4, i32::from(ETHER_IPV4), v4);
    asm.jump_if_imm(Condition::Eq, Reg::R4, i32::from(ETHER_IPV6), v6);
    asm.jump(known);
    asm.bind(v4);
    ipv4(asm, known);
    asm.jump(ports);
    asm.bind(v6);
    ipv6(asm, known);
    asm.bind(ports);
    ports_at_r2(asm, known);
}

/// R4 = the EtherType in R3, which is as it stands in the packet.
fn ether_type(asm: &mut Assembler) {
    asm.mov(Reg::R4, Reg::R3);
    asm.to_big_endian(Reg::R4, 16);
}

/// Goes to `short` unless the packet has so many bytes. Uses R2.
fn need(asm: &mut Assembler, bytes: i32, short: Label) {
    asm.mov(Reg::R2, Reg::R6);
    asm.alu_imm(AluOp::Add, Reg::R2, bytes);
    asm.jump_if(Condition::Gt, Reg::R2, Reg::R7, short);
}

/// R2 = what the packet carries, R4 = its protocol.
fn ipv4(asm: &mut Assembler, known: Label) {
    need(asm, 34, known);
    asm.load(Size::B, Reg::R5, Reg::R6, 14);
    asm.alu_imm(AluOp::And, Reg::R5, 0x0f);
    asm.alu_imm(AluOp::Lsh, Reg::R5, 2);
    asm.jump_if_imm(Condition::Lt, Reg::R5, 20, known);
    ip(asm, 4, 23);
    copy(asm, 26, SOURCE, 1);
    copy(asm, 30, DESTINATION, 1);
    asm.load(Size::H, Reg::R3, Reg::R6, 20);
    asm.to_big_endian(Reg::R3, 16);
    asm.alu_imm(AluOp::And, Reg::R3, i32::from(FRAGMENT));
    asm.jump_if_imm(Condition::Ne, Reg::R3, 0, known);
    asm.mov(Reg::R2, Reg::R6);
    asm.alu(AluOp::Add, Reg::R2, Reg::R5);
    asm.alu_imm(AluOp::Add, Reg::R2, 14);
}

/// As [`ipv4`].
fn ipv6(asm: &mut Assembler, known: Label) {
    need(asm, 54, known);
    ip(asm, 6, 20);
    copy(asm, 22, SOURCE, 4);
    copy(asm, 38, DESTINATION, 4);
    asm.mov(Reg::R2, Reg::R6);
    asm.alu_imm(AluOp::Add, Reg::R2, 54);
}

/// The key says the IP version and the protocol, R4 too, and no EtherType any more.
fn ip(asm: &mut Assembler, version: i32, protocol_at: i16) {
    asm.store_imm(Size::H, Reg::R10, KEY + PORTS, 0);
    asm.store_imm(Size::B, Reg::R10, KEY + VERSION, version);
    asm.load(Size::B, Reg::R4, Reg::R6, protocol_at);
    asm.store(Size::B, Reg::R10, KEY + PROTOCOL, Reg::R4);
}

/// Copies words of 32 bits from the packet into the key.
fn copy(asm: &mut Assembler, from: i16, to: i16, words: i16) {
    for word in 0..words {
        asm.load(Size::W, Reg::R3, Reg::R6, from + 4 * word);
        asm.store(Size::W, Reg::R10, KEY + to + 4 * word, Reg::R3);
    }
}

/// Both ports, if protocol R4 has them, from R2.
fn ports_at_r2(asm: &mut Assembler, known: Label) {
    let has_ports = asm.label();
    for protocol in [TCP, UDP, SCTP] {
        asm.jump_if_imm(Condition::Eq, Reg::R4, i32::from(protocol), has_ports);
    }
    asm.jump(known);
    asm.bind(has_ports);
    asm.mov(Reg::R3, Reg::R2);
    asm.alu_imm(AluOp::Add, Reg::R3, 4);
    asm.jump_if(Condition::Gt, Reg::R3, Reg::R7, known);
    asm.load(Size::W, Reg::R3, Reg::R2, 0);
    asm.store(Size::W, Reg::R10, KEY + PORTS, Reg::R3);
    asm.store_imm(Size::B, Reg::R10, KEY + HAS_PORTS, 1);
}

/// Adds the frame to its flow. R6 = 1 if there is no room for it, else 0.
fn count_flow(asm: &mut Assembler, flows_fd: i32) {
    let (found, done) = (asm.label(), asm.label());
    lookup(asm, flows_fd, KEY);
    asm.jump_if_imm(Condition::Ne, Reg::R0, 0, found);
    stack_address(asm, Reg::R2, KEY);
    stack_address(asm, Reg::R3, ZERO_VALUE);
    asm.load_map(Reg::R1, flows_fd);
    asm.mov_imm(Reg::R4, NO_EXIST);
    asm.call(MAP_UPDATE);
    // Another CPU may have been faster: the flow is there then too.
    lookup(asm, flows_fd, KEY);
    asm.jump_if_imm(Condition::Ne, Reg::R0, 0, found);
    asm.mov_imm(Reg::R6, 1);
    asm.jump(done);
    asm.bind(found);
    add_frame(asm, 0);
    asm.mov_imm(Reg::R6, 0);
    asm.bind(done);
}

/// Adds the frame to its queue.
fn count_queue(asm: &mut Assembler, maps: &CountingMaps) {
    let (known, done) = (asm.label(), asm.label());
    let queues = i32::try_from(maps.queues).unwrap_or(i32::MAX);
    asm.load(Size::W, Reg::R1, Reg::R9, RX_QUEUE);
    asm.jump_if_imm(Condition::Lt, Reg::R1, queues, known);
    asm.mov_imm(Reg::R1, queues);
    asm.bind(known);
    asm.store(Size::W, Reg::R10, QUEUE, Reg::R1);
    lookup(asm, maps.queues_fd, QUEUE);
    asm.jump_if_imm(Condition::Eq, Reg::R0, 0, done);
    add_frame(asm, 0);
    asm.jump_if_imm(Condition::Eq, Reg::R6, 0, done);
    add_frame(asm, 16);
    asm.bind(done);
}

fn lookup(asm: &mut Assembler, map_fd: i32, key: i16) {
    stack_address(asm, Reg::R2, key);
    asm.load_map(Reg::R1, map_fd);
    asm.call(MAP_LOOKUP);
}

fn stack_address(asm: &mut Assembler, register: Reg, at: i16) {
    asm.mov(register, Reg::R10);
    asm.alu_imm(AluOp::Add, register, i32::from(at));
}

/// Adds 1 and the length to two words behind R0.
fn add_frame(asm: &mut Assembler, at: i16) {
    asm.load(Size::DW, Reg::R1, Reg::R0, at);
    asm.alu_imm(AluOp::Add, Reg::R1, 1);
    asm.store(Size::DW, Reg::R0, at, Reg::R1);
    asm.load(Size::DW, Reg::R1, Reg::R0, at + 8);
    asm.alu(AluOp::Add, Reg::R1, Reg::R8);
    asm.store(Size::DW, Reg::R0, at + 8, Reg::R1);
}

/// A program that hands every frame to the socket of its queue, and to the stack where there is none.
pub(super) fn redirecting(sockets_fd: i32) -> Result<Vec<[u8; 8]>, AssembleError> {
    let mut asm = Assembler::new();
    asm.load(Size::W, Reg::R2, Reg::R1, RX_QUEUE);
    asm.load_map(Reg::R1, sockets_fd);
    asm.mov_imm(Reg::R3, XDP_PASS);
    asm.call(REDIRECT_MAP);
    asm.exit();
    encoded(asm)
}

fn encoded(asm: Assembler) -> Result<Vec<[u8; 8]>, AssembleError> {
    Ok(asm.finish()?.into_iter().map(Insn::to_bytes).collect())
}

/// The flow of a key.
pub(super) fn flow(key: &[u8]) -> Option<Flow> {
    let pair = |at: i16| key.get(at as usize..)?.first_chunk().copied().map(u16::from_be_bytes);
    let byte = |at: i16| key.get(at as usize).copied();
    let address = |at: i16| -> Option<IpAddr> {
        let bytes = key.get(at as usize..)?;
        match byte(VERSION)? {
            4 => Some(Ipv4Addr::from(*bytes.first_chunk::<4>()?).into()),
            _ => Some(Ipv6Addr::from(*bytes.first_chunk::<16>()?).into()),
        }
    };
    if byte(VERSION)? == 0 {
        return Some(Flow::Other { ether_type: pair(PORTS)? });
    }
    let ports = if byte(HAS_PORTS)? == 1 { Some((pair(PORTS)?, pair(PORTS + 2)?)) } else { None };
    Some(Flow::Ip {
        protocol: byte(PROTOCOL)?,
        source: address(SOURCE)?,
        destination: address(DESTINATION)?,
        ports,
    })
}
