//! The kernel's own description of its types (BTF): where a member of a structure lies, and the number of a type.
//!
//! BPF programs on tracepoints follow pointers in kernel structures. Offsets differ between kernels, so they are
//! looked up in `/sys/kernel/btf/vmlinux` when a program is built, in place of being compiled in.
//!
//! The reader is pure and takes any bytes: a truncated or corrupt file is an error or "not found", never a panic
//! or an endless loop. Format: Documentation/bpf/btf.rst and include/uapi/linux/btf.h, 6.18.

use std::collections::HashMap;
use std::fs;

use thiserror::Error;

/// Where the kernel shows its types.
const KERNEL_FILE: &str = "/sys/kernel/btf/vmlinux";

/// How many types one lookup visits at most; real ones need some dozens. It ends types that contain themselves.
const VISITS_MAX: u32 = 1000;

/// Types of a kernel.
#[derive(Debug)]
pub struct Btf {
    bytes: Vec<u8>,
    strings_at: usize,
    /// Where each type's record begins; type 0 is `void` and has none.
    types: Vec<usize>,
    by_name: HashMap<(Kind, Vec<u8>), u32>,
}

/// Why types could not be read or found.
#[derive(Debug, Error)]
pub enum BtfError {
    /// The kernel shows no types: it was built without `CONFIG_DEBUG_INFO_BTF`, or /sys is not there.
    #[error("read {KERNEL_FILE} (the kernel needs CONFIG_DEBUG_INFO_BTF): {0}")]
    Read(#[from] std::io::Error),
    /// The bytes are not BTF of this machine's byte order, or end too early.
    #[error("the types are malformed: {0}")]
    Malformed(&'static str),
    /// There is no such type or member.
    #[error("the kernel has no {0}")]
    NotFound(String),
}

/// Where a member lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// Bytes from the start of the outermost structure.
    pub offset_bytes: u32,
    /// Its size in bytes; 0 where it has none of its own (a flexible array, a function).
    pub size_bytes: u32,
}

/// Kinds of types that can be looked up by name; numbers of `BTF_KIND_*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
enum Kind {
    Struct = 4,
    Enum = 6,
    Typedef = 8,
    Function = 12,
}

impl Btf {
    /// The types of the running kernel.
    pub fn kernel() -> Result<Self, BtfError> {
        Self::parse(fs::read(KERNEL_FILE)?)
    }

    /// Reads types from the bytes of a BTF file.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, BtfError> {
        const MAGIC: [u8; 2] = 0xeb9f_u16.to_ne_bytes();
        if bytes.get(..2) != Some(&MAGIC) {
            return Err(BtfError::Malformed("no BTF, or of another byte order"));
        }
        let section = |at: usize| {
            let header = word(&bytes, 4)? as usize;
            let start = header.checked_add(word(&bytes, at)? as usize)?;
            let end = start.checked_add(word(&bytes, at + 4)? as usize)?;
            (end <= bytes.len()).then_some(start..end)
        };
        let types = section(8).ok_or(BtfError::Malformed("the type section is not inside the file"))?;
        let strings = section(16).ok_or(BtfError::Malformed("the string section is not inside the file"))?;
        let mut btf = Self { strings_at: strings.start, types: vec![0], by_name: HashMap::new(), bytes };
        btf.bytes.truncate(strings.end.max(types.end));
        btf.index(types).ok_or(BtfError::Malformed("a type's record is cut off or of an unknown kind"))?;
        Ok(btf)
    }

    /// Where a member lies: `sk_buff.dev`, `net_device.nd_net.net`, `net.ns.inum`. The path begins with the name
    /// of a structure and goes on through structures and unions in it, also through unnamed ones.
    ///
    /// Pointers are not followed: what lies behind one is another structure, and another lookup.
    pub fn member(&self, path: &str) -> Result<Member, BtfError> {
        let not_found = || BtfError::NotFound(path.to_owned());
        let mut names = path.split('.');
        let mut outer = self.id(Kind::Struct, names.next().unwrap_or_default()).ok_or_else(not_found)?;
        let mut offset_bits = 0_u32;
        let mut visits = VISITS_MAX;
        let mut names = names.peekable();
        if names.peek().is_none() || path.ends_with('.') || path.contains("..") {
            return Err(not_found());
        }
        for name in names {
            let (id, bits) = self.find_member(outer, name, &mut visits).ok_or_else(not_found)?;
            offset_bits = offset_bits.checked_add(bits).ok_or_else(not_found)?;
            outer = id;
        }
        if !offset_bits.is_multiple_of(8) {
            // A bit field has no byte offset.
            return Err(not_found());
        }
        Ok(Member {
            offset_bytes: offset_bits / 8,
            size_bytes: self.size_bytes(outer, &mut visits).unwrap_or(0),
        })
    }

