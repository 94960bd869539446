//! AF_XDP: frames from memory of this process to a device's queue, and back.
//!
//! A socket owns its memory, divided into chunks of equal size, and four rings: *tx* and *completion* to send,
//! *fill* and *rx* to receive. A chunk named in a tx or fill entry belongs to the kernel until it comes back in a
//! completion or rx entry. In copy mode the kernel copies a frame out of its chunk while sending and never writes
//! to it, so one chunk may stand in many tx entries at once.
//!
//! Copy mode works on every device; zero copy needs a driver for it. Opening needs CAP_NET_RAW, in the user
//! namespace that owns the network namespace; receiving needs an XDP program too, and with it CAP_BPF.
//! Numbers and limits: include/uapi/linux/if_xdp.h and net/xdp/xsk.c, 6.18; Linux 5.4 is the oldest that works.

mod pages;
mod receive;
mod redirect;
mod region;
mod ring;
mod when_free;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use self::ring::{Consumer, Producer, Ring};
use crate::SyscallError;
use crate::packet::mapping::Mapping;
use crate::packet::sockopt;

pub use pages::{PageReceiver, PageSender, PagesSpec, Received, open_pages};
pub use receive::wait_any;
pub use redirect::redirecting;
pub use region::Region;
pub use when_free::when_free;

/// Option of a descriptor: the frame goes on in the next one (`XDP_PKT_CONTD`, Linux 6.6).
pub const MORE_FRAGMENTS: u32 = libc::XDP_PKT_CONTD;

/// How frames get between the chunks and the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BindMode {
    /// The kernel copies them into socket buffers (`XDP_COPY`).
    Copy,
    /// The device reads and writes the chunks (`XDP_ZEROCOPY`); EOPNOTSUPP where the driver cannot.
    ZeroCopy,
}

/// The shape of a socket. Ring sizes are powers of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct XskSpec {
    /// The device, in the calling thread's network namespace.
    pub ifindex: u32,
    /// Its queue.
    pub queue: u32,
    /// How many chunks.
    pub chunks: u32,
    /// Bytes of a chunk: a power of two from 2048 to the page size.
    pub chunk_bytes: u32,
    /// Entries of the tx and the completion ring; 0 for a socket that only receives.
    pub tx_entries: u32,
    /// Entries of the rx and the fill ring; 0 for a socket that only sends.
    pub rx_entries: u32,
    /// Copy or zero copy.
    pub mode: BindMode,
    /// Frames may take several descriptors (`XDP_USE_SG`, Linux 6.6).
    pub multi_buffer: bool,
}

impl XskSpec {
    /// A socket that sends: `entries` tx entries, `chunks` chunks of 2048 bytes, copy mode.
    pub fn sender(ifindex: u32, queue: u32, chunks: u32, entries: u32) -> Self {
        let (chunk_bytes, mode) = (2048, BindMode::Copy);
        Self {
            ifindex,
            queue,
            chunks,
            chunk_bytes,
            tx_entries: entries,
            rx_entries: 0,
            mode,
            multi_buffer: false,
        }
    }

    /// A socket that receives: as many chunks as rx entries, of 2048 bytes, copy mode.
    pub fn receiver(ifindex: u32, queue: u32, entries: u32) -> Self {
        Self { tx_entries: 0, rx_entries: entries, ..Self::sender(ifindex, queue, entries, 0) }
    }
}

/// One piece of a frame in a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor {
    /// The chunk.
    pub chunk: u32,
    /// Where in the chunk it begins.
    pub offset: u32,
    /// How long it is.
    pub bytes: u32,
    /// Options: [`MORE_FRAGMENTS`] or 0.
    pub options: u32,
}

/// What the kernel counted for a socket (`XDP_STATISTICS`). Frames lost here are in no counter of the device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct XskStatistics {
    /// Received frames dropped for other reasons than the two below: too long for a chunk, no memory.
    pub rx_dropped: u64,
    /// Fill entries that named no valid chunk.
    pub rx_invalid: u64,
    /// Tx entries that named no valid piece of a chunk: these were skipped. Whether they complete all the same
    /// depends on the kernel (6.18.44 completes them), so completions less these are the frames sent.
    pub tx_invalid: u64,
    /// Received frames dropped because the rx ring was full.
    pub rx_ring_full: u64,
    /// How often the fill ring was found empty.
    pub fill_ring_empty: u64,
    /// How often the tx ring was found empty.
    pub tx_ring_empty: u64,
}

