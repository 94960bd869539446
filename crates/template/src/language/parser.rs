//! Tokens to a tree, by recursive descent.
//!
//! It knows the shape of a program and the functions of bytes. Which fields a header has, and what they may be, is
//! known to the tables of [`crate::proto`] and checked when the program is compiled.

use super::ast::*;
use super::error::{Checked, Fault, WarningKind, Warnings};
use super::expr::{self, Expressions};
use super::lexer::{Kind, Token, parse_mac};
use super::source::{Sources, Span};
use crate::proto;

/// Records within headers, and what is in them.
const MOST_DEEP: usize = 3;
/// Packets of one program.
const MOST_PACKETS: usize = 1 << 20;

pub(crate) fn parse(
    sources: &Sources,
    tokens: &[Token],
    warnings: &mut Warnings,
) -> Checked<Vec<PacketNode>> {
    let mut parser = Parser { sources, tokens, at: 0, warnings };
    let mut packets = Vec::new();
    while parser.peek().kind != Kind::End {
        if packets.len() >= MOST_PACKETS {
            return Err(Fault::at(parser.peek().at, format!("more than {MOST_PACKETS} packets")));
        }
        packets.push(parser.packet()?);
    }
    if packets.is_empty() {
        return Err(Fault::at(parser.peek().at, "there is no packet").expected("`{`"));
    }
    Ok(packets)
}

/// The functions of bytes: name, kind, and how many arguments.
const FUNCTIONS: &[(&str, FunctionKind, usize, usize)] = &[
    ("fill", FunctionKind::Fill, 2, 2),
    ("const8", FunctionKind::Const(1), 1, 1),
    ("c8", FunctionKind::Const(1), 1, 1),
    ("const16", FunctionKind::Const(2), 1, 1),
    ("c16", FunctionKind::Const(2), 1, 1),
    ("const32", FunctionKind::Const(4), 1, 1),
    ("c32", FunctionKind::Const(4), 1, 1),
    ("const64", FunctionKind::Const(8), 1, 1),
    ("c64", FunctionKind::Const(8), 1, 1),
    ("rnd", FunctionKind::Rnd, 0, 1),
    ("drnd", FunctionKind::Drnd, 0, 1),
    ("seqinc", FunctionKind::Seqinc, 2, 3),
    ("seqdec", FunctionKind::Seqdec, 2, 3),
    ("dinc", FunctionKind::Dinc, 2, 5),
    ("ddec", FunctionKind::Ddec, 2, 5),
    ("csum16", FunctionKind::Csum(CsumKind::Plain), 2, 2),
    ("csumip", FunctionKind::Csum(CsumKind::Plain), 2, 2),
    ("csumip4", FunctionKind::Csum(CsumKind::Plain), 2, 2),
    ("csumicmp", FunctionKind::Csum(CsumKind::Plain), 2, 2),
    ("csumicmp4", FunctionKind::Csum(CsumKind::Plain), 2, 2),
    ("csumudp", FunctionKind::Csum(CsumKind::Pseudo { version: 4, protocol: 17 }), 2, 2),
    ("csumtcp", FunctionKind::Csum(CsumKind::Pseudo { version: 4, protocol: 6 }), 2, 2),
    ("csumudp6", FunctionKind::Csum(CsumKind::Pseudo { version: 6, protocol: 17 }), 2, 2),
    ("csumtcp6", FunctionKind::Csum(CsumKind::Pseudo { version: 6, protocol: 6 }), 2, 2),
    ("csumicmp6", FunctionKind::Csum(CsumKind::Pseudo { version: 6, protocol: 58 }), 2, 2),
];

struct Parser<'a> {
    sources: &'a Sources,
    /// The last is [`Kind::End`].
    tokens: &'a [Token],
    at: usize,
    warnings: &'a mut Warnings,
}

