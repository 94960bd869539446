//! What this host can do: each backend is tried, and what is lacking is named.

use std::fmt;
use std::net::Ipv4Addr;

use linux::SyscallError;
use linux::bpf::{LiveRun, Program, ProgramKind, ProgramSpec};
use linux::packet::{PROTOCOL_NONE, PacketSocket};
use linux::privilege::{self, Capability};
use linux::udp::{SenderSpec, UdpSender};

use crate::backend::BackendKind;

/// The loopback device's number in every network namespace (net/core/dev.c, 6.18).
const LOOPBACK: u32 = 1;

/// Whether a backend works here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ability {
    /// The backend.
    pub kind: BackendKind,
    /// What it lacks; `None` when it works.
    pub lack: Option<Lack>,
}

impl Ability {
    /// Whether it works.
    pub fn is_available(&self) -> bool {
        self.lack.is_none()
    }
}

/// What a backend lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lack {
    /// The kernel was built without an option.
    KernelOption(&'static str),
    /// The kernel was built without something, or has it in a module that is not loaded.
    Module(&'static str),
    /// The kernel is older than a version.
    KernelVersion(&'static str),
    /// The process lacks capabilities, or has them only in a user namespace where they do not suffice.
    Capabilities(&'static [Capability]),
    /// It is not in this program.
    NotBuilt,
    /// Anything else, in the kernel's words.
    Other(String),
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KernelOption(option) => write!(f, "the kernel was built without {option}"),
            Self::Module(what) => write!(f, "the kernel has no {what}"),
            Self::KernelVersion(version) => write!(f, "the kernel is older than {version}"),
            Self::Capabilities(capabilities) => {
                let names: Vec<&str> = capabilities.iter().map(|capability| capability.name()).collect();
                write!(f, "the process lacks {}", names.join(" and "))?;
                let only_inside = capabilities.iter().all(|&capability| privilege::has(capability));
                if only_inside { write!(f, " outside of its user namespace") } else { Ok(()) }
            }
            Self::NotBuilt => write!(f, "it is not in this version"),
            Self::Other(text) => write!(f, "{text}"),
        }
    }
}

/// Tries every backend in the calling thread's namespace, in the order of [`BackendKind::ALL`]. No frame leaves.
///
/// The two ways by BPF share one live run (20 to 30 ms without `rcu_expedited`), the two by a packet socket share the
/// socket. Whether a certain device can do something, such as zero copy, only opening the backend on it tells.
pub fn probe() -> Vec<Ability> {
    let live_run = try_live_run().err().map(|error| bpf_lack(&error));
    let packet_socket = PacketSocket::open(LOOPBACK, PROTOCOL_NONE).err();
    let packet_socket = packet_socket.map(|error| socket_lack(&error, "CONFIG_PACKET"));
    let udp_socket = UdpSender::bind(&SenderSpec::new((Ipv4Addr::UNSPECIFIED, 0).into())).err();
    let udp_socket = udp_socket.map(|error| udp_lack(&error));
    let lack = |kind| match kind {
        BackendKind::Inject | BackendKind::XdpLive => live_run.clone(),
        BackendKind::AfXdp => {
            linux::xsk::probe().err().map(|error| socket_lack(&error, "CONFIG_XDP_SOCKETS"))
        }
        BackendKind::TxRing | BackendKind::Mmsg => packet_socket.clone(),
        BackendKind::Memory => None,
        BackendKind::Pktgen => crate::pktgen::probe().err().map(|error| pktgen_lack(&error)),
        BackendKind::Udp => udp_socket.clone(),
    };
    BackendKind::ALL.map(|kind| Ability { kind, lack: lack(kind) }).into()
}

/// Runs a program that drops on one frame.
fn try_live_run() -> Result<(), SyscallError> {
    // r0 = XDP_DROP; exit
    const DROP: [[u8; 8]; 2] = [[0xb7, 0, 0, 0, 1, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]];
    let program = Program::load(&ProgramSpec::new(ProgramKind::Xdp, "probe", &DROP))?;
    let run = LiveRun { frame: &[0; 60], ingress_ifindex: LOOPBACK, rx_queue: 0, repeat: 1, batch: 1 };
    program.run_xdp_live(&run).map(|_| ())
}

fn bpf_lack(error: &SyscallError) -> Lack {
    match error.errno() {
        Some(libc::EPERM | libc::EACCES) => Lack::Capabilities(&[Capability::Bpf, Capability::NetAdmin]),
        Some(libc::ENOSYS) => Lack::KernelOption("CONFIG_BPF_SYSCALL"),
        // The flag for live frames is what an older kernel does not know.
        Some(libc::EINVAL) => Lack::KernelVersion("Linux 5.18"),
        _ => Lack::Other(error.to_string()),
    }
}

fn socket_lack(error: &SyscallError, option: &'static str) -> Lack {
    match error.errno() {
        Some(libc::EPERM | libc::EACCES) => Lack::Capabilities(&[Capability::NetRaw]),
        Some(libc::EAFNOSUPPORT) => Lack::KernelOption(option),
        _ => Lack::Other(error.to_string()),
    }
}

/// No privilege is needed.
fn udp_lack(error: &SyscallError) -> Lack {
    match error.errno() {
        Some(libc::EAFNOSUPPORT) => Lack::KernelOption("CONFIG_INET"),
        _ => Lack::Other(error.to_string()),
    }
}

fn pktgen_lack(error: &SyscallError) -> Lack {
    match error.errno() {
        Some(libc::ENOENT) => Lack::Module("/proc/net/pktgen (CONFIG_NET_PKTGEN; modprobe pktgen)"),
        Some(libc::EPERM | libc::EACCES) => Lack::Capabilities(&[Capability::NetAdmin]),
        _ => Lack::Other(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn error(errno: i32) -> SyscallError {
        SyscallError::new("try", "backend", io::Error::from_raw_os_error(errno))
    }

    #[test]
    fn what_lacks_is_named() {
        let option = socket_lack(&error(libc::EAFNOSUPPORT), "CONFIG_XDP_SOCKETS");
        assert_eq!(option.to_string(), "the kernel was built without CONFIG_XDP_SOCKETS");
        assert_eq!(bpf_lack(&error(libc::EINVAL)).to_string(), "the kernel is older than Linux 5.18");
        let capability = bpf_lack(&error(libc::EPERM)).to_string();
        assert!(capability.starts_with("the process lacks CAP_BPF and CAP_NET_ADMIN"), "{capability}");
        let module = pktgen_lack(&error(libc::ENOENT)).to_string();
        assert_eq!(module, "the kernel has no /proc/net/pktgen (CONFIG_NET_PKTGEN; modprobe pktgen)");
        assert_eq!(
            udp_lack(&error(libc::EAFNOSUPPORT)).to_string(),
            "the kernel was built without CONFIG_INET"
        );
        assert!(bpf_lack(&error(libc::ENOMEM)).to_string().contains("try on backend"));
    }

    #[test]
    fn memory_and_sockets_always_work_and_what_has_no_module_says_so() {
        let abilities = probe();
        let kinds: Vec<BackendKind> = abilities.iter().map(|ability| ability.kind).collect();
        assert_eq!(kinds, BackendKind::ALL);
        let lack = |kind| abilities.iter().find(|ability| ability.kind == kind).unwrap().lack.clone();
        assert_eq!(lack(BackendKind::Memory), None);
        assert_eq!(lack(BackendKind::Udp), None);
        let pktgen = std::path::Path::new("/proc/thread-self/net/pktgen").exists();
        assert_eq!(matches!(lack(BackendKind::Pktgen), Some(Lack::Module(_))), !pktgen);
    }
}
