//! AF_XDP over memory that packet buffers lie in: a received frame is a [`Page`], and a packet of that memory is sent where it
//! lies.
//!
//! What the kernel has is owned by the socket: a page from [`PageReceiver::post`] until a frame came in it, a packet from
//! [`PageSender::submit`] until its completion. Nobody else can reach these bytes meanwhile, and if a side is dropped before, they
//! are freed only after the socket is closed; with zero copy never, as nobody tells when the device is done with them.
//!
//! Each socket registers the [`Region`] for itself. With `XDP_SHARED_UMEM` the others would have to use the first one's
//! mode (`xsk_bind`, net/xdp/xsk.c, 6.18): a device that can do zero copy and one that cannot would both copy. The price is that the
//! pages count several times against RLIMIT_MEMLOCK, which root does not have.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pagefrag::{PacketBuf, Page};
use rustix::net::sockopt::socket_error;

use super::ring::{Consumer, Producer};
use super::{BindMode, MORE_FRAGMENTS, Region, XskSpec, XskStatistics};
use crate::SyscallError;

/// The shape of a socket over a [`Region`]. Ring sizes are powers of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PagesSpec {
    /// The device, in the calling thread's network namespace.
    pub ifindex: u32,
    /// Its queue.
    pub queue: u32,
    /// Entries of the rx and the fill ring: the most pages that the kernel has at a time.
    pub rx_entries: u32,
    /// Entries of the tx and the completion ring: the most packets that are on their way.
    pub tx_entries: u32,
    /// Copy or zero copy.
    pub mode: BindMode,
}

/// Packets that one call sends in copy mode where nothing else is asked for, and the fewest that can be (`TX_BATCH_SIZE`,
/// net/xdp/xsk.c, 6.18; EACCES for fewer, and for more than the ring has).
const BATCH_MIN: u32 = 32;
/// The kernel's CPU wrote the frames, so that the first look at each waits for its line: it is asked for so many frames before.
const PREFETCHED: u32 = 8;

/// Opens a socket over the region, and takes its two sides apart: each may go to a thread of its own.
///
/// # Errors
/// As [`super::XskSocket::open`].
pub fn open_pages(region: &Region, spec: &PagesSpec) -> Result<(PageReceiver, PageSender), SyscallError> {
    let object = format!("interface {} queue {}", spec.ifindex, spec.queue);
    let failed = |call| {
        let object = object.clone();
        move |error: io::Error| SyscallError::new(call, object, error)
    };
    let shape = XskSpec {
        ifindex: spec.ifindex,
        queue: spec.queue,
        chunks: region.pages(),
        chunk_bytes: region.page_bytes() as u32,
        tx_entries: spec.tx_entries.max(1),
        rx_entries: spec.rx_entries.max(1),
        mode: spec.mode,
        multi_buffer: false,
    };
    let fd = super::new_socket().map_err(failed("open AF_XDP socket"))?;
    super::register(&fd, region.mapping(), region.bytes(), shape.chunk_bytes)
        .map_err(failed("register memory of AF_XDP socket"))?;
    let rings = super::make_rings(&fd, &shape).map_err(failed("make rings of AF_XDP socket"))?;
    let [Some(rx), Some(tx), Some(fill), Some(completion)] = rings else {
        return Err(failed("map rings of AF_XDP socket")(io::ErrorKind::NotFound.into()));
    };
    super::bind(&fd, &shape).map_err(failed("bind AF_XDP socket"))?;
    let budget = shape.tx_entries <= BATCH_MIN
        || super::set_tx_budget(&fd, shape.tx_entries).map_err(failed("set XDP_MAX_TX_SKB_BUDGET"))?;
    let left = Mutex::new(Left::default());
    let socket = Arc::new(Socket { fd, left, region: region.clone(), mode: spec.mode, object });
    let receiver = PageReceiver {
        fill: Producer::new(fill),
        rx: Consumer::new(rx),
        posted: (0..region.pages()).map(|_| None).collect(),
        posted_pages: 0,
        most: shape.rx_entries as usize,
        unknown: 0,
        socket: Arc::clone(&socket),
    };
    let sender = PageSender {
        tx: Producer::new(tx),
        completion: Consumer::new(completion),
        sent: VecDeque::with_capacity(shape.tx_entries as usize),
        most: shape.tx_entries as usize,
        sends_ring_per_call: budget,
        socket,
    };
    Ok((receiver, sender))
}

