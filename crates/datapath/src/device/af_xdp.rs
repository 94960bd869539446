//! AF_XDP sockets over memory of packet buffers.
//!
//! A frame is received into a page of a pool, and handed up in it ([`Land`]). A packet that lies in a page of the same region,
//! whichever device it came from, is sent where it lies; any other is copied into a page first. In copy mode, which works on every
//! device, the kernel copies once more on either side; with zero copy the device works on the pages.
//!
//! A program in the driver takes every frame of these queues away from the kernel's stack. It does not see what a sender has left
//! to the device: between namespaces, checksums of TCP and UDP come open, and are completed only with
//! [`AfXdpSpec::open_checksums`], or by the sender (`ethtool -K DEV tx off`). Long frames of a TCP stream do not come: a veth device
//! with a program makes its peer cut them before.
//!
//! One burst is one system call to send, and none to receive where the worker does not sleep.

use std::sync::Arc;
use std::time::Duration;

use linux::SyscallError;
use linux::bpf::{Link, Map, XdpMode};
use linux::packet::{PROTOCOL_NONE, PacketSocket};
use linux::xsk::{self, BindMode, PageReceiver, PageSender, PagesSpec, Region, when_free};
use pagefrag::{PacketBuf, Page, PagePool, PoolConfig, Source};

use super::offload::complete_if_open;
use super::{DeviceError, Land, Landed, RxTotals, Transmit, TxTotals};

/// Polls without a frame until the socket is asked for an error: see `af_packet`.
const EMPTY_POLLS: u32 = 1024;
/// Pages that are posted together: each time costs the kernel's CPU a cache line.
const POST_BATCH: u32 = 32;
/// How long a queue that is still taken is waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// How to open a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AfXdpSpec {
    /// The device, in the calling thread's namespace.
    pub ifindex: u32,
    /// Its queues that get a socket. Frames of others go on to the stack.
    pub queues: Vec<u32>,
    /// The most pages that the kernel has to receive into, for each queue; a power of two.
    pub rx_entries: u32,
    /// The most packets on their way out, for each queue; a power of two.
    pub tx_entries: u32,
    /// Copy or zero copy. None: zero copy where the device can, else copy.
    pub mode: Option<BindMode>,
    /// Where the program runs. None: in the driver where it can, else in the stack.
    pub program: Option<XdpMode>,
    /// Completes checksums of TCP and UDP that senders have left open (a few ns a packet, and the whole sum for those).
    pub open_checksums: bool,
    /// Takes no frames from the stack: for a device that is only sent to.
    pub sends_only: bool,
}

impl AfXdpSpec {
    /// Queue 0, rings of 1024 and 512, modes as the device can.
    pub fn new(ifindex: u32) -> Self {
        Self {
            ifindex,
            queues: vec![0],
            rx_entries: 1024,
            tx_entries: 512,
            mode: None,
            program: None,
            open_checksums: false,
            sends_only: false,
        }
    }

    /// Pages that its queues may need together: what the kernel may have, and as much under way in the worker and its pools.
    pub fn pages(&self) -> u32 {
        const UNDER_WAY: u32 = 1024;
        self.queues.len() as u32 * (self.rx_entries + 2 * self.tx_entries + UNDER_WAY)
    }
}

/// Packet memory of devices: a region, and it as a source of pages.
#[derive(Debug, Clone)]
pub struct PacketMemory {
    region: Region,
    source: Arc<Source>,
}

impl PacketMemory {
    /// So many pages. Devices between which packets are to pass without a copy have one in common.
    ///
    /// # Errors
    /// ENOMEM when there is no memory.
    pub fn new(pages: u32) -> Result<Self, DeviceError> {
        let region = Region::new(pages)?;
        let source = Source::new(region.clone()).share();
        Ok(Self { region, source })
    }

    /// A pool of pages from it, as the receiving side of a queue needs one.
    pub fn pool(&self) -> PagePool {
        let config = PoolConfig::default().with_page_bytes(self.region.page_bytes());
        PagePool::new(config.with_source(Arc::clone(&self.source)))
    }

    /// The region.
    pub fn region(&self) -> &Region {
        &self.region
    }
}

/// An open device.
#[derive(Debug)]
pub struct AfXdp {
    /// The two sides of each queue, in the order asked for.
    pub queues: Vec<(AfXdpRx, AfXdpTx)>,
    /// Whether the device works on the pages without copying.
    pub mode: BindMode,
    /// Where the program runs. None where there is none, as nothing is received.
    pub program: Option<XdpMode>,
}

