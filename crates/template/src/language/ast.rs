//! A program as it was written: packets of elements, with the place of each.

use super::source::Span;

/// One packet in braces.
#[derive(Debug)]
pub(crate) struct PacketNode {
    pub(crate) prefixes: Prefixes,
    pub(crate) elements: Vec<Element>,
    /// The opening brace.
    pub(crate) span: Span,
}

/// What stands before a packet.
#[derive(Debug, Default)]
pub(crate) struct Prefixes {
    /// `cpu(first-last)`, in order.
    pub(crate) workers: Option<Interval>,
    /// `weight(N)`, at least 1.
    pub(crate) weight: Option<Interval>,
    /// `size(first-last)`, in order.
    pub(crate) sizes: Option<Interval>,
}

/// Numbers from the first to the last, both included, with their place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Interval {
    pub(crate) first: u32,
    pub(crate) last: u32,
    pub(crate) span: Span,
}

/// A number with its place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Number {
    pub(crate) value: i128,
    pub(crate) span: Span,
}

#[derive(Debug)]
pub(crate) enum Element {
    /// A number or an expression in brackets: one byte.
    Byte(Number),
    /// A string, decoded.
    Bytes(Vec<u8>, Span),
    /// A function of bytes, such as `fill`.
    Function(Function),
    Header(Header),
}

/// A function of bytes with its arguments.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) kind: FunctionKind,
    pub(crate) arguments: Vec<Number>,
    /// Name and arguments.
    pub(crate) span: Span,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FunctionKind {
    Fill,
    /// A number of that many bytes.
    Const(u8),
    Rnd,
    Drnd,
    Seqinc,
    Seqdec,
    Dinc,
    Ddec,
    Csum(CsumKind),
}

/// What a checksum covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CsumKind {
    /// The bytes that are named.
    Plain,
    /// A pseudo header and everything to the end.
    Pseudo {
        /// 4 or 6.
        version: u8,
        /// Number of the protocol (IANA).
        protocol: u8,
    },
}

/// A header function.
#[derive(Debug)]
pub(crate) struct Header {
    /// As it was written, in lower case.
    pub(crate) name: String,
    pub(crate) items: Vec<Item>,
    pub(crate) span: Span,
}

/// What stands between the brackets of a header: a field with a value, a flag, or a record.
#[derive(Debug)]
pub(crate) struct Item {
    /// In lower case; with its number in brackets for those like `prio(3)`.
    pub(crate) name: String,
    /// `[at]` or `[at:len]` behind the name.
    pub(crate) offset: Option<(Number, u8)>,
    pub(crate) value: Option<Value>,
    /// What stands in brackets behind the name.
    pub(crate) inner: Option<Vec<Inner>>,
    /// The name.
    pub(crate) span: Span,
}

#[derive(Debug)]
pub(crate) enum Inner {
    Item(Item),
    Value(Value),
}

/// The value of a field, with its place.
#[derive(Debug)]
pub(crate) struct Value {
    pub(crate) kind: ValueKind,
    pub(crate) span: Span,
}

#[derive(Debug)]
pub(crate) enum ValueKind {
    Number(i128),
    Mac([u8; 6]),
    Ipv4([u8; 4]),
    Ipv6([u8; 16]),
    Text(Vec<u8>),
    /// A word that is no number, in lower case.
    Word(String),
    /// `dinc` or `ddec`.
    Counter(CounterNode),
    /// `drnd`.
    Random {
        range: Option<(Bound, Bound)>,
    },
}

/// The arguments of `dinc` or `ddec` in a field.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CounterNode {
    pub(crate) down: bool,
    pub(crate) range: Option<(Bound, Bound)>,
    pub(crate) step: Option<Number>,
    pub(crate) pace: Pace,
}

/// How fast a counter moves.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pace {
    /// Packets that keep one value.
    pub(crate) hold: Option<Number>,
    /// Packets after which it begins again.
    pub(crate) again: Option<Number>,
}

/// An end of a range: a number, or an address as a number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bound {
    pub(crate) value: u128,
    /// Bytes of the address; 0 for a number.
    pub(crate) bytes: u8,
    pub(crate) span: Span,
}
