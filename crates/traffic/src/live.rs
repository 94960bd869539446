//! A generator inside the kernel: a BPF program on live frames writes the packets, waits until each is due, and counts the
//! gaps.
//!
//! Confirmed is what the program made. As with [`crate::Inject`], a redirect into a device that cannot take the
//! frames loses them after that without a sign here: counters of the device and the receiver tell.
//!
//! A system call runs the program on many frames. Between two calls nothing leaves: 0.1 ms with
//! `/sys/kernel/rcu_expedited` set, 20 to 30 ms without, because the end of a call waits for an RCU grace period. What was
//! missed is caught up at twice the rate at most. Calls are long accordingly, and a second thread, which wakes up every
//! few ms, tells the program to stop. It does something else too: the kernel's loop leaves its RCU
//! read-side section only when another thread wants the CPU. Without that, a grace period anywhere on the host, such as the
//! one at the end of another worker's call, seems to wait for the end of this one: two workers without a pace made 22 to
//! 24 million packets a second together, and 15 to 17 with real-time priority, where it cannot interrupt them (one alone
//! 13.5; 6.18, two-core virtual machine; not tried without it at ordinary priority). The
//! second thread is of the same kind as the worker, and on its CPU if the worker is pinned, as it should be; one that
//! has a real-time priority loses the effect.
//!
//! Several workers have a program and maps each. A veth chooses the receive queue of its peer by the number of the CPU
//! that sends (drivers/net/veth.c, `veth_select_rxq`, 6.18), so that workers on two CPUs fill two queues if there are two.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use linux::SyscallError;
use linux::bpf::{LiveEnd, LiveRun, Map, MappedArray, Program, ProgramKind, ProgramSpec};
use linux::clock::monotonic_ns;
use measure::gaps::Gaps;
use thiserror::Error;

use crate::backend::{BackendKind, STALL, SendError, Sent};
use crate::generator::{Generator, Pace};
use crate::programs::generator::{FRACTION_BITS, WAIT_NS};
use crate::programs::{
    Destination, GAP_BUCKETS, GENERATOR_WORDS, GeneratorProgram, GeneratorProgramError, GeneratorWord,
    WritePacket, gap_bucket_range,
};

/// Frames of a batch without a pace, where a frame costs least.
const BATCH: u32 = 64;
/// The most frames of a batch with one.
const MOST_BATCH: u32 = 64;
/// What a batch costs, and each of its frames (measured over a veth that drops in XDP, 6.18, two-core virtual machine),
/// and the share of the time that may go into it, so that lost time can be caught up.
const BATCH_COST_NS: f64 = 300.0;
const FRAME_COST_NS: f64 = 70.0;
const BUSY_SHARE: f64 = 0.7;
/// Most packets of a call: those that are left when it is told to stop are dropped in some 50 ms.
const CALL_PACKETS: u64 = 1 << 21;
/// How often it is looked whether to stop.
const WATCH: Duration = Duration::from_millis(10);
/// A call that is shorter is not watched.
const SHORT_NS: f64 = 20e6;
/// How long a call lasts, in times of what passes between two, and its bounds in ns.
const CALL_PER_BOUNDARY: u64 = 200;
const CALL_NS: (u64, u64) = (250_000_000, 5_000_000_000);
/// What is taken to pass between two calls until that was seen, and at most, in ns.
const BOUNDARY_NS: u64 = 100_000;
const MOST_BOUNDARY_NS: u64 = 100_000_000;
/// How long before a packet is due the program begins to wait for it, in ns: starting a call and waking up take that long.
const LEAD_NS: u64 = 500_000;
/// Runs beyond those needed, in batches: what is lost by waiting at the start of a call.
const SPARE_BATCHES: u64 = LEAD_NS / WAIT_NS + 4;

