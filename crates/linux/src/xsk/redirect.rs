//! The program that hands frames to AF_XDP sockets.

use crate::SyscallError;
use crate::bpf::{Map, Program, ProgramKind, ProgramSpec};

/// A program that hands every frame to the socket under its queue in `sockets` ([`Map::xskmap`]), and to the stack where there is
/// none.
///
/// # Errors
/// Those of [`Program::load`].
pub fn redirecting(sockets: &Map) -> Result<Program, SyscallError> {
    let [f0, f1, f2, f3] = sockets.fd().to_ne_bytes();
    // struct bpf_insn (include/uapi/linux/bpf.h, 6.18): code, registers (source, destination), offset, number.
    #[rustfmt::skip]
    let code = [
        [0x61, 0x12, 16, 0, 0, 0, 0, 0],      // r2 = *(u32 *)(r1 + 16): the receive queue of struct xdp_md
        [0x18, 0x11, 0, 0, f0, f1, f2, f3],   // r1 = the map of this descriptor
        [0x00, 0x00, 0, 0, 0, 0, 0, 0],       //      (its upper half)
        [0xb7, 0x03, 0, 0, 2, 0, 0, 0],       // r3 = XDP_PASS: the answer where there is no socket
        [0x85, 0x00, 0, 0, 51, 0, 0, 0],      // r0 = bpf_redirect_map(r1, r2, r3)
        [0x95, 0x00, 0, 0, 0, 0, 0, 0],       // return r0
    ];
    Program::load(&ProgramSpec::new(ProgramKind::Xdp, "datapath", &code))
}
