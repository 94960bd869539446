//! Hash maps with a value of its own for every CPU.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use super::map::{WORD, possible_cpus};
use super::sys::{self, Command, MapCreate, MapElement};
use crate::SyscallError;

/// A hash map from keys of some bytes to a value for each possible CPU (`BPF_MAP_TYPE_PERCPU_HASH`), so that a program
/// counts in it without atomic instructions. Its memory is taken when it is made; when it is full, new keys are refused.
#[derive(Debug)]
pub struct PerCpuHash {
    fd: OwnedFd,
    key_bytes: usize,
    value_words: usize,
    entries: u32,
    cpus: usize,
}

impl PerCpuHash {
    /// A map of at most `entries` keys of `key_bytes` bytes, with values of `value_words` 64-bit words.
    pub fn new(key_bytes: usize, value_words: usize, entries: u32) -> Result<Self, SyscallError> {
        const PERCPU_HASH: u32 = 5;
        let value_bytes = value_words * WORD;
        let mut attr = MapCreate {
            map_type: PERCPU_HASH,
            key_size: u32::try_from(key_bytes).unwrap_or(u32::MAX),
            value_size: u32::try_from(value_bytes).unwrap_or(u32::MAX),
            max_entries: entries,
            name: sys::object_name("perpacket"),
            ..MapCreate::default()
        };
        let cpus = possible_cpus()?;
        // SAFETY: the structure belongs to the command and holds no address; the result is a descriptor.
        let fd = unsafe { sys::bpf_fd(Command::MapCreate, &mut attr) }.map_err(|error| {
            let object = format!("PerCpuHash of {entries} keys of {key_bytes} bytes");
            SyscallError::new("create BPF map", object, error)
        })?;
        Ok(Self { fd, key_bytes, value_words, entries, cpus })
    }

    /// The descriptor's number; see [`super::Map::fd`].
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Shows every key with its values: `value_words` words for each possible CPU, one CPU after the other.
    ///
    /// Not a snapshot: what programs change meanwhile may be seen or not.
    pub fn for_each(&self, mut entry: impl FnMut(&[u8], &[u64])) -> Result<(), SyscallError> {
        let mut key = vec![0; self.key_bytes];
        let mut values = vec![0; self.value_words * self.cpus];
        let mut known = false;
        // A key that a program deleted would start the walk anew: it ends after as many steps as there can be keys.
        for _ in 0..self.entries {
            if !self.step(&mut key, known)? {
                break;
            }
            known = true;
            if self.lookup(&key, &mut values)? {
                entry(&key, &values);
            }
        }
        Ok(())
    }

    /// Replaces the key by the one after it, or by the first; whether there is one.
    fn step(&self, key: &mut [u8], known: bool) -> Result<bool, SyscallError> {
        let before = key.to_vec();
        let mut attr = self.element();
        attr.key = if known { sys::address(&before) } else { 0 };
        attr.value = sys::address_mut(key);
        // SAFETY: both keys are as long as the map's keys (or the first is null) and outlive the call.
        let found = unsafe { sys::bpf(Command::MapNextKey, &mut attr) };
        self.or_absent(found, "walk BPF map")
    }

    /// Reads the values of a key; whether it is there.
    fn lookup(&self, key: &[u8], values: &mut [u64]) -> Result<bool, SyscallError> {
        let mut attr = self.element();
        attr.key = sys::address(key);
        attr.value = sys::address_mut(values);
        // SAFETY: the key is as long as the map's keys, and `values` has a value for each possible CPU, which
        // is what the kernel writes (kernel/bpf/syscall.c, `bpf_map_value_size`); both outlive the call.
        let found = unsafe { sys::bpf(Command::MapLookup, &mut attr) };
        self.or_absent(found, "look up BPF map")
    }

    fn or_absent(&self, found: std::io::Result<i32>, call: &'static str) -> Result<bool, SyscallError> {
        match found {
            Ok(_) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(SyscallError::new(call, format!("PerCpuHash of {} keys", self.entries), error)),
        }
    }

    fn element(&self) -> MapElement {
        MapElement { map_fd: self.fd().cast_unsigned(), ..MapElement::default() }
    }
}
