//! Words of a search: frame sizes, and how a device in user space is joined to the lab.

use std::fmt;
use std::str::FromStr;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::words::nearest;

/// The frame sizes of a sweep, with FCS (RFC 2544, section 9.1); IMIX comes after them.
const SWEEP: [u32; 7] = [64, 128, 256, 512, 1024, 1280, 1518];

/// A frame size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "FrameValue", into = "FrameValue")]
pub(crate) enum FrameWord {
    /// So many bytes, with FCS.
    Bytes(u32),
    /// The mix of sizes that is called simple IMIX: 7 of 64 bytes, 4 of 594, 1 of 1518.
    Imix,
}

/// A frame size as a file has it: a number, or a word.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum FrameValue {
    Bytes(u32),
    Word(String),
}

/// How a device under test in user space is joined to the lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PortKind {
    /// AF_XDP sockets.
    #[default]
    AfXdp,
    /// Packet rings.
    AfPacket,
}

impl FrameWord {
    /// The sizes that a list of words stands for; `sweep` is all of a table.
    pub(crate) fn parse_all(words: &[String]) -> Result<Vec<Self>> {
        let mut frames = Vec::new();
        for word in words {
            match word.as_str() {
                "sweep" => frames.extend(SWEEP.map(Self::Bytes).into_iter().chain([Self::Imix])),
                word => frames.push(word.parse().map_err(anyhow::Error::msg)?),
            }
        }
        Ok(frames)
    }
}

impl FromStr for FrameWord {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "imix" {
            return Ok(Self::Imix);
        }
        let bytes = text.parse();
        bytes.map(Self::Bytes).map_err(|_| {
            format!("frame `{text}`: a size in bytes with FCS is needed, as 64; or imix, or sweep")
        })
    }
}

impl fmt::Display for FrameWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => f.pad(&bytes.to_string()),
            Self::Imix => f.pad("imix"),
        }
    }
}

impl TryFrom<FrameValue> for FrameWord {
    type Error = String;

    fn try_from(value: FrameValue) -> Result<Self, String> {
        match value {
            FrameValue::Bytes(bytes) => Ok(Self::Bytes(bytes)),
            FrameValue::Word(word) => word.parse(),
        }
    }
}

impl From<FrameWord> for FrameValue {
    fn from(frame: FrameWord) -> Self {
        match frame {
            FrameWord::Bytes(bytes) => Self::Bytes(bytes),
            FrameWord::Imix => Self::Word("imix".into()),
        }
    }
}

impl PortKind {
    const NAMES: [(&'static str, Self); 2] = [("af-xdp", Self::AfXdp), ("af-packet", Self::AfPacket)];
}

impl FromStr for PortKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::NAMES.iter().find(|(name, _)| *name == text).map(|(_, kind)| *kind);
        found.ok_or_else(|| nearest("kind of port", text, Self::NAMES.iter().map(|(name, _)| *name)))
    }
}

impl fmt::Display for PortKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, kind)| kind == self).map_or("", |(name, _)| name);
        f.pad(name)
    }
}