    /// The number of a type name; `btf_trace_NAME` is what a typed tracepoint is attached by.
    pub fn typedef_id(&self, name: &str) -> Result<u32, BtfError> {
        self.id(Kind::Typedef, name).ok_or_else(|| BtfError::NotFound(format!("typedef {name}")))
    }

    /// The number of a function.
    pub fn function_id(&self, name: &str) -> Result<u32, BtfError> {
        self.id(Kind::Function, name).ok_or_else(|| BtfError::NotFound(format!("function {name}")))
    }

    /// The values of an enumeration with their names, in the order of their declaration: `skb_drop_reason`
    /// gives the kernel's drop reasons.
    pub fn enum_values(&self, name: &str) -> Result<Vec<(String, i32)>, BtfError> {
        let not_found = || BtfError::NotFound(format!("enum {name}"));
        let record = self.record(self.id(Kind::Enum, name).ok_or_else(not_found)?).ok_or_else(not_found)?;
        (0..record.members)
            .map(|index| {
                let at = record.at + 12 + index * 8;
                let name = self.string(word(&self.bytes, at)?)?;
                Some((String::from_utf8_lossy(name).into_owned(), word(&self.bytes, at + 4)?.cast_signed()))
            })
            .collect::<Option<_>>()
            .ok_or(BtfError::Malformed("an enumeration is cut off"))
    }

    /// Notes where each type begins, and the named ones by name; `None` when the records do not fit.
    fn index(&mut self, section: std::ops::Range<usize>) -> Option<()> {
        let mut at = section.start;
        while at < section.end {
            let info = word(&self.bytes, at + 4)?;
            let (kind, members) = (kind_of(info), (info & 0xffff) as usize);
            let end = at.checked_add(12)?.checked_add(bytes_after_record(kind, members)?)?;
            if end > section.end {
                return None;
            }
            if let Some(kind) = [Kind::Struct, Kind::Enum, Kind::Typedef, Kind::Function]
                .into_iter()
                .find(|&named| named as u8 == kind)
            {
                let name = self.string(word(&self.bytes, at)?)?.to_vec();
                let id = u32::try_from(self.types.len()).ok()?;
                self.by_name.entry((kind, name)).or_insert(id);
            }
            self.types.push(at);
            at = end;
        }
        Some(())
    }

    fn id(&self, kind: Kind, name: &str) -> Option<u32> {
        // Unnamed types all share the empty name.
        (!name.is_empty()).then(|| self.by_name.get(&(kind, name.as_bytes().to_vec())).copied())?
    }

    /// A member's type and its offset in bits, searched in `id` and in the unnamed structures and unions in it.
    fn find_member(&self, id: u32, name: &str, visits: &mut u32) -> Option<(u32, u32)> {
        let record = self.resolve(id, visits)?;
        if !matches!(record.kind, KIND_STRUCT | KIND_UNION) {
            return None;
        }
        let mut unnamed = Vec::new();
        for index in 0..record.members {
            let at = record.at + 12 + index * 12;
            let (own_name, member) = (self.string(word(&self.bytes, at)?)?, word(&self.bytes, at + 4)?);
            let offset = word(&self.bytes, at + 8)?;
            // With the flag set, the upper byte holds the size of a bit field.
            let bits = if record.flag { offset & 0x00ff_ffff } else { offset };
            if own_name == name.as_bytes() {
                return Some((member, bits));
            }
            if own_name.is_empty() {
                unnamed.push((member, bits));
            }
        }
        unnamed.into_iter().find_map(|(member, bits)| {
            let (id, inner_bits) = self.find_member(member, name, visits)?;
            Some((id, bits.checked_add(inner_bits)?))
        })
    }