impl Parser<'_> {
    fn peek(&self) -> Token {
        self.ahead(0)
    }

    fn ahead(&self, count: usize) -> Token {
        self.tokens[(self.at + count).min(self.tokens.len() - 1)]
    }

    fn take(&mut self, punct: u8) -> Option<Token> {
        let token = self.peek();
        token.is(punct).then(|| {
            self.at += 1;
            token
        })
    }

    fn need(&mut self, punct: u8) -> Checked<Token> {
        self.take(punct).ok_or_else(|| self.unexpected(&format!("`{}`", punct as char)))
    }

    fn unexpected(&self, expected: &str) -> Box<Fault> {
        let token = self.peek();
        Fault::at(token.at, format!("{} cannot stand here", token.shown(self.sources))).expected(expected)
    }

    /// A word in lower case; empty for other tokens.
    fn lower(&self, token: Token) -> String {
        match token.kind {
            Kind::Word => String::from_utf8_lossy(token.letters(self.sources)).to_ascii_lowercase(),
            _ => String::new(),
        }
    }

    fn packet(&mut self) -> Checked<PacketNode> {
        let prefixes = self.prefixes()?;
        let Some(open) = self.take(b'{') else {
            return Err(self.unexpected("`{`, `cpu(N):`, `weight(N):` or `size(N):`"));
        };
        let mut elements = Vec::new();
        self.take(b',');
        while self.take(b'}').is_none() {
            if self.peek().kind == Kind::End {
                return Err(Fault::at(open.at, "this packet has no end").expected("`}`"));
            }
            elements.push(self.element()?);
            self.take(b',');
        }
        if elements.is_empty() {
            return Err(Fault::at(open.at, "the packet is empty").expected("bytes, a function or a header"));
        }
        Ok(PacketNode { prefixes, elements, span: open.at })
    }

    /// `cpu(N):`, `weight(N):` and `size(N):` in any order, each at most once.
    fn prefixes(&mut self) -> Checked<Prefixes> {
        let mut prefixes = Prefixes::default();
        loop {
            let name = self.peek();
            let (place, what) = match self.lower(name).as_str() {
                "cpu" => (&mut prefixes.workers, "the number of a worker, from 0"),
                "weight" => (&mut prefixes.weight, "how often the packet comes, at least 1"),
                "size" => (&mut prefixes.sizes, "a size in bytes, with the 4 of the FCS"),
                _ => return Ok(prefixes),
            };
            if place.is_some() {
                return Err(Fault::at(name.at, "this stands before the packet twice").expected("`{`"));
            }
            *place = Some(self.interval(what)?);
            if let Some(Interval { first, last, span }) = prefixes.weight
                && (first == 0 || first != last)
            {
                return Err(Fault::at(span, "this is no weight").expected("a number from 1 on"));
            }
        }
    }

    /// The brackets and the colon behind a prefix: `(N):`, `(N-M):` or `(N:M):`.
    fn interval(&mut self, what: &str) -> Checked<Interval> {
        let name = self.peek();
        self.at += 1;
        self.need(b'(')?;
        let first = self.prefix_number(what)?;
        let last = if self.take(b'-').is_some() || self.take(b':').is_some() {
            self.prefix_number(what)?
        } else {
            first
        };
        let close = self.need(b')')?;
        self.need(b':')?;
        let span = name.at.to(close.at);
        if first > last && self.lower(name) == "size" {
            let right = format!("size({last}-{first}):");
            return Err(Fault::at(span, "this range of sizes is reversed").expected(right));
        }
        Ok(Interval { first: first.min(last), last: first.max(last), span })
    }

    fn prefix_number(&mut self, what: &str) -> Checked<u32> {
        let token = self.peek();
        let number = match token.kind {
            Kind::Word => {
                expr::number(token.letters(self.sources)).and_then(|number| u32::try_from(number).ok())
            }
            _ => None,
        };
        let Some(number) = number else { return Err(self.unexpected(what)) };
        self.at += 1;
        Ok(number)
    }

    fn element(&mut self) -> Checked<Element> {
        let token = self.peek();
        match token.kind {
            Kind::Text => {
                self.at += 1;
                Ok(Element::Bytes(self.text(token), token.at))
            }
            Kind::Word if self.ahead(1).is(b'(') => self.call(token),
            Kind::Word => match expr::number(token.letters(self.sources)) {
                Some(number) => {
                    self.at += 1;
                    Ok(Element::Byte(Number { value: i128::from(number), span: token.at }))
                }
                None => Err(self.unknown(token)),
            },
            Kind::Char(_) | Kind::Punct([b'(', 0]) => {
                let mut expressions = Expressions::new(self.sources, self.tokens, self.at);
                // One operand only: `{ 'a' -1 }` is not a difference.
                let value = expressions.single()?;
                self.at = expressions.at;
                Ok(Element::Byte(self.check_order(value)))
            }
            _ => Err(self.unexpected("a byte, a string, a function, a header or `}`")),
        }
    }

    fn unknown(&self, token: Token) -> Box<Fault> {
        let word = self.lower(token);
        let what = format!("{} is no number, function or header", token.shown(self.sources));
        let known = FUNCTIONS.iter().map(|function| function.0).chain(proto::names());
        if FUNCTIONS.iter().any(|function| function.0 == word) || proto::find(&word).is_some() {
            return Fault::at(token.at, format!("{} needs brackets", token.shown(self.sources)))
                .expected("`(`");
        }
        Fault::at(token.at, what).nearest(&word, known).unknown(&word)
    }

    fn call(&mut self, name: Token) -> Checked<Element> {
        let word = self.lower(name);
        if let Some(&(_, kind, least, most)) = FUNCTIONS.iter().find(|function| function.0 == word) {
            self.at += 2;
            return self.function(name, kind, least..=most).map(Element::Function);
        }
        if proto::find(&word).is_none() {
            return Err(self.unknown(name));
        }
        self.at += 2;
        let mut items = Vec::new();
        let close = loop {
            if let Some(close) = self.take(b')') {
                break close;
            }
            items.push(self.item(0)?);
            self.take(b',');
        };
        Ok(Element::Header(Header { name: word, items, span: name.at.to(close.at) }))
    }

    fn function(
        &mut self,
        name: Token,
        kind: FunctionKind,
        wanted: std::ops::RangeInclusive<usize>,
    ) -> Checked<Function> {
        let mut arguments = Vec::new();
        let close = loop {
            if let Some(close) = self.take(b')') {
                break close;
            }
            if arguments.len() == *wanted.end() {
                return Err(self.unexpected("`)`"));
            }
            arguments.push(self.number(name.at)?);
            self.take(b',');
        };
        if !wanted.contains(&arguments.len()) {
            let message = format!("{} has {} arguments", name.shown(self.sources), arguments.len());
            let expected = if wanted.start() == wanted.end() {
                format!("{}", wanted.start())
            } else {
                format!("{} to {}", wanted.start(), wanted.end())
            };
            return Err(Fault::at(name.at.to(close.at), message).expected(expected));
        }
        Ok(Function { kind, arguments, span: name.at.to(close.at) })
    }

    fn number(&mut self, before: Span) -> Checked<Number> {
        let mut expressions = Expressions::new(self.sources, self.tokens, self.at);
        let value = expressions.value(before)?;
        self.at = expressions.at;
        Ok(self.check_order(value))
    }

    /// Warns if trafgen, which has no precedence, makes another number of it.
    fn check_order(&mut self, value: expr::Value) -> Number {
        if value.from_left != Some(value.number) {
            let other = value.from_left.map_or("no number".to_owned(), |number| number.to_string());
            let message = format!(
                "this is {}: operators have C's precedence; trafgen evaluates from left to right, which gives {other}",
                value.number
            );
            self.warnings.add(WarningKind::Precedence, value.span, message);
        }
        Number { value: value.number, span: value.span }
    }

    /// What a string stands for.
    fn text(&mut self, token: Token) -> Vec<u8> {
        let quoted = token.letters(self.sources);
        let inner = quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or(&[]);
        let bytes = expr::shellcode(inner).unwrap_or_else(|| inner.to_vec());
        if bytes.contains(&0) {
            let message = "the NUL is a byte like others; trafgen ends the string there";
            self.warnings.add(WarningKind::NulInString, token.at, message);
        }
        if bytes.len() == inner.len() && inner.windows(2).any(|pair| pair == b"\\x") {
            let message =
                "taken letter by letter, as in trafgen: `\\xNN` is decoded only in a string of nothing else";
            self.warnings.add(WarningKind::MixedEscapes, token.at, message);
        }
        bytes
    }

    fn item(&mut self, depth: usize) -> Checked<Item> {
        let name = self.peek();
        if name.kind != Kind::Word {
            return Err(self.unexpected("a field, a flag or `)`"));
        }
        if depth >= MOST_DEEP {
            return Err(Fault::at(name.at, "records are nested too deeply"));
        }
        self.at += 1;
        let mut item = Item { name: self.lower(name), offset: None, value: None, inner: None, span: name.at };
        if self.take(b'(').is_some() {
            self.item_brackets(&mut item, depth)?;
        }
        if let Some(open) = self.take(b'[') {
            item.offset = Some(self.offset(open.at)?);
        }
        if let Some(equals) = self.take(b'=') {
            item.value = Some(self.value(equals.at)?);
        }
        Ok(item)
    }

    /// What is in the brackets behind an item's name. A number belongs to the name, as in `prio(3)`.
    fn item_brackets(&mut self, item: &mut Item, depth: usize) -> Checked<()> {
        let mut inner = Vec::new();
        while self.take(b')').is_none() {
            let next = self.ahead(1);
            let is_item = self.peek().kind == Kind::Word && (next.is(b'=') || next.is(b'[') || next.is(b'('));
            inner.push(match is_item {
                true => Inner::Item(self.item(depth + 1)?),
                false => Inner::Value(self.value(item.span)?),
            });
            self.take(b',');
        }
        match inner.as_slice() {
            [Inner::Value(Value { kind: ValueKind::Number(number), .. })] => {
                item.name = format!("{}({number})", item.name);
            }
            _ => item.inner = Some(inner),
        }
        Ok(())
    }

    /// `at]` or `at:len]`.
    fn offset(&mut self, open: Span) -> Checked<(Number, u8)> {
        let at = self.number(open)?;
        let len = match self.take(b':') {
            None => 1,
            Some(colon) => {
                let len = self.number(colon.at)?;
                match len.value {
                    1 | 2 | 4 => len.value as u8,
                    _ => return Err(Fault::at(len.span, "no such length").expected("1, 2 or 4 bytes")),
                }
            }
        };
        self.need(b']')?;
        Ok((at, len))
    }

    fn value(&mut self, before: Span) -> Checked<Value> {
        let token = self.peek();
        let kind = match token.kind {
            Kind::Mac | Kind::Ipv4 | Kind::Ipv6 => self.address(token)?,
            Kind::Text => ValueKind::Text(self.text(token)),
            Kind::Word if self.ahead(1).is(b'(') => return self.dynamic(token),
            Kind::Word if expr::number(token.letters(self.sources)).is_none() => {
                ValueKind::Word(self.lower(token))
            }
            _ => {
                let number = self.number(before)?;
                return Ok(Value { kind: ValueKind::Number(number.value), span: number.span });
            }
        };
        self.at += 1;
        Ok(Value { kind, span: token.at })
    }

    fn address(&self, token: Token) -> Checked<ValueKind> {
        let letters = std::str::from_utf8(token.letters(self.sources)).unwrap_or("");
        let kind = match token.kind {
            Kind::Mac => parse_mac(letters).map(ValueKind::Mac),
            Kind::Ipv4 => {
                letters.parse().ok().map(|address: std::net::Ipv4Addr| ValueKind::Ipv4(address.octets()))
            }
            _ => letters.parse().ok().map(|address: std::net::Ipv6Addr| ValueKind::Ipv6(address.octets())),
        };
        kind.ok_or_else(|| Fault::at(token.at, "this is no address"))
    }

    /// A function as the value of a field.
    fn dynamic(&mut self, name: Token) -> Checked<Value> {
        let word = self.lower(name);
        let known = ["dinc", "ddec", "drnd"];
        if !known.contains(&word.as_str()) {
            let message = format!("{} is no function of a field", name.shown(self.sources));
            let fault = Fault::at(name.at, message).expected("`dinc`, `ddec` or `drnd`");
            return Err(fault.nearest(&word, known.into_iter()));
        }
        self.at += 2;
        let mut bounds = Vec::new();
        let close = loop {
            if let Some(close) = self.take(b')') {
                break close;
            }
            bounds.push(self.bound(name.at)?);
            self.take(b',');
        };
        let span = name.at.to(close.at);
        let kind = match (word.as_str(), bounds.as_slice()) {
            ("drnd", []) => ValueKind::Random { range: None },
            ("drnd", [first, last]) => ValueKind::Random { range: Some((*first, *last)) },
            ("drnd", _) => {
                return Err(Fault::at(span, "no such range").expected("`drnd()` or `drnd(MIN, MAX)`"));
            }
            _ => ValueKind::Counter(counter(&word, &bounds, span)?),
        };
        Ok(Value { kind, span })
    }

    fn bound(&mut self, before: Span) -> Checked<Bound> {
        let token = self.peek();
        if token.kind == Kind::Word && self.ahead(1).is(b'(') {
            return Err(self.unexpected("a number or an address"));
        }
        let value = self.value(before)?;
        let of = |bytes: &[u8]| bytes.iter().fold(0_u128, |sum, byte| sum << 8 | u128::from(*byte));
        let (value, bytes) = match value.kind {
            ValueKind::Number(number) if number >= 0 => (number as u128, 0),
            ValueKind::Mac(mac) => (of(&mac), 6),
            ValueKind::Ipv4(address) => (of(&address), 4),
            ValueKind::Ipv6(address) => (of(&address), 16),
            _ => {
                return Err(
                    Fault::at(value.span, "this is no end of a range").expected("a number or an address")
                );
            }
        };
        Ok(Bound { value, bytes, span: token.at })
    }
}

/// The arguments of `dinc` or `ddec`.
fn counter(word: &str, bounds: &[Bound], span: Span) -> Checked<CounterNode> {
    let number = |bound: &Bound| Number { value: bound.value as i128, span: bound.span };
    let mut counter = CounterNode { down: word == "ddec", range: None, step: None, pace: Pace::default() };
    let rest = match bounds {
        [] => bounds,
        [step] => {
            counter.step = Some(number(step));
            &[]
        }
        [first, last, rest @ ..] => {
            counter.range = Some((*first, *last));
            rest
        }
    };
    if rest.len() > 3 {
        let expected = format!("`{word}()`, `{word}(STEP)` or `{word}(MIN, MAX, STEP, HOLD, AGAIN)`");
        return Err(Fault::at(span, "too many arguments").expected(expected));
    }
    counter.step = counter.step.or(rest.first().map(number));
    counter.pace = Pace { hold: rest.get(1).map(number), again: rest.get(2).map(number) };
    Ok(counter)
}
