//! Settings and counters of a device that drivers offer: offloads, queues, rings, driver statistics.
//!
//! By the ioctl SIOCETHTOOL (net/ethtool/ioctl.c, 6.18), which every driver and kernel of interest has. The
//! device is found by name in the namespace of the socket.
//!
//! Structures: include/uapi/linux/ethtool.h, 6.18. They begin with the number of the command; all fields are
//! in the byte order of the machine.

use std::os::fd::{AsRawFd, OwnedFd};

use crate::SyscallError;

const GET_DRIVER: u32 = 0x03;
const GET_RINGS: u32 = 0x10;
const GET_STRINGS: u32 = 0x1b;
const GET_STATISTICS: u32 = 0x1d;
const GET_TSO: u32 = 0x1e;
const SET_TSO: u32 = 0x1f;
const GET_GRO: u32 = 0x2b;
const SET_GRO: u32 = 0x2c;
const GET_SET_INFO: u32 = 0x37;
const GET_FEATURES: u32 = 0x3a;
const SET_FEATURES_OF: u32 = 0x3b;
const GET_CHANNELS: u32 = 0x3c;

const SET_STATISTICS: u32 = 1;
const SET_FEATURES: u32 = 4;
/// Length of a name in a string set.
const STRING_BYTES: usize = 32;
/// More strings than any driver has; a larger answer is taken for a mistake.
const MOST_STRINGS: usize = 1 << 16;

/// A socket to ask about devices of one namespace: that of the thread that opened it, whatever thread uses
/// it.
#[derive(Debug)]
pub struct EthtoolSocket {
    socket: OwnedFd,
}

/// Who drives a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverInfo {
    /// Name of the driver ("veth", "virtio_net").
    pub driver: String,
    /// Its version; often that of the kernel.
    pub version: String,
    /// Version of the device's firmware; often empty or "N/A".
    pub firmware: String,
    /// Where the device sits ("0000:00:04.0"); empty for software.
    pub bus: String,
}

/// Numbers of queues ("channels" are queues with an interrupt).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Channels {
    /// Most receive-only queues possible.
    pub rx_max: u32,
    /// Most transmit-only queues possible.
    pub tx_max: u32,
    /// Most queues for both possible.
    pub combined_max: u32,
    /// Receive-only queues in use.
    pub rx: u32,
    /// Transmit-only queues in use.
    pub tx: u32,
    /// Queues for both in use.
    pub combined: u32,
}

/// Lengths of the descriptor rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rings {
    /// Longest receive ring possible.
    pub rx_max: u32,
    /// Longest transmit ring possible.
    pub tx_max: u32,
    /// Receive ring in use.
    pub rx: u32,
    /// Transmit ring in use.
    pub tx: u32,
}

/// A device feature by the kernel's name ("rx-gro", "tx-checksum-ip-generic").
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Feature {
    /// Its name.
    pub name: String,
    /// Whether it is on.
    pub active: bool,
    /// Whether it can be changed.
    pub changeable: bool,
}

impl EthtoolSocket {
    /// Opens a socket in the calling thread's namespace.
    ///
    /// # Errors
    /// Where no more descriptors are to be had.
    pub fn open() -> Result<Self, SyscallError> {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
        socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            .map(|socket| Self { socket })
            .map_err(|error| SyscallError::new("open socket for ethtool", "", error.into()))
    }

    /// Whether generic receive offload is on.
    ///
    /// # Errors
    /// ENODEV.
    pub fn gro(&self, device: &str) -> Result<bool, SyscallError> {
        self.value(GET_GRO, "read GRO setting", device)
    }

    /// Switches generic receive offload. On a veth this also switches its NAPI side on or off.
    ///
    /// # Errors
    /// ENODEV, EPERM.
    pub fn set_gro(&self, device: &str, on: bool) -> Result<(), SyscallError> {
        self.set_value(SET_GRO, "set GRO", device, on)
    }

    /// Whether TCP segmentation offload is on.
    ///
    /// # Errors
    /// ENODEV.
    pub fn tso(&self, device: &str) -> Result<bool, SyscallError> {
        self.value(GET_TSO, "read TSO setting", device)
    }

    /// Switches TCP segmentation offload.
    ///
    /// # Errors
    /// ENODEV, EPERM, EOPNOTSUPP.
    pub fn set_tso(&self, device: &str, on: bool) -> Result<(), SyscallError> {
        self.set_value(SET_TSO, "set TSO", device, on)
    }

    /// Who drives the device.
    ///
    /// # Errors
    /// ENODEV; EOPNOTSUPP for devices without a driver, such as the loopback.
    pub fn driver(&self, device: &str) -> Result<DriverInfo, SyscallError> {
        // struct ethtool_drvinfo: four texts of 32 bytes after the command, and more.
        let mut request = Buffer::new(GET_DRIVER, 196);
        self.call(&mut request, "read driver of device", device)?;
        Ok(DriverInfo {
            driver: request.text(4),
            version: request.text(36),
            firmware: request.text(68),
            bus: request.text(100),
        })
    }

