#![allow(clippy::all, missing_docs, clippy::print_stdout)]
use pagefrag::*;
use std::hint::black_box;
#[inline(never)]
pub fn probe_packet(cache: &mut PollCache, n: usize) {
    let packet = PacketBuf::new(cache.alloc(n, Align::CACHE_LINE).unwrap(), HEADROOM);
    black_box(packet.data().as_ptr());
    cache.give_back_packet(packet);
}
#[inline(never)]
pub fn probe_put(cache: &mut PollCache, n: usize) {
    let mut packet = PacketBuf::new(cache.alloc(n, Align::CACHE_LINE).unwrap(), HEADROOM);
    packet.put(64).unwrap().fill(1);
    black_box(packet.data().as_ptr());
    cache.give_back_packet(packet);
}
#[inline(never)]
pub fn probe_put_in_place(cache: &mut PollCache, n: usize) {
    let mut packet = PacketBuf::new(cache.alloc(n, Align::CACHE_LINE).unwrap(), HEADROOM);
    packet.put(64).unwrap().fill(1);
    black_box(packet.data().as_ptr());
    cache.take_back(&mut packet);
}
#[inline(never)]
pub fn probe_put_nofill(cache: &mut PollCache, n: usize) {
    let mut packet = PacketBuf::new(cache.alloc(n, Align::CACHE_LINE).unwrap(), HEADROOM);
    packet.put(64).unwrap();
    black_box(packet.data().as_ptr());
    cache.take_back(&mut packet);
}
#[inline(never)]
pub fn probe_frag(cache: &mut PollCache, n: usize) {
    let mut packet = cache.alloc(n, Align::CACHE_LINE).unwrap();
    packet[66..130].fill(1);
    black_box(packet.as_ptr());
    cache.give_back(packet);
}
fn run(name: &str, f: fn(&mut PollCache, usize)) {
    let mut c = PollCache::new();
    let t = std::time::Instant::now();
    for _ in 0..10_000_000 {
        f(&mut c, black_box(512));
    }
    println!("{name} {:.2}", t.elapsed().as_secs_f64() * 100.0);
}
fn main() {
    for _ in 0..3 {
        run("frag fill", probe_frag);
        run("packet", probe_packet);
        run("put fill by value", probe_put);
        run("put fill in place", probe_put_in_place);
        run("put nofill in place", probe_put_nofill);
    }
}
