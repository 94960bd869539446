//! Cuts a text into tokens.
//!
//! Numbers and names stay one kind, because what a word means depends on where it stands: `A` is a byte, a macro or
//! nothing, `1ad` is a flag of `vlan`, `b11` is a binary number unless a macro has that name.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::error::{Checked, Fault};
use super::source::{Sources, Span};

/// What a token is. Its letters are looked up by its span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Letters, digits and underscores.
    Word,
    /// A character in single quotes.
    Char(u8),
    /// A string; the quotes belong to the text.
    Text,
    Mac,
    Ipv4,
    Ipv6,
    /// Written like an address of this kind, and none.
    NoAddress(Like),
    /// An operator or bracket; two bytes for those like `<<`, else the second is 0.
    Punct([u8; 2]),
    /// `#` before a directive's name.
    Directive,
    /// `##` within a definition.
    Paste,
    /// `...` within a definition.
    Ellipsis,
    /// The end of a line.
    Newline,
    /// The end of a text.
    End,
}

/// What a word with dots or colons in it was probably meant to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Like {
    Mac,
    Ipv4,
    Ipv6,
}

impl Like {
    /// Of letters, digits, dots and colons: none if their order has a meaning other than that of an address.
    fn of(run: &[u8]) -> Option<Self> {
        let colons = run.iter().filter(|&&byte| byte == b':').count();
        let dotted = run.contains(&b'.') && run[0].is_ascii_digit();
        match colons {
            0 => dotted.then_some(Self::Ipv4),
            1 => None, // `[0:2]`
            _ if run.contains(&b'.') || run.windows(2).any(|pair| pair == b"::") => Some(Self::Ipv6),
            5 => Some(Self::Mac),
            _ if run.split(|&byte| byte == b':').all(|part| part.len() <= 2) => Some(Self::Mac),
            _ => Some(Self::Ipv6),
        }
    }

    /// Its name, and an address of this kind.
    pub(crate) fn name_and_example(self) -> (&'static str, &'static str) {
        match self {
            Self::Mac => ("MAC address", "02:00:00:00:00:01"),
            Self::Ipv4 => ("IPv4 address", "10.0.0.1"),
            Self::Ipv6 => ("IPv6 address", "fd00::1"),
        }
    }
}

/// A token: its kind, where its letters are, and the place to show if it is wrong (a macro's use, not its text).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) kind: Kind,
    pub(crate) text: Span,
    pub(crate) at: Span,
}

impl Token {
    pub(crate) fn is(&self, punct: u8) -> bool {
        self.kind == Kind::Punct([punct, 0])
    }

    pub(crate) fn letters<'a>(&self, sources: &'a Sources) -> &'a [u8] {
        let start = self.text.start as usize;
        sources.text(self.text.file).get(start..start + self.text.len as usize).unwrap_or(&[])
    }

    /// The letters for a message, shortened.
    pub(crate) fn shown(&self, sources: &Sources) -> String {
        match self.kind {
            Kind::End => "the end of the text".to_owned(),
            Kind::Newline => "the end of the line".to_owned(),
            _ => {
                let letters = String::from_utf8_lossy(self.letters(sources));
                let short: String =
                    letters.chars().take(40).map(|c| if c.is_control() { ' ' } else { c }).collect();
                format!("`{short}`")
            }
        }
    }
}

/// Words of the preprocessor; `#` directly before one of them is a directive, any other `#` begins a comment.
pub(crate) const DIRECTIVES: [&str; 13] = [
    "define", "undef", "include", "if", "ifdef", "ifndef", "elif", "else", "endif", "error", "warning",
    "pragma", "line",
];

/// The longest text of an address: an IPv6 address that ends like an IPv4 one.
const MOST_ADDRESS_BYTES: usize = 45;

/// A position in one text.
#[derive(Debug, Clone)]
pub(crate) struct Lexer {
    pub(crate) file: u32,
    at: usize,
    /// Nothing but blanks since the start of the line.
    line_start: bool,
    /// Within a `#define`, where `##` joins words.
    pub(crate) in_definition: bool,
    /// A comment such as `# define`, seen last.
    pub(crate) doubtful_comment: Option<Span>,
}

impl Lexer {
    pub(crate) fn new(file: u32) -> Self {
        Self { file, at: 0, line_start: true, in_definition: false, doubtful_comment: None }
    }

    /// The next token; newlines are tokens.
    pub(crate) fn next(&mut self, sources: &Sources) -> Checked<Token> {
        let text = sources.text(self.file);
        self.skip_blanks(text)?;
        let line_start = std::mem::replace(&mut self.line_start, false);
        let rest = &text[self.at..];
        let Some(&first) = rest.first() else { return Ok(self.token(Kind::End, 0)) };
        match first {
            b'\n' => {
                self.line_start = true;
                Ok(self.token(Kind::Newline, 1))
            }
            b'#' if self.in_definition && rest.starts_with(b"##") => Ok(self.token(Kind::Paste, 2)),
            b'#' if line_start => Ok(self.token(Kind::Directive, 1)),
            b'.' if self.in_definition && rest.starts_with(b"...") => Ok(self.token(Kind::Ellipsis, 3)),
            b'"' => self.text(rest),
            b'\'' => self.character(rest),
            b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'_' | b':' => Ok(self.word_or_address(rest)),
            _ => self.punct(rest),
        }
    }