    /// Numbers of queues.
    ///
    /// # Errors
    /// ENODEV, EOPNOTSUPP.
    pub fn channels(&self, device: &str) -> Result<Channels, SyscallError> {
        let mut request = Buffer::new(GET_CHANNELS, 36);
        self.call(&mut request, "read queues of device", device)?;
        Ok(Channels {
            rx_max: request.word(1),
            tx_max: request.word(2),
            combined_max: request.word(4),
            rx: request.word(5),
            tx: request.word(6),
            combined: request.word(8),
        })
    }

    /// Lengths of the rings.
    ///
    /// # Errors
    /// ENODEV, EOPNOTSUPP (veth has none that can be set).
    pub fn rings(&self, device: &str) -> Result<Rings, SyscallError> {
        let mut request = Buffer::new(GET_RINGS, 36);
        self.call(&mut request, "read rings of device", device)?;
        Ok(Rings {
            rx_max: request.word(1),
            tx_max: request.word(4),
            rx: request.word(5),
            tx: request.word(8),
        })
    }

    /// The driver's own counters, in its order and under its names.
    ///
    /// # Errors
    /// ENODEV, EOPNOTSUPP for a driver that has none.
    pub fn statistics(&self, device: &str) -> Result<Vec<(String, u64)>, SyscallError> {
        let names = self.statistic_names(device)?;
        let values = self.statistic_values(device, names.len())?;
        Ok(names.into_iter().zip(values).collect())
    }

    /// The names of the driver's counters: these change only with the number of queues, so they are worth
    /// keeping where the values are read often.
    ///
    /// # Errors
    /// ENODEV, EOPNOTSUPP for a driver that has none.
    pub fn statistic_names(&self, device: &str) -> Result<Vec<String>, SyscallError> {
        self.strings(SET_STATISTICS, device)
    }

    /// The values of the driver's counters, as many as there were names. Fewer, or none, where the driver has
    /// another number of them by now.
    ///
    /// # Errors
    /// ENODEV, EOPNOTSUPP for a driver that has none.
    pub fn statistic_values(&self, device: &str, count: usize) -> Result<Vec<u64>, SyscallError> {
        // struct ethtool_stats: command, number, values of 64 bits.
        let count = count.min(MOST_STRINGS);
        let mut request = Buffer::new(GET_STATISTICS, 8 + 8 * (count + SPARE));
        request.set_word(1, count as u32);
        self.call(&mut request, "read statistics of device", device)?;
        let answered = count.min(request.word(1) as usize);
        Ok((0..answered).map(|index| request.long(8 + 8 * index)).collect())
    }

    /// The device's features.
    ///
    /// # Errors
    /// ENODEV.
    pub fn features(&self, device: &str) -> Result<Vec<Feature>, SyscallError> {
        let names = self.strings(SET_FEATURES, device)?;
        // struct ethtool_gfeatures: command, number of blocks; a block is available, requested, active, never
        // changed, each of 32 bits.
        let blocks = names.len().div_ceil(32);
        let mut request = Buffer::new(GET_FEATURES, 8 + 16 * blocks);
        request.set_word(1, blocks as u32);
        self.call(&mut request, "read features of device", device)?;
        let bit =
            |index: usize, field: usize| request.word(2 + 4 * (index / 32) + field) >> (index % 32) & 1 == 1;
        let feature = |(index, name)| Feature {
            name,
            active: bit(index, 2),
            changeable: bit(index, 0) && !bit(index, 3),
        };
        Ok(names.into_iter().enumerate().map(feature).filter(|feature| !feature.name.is_empty()).collect())
    }

    /// Switches a feature by its name (`tx-udp-segmentation`), and reads back whether it is as asked for.
    ///
    /// # Errors
    /// ENODEV, EPERM. EOPNOTSUPP where the kernel knows no such feature, or the device or another setting keeps it as it is.
    pub fn set_feature(&self, device: &str, name: &str, on: bool) -> Result<(), SyscallError> {
        let refused = |detail: String| {
            let error = std::io::Error::from_raw_os_error(libc::EOPNOTSUPP);
            SyscallError::new("set feature of device", device, error).with_detail(detail)
        };
        let names = self.strings(SET_FEATURES, device)?;
        let index = names.iter().position(|known| known == name);
        let index = index.ok_or_else(|| refused(format!("this kernel knows no {name}")))?;
        // struct ethtool_sfeatures: command, number of blocks; a block is which bits to change, and to what.
        let blocks = names.len().div_ceil(32);
        let mut request = Buffer::new(SET_FEATURES_OF, 8 + 8 * blocks);
        request.set_word(1, blocks as u32);
        let (word, bit) = (2 + 2 * (index / 32), 1 << (index % 32));
        request.set_word(word, bit);
        request.set_word(word + 1, if on { bit } else { 0 });
        self.call(&mut request, "set feature of device", device)?;
        let now = self.features(device)?.into_iter().find(|feature| feature.name == name);
        match now {
            Some(feature) if feature.active == on => Ok(()),
            _ => Err(refused(format!("{name} stays {}", if on { "off" } else { "on" }))),
        }
    }