    /// The size of a type, through type names, qualifiers and arrays.
    fn size_bytes(&self, id: u32, visits: &mut u32) -> Option<u32> {
        let record = self.resolve(id, visits)?;
        match record.kind {
            KIND_POINTER => Some(size_of::<usize>() as u32),
            KIND_ARRAY => {
                let element = self.size_bytes(word(&self.bytes, record.at + 12)?, visits)?;
                element.checked_mul(word(&self.bytes, record.at + 20)?)
            }
            KIND_INT | KIND_STRUCT | KIND_UNION | KIND_ENUM | KIND_FLOAT | KIND_ENUM64 => {
                Some(record.size_or_type)
            }
            _ => None,
        }
    }

    /// The record behind type names and qualifiers.
    fn resolve(&self, mut id: u32, visits: &mut u32) -> Option<Record> {
        loop {
            *visits = visits.checked_sub(1)?;
            let record = self.record(id)?;
            if !matches!(record.kind, KIND_TYPEDEF..=KIND_RESTRICT | KIND_TYPE_TAG) {
                return Some(record);
            }
            id = record.size_or_type;
        }
    }

    fn record(&self, id: u32) -> Option<Record> {
        let at = *self.types.get(id as usize).filter(|_| id != 0)?;
        let info = word(&self.bytes, at + 4)?;
        Some(Record {
            at,
            kind: kind_of(info),
            members: (info & 0xffff) as usize,
            flag: info >> 31 != 0,
            size_or_type: word(&self.bytes, at + 8)?,
        })
    }

    /// The string at an offset of the string section, without its NUL.
    fn string(&self, offset: u32) -> Option<&[u8]> {
        let rest = self.bytes.get(self.strings_at.checked_add(offset as usize)?..)?;
        rest.split(|&byte| byte == 0).next()
    }
}

/// `struct btf_type`.
struct Record {
    at: usize,
    kind: u8,
    members: usize,
    flag: bool,
    size_or_type: u32,
}

const KIND_INT: u8 = 1;
const KIND_POINTER: u8 = 2;
const KIND_ARRAY: u8 = 3;
const KIND_STRUCT: u8 = 4;
const KIND_UNION: u8 = 5;
const KIND_ENUM: u8 = 6;
const KIND_TYPEDEF: u8 = 8;
const KIND_RESTRICT: u8 = 11;
const KIND_FLOAT: u8 = 16;
const KIND_TYPE_TAG: u8 = 18;
const KIND_ENUM64: u8 = 19;

fn kind_of(info: u32) -> u8 {
    (info >> 24 & 0x1f) as u8
}

