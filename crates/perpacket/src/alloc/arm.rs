//! What an allocator has to do to be measured, and the loop that is the same for all of them.

use std::collections::VecDeque;
use std::hint::black_box;
use std::mem::MaybeUninit;

use anyhow::{Result, bail};

use super::load::Load;

/// One way to take a buffer and to end it.
pub(crate) trait Arm: Send + 'static {
    /// A buffer. It ends where it is dropped, on any thread.
    type Buffer: Send + 'static;

    /// A buffer of so many bytes; none where there is no memory.
    fn take(&mut self, bytes: usize) -> Option<Self::Buffer>;

    /// Writes its first byte and its last one, as the device or the parser of a packet does.
    fn touch(buffer: &mut Self::Buffer, bytes: usize);

    /// Ends a buffer, on the thread that took it, in the cheapest way that the allocator offers there.
    fn end(&mut self, buffer: Self::Buffer) {
        drop(buffer);
    }

    /// Takes so many buffers of this size and touches each. Returns whether there was memory for all.
    #[inline]
    fn fill(&mut self, count: usize, bytes: usize, buffers: &mut Vec<Self::Buffer>) -> bool {
        for _ in 0..count {
            let Some(mut buffer) = self.take(bytes) else { return false };
            Self::touch(&mut buffer, bytes);
            buffers.push(buffer);
        }
        true
    }

    /// Ends buffers, the oldest first, on the thread that took them.
    #[inline]
    fn empty(&mut self, buffers: &mut Vec<Self::Buffer>) {
        for buffer in buffers.drain(..) {
            self.end(buffer);
        }
    }

    /// Ends buffers on another thread, the oldest first. That does not touch them: to fetch them would cost more than all the
    /// rest, and the same for all.
    #[inline]
    fn empty_far(buffers: &mut Vec<Self::Buffer>) {
        buffers.clear();
    }

    /// The bytes of memory that the allocator keeps, by its own account; none where it has none.
    fn pinned_bytes(&self) -> Option<usize> {
        None
    }

    /// Ends the allocator, when all buffers have ended, and says what became of its pages; none where it keeps no account, or
    /// where another arm still uses it and will say so.
    fn close(self) -> Option<Pages>
    where
        Self: Sized,
    {
        None
    }
}

/// Pages of 4096 bytes that an allocator had from its source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Pages {
    /// Taken since the start, as the allocator counts them.
    pub(crate) taken: u64,
    /// Not given back at the end, as the source counts them.
    pub(crate) left: u64,
}

/// Buffers that were taken and ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Turnover {
    pub(crate) taken: u64,
    pub(crate) ended: u64,
}

impl Turnover {
    pub(crate) fn add(&mut self, other: Self) {
        self.taken += other.taken;
        self.ended += other.ended;
    }
}

/// Writes the first and the last byte, and tells the compiler that somebody reads them. The address goes through `black_box`
/// and not the buffer: that would be stored and loaded again, for several ns.
#[inline]
pub(crate) fn touch(data: &mut [u8], bytes: usize) {
    if let [first, ..] = data {
        *first = 1;
    }
    if let Some(last) = data.get_mut(bytes - 1) {
        *last = 2;
    }
    black_box(data.as_mut_ptr());
}

/// The same for bytes that are not initialised.
#[inline]
pub(crate) fn touch_uninit(data: &mut [MaybeUninit<u8>], bytes: usize) {
    if let [first, ..] = data {
        first.write(1);
    }
    if let Some(last) = data.get_mut(bytes - 1) {
        last.write(2);
    }
    black_box(data.as_mut_ptr());
}

/// An arm at work: bursts of buffers are taken, as a poll takes packets, and ended.
pub(crate) struct Worker<A: Arm> {
    arm: A,
    load: Load,
    /// The burst.
    live: Vec<A::Buffer>,
    /// Buffers that are held long, each with the number of buffers taken at which it ends.
    kept: VecDeque<(u64, A::Buffer)>,
    turnover: Turnover,
}

/// Memory is refused.
const NO_MEMORY: &str = "the allocator has no memory for a buffer; use smaller --hold, --hold-for or --live";

impl<A: Arm> Worker<A> {
    pub(crate) fn new(arm: A, load: Load) -> Self {
        Self {
            arm,
            // With a rest that nobody writes, so that what lies behind is not in the same lines.
            live: Vec::with_capacity(load.live + 256 / size_of::<A::Buffer>()),
            kept: VecDeque::with_capacity(load.most_kept()),
            load,
            turnover: Turnover::default(),
        }
    }

