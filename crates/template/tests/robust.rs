//! No text makes the crate panic or work without bound: each is understood or refused.

#![allow(clippy::unwrap_used)]

mod common;

use common::{corpus, parse};

/// A generator of its own, so that a failure comes again.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }
}

/// Parses, and if it is a program, makes packets of it.
fn try_out(text: &[u8]) {
    match parse(text) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(compiled) => {
            let workers = 4;
            let Some(emitter) =
                (0..workers).find_map(|worker| compiled.plan.emitter(worker, workers, 7).ok())
            else {
                return;
            };
            for index in [0, 1, 1_000_003, u64::MAX] {
                assert!(
                    !template::explain(&emitter.to_vec(index)).is_empty() || emitter.to_vec(index).is_empty()
                );
            }
        }
    }
}

#[test]
fn texts_cut_at_every_byte() {
    for case in corpus() {
        for end in 0..case.text.len() {
            try_out(&case.text[..end]);
        }
    }
}

#[test]
fn texts_with_one_byte_changed() {
    let others = b"{}()[]=,:0x9aZ\"'#\n \\/*-<\x00\xff";
    let mut numbers = Numbers(1);
    for case in corpus() {
        for at in 0..case.text.len() {
            let mut text = case.text.clone();
            for _ in 0..3 {
                text[at] = others[numbers.next() as usize % others.len()];
                try_out(&text);
            }
        }
    }
}

#[test]
fn texts_of_shuffled_pieces() {
    let cases = corpus();
    let mut numbers = Numbers(2);
    for _ in 0..3000 {
        let mut text = Vec::new();
        for _ in 0..4 {
            let piece = &cases[numbers.next() as usize % cases.len()].text;
            let start = numbers.next() as usize % piece.len();
            let len = numbers.next() as usize % 40;
            text.extend_from_slice(&piece[start..(start + len).min(piece.len())]);
        }
        try_out(&text);
    }
}

#[test]
fn a_megabyte_of_anything() {
    let mut numbers = Numbers(3);
    let all: Vec<u8> = (0..1 << 20).map(|_| numbers.next() as u8).collect();
    try_out(&all);
    let alphabets: [&[u8]; 8] =
        [b"{}", b"{(1", b"#if\n", b"a:0.f", b"01,{}\n", b"\"x\\41 {", b"{dinc(1,)}", b"#define A(x)\n"];
    for alphabet in alphabets {
        let text: Vec<u8> =
            (0..1 << 20).map(|_| alphabet[numbers.next() as usize % alphabet.len()]).collect();
        try_out(&text);
    }
}

#[test]
fn texts_that_nest_or_repeat_without_end() {
    let deep = 1 << 18;
    let repeated = [
        "(",
        "{",
        "c8(",
        "-",
        "c8(-",
        "eth(",
        "{ eth(",
        "{ dns(qry(",
        "{ eth(da=dinc(",
        "#if 1\n",
        "#ifdef A\n#else\n",
        "/*",
        "\"",
        "{ 1 } ",
        "{ eth(a[",
        "::",
        "1:",
        "a:",
        "cpu(",
        "weight(2): ",
        "weight(9): { 1 } ",
        "size(64): { 1 } ",
        "size(64-65000): { 1 } ",
        "{ ipv4(), ",
        "{ udp() } ",
        "{ c8(1+",
    ];
    for piece in repeated {
        try_out(piece.repeat(deep / piece.len()).as_bytes());
        try_out(format!("{{ {} }}", piece.repeat(deep / piece.len())).as_bytes());
    }
}

#[test]
fn definitions_that_grow_without_end() {
    let mut doubling = String::from("#define A0 1, 1,\n");
    let mut nested = String::from("#define F0(x) x x\n");
    let mut chain = String::from("#define B0 1\n");
    for n in 1..200 {
        doubling += &format!("#define A{n} A{} A{}\n", n - 1, n - 1);
        nested += &format!("#define F{n}(x) F{}(x x)\n", n - 1);
    }
    for n in 1..20_000 {
        chain += &format!("#define B{n} B{}\n", n - 1);
    }
    for text in [
        format!("{doubling}{{ A199 }}"),
        format!("{nested}{{ F199(1) }}"),
        format!("{nested}{{ {} }}", "F9(".repeat(1000)),
        format!("{chain}{{ B19999 }}"),
        "#define AA AA\n#define BB CC\n#define CC BB\n{ AA, BB }".to_owned(),
        "#define F(x) F(F(x))\n{ F(F(F(1))) }".to_owned(),
    ] {
        assert!(parse(&text).is_err());
    }
}

#[test]
fn packets_that_are_too_many_or_too_long() {
    for text in [
        "{ fill(0, 100000000) }",
        "{ fill(0, 65000), fill(0, 65000) }",
        "{ seqinc(0, 99999999999) }",
        "{ drnd(70000) }",
        "{ rnd(0xffffffffffffffff) }",
        "size(64-65000): { ipv4(), udp(sp=drnd()) }",
        "size(5-4294967295): { 1 }",
        "weight(4294967295): { 1 } { 2 }",
    ] {
        assert!(parse(text).is_err(), "{text}");
    }
    assert!(parse("{ fill(0, 65000) } ".repeat(100_000)).is_err());
}

#[test]
fn a_file_of_100_megabytes_is_refused() {
    let error = parse(vec![b' '; 100 << 20]).unwrap_err();
    assert!(error.message.contains("104857600 bytes"), "{error}");
}
