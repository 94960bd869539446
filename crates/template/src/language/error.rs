//! What is wrong with a program, and what is understood differently from trafgen.

use std::fmt;

use super::source::{Place, Sources, Span};

/// Why a text is no program. Shows the place, the line with the place marked, and what would have been right.
///
/// It is displayed over several lines, for a terminal or a log, without colours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// What is wrong, in one sentence without a full stop.
    pub message: String,
    /// Where; none if the error belongs to no place (a definition in the options, a text that is too large).
    pub place: Option<Box<Place>>,
    /// What is possible there.
    pub expected: Option<String>,
    /// The known name that is most like the unknown one.
    pub nearest: Option<String>,
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            None => write!(f, "{}", self.message)?,
            Some(place) => {
                write!(f, "{}:{}:{}: {}", place.file, place.line, place.column, self.message)?;
                write_mark(f, place)?;
            }
        }
        if let Some(expected) = &self.expected {
            write!(f, "\n  = expected: {expected}")?;
        }
        if let Some(nearest) = &self.nearest {
            write!(f, "\n  = did you mean {nearest:?}?")?;
        }
        Ok(())
    }
}

fn write_mark(f: &mut fmt::Formatter<'_>, place: &Place) -> fmt::Result {
    let number = place.line.to_string();
    let blank = " ".repeat(number.len());
    write!(f, "\n{number} | {}", place.text)?;
    write!(f, "\n{blank} | {}{}", " ".repeat(place.mark_start), "^".repeat(place.mark_len))
}

/// An error before its place is looked up.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) span: Option<Span>,
    pub(crate) message: String,
    pub(crate) expected: Option<String>,
    pub(crate) nearest: Option<String>,
    /// A word that may have been meant to be a defined name.
    pub(crate) unknown: Option<String>,
}

impl Fault {
    pub(crate) fn at(span: Span, message: impl Into<String>) -> Box<Self> {
        Box::new(Self {
            span: Some(span),
            message: message.into(),
            expected: None,
            nearest: None,
            unknown: None,
        })
    }

    pub(crate) fn nowhere(message: impl Into<String>) -> Box<Self> {
        Box::new(Self { span: None, message: message.into(), expected: None, nearest: None, unknown: None })
    }

    pub(crate) fn expected(mut self: Box<Self>, what: impl Into<String>) -> Box<Self> {
        self.expected = Some(what.into());
        self
    }

    /// Adds the name among `known` that is most like `word`, if one is near.
    pub(crate) fn nearest<'a>(
        mut self: Box<Self>,
        word: &str,
        known: impl Iterator<Item = &'a str>,
    ) -> Box<Self> {
        self.nearest = nearest(word, known);
        self
    }

    /// Notes a word that may have been meant to be a defined name.
    pub(crate) fn unknown(mut self: Box<Self>, word: &str) -> Box<Self> {
        self.unknown = Some(word.to_owned());
        self
    }

    /// Adds the defined name that is most like the unknown word, if nothing else is near.
    pub(crate) fn or_defined(mut self: Box<Self>, defined: &[String]) -> Box<Self> {
        if let (None, Some(word)) = (&self.nearest, &self.unknown) {
            self.nearest = nearest(word, defined.iter().map(String::as_str));
        }
        self
    }

    pub(crate) fn locate(self, sources: &Sources) -> Error {
        Error {
            message: self.message,
            place: self.span.map(|span| Box::new(sources.place(span))),
            expected: self.expected,
            nearest: self.nearest,
        }
    }
}

pub(crate) type Checked<T> = Result<T, Box<Fault>>;

/// The name that is most like `word`: at most two changes away, and fewer than the word has letters.
pub(crate) fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<String> {
    let word: String = word.chars().take(40).collect::<String>().to_ascii_lowercase();
    let most = (word.len() / 2).clamp(1, 2);
    let distance = |name: &str| strsim::damerau_levenshtein(&word, &name.to_ascii_lowercase());
    let near =
        known.map(|name| (distance(name), name)).filter(|&(far, name)| far <= most && far < name.len());
    near.min_by_key(|&(far, _)| far).map(|(_, name)| name.to_owned())
}

