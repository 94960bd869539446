//! Devices as a person names them: `synthetic`, `dummy:4`, `pcap:FILE`, `af-packet:veth0`, `af-xdp:veth0:1`, `tap:tap0`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::words::nearest;

/// The longest name of a device (IFNAMSIZ less the end, include/uapi/linux/if.h, 6.18).
const NAME_BYTES_MAX: usize = 15;
/// The most queues of a dummy.
const QUEUES_MAX: usize = 1024;

/// A device of the device under test.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) enum DeviceWord {
    /// Frames from a template; only received from.
    Synthetic,
    /// Counts packets and forgets them; only sent to. Without a number it has a queue for each thread.
    Dummy { queues: Option<usize> },
    /// The frames of a capture file, or one that is written.
    Pcap(PathBuf),
    /// A packet socket with rings on a device.
    AfPacket(String),
    /// An AF_XDP socket on a queue of a device; without a number one on each.
    AfXdp { name: String, queue: Option<u32> },
    /// A TAP device, made for the run.
    Tap(String),
}

impl DeviceWord {
    /// The kinds, as they are written.
    const KINDS: [&'static str; 6] = ["synthetic", "dummy", "pcap", "af-packet", "af-xdp", "tap"];

    /// The device of this host that it uses, which must be allowed; a TAP device is the run's own.
    pub(crate) fn host_device(&self) -> Option<&str> {
        match self {
            Self::AfPacket(name) | Self::AfXdp { name, .. } => Some(name),
            Self::Synthetic | Self::Dummy { .. } | Self::Pcap(_) | Self::Tap(_) => None,
        }
    }

    /// Whether it needs the kernel's networking.
    pub(crate) fn is_kernel(&self) -> bool {
        matches!(self, Self::AfPacket(_) | Self::AfXdp { .. } | Self::Tap(_))
    }
}

impl FromStr for DeviceWord {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (kind, rest) = text.split_once(':').map_or((text, None), |(kind, rest)| (kind, Some(rest)));
        let name = |what: &str| {
            let name = rest.filter(|rest| !rest.is_empty());
            name.map(str::to_owned)
                .with_context(|| format!("the device `{text}` has no name: write {kind}:{what}"))
        };
        match kind {
            "synthetic" => {
                ensure!(rest.is_none(), "the device `{text}`: synthetic takes nothing behind it");
                Ok(Self::Synthetic)
            }
            "dummy" => Ok(Self::Dummy { queues: rest.map(queues).transpose()? }),
            "pcap" => Ok(Self::Pcap(name("FILE")?.into())),
            "af-packet" => Ok(Self::AfPacket(checked_name(name("INTERFACE")?)?)),
            "tap" => Ok(Self::Tap(checked_name(name("NAME")?)?)),
            "af-xdp" => {
                let name = name("INTERFACE")?;
                let (name, queue) = match name.rsplit_once(':') {
                    Some((name, queue)) => {
                        let number = queue.parse();
                        let number = number.with_context(|| {
                            format!("the device `{text}`: `{queue}` is no queue; write af-xdp:INTERFACE:0")
                        })?;
                        (name.to_owned(), Some(number))
                    }
                    None => (name, None),
                };
                Ok(Self::AfXdp { name: checked_name(name)?, queue })
            }
            other => bail!("{}", nearest("kind of device", other, Self::KINDS.into_iter())),
        }
    }
}

fn queues(text: &str) -> Result<usize> {
    let number = text.parse().ok().filter(|number| (1..=QUEUES_MAX).contains(number));
    number.with_context(|| format!("dummy:{text}: 1 to {QUEUES_MAX} queues are possible"))
}

fn checked_name(name: String) -> Result<String> {
    ensure!(
        !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.contains(['/', ':', ' ']),
        "`{name}` is no name of a device: 1 to {NAME_BYTES_MAX} bytes without `/`, `:` and spaces"
    );
    Ok(name)
}

impl fmt::Display for DeviceWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Synthetic => f.write_str("synthetic"),
            Self::Dummy { queues: None } => f.write_str("dummy"),
            Self::Dummy { queues: Some(queues) } => write!(f, "dummy:{queues}"),
            Self::Pcap(path) => write!(f, "pcap:{}", path.display()),
            Self::AfPacket(name) => write!(f, "af-packet:{name}"),
            Self::AfXdp { name, queue: None } => write!(f, "af-xdp:{name}"),
            Self::AfXdp { name, queue: Some(queue) } => write!(f, "af-xdp:{name}:{queue}"),
            Self::Tap(name) => write!(f, "tap:{name}"),
        }
    }
}

impl From<DeviceWord> for String {
    fn from(word: DeviceWord) -> Self {
        word.to_string()
    }
}

impl TryFrom<String> for DeviceWord {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse().map_err(|error: anyhow::Error| error.to_string())
    }
}

/// Whether two names are of one file, which may not be there yet.
pub(crate) fn is_same_file(one: &Path, other: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |path: &Path| path.metadata().ok().map(|metadata| (metadata.dev(), metadata.ino()));
    match (identity(one), identity(other)) {
        (Some(one), Some(other)) => one == other,
        (None, None) => absolute(one) == absolute(other),
        _ => false,
    }
}

/// The name from the root, where its folder is there.
fn absolute(path: &Path) -> Option<PathBuf> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Some(folder.canonicalize().ok()?.join(path.file_name()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        for text in [
            "synthetic",
            "dummy",
            "dummy:4",
            "pcap:a/b.pcap",
            "pcap:a:b.pcapng",
            "af-packet:veth0",
            "af-xdp:veth0",
            "af-xdp:veth0:3",
            "tap:tap0",
        ] {
            assert_eq!(text.parse::<DeviceWord>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_device_is_said() {
        for (text, why) in [
            ("dumy", "`dummy` is near"),
            ("synthetic:1", "takes nothing behind it"),
            ("dummy:0", "1 to 1024 queues"),
            ("pcap", "write pcap:FILE"),
            ("af-packet:", "write af-packet:INTERFACE"),
            ("af-xdp:a:b", "`b` is no queue"),
            ("af-xdp::0", "is no name of a device"),
            ("tap:a-name-that-is-too-long", "1 to 15 bytes"),
            ("veth7", "kind of device"),
        ] {
            let error = text.parse::<DeviceWord>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn one_file_has_several_names() {
        let folder = std::env::temp_dir();
        let (one, other) = (folder.join("perpacket-not-there"), folder.join(".").join("perpacket-not-there"));
        assert!(is_same_file(&one, &other) && !is_same_file(&one, &folder.join("perpacket-not-here")));
        assert!(is_same_file(&folder, &folder.join(".")) && !is_same_file(&folder, &one));
    }
}
