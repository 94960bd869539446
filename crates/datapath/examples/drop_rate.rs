//! What a loop costs that receives by copy from a synthetic device and drops at once.

#![allow(clippy::print_stdout, reason = "what it is for")]

use datapath::device::{Frames, Synthetic};
use datapath::receive::{AnyContext, Buffers, Copying, Poll, Pool, System};
use datapath::stage::EarlyDrop;
use datapath::{BUDGET, Worker};
use linux::clock;
use pagefrag::{PagePool, PoolConfig, SharedCache, Source, SpinLock};

const POLLS: usize = 100_000;
const ROUNDS: usize = 5;

fn main() {
    let only = std::env::args().nth(1);
    let wanted = |name: &str| only.as_deref().is_none_or(|only| only == name);
    for l2_bytes in [60, 268, 1514] {
        for _ in 0..ROUNDS {
            let mut line = format!("{l2_bytes:>5} bytes, CPU ns a packet:");
            let mut add = |name: &str, ns: &dyn Fn() -> f64| {
                if wanted(name) {
                    line += &format!("  {name} {:.1}", ns());
                }
            };
            add("poll", &|| cost(l2_bytes, Poll::new(Source::default().share())));
            add("any-context", &|| {
                let cache = SharedCache::<SpinLock>::with_source(Source::default().share());
                cost(l2_bytes, AnyContext::new(cache.with_waiting_blocks(8).into()))
            });
            for (name, whole) in [("page-pool", true), ("page-pool-frag", false)] {
                add(name, &|| cost(l2_bytes, Pool::new(PagePool::new(PoolConfig::default()), whole)));
            }
            add("system", &|| cost(l2_bytes, System));
            println!("{line}");
        }
    }
}

/// CPU ns a packet.
fn cost(l2_bytes: usize, buffers: impl Buffers + 'static) -> f64 {
    let frames = Frames::Cycle(vec![vec![0x5a; l2_bytes].into()]);
    let queue = Synthetic::new(frames, 0).expect("there is a frame");
    let mut worker = Worker::new(Box::new(Copying::new(Box::new(queue), buffers))).stage(EarlyDrop);
    let start = clock::thread_cpu_ns();
    for _ in 0..POLLS {
        worker.poll(BUDGET, 0).expect("a synthetic device does not fail");
    }
    let ns = clock::thread_cpu_ns() - start;
    assert!(worker.ledger().closes(), "{:?}", worker.ledger());
    ns as f64 / (POLLS * BUDGET) as f64
}
