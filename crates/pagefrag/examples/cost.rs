//! What the packet buffer costs, in nanoseconds: `cargo run --release -p pagefrag --example cost`.
//!
//! Every line is run in turn, many times; printed are the fastest and the middle run. On a machine that does something
//! else at the same time, the fastest run is the better guide, and a difference of two lines better than either.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::{hint::black_box, time::Instant};

use pagefrag::{Align, Frag, HEADROOM, PacketBuf, PollCache, buffer_bytes, copy_break};

const ROUNDS: usize = 200;
const PER_ROUND: u32 = 20_000;

fn main() {
    let mut lines = lines();
    let mut taken: Vec<Vec<f64>> = vec![Vec::new(); lines.len()];
    for _ in 0..ROUNDS {
        for ((_, run), taken) in lines.iter_mut().zip(&mut taken) {
            let start = Instant::now();
            run(PER_ROUND);
            taken.push(start.elapsed().as_secs_f64() * 1e9 / f64::from(PER_ROUND));
        }
    }
    println!("{:>8} {:>8}  ns each, fastest and middle of {ROUNDS} runs", "fastest", "middle");
    for ((name, _), mut taken) in lines.into_iter().zip(taken) {
        taken.sort_by(f64::total_cmp);
        println!("{:8.2} {:8.2}  {name}", taken[0], taken[ROUNDS / 2]);
    }
}

type Line = (&'static str, Box<dyn FnMut(u32)>);

fn line(name: &'static str, mut once: impl FnMut(&mut PollCache) + 'static) -> Line {
    let mut cache = PollCache::new();
    (name, Box::new(move |times| (0..times).for_each(|_| once(&mut cache))))
}

fn batch_line(
    name: &'static str,
    mut once: impl FnMut(&mut PollCache, &mut Vec<PacketBuf>) + 'static,
) -> Line {
    let mut cache = PollCache::new();
    let mut packets = Vec::with_capacity(64);
    (name, Box::new(move |times| (0..times / 64).for_each(|_| once(&mut cache, &mut packets))))
}

fn frag(cache: &mut PollCache) -> Frag {
    cache.alloc(buffer_bytes(black_box(64)), Align::CACHE_LINE).unwrap()
}

fn packet(cache: &mut PollCache) -> PacketBuf {
    PacketBuf::new(frag(cache), HEADROOM)
}

fn received(cache: &mut PollCache) -> PacketBuf {
    let mut packet = packet(cache);
    packet.put(64).unwrap().fill(1);
    packet
}

fn lines() -> Vec<Line> {
    vec![
        line("fragment: allocate, give back", |cache| {
            let frag = frag(cache);
            black_box(frag.as_ptr());
            cache.give_back(frag);
        }),
        line("packet: build, give back", |cache| {
            let packet = packet(cache);
            black_box(packet.data().as_ptr());
            cache.give_back_packet(packet);
        }),
        line("fragment: allocate, write 64 bytes, give back", |cache| {
            let mut frag = frag(cache);
            frag[HEADROOM..HEADROOM + 64].fill(1);
            black_box(frag.as_ptr());
            cache.give_back(frag);
        }),
        line("packet: build, put 64 bytes, give back", |cache| {
            let packet = received(cache);
            black_box(packet.data().as_ptr());
            cache.give_back_packet(packet);
        }),
        batch_line("packet: 64 built into a vector, put 64 bytes, given back", |cache, packets| {
            for _ in 0..64 {
                packets.push(received(cache));
            }
            for packet in packets.drain(..) {
                cache.give_back_packet(packet);
            }
        }),
        line("packet: build, put 64 bytes, pull and push 14, give back", |cache| {
            let mut packet = received(cache);
            black_box(packet.pull(14).unwrap());
            packet.push(14).unwrap().fill(2);
            black_box(packet.data().as_ptr());
            cache.give_back_packet(packet);
        }),
        line("fragment: allocate, drop", |cache| {
            let frag = frag(cache);
            black_box(frag.as_ptr());
        }),
        line("packet: build, drop", |cache| {
            let packet = packet(cache);
            black_box(packet.data().as_ptr());
        }),
        line("packet: build, moved through memory, give back", |cache| {
            let packet = black_box(packet(cache));
            cache.give_back_packet(packet);
        }),
        line("packet: build, share, give back both", |cache| {
            let mut packet = packet(cache);
            let other = packet.share();
            cache.give_back_packet(packet);
            cache.give_back_packet(other);
        }),
        line("packet: build, attach a fragment, give back", |cache| {
            let mut packet = packet(cache);
            packet.attach(frag(cache));
            cache.give_back_packet(packet);
        }),
        line("packet: build, put 64 bytes, to Bytes, drop", |cache| {
            black_box(bytes::Bytes::from(received(cache)));
        }),
        break_line("copy-break of   64 bytes", 64),
        break_line("copy-break of  256 bytes", 256),
        break_line("copy-break of  257 bytes", 257),
        break_line("copy-break of 1514 bytes", 1514),
    ]
}

fn break_line(name: &'static str, bytes: usize) -> Line {
    line(name, move |cache| {
        let frame = cache.alloc(bytes, Align::CACHE_LINE).unwrap();
        let (packet, copied) = copy_break(frame, 256, |wanted| {
            cache.alloc(buffer_bytes(wanted), Align::CACHE_LINE).map(|frag| PacketBuf::new(frag, HEADROOM))
        })
        .unwrap();
        black_box(packet.data().as_ptr());
        if let Some(frame) = copied {
            cache.give_back(frame);
        }
        cache.give_back_packet(packet);
    })
}
