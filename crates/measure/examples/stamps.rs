//! What it costs a receiver to look at a stamp: `cargo run --release -p measure --example stamps`.
//!
//! Ten million packets of several flows in turn, with delays of 8 to 16 µs, and one pair in 64 in the wrong order. Every line is run in
//! turn, several times; printed are the fastest and the middle run, in ns for each packet.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::hint::black_box;
use std::time::Instant;

use measure::delay::Delays;
use measure::window::Window;

const PACKETS: u64 = 10_000_000;
const ROUNDS: usize = 7;
const FLOWS: [u16; 5] = [1, 7, 8, 100, 1000];

fn main() {
    let mut lines: Vec<(String, Box<dyn FnMut()>)> = vec![
        ("the loop alone".to_owned(), Box::new(|| packets(|packet, now| _ = black_box((packet, now))))),
        ("window".to_owned(), Box::new(window)),
        ("delays".to_owned(), Box::new(delays)),
    ];
    for flows in FLOWS {
        lines.push((format!("both, {flows} flows"), Box::new(move || both(flows))));
    }
    let mut taken = vec![Vec::new(); lines.len()];
    for _ in 0..ROUNDS {
        for ((_, run), taken) in lines.iter_mut().zip(&mut taken) {
            let start = Instant::now();
            run();
            taken.push(start.elapsed().as_secs_f64() * 1e9 / PACKETS as f64);
        }
    }
    println!("{:>8} {:>8}  ns a packet, fastest and middle of {ROUNDS} runs", "fastest", "middle");
    for ((name, _), mut taken) in lines.into_iter().zip(taken) {
        taken.sort_by(f64::total_cmp);
        println!("{:8.2} {:8.2}  {name}", taken[0], taken[ROUNDS / 2]);
    }
}

/// What a stamp says.
struct Packet {
    sequence: u64,
    sent_ns: u64,
}

/// Makes packets and when they came.
#[inline(always)]
fn packets(mut take: impl FnMut(Packet, u64)) {
    let mut random = 1_u64;
    for index in 0..PACKETS {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        // 8 to 16 µs.
        let delay = 8192 + (random >> 51);
        // One pair in 64 is swapped.
        let sequence = index ^ u64::from(index >> 1 & 63 == 0);
        let sent_ns = index * 100;
        take(Packet { sequence, sent_ns }, sent_ns + delay);
    }
}

fn window() {
    let mut window = Window::new();
    packets(|packet, _| _ = window.record(packet.sequence));
    black_box(window.account());
}

fn delays() {
    let mut delays = Delays::new();
    packets(|packet, now| delays.record_between(packet.sent_ns, now));
    black_box(delays.count());
}

/// As a receiver of these flows does it: a window for each, delays for all.
fn both(flows: u16) {
    let mut windows = vec![Window::new(); flows.into()];
    let mut delays = Delays::new();
    packets(|packet, now| {
        delays.record_between(packet.sent_ns, now);
        let flows = u64::from(flows);
        _ = windows[(packet.sequence % flows) as usize].record(packet.sequence / flows);
    });
    black_box((windows.iter().map(|window| window.account().unique).sum::<u64>(), delays.count()));
}