/// What both sides have of a socket.
#[derive(Debug)]
struct Socket {
    // The order is that of dropping: in copy mode the kernel is done with the memory when the socket is closed (`xsk_release`
    // waits for its receive path). Only then is what it had freed.
    fd: OwnedFd,
    left: Mutex<Left>,
    region: Region,
    mode: BindMode,
    object: String,
}

impl Drop for Socket {
    /// With zero copy the device is told to stop by a work item, some time after the socket was closed (`xp_release_deferred`,
    /// net/xdp/xsk_buff_pool.c, 6.18), and may write to these pages until then: nobody gets them again.
    fn drop(&mut self) {
        if self.mode == BindMode::ZeroCopy {
            let left = self.left.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(std::mem::take(left));
        }
    }
}

/// What the kernel had when a side was dropped.
#[derive(Debug, Default)]
struct Left {
    pages: Vec<Page>,
    packets: Vec<PacketBuf>,
}

impl Socket {
    fn failed(&self, call: &'static str) -> impl FnOnce(io::Error) -> SyscallError {
        let object = self.object.clone();
        move |error| SyscallError::new(call, object, error)
    }
}

/// A received frame.
#[derive(Debug)]
pub struct Received {
    /// The page that it lies in.
    pub page: Page,
    /// Where in the page it begins.
    pub offset: usize,
    /// Its length, without FCS.
    pub l2_bytes: usize,
}

/// The receiving side of a socket.
#[derive(Debug)]
pub struct PageReceiver {
    fill: Producer,
    rx: Consumer,
    /// What the kernel has, by its place in the region.
    posted: Box<[Option<Page>]>,
    posted_pages: usize,
    most: usize,
    unknown: u64,
    socket: Arc<Socket>,
}

impl PageReceiver {
    /// Hands a page to the kernel to receive into. It comes back at once if the kernel has as many as it may, or if it is no whole
    /// page of this region.
    ///
    /// The fill ring may be full although the kernel has fewer pages than that: it tells which entries it has taken only when it
    /// looks for more (`xskq_cons_get_entries`, net/xdp/xsk_queue.h, 6.18).
    #[inline]
    pub fn post(&mut self, page: Page) -> Result<(), Page> {
        let Some(offset) = self.place(&page) else { return Err(page) };
        let page_bytes = self.socket.region.page_bytes();
        if self.posted_pages == self.most || !self.fill.stage(offset) {
            return Err(page);
        }
        self.posted_pages += 1;
        self.posted[offset as usize / page_bytes] = Some(page);
        Ok(())
    }

    /// Whether it is a whole page of this region, so that it can be posted.
    pub fn takes(&self, page: &Page) -> bool {
        self.place(page).is_some()
    }

    #[inline]
    fn place(&self, page: &Page) -> Option<u64> {
        let page_bytes = self.socket.region.page_bytes();
        let offset = self.socket.region.offset_of(page).filter(|_| page.len() == page_bytes);
        offset.filter(|offset| offset.is_multiple_of(page_bytes as u64))
    }

    /// Tells the kernel of the pages posted so far, and wakes it if it asks for that: to be called after a burst.
    pub fn publish(&mut self) -> Result<(), SyscallError> {
        self.fill.publish();
        if self.fill.ring.needs_wakeup() {
            super::wait_readable(&self.socket.fd, Duration::ZERO)
                .map_err(self.socket.failed("poll AF_XDP socket"))?;
        }
        Ok(())
    }

    /// How many pages the kernel could have beside those that it has.
    #[inline]
    pub fn room(&self) -> usize {
        self.most - self.posted_pages
    }

