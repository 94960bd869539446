//! Maps: arrays, arrays with one value per CPU, and arrays of AF_XDP sockets.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering;

use super::sys::{self, Command, MapCreate, MapElement};
use crate::SyscallError;
use crate::packet::mapping::Mapping;

/// Values are stored at multiples of eight bytes (kernel/bpf/arraymap.c, `array_map_alloc`).
pub(super) const WORD: usize = size_of::<u64>();

/// A BPF map with 32-bit keys from 0.
#[derive(Debug)]
pub struct Map {
    fd: OwnedFd,
    kind: MapKind,
    value_bytes: usize,
    entries: u32,
}

/// `enum bpf_map_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum MapKind {
    Array = 2,
    PerCpuArray = 6,
    XskMap = 17,
}

impl Map {
    /// An array of `entries` values of `value_bytes` bytes each, zeroed.
    ///
    /// `mmapable` allows [`Self::mmap_array`]; such a map takes whole pages.
    pub fn array(value_bytes: usize, entries: u32, mmapable: bool) -> Result<Self, SyscallError> {
        const MMAPABLE: u32 = 1 << 10;
        Self::create(MapKind::Array, value_bytes, entries, if mmapable { MMAPABLE } else { 0 })
    }

    /// An array with a value of its own for every possible CPU, so that counting needs no atomic instruction.
    pub fn percpu_array(value_bytes: usize, entries: u32) -> Result<Self, SyscallError> {
        Self::create(MapKind::PerCpuArray, value_bytes, entries, 0)
    }

    /// A map of AF_XDP sockets, for `bpf_redirect_map`; the key is by custom the receive queue.
    pub fn xskmap(entries: u32) -> Result<Self, SyscallError> {
        Self::create(MapKind::XskMap, size_of::<u32>(), entries, 0)
    }

    fn create(kind: MapKind, value_bytes: usize, entries: u32, flags: u32) -> Result<Self, SyscallError> {
        let mut attr = MapCreate {
            map_type: kind as u32,
            key_size: size_of::<u32>() as u32,
            value_size: u32::try_from(value_bytes).unwrap_or(u32::MAX),
            max_entries: entries,
            flags,
            name: sys::object_name("perpacket"),
            ..MapCreate::default()
        };
        // SAFETY: the structure belongs to the command and holds no address; the result is a descriptor.
        let fd = unsafe { sys::bpf_fd(Command::MapCreate, &mut attr) }.map_err(|error| {
            let object = format!("{kind:?} of {entries} values of {value_bytes} bytes");
            SyscallError::new("create BPF map", object, error)
        })?;
        Ok(Self { fd, kind, value_bytes, entries })
    }

    /// The descriptor's number, for the instruction that loads the map's address (`BPF_PSEUDO_MAP_FD`).
    /// It need only be valid while the program is loaded: the program then holds the map by itself.
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// How many entries the map has.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// The value under `key`. For a per-CPU array: the values of all possible CPUs, one after the other, each
    /// padded to a multiple of eight bytes.
    pub fn lookup(&self, key: u32) -> Result<Vec<u8>, SyscallError> {
        let bytes = match self.kind {
            MapKind::PerCpuArray => self.value_bytes.next_multiple_of(WORD) * possible_cpus()?,
            MapKind::Array | MapKind::XskMap => self.value_bytes,
        };
        let mut value = vec![0; bytes];
        let key = [key];
        let mut attr = self.element(&key);
        attr.value = sys::address_mut(&mut value);
        // SAFETY: `key` is as long as the map's keys; `value` as long as what the kernel writes for this kind
        // of map (kernel/bpf/syscall.c, `bpf_map_value_size`); both outlive the call.
        unsafe { sys::bpf(Command::MapLookup, &mut attr) }
            .map_err(|error| SyscallError::new("look up BPF map", format!("entry {}", key[0]), error))?;
        Ok(value)
    }

    /// Sets the value under `key`; for an AF_XDP socket map the value is the socket's descriptor.
    ///
    /// For a per-CPU array `value` holds one value per possible CPU, as [`Self::lookup`] returns them.
    pub fn update(&self, key: u32, value: &[u8]) -> Result<(), SyscallError> {
        let failed = |error| SyscallError::new("update BPF map", format!("entry {key}"), error);
        let expected = match self.kind {
            MapKind::PerCpuArray => self.value_bytes.next_multiple_of(WORD) * possible_cpus()?,
            MapKind::Array | MapKind::XskMap => self.value_bytes,
        };
        if value.len() != expected {
            let error = SyscallError::new(
                "update BPF map",
                format!("entry {key}"),
                io::ErrorKind::InvalidInput.into(),
            );
            return Err(
                error.with_detail(format!("the value has {} bytes, the map takes {expected}", value.len()))
            );
        }
        let key = [key];
        let mut attr = self.element(&key);
        attr.value = sys::address(value);
        // SAFETY: key and value have the map's lengths, checked above, and outlive the call.
        unsafe { sys::bpf(Command::MapUpdate, &mut attr) }.map_err(failed)?;
        Ok(())
    }