/// An AF_XDP socket bound to one queue of a device.
#[derive(Debug)]
pub struct XskSocket {
    // The order is that of dropping: the socket goes before the memory that it uses.
    fd: OwnedFd,
    tx: Option<Producer>,
    completion: Consumer,
    fill: Producer,
    rx: Option<Consumer>,
    memory: Mapping,
    /// How many fill entries name each chunk that have not come back in an rx entry: the kernel may write to it.
    filled: Box<[u32]>,
    spec: XskSpec,
}

impl XskSocket {
    /// Opens a socket, gives it memory and rings, and binds it.
    ///
    /// # Errors
    /// EAFNOSUPPORT without `CONFIG_XDP_SOCKETS`; EPERM without CAP_NET_RAW; ENOBUFS when RLIMIT_MEMLOCK does not
    /// allow the memory (without CAP_IPC_LOCK); EOPNOTSUPP for zero copy that the driver cannot do; EBUSY
    /// when another socket holds the queue; EINVAL for an unknown queue or sizes that are no powers of two.
    pub fn open(spec: &XskSpec) -> Result<Self, SyscallError> {
        let failed = |call| {
            let object = format!("interface {} queue {}", spec.ifindex, spec.queue);
            move |error: io::Error| SyscallError::new(call, object.clone(), error)
        };
        let fd = new_socket().map_err(failed("open AF_XDP socket"))?;
        let memory = register_memory(&fd, spec).map_err(failed("register memory of AF_XDP socket"))?;
        let rings = make_rings(&fd, spec).map_err(failed("make rings of AF_XDP socket"))?;
        bind(&fd, spec).map_err(failed("bind AF_XDP socket"))?;
        let [rx, tx, fill, completion] = rings;
        Ok(Self {
            tx: tx.map(Producer::new),
            completion: Consumer::new(
                completion.ok_or_else(|| failed("map rings")(io::ErrorKind::NotFound.into()))?,
            ),
            fill: Producer::new(fill.ok_or_else(|| failed("map rings")(io::ErrorKind::NotFound.into()))?),
            rx: rx.map(Consumer::new),
            fd,
            memory,
            filled: vec![0; spec.chunks as usize].into(),
            spec: *spec,
        })
    }

    /// The shape it was opened with.
    pub fn spec(&self) -> &XskSpec {
        &self.spec
    }

    /// The bytes of a chunk. Write to one only while the kernel does not send it (see the module): otherwise
    /// frames go out half written.
    ///
    /// # Panics
    /// When there is no such chunk, as with a slice; while the kernel has it to receive into ([`Self::fill`]).
    pub fn chunk_mut(&mut self, chunk: u32) -> &mut [u8] {
        let bytes = self.spec.chunk_bytes as usize;
        assert!(chunk < self.spec.chunks, "chunk {chunk} of {}", self.spec.chunks);
        assert!(self.filled[chunk as usize] == 0, "chunk {chunk} is the kernel's to receive into");
        self.memory.bytes_mut(chunk as usize * bytes, bytes)
    }

    /// Puts up to `wanted` entries into the tx ring, as far as there is room, and publishes them; how many.
    /// `descriptor` is asked for each, counted from 0.
    ///
    /// Nothing is sent before [`Self::kick`]. An entry that is no valid piece of a chunk is skipped by the kernel and
    /// counted in [`XskStatistics::tx_invalid`].
    pub fn submit(&mut self, wanted: u32, mut descriptor: impl FnMut(u32) -> Descriptor) -> u32 {
        let chunk_bytes = u64::from(self.spec.chunk_bytes);
        let Some(tx) = &mut self.tx else { return 0 };
        tx.produce(wanted, |index| {
            let Descriptor { chunk, offset, bytes, options } = descriptor(index);
            libc::xdp_desc { addr: u64::from(chunk) * chunk_bytes + u64::from(offset), len: bytes, options }
        })
    }

    /// Makes the kernel send from the tx ring; whether it took all that it found. Copy mode sends a bounded number
    /// of frames per call (32, or [`Self::set_tx_budget`]) in the calling thread.
    ///
    /// False is normal: EAGAIN (the budget is used up, the completion ring is full, or the device is busy), EBUSY (the
    /// driver dropped a frame, which still completes), ENOBUFS (no memory), EINTR.
    pub fn kick(&self) -> Result<bool, SyscallError> {
        kick(&self.fd).map_err(|error| self.failed("send from AF_XDP socket", error))
    }

    /// Whether the kernel asks for a [`Self::kick`]; in copy mode always.
    pub fn needs_kick(&self) -> bool {
        self.tx.as_ref().is_some_and(|tx| tx.ring.needs_wakeup())
    }