    /// The next frame. Pieces of a frame in several pages, which only another program than ours could let through, are dropped
    /// and counted ([`Self::unknown`]).
    #[inline]
    pub fn receive(&mut self) -> Option<Received> {
        loop {
            let entry: libc::xdp_desc = self.rx.take()?;
            let Socket { region, .. } = self.socket.as_ref();
            self.rx
                .look_ahead(PREFETCHED, |next: libc::xdp_desc| region.mapping().prefetch(next.addr as usize));
            let page_bytes = region.page_bytes();
            let (place, offset) = (entry.addr as usize / page_bytes, entry.addr as usize % page_bytes);
            let page = self.posted.get_mut(place).and_then(Option::take);
            let l2_bytes = entry.len as usize;
            self.posted_pages -= usize::from(page.is_some());
            match page {
                Some(page) if offset + l2_bytes <= page_bytes && entry.options & MORE_FRAGMENTS == 0 => {
                    return Some(Received { page, offset, l2_bytes });
                }
                _ => self.unknown += 1,
            }
        }
    }

    /// Entries of the rx ring that were no whole frame in a page that the kernel had.
    pub fn unknown(&self) -> u64 {
        self.unknown
    }

    /// Waits until a frame was received, or the time is over; whether one was.
    ///
    /// # Errors
    /// ENETDOWN when the device is gone.
    pub fn wait(&self, timeout: Duration) -> Result<bool, SyscallError> {
        let is_ready = super::wait_readable(&self.socket.fd, timeout)
            .map_err(self.socket.failed("poll AF_XDP socket"))?;
        self.check()?;
        Ok(is_ready)
    }

    /// Whether the device is still there: to be asked now and then by who never waits. The kernel tells it once.
    ///
    /// # Errors
    /// ENETDOWN when it is gone.
    pub fn check(&self) -> Result<(), SyscallError> {
        match socket_error(&self.socket.fd) {
            Ok(Err(error)) | Err(error) => {
                Err(self.socket.failed("receive from AF_XDP socket")(error.into()))
            }
            Ok(Ok(())) => Ok(()),
        }
    }

    /// What the kernel counted since the socket was opened, of both sides.
    pub fn statistics(&self) -> Result<XskStatistics, SyscallError> {
        super::statistics(&self.socket.fd).map_err(self.socket.failed("read XDP_STATISTICS"))
    }

    /// Whether the device works on the pages without copying (`XDP_OPTIONS`).
    pub fn is_zero_copy(&self) -> Result<bool, SyscallError> {
        super::is_zero_copy(&self.socket.fd).map_err(self.socket.failed("read XDP_OPTIONS"))
    }
}

impl AsFd for PageReceiver {
    /// To be put into a map of sockets.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.fd.as_fd()
    }
}

impl Drop for PageReceiver {
    fn drop(&mut self) {
        let mut left = self.socket.left.lock().unwrap_or_else(PoisonError::into_inner);
        left.pages.extend(self.posted.iter_mut().filter_map(Option::take));
    }
}

/// The sending side of a socket.
#[derive(Debug)]
pub struct PageSender {
    tx: Producer,
    completion: Consumer,
    /// What the kernel has, in the order of sending, with its place in the region and a mark of the user.
    sent: VecDeque<(u64, PacketBuf, bool)>,
    most: usize,
    /// Whether one call sends all that is in the ring.
    sends_ring_per_call: bool,
    socket: Arc<Socket>,
}

impl PageSender {
    /// Whether the packet can be sent where it lies: in one piece, in one page of this region.
    #[inline]
    pub fn can_send(&self, packet: &PacketBuf) -> bool {
        self.place_of(packet).is_some()
    }

    /// Queues a packet, with a mark that comes back with it. It comes back at once where there is no room, or if it
    /// [cannot be sent](Self::can_send). Nothing is sent before [`Self::kick`].
    #[inline]
    pub fn submit(&mut self, packet: PacketBuf, mark: bool) -> Result<(), PacketBuf> {
        let Some(addr) = self.place_of(&packet) else { return Err(packet) };
        let entry = libc::xdp_desc { addr, len: packet.head_len() as u32, options: 0 };
        if self.sent.len() == self.most || !self.tx.stage(entry) {
            return Err(packet);
        }
        self.sent.push_back((addr, packet, mark));
        Ok(())
    }

