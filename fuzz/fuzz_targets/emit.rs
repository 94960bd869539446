//! Packets of any program that can be parsed: both ways to make them agree, lengths are those announced, and they can
//! be explained.

#![no_main]

use libfuzzer_sys::fuzz_target;
use template::{ParseOptions, Plan, Program};

const INDEXES: [u64; 8] = [255, 256, 65_535, 65_536, u32::MAX as u64, 1 << 32, u64::MAX - 1, u64::MAX];
const FILLER: u8 = 0xa5;

fuzz_target!(|text: &[u8]| {
    template::explain(text);
    let Ok(compiled) = Program::parse(text, &ParseOptions::default()) else { return };
    let plan = compiled.plan;
    // Long packets cost time and show nothing new.
    if plan.longest_l2_bytes() > 20_000 {
        return;
    }
    for packet in 0..plan.packets() {
        plan.period(packet);
        assert!(plan.explain(packet).is_some());
    }
    for (worker, workers) in [(0, 1), (1, 3)] {
        check(&plan, worker, workers);
    }
});

fn check(plan: &Plan, worker: u32, workers: u32) {
    let Ok(emitter) = plan.emitter(worker, workers, 42) else { return };
    let again = plan.emitter(worker, workers, 42).unwrap();
    for index in (0..20).chain(INDEXES) {
        let mut out = vec![FILLER; plan.longest_l2_bytes() + 8];
        let len = emitter.emit(index, &mut out);
        assert_eq!(Some(len), plan.l2_bytes(emitter.packet_of(index)), "packet {index}");
        assert!(out[len..].iter().all(|&byte| byte == FILLER), "packet {index} writes behind its end");
        out.truncate(len);
        assert_eq!(out, emitter.to_vec(index), "packet {index}");
        assert_eq!(out, again.to_vec(index), "packet {index} depends on more than its number");
        template::explain(&out);
    }
}