    /// Takes what is in the completion ring, and hands the chunk of each entry to `chunk`; how many. A completion
    /// says that the frame's socket buffer is gone or the device has sent it, not that it arrived.
    pub fn complete(&mut self, mut chunk: impl FnMut(u32)) -> u32 {
        let chunk_bytes = u64::from(self.spec.chunk_bytes);
        self.completion.consume(u32::MAX, |address: u64| chunk((address / chunk_bytes) as u32))
    }

    /// Hands chunks to the kernel to receive into; how many found room in the fill ring.
    pub fn fill(&mut self, chunks: &[u32]) -> u32 {
        let chunk_bytes = u64::from(self.spec.chunk_bytes);
        let wanted = u32::try_from(chunks.len()).unwrap_or(u32::MAX);
        let Self { fill, filled, .. } = self;
        fill.produce(wanted, |index| {
            let chunk = chunks[index as usize];
            // Of others the kernel takes none (`xp_check_aligned`, net/xdp/xsk_buff_pool.c, 6.18).
            if let Some(entries) = filled.get_mut(chunk as usize) {
                *entries += 1;
            }
            u64::from(chunk) * chunk_bytes
        })
    }

    /// Takes up to `wanted` received pieces; how many. The chunks then belong to this process.
    pub fn receive(&mut self, wanted: u32, mut piece: impl FnMut(Descriptor)) -> u32 {
        let chunk_bytes = u64::from(self.spec.chunk_bytes);
        let Self { rx: Some(rx), filled, .. } = self else { return 0 };
        rx.consume(wanted, |entry: libc::xdp_desc| {
            let chunk = (entry.addr / chunk_bytes) as u32;
            if let Some(entries) = filled.get_mut(chunk as usize) {
                *entries = entries.saturating_sub(1);
            }
            piece(Descriptor {
                chunk,
                offset: (entry.addr % chunk_bytes) as u32,
                bytes: entry.len,
                options: entry.options,
            });
        })
    }

    /// How many frames one [`Self::kick`] may send in copy mode, from 32 to the size of the tx ring
    /// (`XDP_MAX_TX_SKB_BUDGET`, Linux 6.17). False where the kernel does not know it: 32 then.
    pub fn set_tx_budget(&self, frames: u32) -> Result<bool, SyscallError> {
        set_tx_budget(&self.fd, frames).map_err(|error| self.failed("set XDP_MAX_TX_SKB_BUDGET", error))
    }

    /// Waits until a frame was received, or the time is over; whether one was.
    pub fn wait_readable(&self, timeout: Duration) -> Result<bool, SyscallError> {
        wait_readable(&self.fd, timeout).map_err(|error| self.failed("poll AF_XDP socket", error))
    }

    /// Whether the device works on the chunks without copying (`XDP_OPTIONS`).
    pub fn is_zero_copy(&self) -> Result<bool, SyscallError> {
        is_zero_copy(&self.fd).map_err(|error| self.failed("read XDP_OPTIONS", error))
    }

    /// What the kernel counted since the socket was opened.
    pub fn statistics(&self) -> Result<XskStatistics, SyscallError> {
        statistics(&self.fd).map_err(|error| self.failed("read XDP_STATISTICS", error))
    }

    fn failed(&self, call: &'static str, error: io::Error) -> SyscallError {
        SyscallError::new(call, format!("interface {} queue {}", self.spec.ifindex, self.spec.queue), error)
    }
}

impl AsFd for XskSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn kick(fd: &OwnedFd) -> io::Result<bool> {
    let (fd, flags) = (fd.as_raw_fd(), libc::MSG_DONTWAIT);
    // SAFETY: a null buffer of length 0 is what AF_XDP takes; no address is given.
    let sent = unsafe { libc::sendto(fd, std::ptr::null(), 0, flags, std::ptr::null(), 0) };
    if sent >= 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR) => Ok(false),
        _ => Err(error),
    }
}

fn set_tx_budget(fd: &OwnedFd, frames: u32) -> io::Result<bool> {
    const XDP_MAX_TX_SKB_BUDGET: libc::c_int = 9;
    match sockopt::set(fd, libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &frames) {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(false),
        Err(error) => Err(error),
    }
}