    /// Skips to the next line that begins with a directive, without looking at what is skipped.
    pub(crate) fn skip_to_directive(&mut self, sources: &Sources) -> Token {
        let text = sources.text(self.file);
        loop {
            if !self.line_start {
                let rest = &text[self.at..];
                self.at += rest.iter().position(|&byte| byte == b'\n').map_or(rest.len(), |at| at + 1);
            }
            self.line_start = false;
            while matches!(text.get(self.at), Some(b' ' | b'\t' | b'\r')) {
                self.at += 1;
            }
            if self.at >= text.len() {
                return self.token(Kind::End, 0);
            }
            if is_directive(&text[self.at..]) {
                return self.token(Kind::Directive, 1);
            }
        }
    }

    /// Takes what is left of the line, as it stands.
    pub(crate) fn rest_of_line(&mut self, sources: &Sources) -> Span {
        let rest = &sources.text(self.file)[self.at..];
        let len = rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
        let span = self.span(len);
        self.at += len;
        span
    }

    fn token(&mut self, kind: Kind, len: usize) -> Token {
        let span = self.span(len);
        self.at += len;
        Token { kind, text: span, at: span }
    }

    fn span(&self, len: usize) -> Span {
        Span { file: self.file, start: self.at as u32, len: len as u32 }
    }

    fn skip_blanks(&mut self, text: &[u8]) -> Checked<()> {
        loop {
            let rest = &text[self.at..];
            match rest {
                [b' ' | b'\t' | b'\r' | 0x0b | 0x0c, ..] => self.at += 1,
                [b'\\', b'\n', ..] => self.at += 2,
                [b'\\', b'\r', b'\n', ..] => self.at += 3,
                [b'/', b'*', ..] => {
                    let Some(end) = rest[2..].windows(2).position(|pair| pair == b"*/") else {
                        return Err(Fault::at(self.span(2), "this comment has no end").expected("`*/`"));
                    };
                    self.at += end + 4;
                }
                [b'/', b'/', ..] | [b';', ..] => self.skip_line(rest),
                [b'#', ..] if self.line_start && is_directive(rest) => return Ok(()),
                [b'#', b'#', ..] if self.in_definition => return Ok(()),
                [b'#', b' ' | b'\t', word @ ..] if self.line_start => {
                    if begins_directive(word) {
                        self.doubtful_comment = self.doubtful_comment.or(Some(self.span(2)));
                    }
                    self.skip_line(rest);
                }
                [b'#', ..] => self.skip_line(rest),
                _ => return Ok(()),
            }
        }
    }

    fn skip_line(&mut self, rest: &[u8]) {
        self.at += rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
    }

    fn text(&mut self, rest: &[u8]) -> Checked<Token> {
        match rest[1..].iter().position(|&byte| byte == b'"') {
            Some(end) => Ok(self.token(Kind::Text, end + 2)),
            None => Err(Fault::at(self.span(1), "this string has no end").expected("`\"`")),
        }
    }

    fn character(&mut self, rest: &[u8]) -> Checked<Token> {
        if let [_, b'\\', b'x', high, low, b'\'', ..] = rest
            && let (Some(high), Some(low)) = (hex_digit(*high), hex_digit(*low))
        {
            return Ok(self.token(Kind::Char(high << 4 | low), 6));
        }
        match rest {
            [_, letter, b'\'', ..] if *letter != b'\n' => Ok(self.token(Kind::Char(*letter), 3)),
            _ => Err(Fault::at(self.span(1), "this is no character").expected("`'a'` or `'\\x41'`")),
        }
    }

    fn word_or_address(&mut self, rest: &[u8]) -> Token {
        if let Some((kind, len)) = address(rest) {
            return self.token(kind, len);
        }
        let in_run = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b':' || *byte == b'.';
        let run = &rest[..rest.iter().position(|byte| !in_run(byte)).unwrap_or(rest.len())];
        if let Some(like) = Like::of(run) {
            return self.token(Kind::NoAddress(like), run.len());
        }
        let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        match rest.iter().position(|byte| !is_word(byte)).unwrap_or(rest.len()) {
            0 => self.token(Kind::Punct([rest[0], 0]), 1),
            len => self.token(Kind::Word, len),
        }
    }

