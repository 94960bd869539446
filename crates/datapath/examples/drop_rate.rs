//! Packets per second of one loop: synthetic, received by copy, dropped at once.

use std::time::Instant;

use datapath::device::{Frames, Synthetic};
use datapath::receive::{AnyContext, Buffers, Copying, Poll, System};
use datapath::stage::EarlyDrop;
use datapath::{BUDGET, Worker};
use pagefrag::{SharedCache, Source, SpinLock};

const POLLS: usize = 200_000;

fn main() {
    for l2_bytes in [60] {
        for _ in 0..12 {
            let poll = rate(l2_bytes, Poll::new(Source::default().share()));
            if std::env::args().count() > 1 { println!("{poll}"); continue; }
        let shared = SharedCache::<SpinLock>::with_source(Source::default().share());
            let any = rate(l2_bytes, AnyContext::new(shared.into()));
            let system = rate(l2_bytes, System);
            println!("{l2_bytes:>5} bytes: poll {poll:.1} ns, any-context {any:.1} ns, system {system:.1} ns");
        }
    }
}

/// ns a packet.
fn rate(l2_bytes: usize, buffers: impl Buffers + 'static) -> f64 {
    let frames = Frames::Cycle(vec![vec![0x5a; l2_bytes].into()]);
    let queue = Synthetic::new(frames, 0).expect("there is a frame");
    let mut worker = Worker::new(Box::new(Copying::new(Box::new(queue), buffers))).stage(EarlyDrop);
    let start = Instant::now();
    for _ in 0..POLLS {
        worker.poll(BUDGET, 0).expect("a synthetic device does not fail");
    }
    start.elapsed().as_nanos() as f64 / (POLLS * BUDGET) as f64
}