    /// Puts an AF_XDP socket under `queue`.
    pub fn update_socket(&self, queue: u32, socket: impl AsFd) -> Result<(), SyscallError> {
        self.update(queue, &socket.as_fd().as_raw_fd().to_ne_bytes())
    }

    /// The sum over all possible CPUs of the first 64-bit word of a per-CPU entry.
    ///
    /// Not a snapshot: CPUs that count while it is read may or may not be included. Wraps at 2⁶⁴.
    pub fn percpu_sum(&self, key: u32) -> Result<u64, SyscallError> {
        let stride = self.value_bytes.next_multiple_of(WORD);
        let value = self.lookup(key)?;
        let words = value.chunks(stride).filter_map(|cpu| cpu.first_chunk::<WORD>());
        Ok(words.map(|word| u64::from_ne_bytes(*word)).fold(0, u64::wrapping_add))
    }

    /// Maps an array into this process, to read and write its words without system calls.
    ///
    /// The map must have been made with `mmapable`, otherwise the kernel answers EPERM or EINVAL.
    pub fn mmap_array(&self) -> Result<MappedArray, SyscallError> {
        let stride = self.value_bytes.next_multiple_of(WORD);
        let bytes = stride * self.entries as usize;
        let mapping = Mapping::shared(self.fd.as_fd(), 0, bytes.next_multiple_of(rustix::param::page_size()))
            .map_err(|error| SyscallError::new("mmap BPF map", format!("{bytes} bytes"), error))?;
        Ok(MappedArray { mapping, words: bytes / WORD })
    }

    fn element(&self, key: &[u32; 1]) -> MapElement {
        MapElement { map_fd: self.fd().cast_unsigned(), key: sys::address(key), ..MapElement::default() }
    }
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// An array map seen as 64-bit words in memory shared with the programs that use it.
///
/// An entry of `n` bytes takes `n / 8` words, rounded up. Each access is one relaxed atomic, so a value is never
/// torn, but two words read one after the other may belong to different moments. What a program wrote before a
/// test run returned is seen after it: the system call orders the two.
#[derive(Debug)]
pub struct MappedArray {
    mapping: Mapping,
    words: usize,
}

impl MappedArray {
    /// How many words there are.
    pub fn len(&self) -> usize {
        self.words
    }

    /// Whether there is no word at all; a map always has one.
    pub fn is_empty(&self) -> bool {
        self.words == 0
    }

    /// Reads a word.
    ///
    /// # Panics
    /// When `word` is not below [`Self::len`], as with a slice.
    pub fn load(&self, word: usize) -> u64 {
        self.mapping.word64(self.offset(word)).load(Ordering::Relaxed)
    }

    /// Writes a word.
    ///
    /// # Panics
    /// When `word` is not below [`Self::len`], as with a slice.
    pub fn store(&self, word: usize, value: u64) {
        self.mapping.word64(self.offset(word)).store(value, Ordering::Relaxed);
    }

    fn offset(&self, word: usize) -> usize {
        assert!(word < self.words, "word {word} of an array of {}", self.words);
        word * WORD
    }
}

/// How many CPUs the kernel reserves room for in per-CPU maps: `/sys/devices/system/cpu/possible`, which may be
/// more than are present or online.
pub(super) fn possible_cpus() -> Result<usize, SyscallError> {
    const FILE: &str = "/sys/devices/system/cpu/possible";
    let failed = |error| SyscallError::new("read", FILE, error);
    let text = std::fs::read_to_string(FILE).map_err(failed)?;
    count_cpu_list(text.trim()).ok_or_else(|| failed(io::ErrorKind::InvalidData.into()).with_detail(text))
}

/// The number of CPUs in a list such as `0-3,8`.
fn count_cpu_list(list: &str) -> Option<usize> {
    list.split(',').try_fold(0_usize, |sum, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists() {
        assert_eq!(count_cpu_list("0"), Some(1));
        assert_eq!(count_cpu_list("0-1"), Some(2));
        assert_eq!(count_cpu_list("0-3,8,10-11"), Some(7));
        assert_eq!(count_cpu_list("3-1"), None);
        assert_eq!(count_cpu_list(""), None);
    }
}