impl AfXdp {
    /// Opens a socket for each queue and attaches the program. Frames that come before pages were posted are lost, and counted as
    /// missed.
    ///
    /// # Errors
    /// As [`xsk::open_pages`]; EBUSY when a queue or the device's XDP hook stays taken for a second. EINVAL for an MTU above
    /// what veth takes with a program (3,506 bytes).
    pub fn open(memory: &PacketMemory, spec: &AfXdpSpec) -> Result<Self, DeviceError> {
        let device_max = PacketSocket::open(spec.ifindex, PROTOCOL_NONE)?.l2_bytes_max()?;
        let l2_bytes_max = device_max.min(memory.region.page_bytes());
        let map = Map::xskmap(spec.queues.iter().max().map_or(1, |&queue| queue.saturating_add(1)))?;
        let mut sides = Vec::with_capacity(spec.queues.len());
        let mut mode = spec.mode;
        for &queue in &spec.queues {
            let (receiver, sender, got) = open_queue(memory, spec, queue, mode)?;
            if !spec.sends_only {
                map.update_socket(queue, &receiver)?;
            }
            mode = Some(got);
            sides.push((receiver, sender));
        }
        // Drivers may send with zero copy only while there is a program, if one that lets all frames pass (`i40e_xsk_wakeup`,
        // drivers/net/ethernet/intel/i40e/i40e_xsk.c, 6.18).
        let is_needed = !spec.sends_only || mode == Some(BindMode::ZeroCopy);
        let attached = is_needed.then(|| attach(&map, spec)).transpose()?;
        let program = attached.as_ref().map(|(_, mode)| *mode);
        let attachment = attached.map(|(link, _)| Arc::new(Attachment { _link: link, _map: map }));
        let side = |(receiver, sender)| {
            let rx = AfXdpRx {
                attachment: attachment.clone(),
                queue: receiver,
                open_checksums: spec.open_checksums,
                posted: 0,
                received: 0,
                empty_polls: 0,
                fragment: false,
            };
            let tx = AfXdpTx {
                attachment: attachment.clone().filter(|_| spec.sends_only),
                queue: sender,
                copies: memory.pool(),
                left: Vec::new(),
                l2_bytes_max,
                totals: TxTotals::default(),
                copied: 0,
            };
            (rx, tx)
        };
        let queues = sides.into_iter().map(side).collect();
        Ok(Self { queues, mode: mode.unwrap_or(BindMode::Copy), program })
    }
}

/// An error number of Linux (include/uapi/asm-generic/errno.h).
const EOPNOTSUPP: i32 = 95;

/// The program stays as long as a receiving side is there, or where nothing is received, a sending one.
#[derive(Debug)]
struct Attachment {
    _link: Link,
    _map: Map,
}

fn open_queue(
    memory: &PacketMemory,
    spec: &AfXdpSpec,
    queue: u32,
    mode: Option<BindMode>,
) -> Result<(PageReceiver, PageSender, BindMode), SyscallError> {
    let open = |mode| {
        let AfXdpSpec { ifindex, rx_entries, tx_entries, .. } = *spec;
        let shape = PagesSpec { ifindex, queue, rx_entries, tx_entries, mode };
        when_free(PATIENCE, || xsk::open_pages(&memory.region, &shape))
            .map(|(receiver, sender)| (receiver, sender, mode))
    };
    match mode {
        Some(mode) => open(mode),
        None => match open(BindMode::ZeroCopy) {
            Err(error) if error.errno() == Some(EOPNOTSUPP) => open(BindMode::Copy),
            opened => opened,
        },
    }
}

/// In the driver where nothing is said and the driver can, else in the stack.
fn attach(map: &Map, spec: &AfXdpSpec) -> Result<(Link, XdpMode), SyscallError> {
    let program = xsk::redirecting(map)?;
    let attach = |mode| {
        when_free(PATIENCE, || Link::attach_xdp(&program, spec.ifindex, mode)).map(|link| (link, mode))
    };
    match spec.program {
        Some(mode) => attach(mode),
        None => match attach(XdpMode::Native) {
            Err(error) if error.errno() == Some(EOPNOTSUPP) => attach(XdpMode::Generic),
            attached => attached,
        },
    }
}

/// The receiving side of a queue.
#[derive(Debug)]
pub struct AfXdpRx {
    // Before the socket: frames go to the stack again then.
    #[allow(dead_code)]
    attachment: Option<Arc<Attachment>>,
    queue: PageReceiver,
    open_checksums: bool,
    /// Pages posted that the kernel was not told of.
    posted: u32,
    received: u64,
    empty_polls: u32,
    /// Whether a page was refused that is none of the region's, or not a whole one.
    fragment: bool,
}

impl AfXdpRx {
    fn publish(&mut self) -> Result<(), DeviceError> {
        if self.posted > 0 {
            self.posted = 0;
            self.queue.publish()?;
        }
        Ok(())
    }

    #[cold]
    fn idle(&mut self) -> Result<(), DeviceError> {
        if std::mem::take(&mut self.fragment) {
            let why = "it receives into whole pages of its own memory: make the pool with PacketMemory::pool, and hand up \
                       pages or copies, no fragments";
            return Err(DeviceError::Setup(format!("af-xdp: a page was posted that it cannot use: {why}")));
        }
        self.publish()?;
        self.empty_polls += 1;
        if self.empty_polls >= EMPTY_POLLS {
            self.empty_polls = 0;
            self.queue.check()?;
        }
        Ok(())
    }
}