fn wait_readable(fd: &OwnedFd, timeout: Duration) -> io::Result<bool> {
    let time = Timespec::try_from(timeout).ok();
    match poll(&mut [PollFd::new(fd, PollFlags::IN)], time.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn is_zero_copy(fd: &OwnedFd) -> io::Result<bool> {
    let ([flags], _) = sockopt::words32(fd, libc::SOL_XDP, libc::XDP_OPTIONS)?;
    Ok(flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
}

fn statistics(fd: &OwnedFd) -> io::Result<XskStatistics> {
    let (words, _) = sockopt::words64(fd, libc::SOL_XDP, libc::XDP_STATISTICS)?;
    let [rx_dropped, rx_invalid, tx_invalid, rx_ring_full, fill_ring_empty, tx_ring_empty] = words;
    Ok(XskStatistics { rx_dropped, rx_invalid, tx_invalid, rx_ring_full, fill_ring_empty, tx_ring_empty })
}

/// Whether an AF_XDP socket can be opened at all: the kernel has `CONFIG_XDP_SOCKETS` (else EAFNOSUPPORT), and the
/// thread CAP_NET_RAW (else EPERM).
pub fn probe() -> Result<(), SyscallError> {
    new_socket().map(drop).map_err(|error| SyscallError::new("open AF_XDP socket", "", error))
}

fn new_socket() -> io::Result<OwnedFd> {
    // SAFETY: takes plain integers.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn register_memory(fd: &OwnedFd, spec: &XskSpec) -> io::Result<Mapping> {
    let bytes = spec.chunks as usize * spec.chunk_bytes as usize;
    let memory = Mapping::anonymous(bytes.next_multiple_of(rustix::param::page_size()))?;
    register(fd, &memory, bytes, spec.chunk_bytes)?;
    Ok(memory)
}

fn register(fd: &OwnedFd, memory: &Mapping, bytes: usize, chunk_bytes: u32) -> io::Result<()> {
    let registration = libc::xdp_umem_reg {
        addr: memory.at(0, bytes, 1) as u64,
        len: bytes as u64,
        chunk_size: chunk_bytes,
        headroom: 0,
        flags: 0,
        tx_metadata_len: 0,
    };
    sockopt::set(fd, libc::SOL_XDP, libc::XDP_UMEM_REG, &registration)
}

/// The rings rx, tx, fill and completion; the last two must exist also where they are not used.
fn make_rings(fd: &OwnedFd, spec: &XskSpec) -> io::Result<[Option<Ring>; 4]> {
    /// Producer, consumer, entries and flags of each of the four rings.
    const OFFSETS: usize = 16;
    let rings = [
        (libc::XDP_RX_RING, spec.rx_entries, 16, libc::XDP_PGOFF_RX_RING as u64),
        (libc::XDP_TX_RING, spec.tx_entries, 16, libc::XDP_PGOFF_TX_RING as u64),
        (libc::XDP_UMEM_FILL_RING, spec.rx_entries.max(1), 8, libc::XDP_UMEM_PGOFF_FILL_RING),
        (libc::XDP_UMEM_COMPLETION_RING, spec.tx_entries.max(1), 8, libc::XDP_UMEM_PGOFF_COMPLETION_RING),
    ];
    for (option, entries, ..) in rings.iter().filter(|(_, entries, ..)| *entries > 0) {
        sockopt::set(fd, libc::SOL_XDP, *option, entries)?;
    }
    let (offsets, len) = sockopt::words64::<OFFSETS>(fd, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS)?;
    if len != OFFSETS * size_of::<u64>() {
        // Before Linux 5.4 there were no flags.
        return Err(io::ErrorKind::Unsupported.into());
    }
    let mut made = [None, None, None, None];
    for (index, (_, entries, entry_bytes, page_offset)) in rings.into_iter().enumerate() {
        let [producer_at, consumer_at, entries_at, flags_at] =
            std::array::from_fn(|part| offsets[index * 4 + part] as usize);
        if entries > 0 {
            let bytes = entries_at + entries as usize * entry_bytes;
            let memory = Arc::new(Mapping::shared(fd.as_fd(), page_offset, bytes)?);
            made[index] =
                Some(Ring { memory, producer_at, consumer_at, flags_at, entries_at, size: entries });
        }
    }
    Ok(made)
}

fn bind(fd: &OwnedFd, spec: &XskSpec) -> io::Result<()> {
    let mode = match spec.mode {
        BindMode::Copy => libc::XDP_COPY,
        BindMode::ZeroCopy => libc::XDP_ZEROCOPY,
    };
    let fragments = if spec.multi_buffer { libc::XDP_USE_SG } else { 0 };
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: mode | libc::XDP_USE_NEED_WAKEUP | fragments,
        sxdp_ifindex: spec.ifindex,
        sxdp_queue_id: spec.queue,
        sxdp_shared_umem_fd: 0,
    };
    let len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the address is valid for its length during the call.
    let result = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