/// How many bytes follow a type's record of twelve.
fn bytes_after_record(kind: u8, members: usize) -> Option<usize> {
    match kind {
        // pointer, forward, typedef, volatile, const, restrict, function, float, type tag
        2 | 7..=12 | 16 | 18 => Some(0),
        // integer, variable, declaration tag
        1 | 14 | 17 => Some(4),
        // array
        3 => Some(12),
        // structure, union, data section, 64-bit enumeration
        4 | 5 | 15 | 19 => Some(12 * members),
        // enumeration, function prototype
        6 | 13 => Some(8 * members),
        _ => None,
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|word| u32::from_ne_bytes(*word))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// `typedef int number; struct inner { number a; number b; };
    /// struct outer { number first; struct { struct inner in; number flag:1; }; };
    /// enum reason { NONE, LOST = 7 }; typedef struct outer alias;`
    fn sample() -> Vec<u8> {
        let mut strings = vec![0];
        let mut name = |text: &str| {
            let at = strings.len() as u32;
            strings.extend(text.bytes().chain([0]));
            at
        };
        let record = |name: u32, kind: u32, flag: u32, members: u32, size: u32| {
            [name, flag << 31 | kind << 24 | members, size]
        };
        let mut types: Vec<u32> = Vec::new();
        types.extend(record(name("int"), 1, 0, 0, 4).iter().chain(&[32]));
        types.extend(record(name("number"), 8, 0, 0, 1));
        types.extend(record(name("inner"), 4, 0, 2, 8).iter().chain(&[name("a"), 2, 0, name("b"), 2, 32]));
        types.extend(record(0, 4, 1, 2, 12).iter().chain(&[name("in"), 3, 0, name("flag"), 2, 1 << 24 | 65]));
        types.extend(record(name("outer"), 4, 0, 2, 16).iter().chain(&[name("first"), 2, 0, 0, 4, 32]));
        types.extend(record(name("reason"), 6, 0, 2, 4).iter().chain(&[name("NONE"), 0, name("LOST"), 7]));
        types.extend(record(name("alias"), 8, 0, 0, 5));
        types.extend(record(name("act"), 12, 0, 0, 0));
        let mut bytes = 0xeb9f_u16.to_ne_bytes().to_vec();
        bytes.extend([1, 0]);
        for word in [24, 0, types.len() as u32 * 4, types.len() as u32 * 4, strings.len() as u32] {
            bytes.extend(word.to_ne_bytes());
        }
        types.iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
        bytes.extend(strings);
        bytes
    }

    #[test]
    fn members_are_found_through_unnamed_structures() {
        let btf = Btf::parse(sample()).unwrap();
        let at = |offset_bytes, size_bytes| Member { offset_bytes, size_bytes };
        assert_eq!(btf.member("outer.first").unwrap(), at(0, 4));
        assert_eq!(btf.member("outer.in").unwrap(), at(4, 8));
        assert_eq!(btf.member("outer.in.b").unwrap(), at(8, 4));
        for wrong in ["outer", "outer.flag", "outer.in.c", "outer.first.x", "alias.first", "", ".", "outer."]
        {
            assert!(matches!(btf.member(wrong), Err(BtfError::NotFound(_))), "{wrong}");
        }
    }

    #[test]
    fn names_have_numbers_and_values() {
        let btf = Btf::parse(sample()).unwrap();
        assert_eq!(btf.typedef_id("alias").unwrap(), 7);
        assert_eq!(btf.function_id("act").unwrap(), 8);
        assert!(btf.function_id("alias").is_err());
        let values = btf.enum_values("reason").unwrap();
        assert_eq!(values, [("NONE".to_owned(), 0), ("LOST".to_owned(), 7)]);
    }

    #[test]
    fn the_running_kernel_is_understood() {
        let btf = match Btf::kernel() {
            Ok(btf) => btf,
            Err(BtfError::Read(_)) => return,
            Err(error) => panic!("{error}"),
        };
        assert_eq!(btf.member("sk_buff.dev").unwrap().size_bytes as usize, size_of::<usize>());
        assert_eq!(btf.member("net_device.nd_net.net").unwrap().size_bytes as usize, size_of::<usize>());
        assert_eq!(btf.member("net.ns.inum").unwrap().size_bytes, 4);
        assert!(btf.function_id("netif_receive_skb").is_ok());
        assert!(btf.enum_values("skb_drop_reason").unwrap().len() > 20);
    }

    #[test]
    fn a_type_that_names_itself_ends() {
        // The typedef `number` (type 2) refers to itself.
        let mut bytes = sample();
        let size_or_type = 24 + 16 + 8;
        bytes[size_or_type..size_or_type + 4].copy_from_slice(&2_u32.to_ne_bytes());
        let btf = Btf::parse(bytes).unwrap();
        assert_eq!(btf.member("outer.first").unwrap().size_bytes, 0);
    }

    #[test]
    fn a_structure_inside_itself_ends() {
        // The unnamed member of `outer` (type 5) becomes `outer`.
        let mut bytes = sample();
        let unnamed = [0, 4, 32].map(u32::to_ne_bytes).concat();
        let at = bytes.windows(12).position(|window| window == unnamed).unwrap();
        bytes[at + 4..at + 8].copy_from_slice(&5_u32.to_ne_bytes());
        assert!(Btf::parse(bytes).unwrap().member("outer.in").is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(btf) = Btf::parse(bytes) {
                drop(btf.member("a.b"));
            }
        }

        #[test]
        fn a_damaged_file_is_survived(at in 0_usize..300, value: u8, cut in 0_usize..300) {
            let mut bytes = sample();
            let index = at % bytes.len();
            bytes[index] = value;
            bytes.truncate(bytes.len().saturating_sub(cut / 4));
            if let Ok(btf) = Btf::parse(bytes) {
                for path in ["outer.first", "outer.in.b", "inner.a", "outer.flag"] {
                    drop(btf.member(path));
                }
                drop(btf.enum_values("reason"));
            }
        }
    }
}