/// What a [`LiveGenerator`] is made of.
pub struct LiveSpec<'a, E> {
    /// [`BackendKind::Inject`] or [`BackendKind::XdpLive`]: the mechanism is the same, the destination decides.
    pub kind: BackendKind,
    /// Where packets go.
    pub destination: Destination,
    /// The device that is to have received the frames, in the sending thread's namespace.
    pub ingress_ifindex: u32,
    /// Its receive queue.
    pub rx_queue: u32,
    /// A packet of the greatest length, without FCS; what `write_packet` does not write stays as it is here.
    pub frame: Vec<u8>,
    /// Bytes from the start of the frame that `write_packet` may touch.
    pub header_bytes: usize,
    /// Emits the instructions that write this worker's packet of an index, counted from 0.
    pub write_packet: &'a WritePacket<'a, E>,
    /// Packets differ in length: `write_packet` leaves the length in [`GeneratorProgram::LENGTH`]. The cut-off
    /// rest of the frame keeps what it was, so that all of a longer packet must be written or be the same in all.
    pub shortens: bool,
    /// When packets are due; without it, they are sent as fast as possible.
    pub pace: Option<Pace>,
    /// Frames that are handed on together, up to 256, with a pace a power of two. None: as the rate needs.
    pub batch: Option<u32>,
}

