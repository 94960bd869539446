//! What several tests of the language share.

#![allow(dead_code)] // each test uses its part

pub(crate) mod machine;

use std::path::{Path, PathBuf};

use template::{Compiled, Error, Include, Included, Includes, ParseOptions, Program};

/// A configuration of the corpus with its expected packets.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) text: Vec<u8>,
    /// In hexadecimal; `?` stands for any digit.
    pub(crate) packets: Vec<String>,
    /// trafgen makes the same packets.
    pub(crate) same_as_trafgen: bool,
    pub(crate) path: PathBuf,
}

/// All configurations beside `tests/corpus`.
pub(crate) fn corpus() -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "cfg"));
    paths.sort();
    paths.into_iter().map(case).collect()
}

fn case(path: PathBuf) -> Case {
    let hex = std::fs::read_to_string(path.with_extension("hex")).unwrap();
    let packets = hex.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect();
    Case {
        name: path.file_stem().unwrap().to_string_lossy().into_owned(),
        text: std::fs::read(&path).unwrap(),
        packets,
        same_as_trafgen: hex.starts_with("# trafgen: same"),
        path,
    }
}

pub(crate) fn parse(text: impl AsRef<[u8]>) -> Result<Compiled, Error> {
    Program::parse(text, &ParseOptions::default())
}

/// The first packets of the program, of one worker.
pub(crate) fn packets(text: impl AsRef<[u8]>, count: u64) -> Vec<Vec<u8>> {
    let compiled = parse(text).unwrap_or_else(|error| panic!("{error}"));
    let emitter = compiled.plan.emitter(0, 1, 1).unwrap();
    (0..count).map(|index| emitter.to_vec(index)).collect()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Texts in memory.
pub(crate) struct Texts(pub(crate) Vec<(&'static str, &'static str)>);

impl Includes for Texts {
    fn read(&self, include: &Include<'_>) -> Result<Included, String> {
        match self.0.iter().find(|(name, _)| *name == include.name) {
            Some((name, text)) => Ok(Included { name: (*name).to_owned(), text: text.as_bytes().to_vec() }),
            None => Err("there is no such file".to_owned()),
        }
    }
}

/// The one's-complement sum, written apart from the crate's own.
pub(crate) fn sum(parts: &[&[u8]]) -> u16 {
    let all: Vec<u8> = parts.concat();
    let mut total: u32 = 0;
    for pair in all.chunks(2) {
        total += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}