    fn punct(&mut self, rest: &[u8]) -> Checked<Token> {
        const PAIRS: [&[u8; 2]; 8] = [b"<<", b">>", b"==", b"!=", b"<=", b">=", b"&&", b"||"];
        if let Some(pair) = PAIRS.into_iter().find(|pair| rest.starts_with(*pair)) {
            return Ok(self.token(Kind::Punct(*pair), 2));
        }
        match rest[0] {
            b'.' | b'?' => Err(Fault::at(self.span(1), format!("`{}` has no meaning here", rest[0] as char))),
            byte if b"{}()[],:=+-*/%&|^<>~!".contains(&byte) => Ok(self.token(Kind::Punct([byte, 0]), 1)),
            byte => {
                let shown = if byte.is_ascii_graphic() {
                    format!("`{}`", byte as char)
                } else {
                    format!("byte {byte:#04x}")
                };
                Err(Fault::at(self.span(1), format!("{shown} has no meaning here")))
            }
        }
    }
}

/// Whether the text begins with `#` and the name of a directive.
fn is_directive(rest: &[u8]) -> bool {
    matches!(rest, [b'#', word @ ..] if begins_directive(word))
}

/// Whether the text begins with the name of a directive.
fn begins_directive(text: &[u8]) -> bool {
    let len = text.iter().take(12).position(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_');
    let word = &text[..len.unwrap_or(text.len().min(12))];
    DIRECTIVES.iter().any(|name| name.as_bytes() == word)
}

/// The address that the text begins with, and its length.
fn address(rest: &[u8]) -> Option<(Kind, usize)> {
    let part = |byte: &u8| byte.is_ascii_hexdigit() || *byte == b':' || *byte == b'.';
    let window = &rest[..rest.len().min(MOST_ADDRESS_BYTES + 1)];
    let len = window.iter().position(|byte| !part(byte)).unwrap_or(window.len());
    let run = std::str::from_utf8(&rest[..len]).ok()?;
    let glued = rest.get(len).is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    if len > MOST_ADDRESS_BYTES || glued || !run.contains([':', '.']) {
        return None;
    }
    if parse_mac(run).is_some() {
        return Some((Kind::Mac, len));
    }
    if run.parse::<Ipv4Addr>().is_ok() {
        return Some((Kind::Ipv4, len));
    }
    run.parse::<Ipv6Addr>().is_ok().then_some((Kind::Ipv6, len))
}

/// Six numbers of one or two hexadecimal digits, between colons.
pub(crate) fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        let part = parts.next()?;
        if part.is_empty() || part.len() > 2 {
            return None;
        }
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(mac)
}

pub(crate) fn hex_digit(byte: u8) -> Option<u8> {
    (byte as char).to_digit(16).map(|digit| digit as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<Kind> {
        let mut sources = Sources::default();
        let file = sources.add("t", text.as_bytes()).ok().unwrap();
        let mut lexer = Lexer::new(file);
        let mut found = Vec::new();
        loop {
            match lexer.next(&sources).unwrap().kind {
                Kind::End => return found,
                kind => found.push(kind),
            }
        }
    }

    #[test]
    fn addresses_are_told_from_numbers_and_ranges() {
        assert_eq!(kinds("11:22:33:aa:bb:c"), [Kind::Mac]);
        assert_eq!(
            kinds("10.0.0.1 ::1 fe80::1 ::ffff:1.2.3.4"),
            [Kind::Ipv4, Kind::Ipv6, Kind::Ipv6, Kind::Ipv6]
        );
        let colon = Kind::Punct([b':', 0]);
        assert_eq!(kinds("0:1"), [Kind::Word, colon, Kind::Word]);
        assert_eq!(kinds("a:b"), [Kind::Word, colon, Kind::Word]);
    }

    #[test]
    fn what_is_written_like_an_address_is_one_token() {
        let wrong = |like| [Kind::NoAddress(like)];
        for text in ["1.2.3.256", "1.2.3", "1.2.3.4.5", "10.0.0.1x"] {
            assert_eq!(kinds(text), wrong(Like::Ipv4), "{text}");
        }
        for text in ["02:00:00:00:01", "02:00:00:00:00:00:01", "02:00:00:00:00:0g", "02:00:00:00:00:001"] {
            assert_eq!(kinds(text), wrong(Like::Mac), "{text}");
        }
        for text in ["2001::db8::1", "fd00:1:2", "::1.2.3.256", "fd00::12345"] {
            assert_eq!(kinds(text), wrong(Like::Ipv6), "{text}");
        }
    }

    #[test]
    fn comments_of_all_kinds_are_skipped() {
        assert_eq!(kinds("a /* x\ny */ b # c ' \"\n; d\n// e"), {
            let line = Kind::Newline;
            [Kind::Word, Kind::Word, line, line]
        });
    }

    #[test]
    fn a_directive_is_a_hash_before_its_name() {
        assert_eq!(kinds("#define")[0], Kind::Directive);
        assert_eq!(kinds("#definex"), []);
        assert_eq!(kinds("# define x"), []);
    }
}