/// Why there is no generator.
#[derive(Debug, Error)]
pub enum LiveError<E> {
    /// The program could not be made.
    #[error(transparent)]
    Program(#[from] GeneratorProgramError<E>),
    /// The kernel refused the program or its maps.
    #[error(transparent)]
    Syscall(#[from] SyscallError),
    /// A batch with which the program cannot count.
    #[error("{0} frames a batch cannot be paced: it must be 1, 2, 4 and so on up to 256")]
    Batch(u32),
    /// The frame is shorter than what is written.
    #[error("the packet's instructions write {header_bytes} bytes, and the frame has {l2_bytes}")]
    Short {
        /// What is written.
        header_bytes: usize,
        /// What there is.
        l2_bytes: usize,
    },
}

/// Sends packets from a program in the kernel, in the calling thread, which should be pinned to a CPU.
#[derive(Debug)]
pub struct LiveGenerator {
    live: Live,
    /// What passed between the last packet of a call and its return, in ns.
    boundary_ns: u64,
}

/// What does not change from call to call.
#[derive(Debug)]
struct Live {
    kind: BackendKind,
    program: Program,
    control: MappedArray,
    gaps: Option<MappedArray>,
    frame: Vec<u8>,
    ingress_ifindex: u32,
    rx_queue: u32,
    batch: u32,
    pace: Option<Pace>,
}

impl LiveGenerator {
    /// Makes and loads the program. Nothing is run yet.
    ///
    /// # Errors
    /// A packet that cannot be written by instructions, and what the kernel refuses.
    pub fn new<E>(spec: &LiveSpec<'_, E>) -> Result<Self, LiveError<E>> {
        let l2_bytes = spec.frame.len();
        if spec.header_bytes > l2_bytes {
            return Err(LiveError::Short { header_bytes: spec.header_bytes, l2_bytes });
        }
        let batch = spec.batch.unwrap_or_else(|| spec.pace.map_or(BATCH, |pace| batch_for(pace.interval_ns)));
        if spec.pace.is_some() && (!batch.is_power_of_two() || batch > linux::bpf::LIVE_BATCH_MAX) {
            return Err(LiveError::Batch(batch));
        }
        let control = Map::array(8 * GENERATOR_WORDS, 1, true)?;
        let gaps = Map::array(8 * GAP_BUCKETS, 1, true)?;
        let program = GeneratorProgram {
            l2_bytes,
            header_bytes: spec.header_bytes,
            write_packet: spec.write_packet,
            shortens: spec.shortens,
            destination: spec.destination,
            paced_batch: spec.pace.map(|_| batch),
            control_fd: control.fd(),
            gaps_fd: gaps.fd(),
        };
        let insns = program.assemble()?;
        let live = Live {
            kind: spec.kind,
            program: Program::load(&ProgramSpec::new(ProgramKind::Xdp, "generator", &insns))?,
            control: control.mmap_array()?,
            gaps: spec.pace.map(|_| gaps.mmap_array()).transpose()?,
            frame: spec.frame.clone(),
            ingress_ifindex: spec.ingress_ifindex,
            rx_queue: spec.rx_queue,
            batch,
            pace: spec.pace,
        };
        Ok(Self { live, boundary_ns: BOUNDARY_NS })
    }
}

/// Frames of a batch with which a rate can be held.
fn batch_for(interval_ns: f64) -> u32 {
    let left_ns = BUSY_SHARE * interval_ns - FRAME_COST_NS;
    if left_ns <= BATCH_COST_NS / f64::from(MOST_BATCH) {
        return MOST_BATCH;
    }
    ((BATCH_COST_NS / left_ns).ceil().max(1.0) as u32).next_power_of_two()
}

impl Generator for LiveGenerator {
    fn kind(&self) -> BackendKind {
        self.live.kind
    }

    fn start_at(&mut self, start_ns: u64) {
        self.live.pace = self.live.pace.map(|pace| Pace { start_ns, ..pace });
    }

    /// Offered and confirmed are the packets that the program made. [`Sent::calls`] is of no use for finding interrupted
    /// calls, since waiting makes calls too.
    ///
    /// # Errors
    /// [`SendError::Syscall`] from the kernel, [`SendError::Stalled`] for packets that the program refuses to make.
    fn send(&mut self, packets: u64, stop: &AtomicBool) -> Result<Sent, SendError> {
        let Self { live, boundary_ns } = self;
        live.control.store(GeneratorWord::Stop as usize, 0);
        if live.is_short(packets, *boundary_ns) {
            return live.send(packets, stop, boundary_ns);
        }
        watched(&live.control, stop, || live.send(packets, stop, boundary_ns))
    }

    /// Nothing is ever open: a call returns after its last packet was handed on.
    fn flush(&mut self) -> Result<Sent, SendError> {
        Ok(Sent::default())
    }

    fn grain(&self) -> Option<u32> {
        self.live.pace.map(|_| self.live.batch)
    }

    /// As the program saw them, each to within 0.4 %.
    fn gaps(&mut self) -> Option<Gaps> {
        self.live.gaps()
    }

    /// When the last batch was released.
    fn last_ns(&self) -> Option<u64> {
        self.live.pace?;
        Some(self.live.control.load(GeneratorWord::Last as usize)).filter(|&ns| ns > 0)
    }
}

/// Runs `work`, while a second thread passes on that it is to stop.
fn watched<T>(control: &MappedArray, stop: &AtomicBool, work: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    let watch = || {
        while !done.load(Ordering::Acquire) {
            if stop.load(Ordering::Relaxed) {
                return control.store(GeneratorWord::Stop as usize, 1);
            }
            thread::park_timeout(WATCH);
        }
    };
    thread::scope(|scope| {
        // Without the thread it is only seen between two calls.
        let watcher = thread::Builder::new().spawn_scoped(scope, watch);
        let result = work();
        done.store(true, Ordering::Release);
        if let Ok(watcher) = watcher {
            watcher.thread().unpark();
        }
        result
    })
}

/// One system call, as it is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Call {
    /// Packets, if all goes well.
    packets: u64,
    /// Runs of the program.
    runs: u32,
    /// When to make it at the earliest.
    not_before_ns: u64,
}

impl Live {
    fn send(&self, packets: u64, stop: &AtomicBool, boundary_ns: &mut u64) -> Result<Sent, SendError> {
        let mut sent = Sent::default();
        let mut idle_since = None;
        while sent.offered < packets {
            let before = self.produced();
            let call = self.next_call(before, packets - sent.offered, *boundary_ns);
            if !wait_until(call.not_before_ns, stop) {
                break;
            }
            let end = self.run(before, call);
            let ended_ns = monotonic_ns();
            let produced = self.produced() - before;
            sent += Sent { offered: produced, confirmed: produced, calls: 1 };
            let end = end.map_err(|source| SendError::Syscall { backend: self.kind, sent, source })?;
            if stop.load(Ordering::Relaxed) {
                break;
            }
            if produced == call.packets && self.pace.is_some() {
                let last_ns = self.control.load(GeneratorWord::Last as usize);
                // Grows in steps only: once in a while it was another thread that took the time.
                let seen_ns = ended_ns.saturating_sub(last_ns).max(1);
                *boundary_ns = seen_ns.min(4 * *boundary_ns).min(MOST_BOUNDARY_NS);
            }
            if produced > 0 || end == LiveEnd::Interrupted {
                idle_since = None;
            } else if let Some(since) = self.stalled(before, idle_since, ended_ns) {
                let waited = Duration::from_nanos(ended_ns - since);
                let outstanding = packets - sent.offered;
                return Err(SendError::Stalled { backend: self.kind, sent, outstanding, waited });
            } else {
                idle_since = idle_since.or(Some(ended_ns));
            }
        }
        Ok(sent)
    }