/// What a warning is about. Each is given once a program, at the first place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WarningKind {
    /// Operators have C's precedence; trafgen evaluates from left to right.
    Precedence,
    /// `dinc(a,b)` between bytes starts at a; trafgen applies the step before the first packet.
    DincStart,
    /// `ddec(a,b)` between bytes runs from b down to a and starts again; trafgen leaves the range.
    DdecRange,
    /// A random field of four bytes covers all values; trafgen never sets the top bit.
    RandomTopBit,
    /// `dinc()` on a field of more than four bytes carries into all of it; trafgen changes the last four.
    WideCounter,
    /// A random range on a field of more than four bytes is one number; trafgen draws each byte from the range.
    WideRandom,
    /// The checksum over bytes that do not vary includes the last one; trafgen leaves it out and swaps the result.
    StaticChecksum,
    /// The checksum covers an odd number of bytes; trafgen leaves out the last one.
    OddChecksum,
    /// The checksum varies because something else in the packet does; trafgen computes it once.
    StaleChecksum,
    /// A UDP checksum of 0 is sent as 0xFFFF; trafgen sends 0, which means that there is none.
    UdpZeroChecksum,
    /// A string is decoded only if it is made of `\xNN` alone; here it is taken letter by letter.
    MixedEscapes,
    /// A NUL in a string is a byte like others; trafgen ends the string there.
    NulInString,
    /// `cpu()` applies to its own packet; trafgen applies it to the one after it.
    CpuLate,
    /// Names in DNS records are encoded; trafgen stores its default name raw.
    DnsName,
    /// More than one DNS record; trafgen crashes.
    DnsRecords,
    /// IP headers inside IPv6; trafgen aborts.
    InsideIpv6,
    /// An IPv6 header without one below gets an Ethernet header; trafgen adds none when it writes to a file.
    Ipv6Ethernet,
    /// Bytes between headers stay between them; trafgen writes the next header over them.
    BytesBetweenHeaders,
    /// The time to live is 0, as in trafgen where none is given; routers drop such packets.
    TtlZero,
    /// A comment begins with a blank and a word of the preprocessor; it is taken as a comment.
    CommentDirective,
    /// The IPv4 checksum covers the options; trafgen's covers 20 bytes.
    Ipv4Options,
}

/// A difference from trafgen, or something that is probably not meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// What it is about.
    pub kind: WarningKind,
    /// What perpacket does and what trafgen does.
    pub message: String,
    /// The first place that it is about.
    pub place: Place,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: {}", self.place.file, self.place.line, self.place.column, self.message)?;
        write_mark(f, &self.place)
    }
}

/// Warnings as they are found: the first of each kind.
#[derive(Debug, Default)]
pub(crate) struct Warnings {
    found: Vec<(WarningKind, Span, String)>,
}

impl Warnings {
    pub(crate) fn add(&mut self, kind: WarningKind, span: Span, message: impl Into<String>) {
        if !self.found.iter().any(|&(known, ..)| known == kind) {
            self.found.push((kind, span, message.into()));
        }
    }

    pub(crate) fn locate(self, sources: &Sources) -> Vec<Warning> {
        let one = |(kind, span, message)| Warning { kind, message, place: sources.place(span) };
        self.found.into_iter().map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_shows_its_line_and_marks_the_place() {
        let mut sources = Sources::default();
        let file = sources.add("a.cfg", b"{\n  udp(sprt=5)\n}").ok().unwrap();
        let fault = Fault::at(Span { file, start: 8, len: 4 }, "udp has no field \"sprt\"");
        let error = fault.nearest("sprt", ["dport", "sport"].into_iter()).locate(&sources);
        let text = "a.cfg:2:7: udp has no field \"sprt\"\n2 |   udp(sprt=5)\n  |       ^^^^\n  = did you mean \"sport\"?";
        assert_eq!(error.to_string(), text);
    }

    #[test]
    fn far_names_are_not_proposed() {
        assert_eq!(nearest("zzz", ["sport", "dport"].into_iter()), None);
        assert_eq!(nearest("x", ["a", "b"].into_iter()), None);
    }

    #[test]
    fn a_warning_is_given_once() {
        let mut warnings = Warnings::default();
        warnings.add(WarningKind::Precedence, Span::default(), "first");
        warnings.add(WarningKind::Precedence, Span::default(), "second");
        let mut sources = Sources::default();
        assert!(sources.add("a", b"").is_ok());
        assert_eq!(warnings.locate(&sources).len(), 1);
    }
}
