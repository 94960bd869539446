//! AF_XDP sockets, one for each queue, and a program that hands them the frames.

use std::time::Duration;

use linux::bpf::{Link, Map, Program, ProgramKind, ProgramSpec, XdpMode};
use linux::xsk::{self, BindMode, Descriptor, XskSocket, XskSpec, when_free};

use super::program;
use super::tally::Tally;
use super::{Loss, ReceiveError, Receiver, ReceiverKind, attach, failed};
use crate::backend::STALL;

/// Room that the kernel keeps in front of each frame (`XDP_PACKET_HEADROOM`).
const HEADROOM_BYTES: u32 = 256;

/// How to receive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AfXdpReceiverSpec {
    /// The device, in the calling thread's namespace.
    pub ifindex: u32,
    /// The queues that get a socket; frames of other queues go on to the stack.
    pub queues: Vec<u32>,
    /// Longest frame without FCS. Those above 3840 bytes do not fit and are dropped.
    pub l2_bytes_max: u32,
    /// Frames that a socket has room for: a power of two.
    pub entries: u32,
    /// Copy or zero copy.
    pub mode: BindMode,
}

impl AfXdpReceiverSpec {
    /// Copy mode, room for 4096 frames.
    pub fn new(ifindex: u32, queues: Vec<u32>, l2_bytes_max: u32) -> Self {
        Self { ifindex, queues, l2_bytes_max, entries: 4096, mode: BindMode::Copy }
    }
}

/// Receives through AF_XDP sockets.
#[derive(Debug)]
pub struct AfXdpReceiver {
    // The order is that of dropping: frames go to the stack again before the sockets go.
    link: Option<Link>,
    mode: XdpMode,
    sockets: Vec<XskSocket>,
    /// Pieces of the batch that is being read.
    pieces: Vec<Descriptor>,
}

impl AfXdpReceiver {
    /// Opens the sockets and attaches the program.
    ///
    /// From now on the frames of these queues reach nobody else.
    ///
    /// # Errors
    /// As [`super::Xdp::attach`] and [`XskSocket::open`].
    pub fn open(spec: &AfXdpReceiverSpec) -> Result<Self, ReceiveError> {
        let failed = failed(ReceiverKind::AfXdp);
        let chunk_bytes = if spec.l2_bytes_max + HEADROOM_BYTES <= 2048 { 2048 } else { 4096 };
        let map_entries = spec.queues.iter().max().map_or(1, |&queue| queue.saturating_add(1));
        let map = Map::xskmap(map_entries).map_err(&failed)?;
        let chunks: Vec<u32> = (0..spec.entries).collect();
        let mut sockets = Vec::with_capacity(spec.queues.len());
        for &queue in &spec.queues {
            let shape = XskSpec {
                chunk_bytes,
                mode: spec.mode,
                ..XskSpec::receiver(spec.ifindex, queue, spec.entries)
            };
            let mut socket = when_free(STALL, || XskSocket::open(&shape)).map_err(&failed)?;
            socket.fill(&chunks);
            map.update_socket(queue, &socket).map_err(&failed)?;
            sockets.push(socket);
        }
        let code = program::redirecting(map.fd())
            .map_err(|source| ReceiveError::Program { kind: ReceiverKind::AfXdp, source })?;
        let program = Program::load(&ProgramSpec::new(ProgramKind::Xdp, "sink", &code)).map_err(&failed)?;
        let (link, mode) = attach(&program, spec.ifindex).map_err(&failed)?;
        Ok(Self { link: Some(link), mode, sockets, pieces: Vec::with_capacity(spec.entries as usize) })
    }

    /// Whether the program runs in the driver or in the stack.
    pub fn mode(&self) -> XdpMode {
        self.mode
    }

    /// Takes what is in the rings, each at most once.
    fn take(&mut self, tally: &mut Tally) -> u64 {
        let Self { sockets, pieces, .. } = self;
        tally.order_is_lost = sockets.len() > 1;
        let mut frames = 0;
        for socket in sockets {
            let queue = socket.spec().queue;
            tally.queues.get_or_insert_default().entry(queue).or_default();
            pieces.clear();
            socket.receive(u32::MAX, |piece| pieces.push(piece));
            for piece in pieces.iter() {
                let start = piece.offset as usize;
                let chunk = socket.chunk_mut(piece.chunk);
                let bytes = chunk.get(start..start + piece.bytes as usize).unwrap_or_default();
                tally.frame(Some(queue), bytes, u64::from(piece.bytes));
                // There are as many places in the fill ring as chunks.
                socket.fill(&[piece.chunk]);
            }
            frames += pieces.len() as u64;
        }
        frames
    }
}

impl Receiver for AfXdpReceiver {
    fn kind(&self) -> ReceiverKind {
        ReceiverKind::AfXdp
    }

    fn poll(&mut self, timeout: Duration, tally: &mut Tally) -> Result<u64, ReceiveError> {
        xsk::wait_any(&self.sockets, timeout).map_err(failed(ReceiverKind::AfXdp))?;
        Ok(self.take(tally))
    }

    fn finish(&mut self, tally: &mut Tally) -> Result<(), ReceiveError> {
        self.link = None;
        self.take(tally);
        Ok(())
    }

    fn losses(&mut self) -> Result<Vec<Loss>, ReceiveError> {
        let (mut ring_full, mut dropped) = (0, 0);
        for socket in &self.sockets {
            let statistics = socket.statistics().map_err(failed(ReceiverKind::AfXdp))?;
            ring_full += statistics.rx_ring_full;
            dropped += statistics.rx_dropped;
        }
        Ok(vec![
            Loss { reason: "receive ring full", counter: "XDP_STATISTICS rx_ring_full", frames: ring_full },
            Loss {
                reason: "no free chunk, or longer than one",
                counter: "XDP_STATISTICS rx_dropped",
                frames: dropped,
            },
        ])
    }
}
