//! Where the packets of a path end, and who counts them there.

use std::any::Any;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result};
use lab::Lab;
use linux::bpf::{Link, Program, ProgramKind, ProgramSpec, XdpMode};
use linux::limits;
use linux::nft::{Family, NftSocket};
use linux::udp::{ReceiverSpec, UdpReceiver};

use super::topology::{COUNTER, TABLE};
use crate::cell::FIRST_PORT;
use traffic::ProgramSink;
use traffic::programs::{self, Action};

/// Counts the packets that reached the end of a path.
pub(crate) trait Terminal {
    /// Takes delivery of the packets that have just been sent, where that is part of the path (a socket is read).
    /// Nothing to do elsewhere.
    fn consume(&mut self) -> Result<()> {
        Ok(())
    }

    /// Packets that ended here since the lab was made. A few microseconds at most.
    fn count(&mut self) -> Result<u64>;

    /// Packets that arrived here and were lost for a known reason since the lab was made.
    fn dropped(&mut self) -> Result<Vec<(&'static str, u64)>> {
        Ok(Vec::new())
    }

    /// Who counts, for the ledger.
    fn name(&self) -> &'static str;
}

/// The end of a path in a lab: who counts, and what must stay attached meanwhile.
pub(crate) struct Ending {
    /// None where the injecting program itself ends the packets, and counts them.
    pub(crate) terminal: Option<Box<dyn Terminal>>,
    /// Programs and links, held until the lab goes.
    pub(crate) attached: Vec<Box<dyn Any>>,
    /// The most packets in one call; a slice of more is several calls. None where nothing piles up.
    pub(crate) burst: Option<u64>,
}

impl Ending {
    /// A path whose packets all end in this counter.
    pub(crate) fn of(terminal: impl Terminal + 'static) -> Self {
        Self { terminal: Some(Box::new(terminal)), attached: Vec::new(), burst: None }
    }

    /// The same, with something that must stay.
    pub(crate) fn holding(mut self, attached: impl Any) -> Self {
        self.attached.push(Box::new(attached));
        self
    }
}

/// A program that ended each packet and counted it.
pub(crate) struct ProgramCount {
    sink: ProgramSink,
    name: &'static str,
}

impl Terminal for ProgramCount {
    fn count(&mut self) -> Result<u64> {
        Ok(self.sink.received()?)
    }

    fn name(&self) -> &'static str {
        self.name
    }
}

/// Where a counting program is attached.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Hook {
    /// The driver's XDP hook.
    Xdp,
    /// The tc ingress hook (tcx).
    Tcx,
}

/// Loads a counting program and attaches it to a device of the namespace `role`.
pub(crate) fn attach_counter(
    lab: &Lab,
    (role, device): (&'static str, &'static str),
    hook: Hook,
    action: Action,
    name: &'static str,
) -> Result<(ProgramCount, Link)> {
    let sink = ProgramSink::new()?;
    let insns = programs::counter(action, sink.map_fd())?;
    let kind = match hook {
        Hook::Xdp => ProgramKind::Xdp,
        Hook::Tcx => ProgramKind::SchedCls,
    };
    let mut spec = ProgramSpec::new(kind, "perpacket_count", &insns);
    spec.has_frags = matches!(hook, Hook::Xdp);
    let program = Program::load(&spec)?;
    let ifindex = lab.device(role, device).ifindex;
    let link = lab
        .netns(role)
        .run(|| match hook {
            Hook::Xdp => Link::attach_xdp(&program, ifindex, XdpMode::Native),
            Hook::Tcx => Link::attach_tcx_ingress(&program, ifindex),
        })?
        .with_context(|| format!("attach the counting program to {device} in {role}"))?;
    Ok((ProgramCount { sink, name }, link))
}

/// A rule of the packet filter that counts each packet into the named counter of its table.
pub(crate) struct RuleCount {
    socket: NftSocket,
    family: Family,
    name: &'static str,
}

impl RuleCount {
    /// The counter in the namespace `role`.
    pub(crate) fn open(lab: &Lab, role: &'static str, family: Family, name: &'static str) -> Result<Self> {
        Ok(Self { socket: lab.netns(role).run(NftSocket::open)??, family, name })
    }
}

impl Terminal for RuleCount {
    fn count(&mut self) -> Result<u64> {
        Ok(self.socket.named_counter(self.family, TABLE, COUNTER)?.packets)
    }

    fn name(&self) -> &'static str {
        self.name
    }
}

/// UDP sockets, one a flow, read by the measuring thread itself right after each call.
pub(crate) struct SocketCount {
    sockets: Vec<UdpReceiver>,
    received: u64,
}

impl SocketCount {
    /// Socket memory asked for: enough for 512 frames of a page each, with their bookkeeping.
    const BUFFER_BYTES: usize = 512 * SocketCount::FRAME_BYTES;
    /// Room for what else is open: namespaces, programs, counters and the sockets of the other variant's way in.
    const OTHER_FILES: u64 = 256;
    /// Socket memory that one small frame can take at most: a page, and the packet's own structures
    /// (`skb->truesize`; injected frames come in pages).
    const FRAME_BYTES: usize = 4_096 + 1_024;

    /// One socket for each of `flows` ports at `address` in the namespace `role`.
    ///
    /// # Errors
    /// Where a socket cannot be bound; where the process may not open as many files, with how many flows fit.
    pub(crate) fn open(lab: &Lab, role: &'static str, address: IpAddr, flows: u16) -> Result<Self> {
        let limit = limits::raise_open_files(u64::from(flows) + Self::OTHER_FILES);
        let bind = |flow: u16| {
            let mut spec = ReceiverSpec::new(SocketAddr::new(address, FIRST_PORT + flow));
            spec.receive_buffer_bytes = Self::BUFFER_BYTES;
            UdpReceiver::bind(&spec).map_err(|error| {
                let full = limits::is_open_file_limit(&error);
                let bound = anyhow::Error::new(error);
                let limit = limit.map_or("as many as the system".into(), |limit| limit.to_string());
                if !full {
                    return bound;
                }
                bound.context(format!(
                    "{flows} flows need a socket each, and {flow} fit (this process may open {limit} files: `ulimit -n`)"
                ))
            })
        };
        let sockets = lab.netns(role).run(|| (0..flows).map(bind).collect::<Result<Vec<_>>>())??;
        Ok(Self { sockets, received: 0 })
    }

    /// Packets between two readings: as many as surely fit into one socket, and no more than stay in the cache
    /// meanwhile (512 pages; with 2,048 a packet cost twice as much).
    pub(crate) fn burst(&self) -> Option<u64> {
        let bytes = self.sockets.iter().map(UdpReceiver::receive_buffer_bytes).min()?;
        Some((bytes / (2 * Self::FRAME_BYTES)).clamp(1, 512) as u64)
    }

    fn drain(&mut self) -> Result<()> {
        for socket in &mut self.sockets {
            loop {
                let batch = socket.recv_batch()?;
                self.received += batch.datagrams as u64;
                if batch.datagrams == 0 {
                    break;
                }
            }
        }
        Ok(())
    }
}

impl Terminal for SocketCount {
    fn consume(&mut self) -> Result<()> {
        self.drain()
    }

    fn count(&mut self) -> Result<u64> {
        self.drain()?;
        Ok(self.received)
    }

    fn dropped(&mut self) -> Result<Vec<(&'static str, u64)>> {
        let mut total = 0;
        for socket in &mut self.sockets {
            total += socket.drops()?;
        }
        Ok(vec![("socket receive buffer full (SO_MEMINFO)", total)])
    }

    fn name(&self) -> &'static str {
        "read from the socket"
    }
}