    /// Since when no packet was made although there was nothing to wait for, if that is too long.
    fn stalled(&self, index: u64, idle_since: Option<u64>, now: u64) -> Option<u64> {
        let due = self.pace.map_or(0, |pace| due(pace, index).0);
        idle_since.filter(|&since| now - since.max(due.min(now)) > STALL.as_nanos() as u64)
    }

    fn produced(&self) -> u64 {
        self.control.load(GeneratorWord::Produced as usize)
    }

    /// What the next call is to do, from packet `index` on.
    fn next_call(&self, index: u64, remaining: u64, boundary_ns: u64) -> Call {
        let Some(pace) = self.pace else {
            let packets = remaining.min(CALL_PACKETS);
            return Call { packets, runs: packets as u32, not_before_ns: 0 };
        };
        let batch = u64::from(self.batch);
        let packets = remaining.min(packets_of_call(pace.interval_ns, batch, boundary_ns));
        let waits = (pace.interval_ns * batch as f64) as u64 / WAIT_NS;
        let batches = packets.div_ceil(batch).saturating_mul(waits.saturating_add(1));
        let runs = batches.saturating_add(SPARE_BATCHES).saturating_mul(batch);
        Call {
            packets,
            runs: u32::try_from(runs).unwrap_or(u32::MAX),
            not_before_ns: due(pace, index).0.saturating_sub(LEAD_NS),
        }
    }

    /// One system call.
    fn run(&self, index: u64, call: Call) -> Result<LiveEnd, SyscallError> {
        if let Some(pace) = self.pace {
            let (base, fraction) = due(pace, index);
            let half_a_batch = (pace.interval_ns * f64::from(self.batch) / 2.0).ceil();
            for (word, value) in [
                (GeneratorWord::Limit, index + call.packets),
                (GeneratorWord::First, index),
                (GeneratorWord::Base, base),
                (GeneratorWord::Fraction, fraction),
                (GeneratorWord::Step, fixed(pace.interval_ns)),
                (GeneratorWord::LeastGap, (half_a_batch as u64).min(u64::MAX / 4)),
                (GeneratorWord::Runs, 0),
                (GeneratorWord::GivenUp, 0),
            ] {
                self.control.store(word as usize, value);
            }
        }
        self.program.run_xdp_live(&LiveRun {
            frame: &self.frame,
            ingress_ifindex: self.ingress_ifindex,
            rx_queue: self.rx_queue,
            repeat: call.runs,
            batch: self.batch,
        })
    }

    /// Whether that many packets are over, or each call is, before a second thread would be of use.
    fn is_short(&self, packets: u64, boundary_ns: u64) -> bool {
        match self.pace {
            // Nothing takes less than 10 ns.
            None => packets as f64 * 10.0 < SHORT_NS,
            Some(pace) => {
                let most = packets_of_call(pace.interval_ns, u64::from(self.batch), boundary_ns);
                most == 1 || packets.min(most) as f64 * pace.interval_ns < SHORT_NS
            }
        }
    }