    /// Makes the kernel send what is queued, if it asks for that; whether it took all. In copy mode it sends in the calling
    /// thread. False is normal, as at [`super::XskSocket::kick`].
    ///
    /// # Errors
    /// ENETDOWN or ENXIO when the device is down or gone.
    pub fn kick(&mut self) -> Result<bool, SyscallError> {
        /// Copy mode sent so many a call before Linux 6.17.
        const CALLS_MAX: usize = 64;
        self.tx.publish();
        if !self.tx.ring.needs_wakeup() {
            return Ok(true);
        }
        let calls = if self.sends_ring_per_call { 2 } else { CALLS_MAX };
        for _ in 0..calls {
            super::kick(&self.socket.fd).map_err(self.socket.failed("send from AF_XDP socket"))?;
            if self.tx.is_consumed() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Hands out packets that the kernel is done with, each with its mark: the frame's socket buffer is gone, or the device has
    /// sent it; not that it arrived.
    #[inline]
    pub fn complete(&mut self, mut done: impl FnMut(PacketBuf, bool)) {
        if self.sent.is_empty() {
            return;
        }
        let Self { completion, sent, .. } = self;
        completion.consume(u32::MAX, |addr: u64| {
            // Nearly always the oldest one.
            let is_oldest = sent.front().is_some_and(|(oldest, ..)| *oldest == addr);
            let found = if is_oldest {
                sent.pop_front()
            } else {
                let place = sent.iter().position(|(other, ..)| *other == addr);
                place.and_then(|place| sent.remove(place))
            };
            if let Some((_, packet, mark)) = found {
                done(packet, mark);
            }
        });
    }

    /// Whether everything queued so far was taken by the kernel.
    pub fn is_all_taken(&self) -> bool {
        self.tx.is_consumed()
    }

    /// Packets that the kernel has.
    pub fn outstanding(&self) -> usize {
        self.sent.len()
    }

    /// What the kernel counted since the socket was opened, of both sides.
    pub fn statistics(&self) -> Result<XskStatistics, SyscallError> {
        super::statistics(&self.socket.fd).map_err(self.socket.failed("read XDP_STATISTICS"))
    }

    #[inline]
    fn place_of(&self, packet: &PacketBuf) -> Option<u64> {
        if !packet.is_linear() {
            return None;
        }
        let data = packet.data();
        let page_bytes = self.socket.region.page_bytes();
        let offset = self.socket.region.offset_of(data)?;
        let is_in_one_page = offset as usize % page_bytes + data.len() <= page_bytes;
        (is_in_one_page && !data.is_empty()).then_some(offset)
    }
}

impl Drop for PageSender {
    fn drop(&mut self) {
        let mut left = self.socket.left.lock().unwrap_or_else(PoisonError::into_inner);
        left.packets.extend(self.sent.drain(..).map(|(_, packet, _)| packet));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use pagefrag::{PagePool, PoolConfig, Source};

    use super::*;

    #[test]
    fn what_a_device_may_still_write_to_is_not_given_out_again() {
        for (mode, free_pages) in [(BindMode::Copy, 3), (BindMode::ZeroCopy, 1)] {
            let region = Region::new(3).unwrap();
            let source = Source::new(region.clone()).share();
            let mut pool = PagePool::new(PoolConfig::default().with_source(source));
            let left = Left {
                pages: vec![pool.alloc().unwrap()],
                packets: vec![PacketBuf::new(pool.alloc().unwrap(), 0)],
            };
            drop(pool);
            let fd = std::fs::File::open("/dev/null").unwrap().into();
            let left = Mutex::new(left);
            drop(Socket { fd, left, region: region.clone(), mode, object: String::new() });
            assert_eq!(region.free_pages(), free_pages, "{mode:?}");
        }
    }
}