impl Land for AfXdpRx {
    #[inline]
    fn post(&mut self, page: Page) -> Result<(), Page> {
        let result = self.queue.post(page);
        if let Err(page) = &result {
            self.fragment |= !self.queue.takes(page);
        }
        self.posted += u32::from(result.is_ok());
        result
    }

    fn room(&self) -> usize {
        self.queue.room()
    }

    /// # Errors
    /// ENETDOWN when the device is gone, noticed at the latest after some thousand calls; [`DeviceError::Setup`] after a page was posted
    /// that is not a whole one of its memory.
    #[inline]
    fn landed(&mut self) -> Result<Option<Landed>, DeviceError> {
        if self.posted >= POST_BATCH {
            self.publish()?;
        }
        let Some(xsk::Received { mut page, offset, l2_bytes }) = self.queue.receive() else {
            self.idle()?;
            return Ok(None);
        };
        self.received += 1;
        self.empty_polls = 0;
        if self.open_checksums
            && let Some(frame) = page.get_mut(offset..offset + l2_bytes)
        {
            complete_if_open(frame);
        }
        Ok(Some(Landed { page, offset, l2_bytes }))
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), DeviceError> {
        self.publish()?;
        self.queue.wait(timeout)?;
        Ok(())
    }

    /// Missed are frames for which there was no page or no place in the ring, and those that are too long for a page.
    fn totals(&mut self) -> RxTotals {
        let lost = |count: xsk::XskStatistics| count.rx_dropped + count.rx_ring_full + self.queue.unknown();
        RxTotals {
            received: self.received,
            missed: self.queue.statistics().ok().map(lost),
            ..RxTotals::default()
        }
    }
}

/// The sending side of a queue.
#[derive(Debug)]
pub struct AfXdpTx {
    #[allow(dead_code)]
    attachment: Option<Arc<Attachment>>,
    queue: PageSender,
    /// For packets that do not lie in the region.
    copies: PagePool,
    /// Used while sending only.
    left: Vec<PacketBuf>,
    l2_bytes_max: usize,
    totals: TxTotals,
    copied: u64,
}

impl AfXdpTx {
    /// Packets that were copied before they were sent.
    pub fn copied(&self) -> u64 {
        self.copied
    }

    #[inline]
    fn take(&mut self, packet: PacketBuf, done: &mut Vec<PacketBuf>) -> Result<(), PacketBuf> {
        if packet.head_len() > self.l2_bytes_max || !self.queue.can_send(&packet) {
            return self.take_copy(packet, done);
        }
        self.queue.submit(packet, false)
    }

    fn take_copy(&mut self, packet: PacketBuf, done: &mut Vec<PacketBuf>) -> Result<(), PacketBuf> {
        if packet.len() > self.l2_bytes_max {
            self.totals.too_long += 1;
            done.push(packet);
            return Ok(());
        }
        let Ok(page) = self.copies.alloc() else { return Err(packet) };
        let mut copy = PacketBuf::new(page, 0);
        let is_copied =
            packet.slices().all(|part| copy.put(part.len()).map(|room| room.copy_from_slice(part)).is_ok());
        if !is_copied || self.queue.submit(copy, true).is_err() {
            return Err(packet);
        }
        self.copied += 1;
        done.push(packet);
        Ok(())
    }

    #[inline]
    fn finish(&mut self, done: &mut Vec<PacketBuf>) {
        let Self { queue, copies, totals, .. } = self;
        queue.complete(|packet, is_copy| {
            totals.packets += 1;
            totals.l2_bytes += packet.len() as u64;
            if is_copy {
                copies.recycle_packet(packet);
            } else {
                done.push(packet);
            }
        });
    }
}

impl Transmit for AfXdpTx {
    /// # Errors
    /// ENETDOWN or ENXIO when the device is down or gone.
    fn transmit(
        &mut self,
        packets: &mut Vec<PacketBuf>,
        done: &mut Vec<PacketBuf>,
    ) -> Result<(), DeviceError> {
        self.finish(done);
        let mut offered = packets.drain(..);
        for packet in &mut offered {
            if let Err(packet) = self.take(packet, done) {
                self.left.push(packet);
                break;
            }
        }
        self.left.extend(offered);
        packets.append(&mut self.left);
        self.queue.kick()?;
        Ok(())
    }

    fn complete(&mut self, done: &mut Vec<PacketBuf>) -> Result<(), DeviceError> {
        if self.queue.outstanding() > 0 {
            if !self.queue.is_all_taken() {
                self.queue.kick()?;
            }
            self.finish(done);
        }
        Ok(())
    }

    fn held(&self) -> u64 {
        self.queue.outstanding() as u64
    }

    /// Left are those that the kernel is done with: their socket buffers are gone, or the device has sent them. A driver that drops a
    /// frame is done with it too.
    fn totals(&mut self) -> TxTotals {
        self.totals
    }
}
