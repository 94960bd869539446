//! The parser of the packet language with any bytes: a program or an error.

#![no_main]

use libfuzzer_sys::fuzz_target;
use template::{ParseOptions, Program};

fuzz_target!(|text: &[u8]| {
    if let Err(error) = Program::parse(text, &ParseOptions::default()) {
        assert!(!error.to_string().is_empty());
    }
});