    /// The names of a string set.
    fn strings(&self, set: u32, device: &str) -> Result<Vec<String>, SyscallError> {
        // struct ethtool_sset_info: command, reserved, mask of 64 bits, one count.
        let mut info = Buffer::new(GET_SET_INFO, 20);
        info.bytes[8..16].copy_from_slice(&(1_u64 << set).to_ne_bytes());
        self.call(&mut info, "count names of device", device)?;
        let known = info.bytes[8..16] != [0; 8];
        let count = if known { info.word(4) as usize } else { 0 };
        if count == 0 || count > MOST_STRINGS {
            let error = std::io::Error::from_raw_os_error(libc::EOPNOTSUPP);
            return Err(
                SyscallError::new("read names of device", device, error).with_detail("the driver has none")
            );
        }
        // struct ethtool_gstrings: command, set, number, texts of 32 bytes. As above, room for more.
        let mut request = Buffer::new(GET_STRINGS, 12 + STRING_BYTES * (count + SPARE));
        request.set_word(1, set);
        request.set_word(2, count as u32);
        self.call(&mut request, "read names of device", device)?;
        Ok((0..count.min(request.word(2) as usize))
            .map(|index| request.text(12 + STRING_BYTES * index))
            .collect())
    }

    fn value(&self, command: u32, call: &'static str, device: &str) -> Result<bool, SyscallError> {
        let mut request = Buffer::new(command, 8);
        self.call(&mut request, call, device)?;
        Ok(request.word(1) != 0)
    }

    fn set_value(
        &self,
        command: u32,
        call: &'static str,
        device: &str,
        on: bool,
    ) -> Result<(), SyscallError> {
        let mut request = Buffer::new(command, 8);
        request.set_word(1, u32::from(on));
        self.call(&mut request, call, device)
    }

    fn call(&self, request: &mut Buffer, call: &'static str, device: &str) -> Result<(), SyscallError> {
        if device.is_empty() || device.len() >= libc::IFNAMSIZ || device.contains('\0') {
            let error = std::io::Error::from_raw_os_error(libc::ENODEV);
            return Err(SyscallError::new(call, device, error).with_detail("no device can have this name"));
        }
        let mut name = [0; libc::IFNAMSIZ];
        for (to, from) in name.iter_mut().zip(device.bytes()) {
            *to = from.cast_signed();
        }
        let data = libc::__c_anonymous_ifr_ifru { ifru_data: request.bytes.as_mut_ptr().cast() };
        let mut ifreq = libc::ifreq { ifr_name: name, ifr_ifru: data };
        // SAFETY: `ifreq` outlives the call. The kernel reads and writes at `ifru_data` no more than the
        // structure of the command has. The variable ones have room for the count that the kernel announced
        // and SPARE more, which `statistic_values` and `strings` see to.
        let done = unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut ifreq) };
        if done < 0 { Err(SyscallError::last(call, device)) } else { Ok(()) }
    }
}

/// Room for entries that a driver may gain between the question for their number and the one for them (each
/// queue has a handful): kernels that do not compare the number asked for with their own write all that they
/// have.
const SPARE: usize = 4096;

/// A structure of the interface as bytes, aligned by the kernel's copying.
struct Buffer {
    bytes: Vec<u8>,
}

impl Buffer {
    fn new(command: u32, bytes: usize) -> Self {
        let mut buffer = Self { bytes: vec![0; bytes] };
        buffer.set_word(0, command);
        buffer
    }

    fn set_word(&mut self, index: usize, value: u32) {
        self.bytes[4 * index..4 * index + 4].copy_from_slice(&value.to_ne_bytes());
    }

    fn word(&self, index: usize) -> u32 {
        self.bytes
            .get(4 * index..)
            .and_then(|rest| rest.first_chunk())
            .map_or(0, |bytes| u32::from_ne_bytes(*bytes))
    }

    fn long(&self, at: usize) -> u64 {
        self.bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    }

    fn text(&self, at: usize) -> String {
        let field = self.bytes.get(at..at + STRING_BYTES).unwrap_or_default();
        let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
        String::from_utf8_lossy(&field[..end]).trim().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_no_device_can_have_are_refused() {
        let socket = EthtoolSocket::open().unwrap();
        for name in ["", "0123456789abcdef", "a\0b"] {
            assert_eq!(socket.gro(name).unwrap_err().errno(), Some(libc::ENODEV), "{name:?}");
        }
    }

    #[test]
    fn a_buffer_is_read_within_its_bounds() {
        let mut buffer = Buffer::new(7, 12);
        buffer.set_word(1, 9);
        assert_eq!((buffer.word(0), buffer.word(1), buffer.word(9)), (7, 9, 0));
        assert_eq!((buffer.long(8), buffer.text(100).as_str()), (0, ""));
    }
}