    /// Takes and ends so many bursts.
    pub(crate) fn run(&mut self, bursts: u64) -> Result<()> {
        let done = match (self.load.is_plain(), self.load.live) {
            (true, 1) => self.run_single(bursts),
            (true, _) => self.run_plain(bursts),
            (false, _) => self.run_mixed(bursts),
        };
        if done { Ok(()) } else { bail!("{NO_MEMORY}") }
    }

    /// One buffer at a time, of one size. It is in no burst: to be stored and loaded again at once would cost more than some
    /// allocators do.
    #[inline(never)]
    fn run_single(&mut self, buffers: u64) -> bool {
        let bytes = self.load.largest;
        for _ in 0..buffers {
            let Some(mut buffer) = self.arm.take(bytes) else { return false };
            A::touch(&mut buffer, bytes);
            self.arm.end(buffer);
        }
        // Not in the loop: each was handed over by value, so that nothing in it could make them differ.
        self.turnover.add(Turnover { taken: buffers, ended: buffers });
        true
    }

    /// Buffers of one size, none held.
    #[inline(never)]
    fn run_plain(&mut self, bursts: u64) -> bool {
        let (live, bytes) = (self.load.live, self.load.largest);
        let mut ended = 0;
        for _ in 0..bursts {
            if !self.arm.fill(live, bytes, &mut self.live) {
                return false;
            }
            ended += self.live.len() as u64;
            self.arm.empty(&mut self.live);
        }
        self.turnover.add(Turnover { taken: bursts * live as u64, ended });
        true
    }

    /// Buffers of many sizes, some of them held long.
    #[inline(never)]
    fn run_mixed(&mut self, bursts: u64) -> bool {
        for _ in 0..bursts {
            if !self.fill_mixed(self.turnover.taken) {
                return false;
            }
            self.turnover.add(Turnover { taken: self.load.live as u64, ended: self.live.len() as u64 });
            self.arm.empty(&mut self.live);
            self.end_due();
        }
        true
    }

    /// One burst, of which what is held long is put aside.
    #[inline]
    fn fill_mixed(&mut self, number: u64) -> bool {
        for number in number..number + self.load.live as u64 {
            let (bytes, is_kept) = self.load.buffer(number);
            let Some(mut buffer) = self.arm.take(bytes) else { return false };
            A::touch(&mut buffer, bytes);
            if is_kept {
                self.kept.push_back((number + self.load.hold_for, buffer));
            } else {
                self.live.push(buffer);
            }
        }
        true
    }

    /// Takes one burst, to be ended elsewhere.
    #[inline]
    pub(crate) fn burst_into(&mut self, buffers: &mut Vec<A::Buffer>) -> Result<()> {
        let (number, live) = (self.turnover.taken, self.load.live);
        let done = if self.load.is_plain() {
            self.arm.fill(live, self.load.largest, buffers)
        } else {
            std::mem::swap(&mut self.live, buffers);
            let done = self.fill_mixed(number);
            std::mem::swap(&mut self.live, buffers);
            done
        };
        self.turnover.taken += live as u64;
        self.end_due();
        if done { Ok(()) } else { bail!("{NO_MEMORY}") }
    }

    /// Ends what was held long enough.
    #[inline]
    fn end_due(&mut self) {
        let number = self.turnover.taken;
        while let Some((_, buffer)) = self.kept.pop_front_if(|(due, _)| *due <= number) {
            self.turnover.ended += 1;
            self.arm.end(buffer);
        }
    }

    /// Takes a burst and does not end it: what memory is in use then, and how much the allocator keeps for it.
    pub(crate) fn hold_burst(&mut self) -> Result<(usize, Option<usize>)> {
        let number = self.turnover.taken;
        if !self.fill_mixed(number) {
            bail!("{NO_MEMORY}");
        }
        self.turnover.taken += self.load.live as u64;
        let in_burst = (number..number + self.load.live as u64).map(|n| self.load.buffer(n));
        let burst: usize = in_burst.filter(|(_, is_kept)| !is_kept).map(|(bytes, _)| bytes).sum();
        let kept = self.kept.iter().map(|(due, _)| self.load.buffer(due - self.load.hold_for).0);
        Ok((burst + kept.sum::<usize>(), self.arm.pinned_bytes()))
    }

    /// Ends what is left, and the arm.
    pub(crate) fn close(mut self) -> (Turnover, Option<Pages>) {
        self.turnover.ended += (self.live.len() + self.kept.len()) as u64;
        self.live.clear();
        self.kept.clear();
        (self.turnover, self.arm.close())
    }
}