    fn gaps(&self) -> Option<Gaps> {
        let buckets = self.gaps.as_ref()?;
        let mut gaps = Gaps::new();
        let mut counted = 0;
        for bucket in 0..GAP_BUCKETS {
            let count = buckets.load(bucket);
            if count > 0 {
                let (low, width) = gap_bucket_range(bucket);
                gaps.record_n(low + width / 2, count);
                counted += count;
            }
        }
        gaps.record_n(0, self.produced().saturating_sub(1 + counted));
        Some(gaps)
    }
}

/// Packets of a call: so many that what passes between two calls does not weigh, and only one where there is time to sleep
/// from each packet to the next.
fn packets_of_call(interval_ns: f64, batch: u64, boundary_ns: u64) -> u64 {
    let sleeps_from_ns = 2 * LEAD_NS + 4 * boundary_ns;
    if interval_ns > sleeps_from_ns as f64 {
        return 1;
    }
    let call_ns = boundary_ns.saturating_mul(CALL_PER_BOUNDARY).clamp(CALL_NS.0, CALL_NS.1);
    let packets = ((call_ns as f64 / interval_ns) as u64).clamp(1, CALL_PACKETS);
    packets.next_multiple_of(batch)
}

/// When a packet is due, in ns and 2⁻²⁴ ns. After an hour at the rate of 10 Gbit/s the sum still knows thousandths of a ns.
fn due(pace: Pace, index: u64) -> (u64, u64) {
    let after = index as f64 * pace.interval_ns;
    (pace.start_ns.saturating_add(after as u64), fixed(after.fract()))
}

fn fixed(ns: f64) -> u64 {
    (ns * f64::from(1_u32 << FRACTION_BITS)).round() as u64
}

/// Sleeps until a time, or returns false early when it is to stop.
fn wait_until(ns: u64, stop: &AtomicBool) -> bool {
    loop {
        if stop.load(Ordering::Relaxed) {
            return false;
        }
        let now = monotonic_ns();
        if now >= ns {
            return true;
        }
        thread::sleep(Duration::from_nanos(ns - now).min(WATCH));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE_RATE_NS: f64 = 1e9 / 14_880_952.0;

    #[test]
    fn the_grain_grows_with_the_rate() {
        let batches = [1.0, 1e6, 1.5e6, 2e6, 5e6, 8e6, 14.88e6, 1e9].map(|pps| batch_for(1e9 / pps));
        assert_eq!(batches, [1, 1, 1, 2, 8, 32, 64, 64]);
        assert_eq!([batch_for(f64::INFINITY), batch_for(0.0)], [1, 64]);
    }

    #[test]
    fn an_hour_at_line_rate_does_not_drift() {
        let pace = Pace { start_ns: 1 << 40, interval_ns: LINE_RATE_NS };
        let packets = 14_880_952 * 3600;
        let (base, fraction) = due(pace, packets);
        let late_ns = base as i64 - (1 << 40) - 3_600_000_000_000;
        assert!(late_ns.abs() <= 1 && fraction <= 1 << FRACTION_BITS, "{late_ns} ns");
        // Within a call the program adds up steps.
        let (base, fraction) = due(pace, packets - CALL_PACKETS);
        let added = base + ((CALL_PACKETS * fixed(LINE_RATE_NS) + fraction) >> FRACTION_BITS);
        assert!(added.abs_diff(due(pace, packets).0) <= 1);
    }

    #[test]
    fn nothing_in_a_call_overflows() {
        for boundary_ns in [0, BOUNDARY_NS, 30_000_000, MOST_BOUNDARY_NS] {
            for interval_ns in [0.0, 1e-3, 67.2, 1e4, 1e6, 1e9, 1e15, f64::INFINITY] {
                for batch in [1, 64] {
                    let packets = packets_of_call(interval_ns, batch, boundary_ns);
                    assert!((1..=CALL_PACKETS).contains(&packets));
                    let steps = (packets - 1).checked_mul(fixed(interval_ns));
                    assert!(steps.is_some(), "{packets} packets, {interval_ns} ns, {boundary_ns} ns");
                }
            }
        }
    }

    #[test]
    fn slow_packets_have_a_call_each_and_fast_ones_share_long_calls() {
        let expedited = |pps: f64| packets_of_call(1e9 / pps, 1, 90_000);
        assert_eq!([expedited(100.0), expedited(600.0), expedited(1e5)], [1, 1, 25_000]);
        let slow_end = |pps: f64| packets_of_call(1e9 / pps, 1, 25_000_000);
        assert_eq!([slow_end(1.0), slow_end(100.0), slow_end(1e5)], [1, 500, 500_000]);
        assert_eq!(packets_of_call(LINE_RATE_NS, 64, 25_000_000), CALL_PACKETS);
    }
}
