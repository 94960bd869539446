//! Numbers and expressions.
//!
//! An expression is evaluated while it is read, twice: with C's precedence, which counts, and from left to right as
//! trafgen does, so that a difference can be told. Operands and operators are collected flat; only brackets recurse.

use super::error::{Checked, Fault};
use super::lexer::{Kind, Token, hex_digit};
use super::source::{Sources, Span};

/// Brackets and signs within an expression, at most this deep.
const MOST_DEEP: usize = 64;

/// What an expression comes to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Value {
    pub(crate) number: i128,
    /// What trafgen makes of it; none if that has no value.
    pub(crate) from_left: Option<i128>,
    pub(crate) span: Span,
}

/// Reads expressions from tokens.
pub(crate) struct Expressions<'a> {
    sources: &'a Sources,
    tokens: &'a [Token],
    /// Number of the next token.
    pub(crate) at: usize,
    /// A condition of the preprocessor: comparisons are possible, and unknown words are 0.
    condition: bool,
}

#[derive(Debug, Clone, Copy)]
struct Operator {
    punct: [u8; 2],
    span: Span,
}

impl Operator {
    /// How strongly it binds, as in C; none if it is no operator.
    fn strength(punct: [u8; 2], condition: bool) -> Option<u8> {
        match &punct {
            b"*\0" | b"/\0" | b"%\0" => Some(10),
            b"+\0" | b"-\0" => Some(9),
            b"<<" | b">>" => Some(8),
            b"<\0" | b">\0" | b"<=" | b">=" if condition => Some(7),
            b"==" | b"!=" if condition => Some(6),
            b"&\0" => Some(5),
            b"^\0" => Some(4),
            b"|\0" => Some(3),
            b"&&" if condition => Some(2),
            b"||" if condition => Some(1),
            _ => None,
        }
    }
}

impl<'a> Expressions<'a> {
    /// Expressions in a packet, from token number `at` on. The last token must be [`Kind::End`].
    pub(crate) fn new(sources: &'a Sources, tokens: &'a [Token], at: usize) -> Self {
        Self { sources, tokens, at, condition: false }
    }

    /// The line of a `#if`.
    pub(crate) fn condition(sources: &'a Sources, tokens: &'a [Token]) -> Self {
        Self { sources, tokens, at: 0, condition: true }
    }

    /// The value of all tokens.
    pub(crate) fn whole(&mut self, at: Span) -> Checked<i128> {
        let value = self.expression(0, at)?;
        match self.tokens.get(self.at) {
            None => Ok(value.number),
            Some(token) => {
                Err(Fault::at(token.at, "the condition does not go on like this").expected("an operator"))
            }
        }
    }

    /// An expression that begins here; `at` is shown if there is nothing.
    pub(crate) fn value(&mut self, at: Span) -> Checked<Value> {
        self.expression(0, at)
    }

    /// One operand: a number, or an expression in brackets.
    pub(crate) fn single(&mut self) -> Checked<Value> {
        self.operand(0, Span::default())
    }

    fn peek(&self) -> Option<Token> {
        self.tokens.get(self.at).copied()
    }

    fn expression(&mut self, depth: usize, at: Span) -> Checked<Value> {
        let first = self.operand(depth, at)?;
        let mut span = first.span;
        let mut from_left = first.from_left;
        let mut numbers = vec![first.number];
        let mut operators: Vec<(Operator, u8)> = Vec::new();
        while let Some(token) = self.peek() {
            let Kind::Punct(punct) = token.kind else { break };
            let Some(strength) = Operator::strength(punct, self.condition) else { break };
            self.at += 1;
            let operator = Operator { punct, span: token.at };
            let next = self.operand(depth, token.at)?;
            span = span.to(next.span);
            from_left = from_left.zip(next.from_left).and_then(|(a, b)| apply(operator, a, b).ok());
            reduce(&mut numbers, &mut operators, strength)?;
            operators.push((operator, strength));
            numbers.push(next.number);
        }
        reduce(&mut numbers, &mut operators, 0)?;
        Ok(Value { number: numbers[0], from_left, span })
    }

    fn operand(&mut self, depth: usize, before: Span) -> Checked<Value> {
        let token = self.peek().filter(|token| token.kind != Kind::End);
        let Some(token) = token else {
            return Err(Fault::at(before, "a number is missing behind this").expected(EXPECTED));
        };
        if depth >= MOST_DEEP {
            return Err(Fault::at(token.at, format!("the expression is nested more than {MOST_DEEP} deep")));
        }
        self.at += 1;
        match token.kind {
            Kind::Char(byte) => Ok(plain(i128::from(byte), token.at)),
            Kind::Word => self.word(token),
            Kind::Punct([b'(', 0]) => {
                let value = self.expression(depth + 1, token.at)?;
                match self.peek() {
                    Some(close) if close.is(b')') => {
                        self.at += 1;
                        Ok(Value { span: token.at.to(close.at), ..value })
                    }
                    other => {
                        let at = other.map_or(token.at, |other| other.at);
                        Err(Fault::at(at, "the bracket is not closed").expected("an operator or `)`"))
                    }
                }
            }
            Kind::Punct([sign @ (b'-' | b'+' | b'~' | b'!'), 0]) if sign != b'!' || self.condition => {
                let value = self.operand(depth + 1, token.at)?;
                let turn = |number: i128| match sign {
                    b'-' => -number,
                    b'~' => !number,
                    b'!' => i128::from(number == 0),
                    _ => number,
                };
                let from_left = value.from_left.map(turn);
                Ok(Value { number: turn(value.number), from_left, span: token.at.to(value.span) })
            }
            _ => {
                let message = format!("{} is no number", token.shown(self.sources));
                Err(Fault::at(token.at, message).expected(EXPECTED))
            }
        }
    }

    fn word(&self, token: Token) -> Checked<Value> {
        let letters = token.letters(self.sources);
        if self.condition && !letters.first().is_some_and(u8::is_ascii_digit) {
            return Ok(plain(0, token.at));
        }
        match number(letters) {
            Some(number) => Ok(plain(i128::from(number), token.at)),
            None => {
                let message = format!("{} is no number", token.shown(self.sources));
                Err(Fault::at(token.at, message)
                    .expected(EXPECTED)
                    .unknown(&String::from_utf8_lossy(letters)))
            }
        }
    }
}

const EXPECTED: &str = "a number such as 10, 0x0a, 012, 0b1010 or 'a'";

fn plain(number: i128, span: Span) -> Value {
    Value { number, from_left: Some(number), span }
}

/// Applies what binds at least as strongly as `strength`.
fn reduce(numbers: &mut Vec<i128>, operators: &mut Vec<(Operator, u8)>, strength: u8) -> Checked<()> {
    while let Some(&(operator, bound)) = operators.last() {
        if bound < strength {
            return Ok(());
        }
        operators.pop();
        if let (Some(right), Some(left)) = (numbers.pop(), numbers.pop()) {
            numbers.push(apply(operator, left, right)?);
        }
    }
    Ok(())
}

/// One operation. Values stay within what 64 bits hold, with or without a sign.
fn apply(operator: Operator, left: i128, right: i128) -> Checked<i128> {
    let fault = |message: &str| Fault::at(operator.span, message);
    let truth = |value: bool| Ok(i128::from(value));
    let value = match &operator.punct {
        b"*\0" => left.checked_mul(right),
        b"/\0" | b"%\0" if right == 0 => return Err(fault("division by zero")),
        b"/\0" => left.checked_div(right),
        b"%\0" => left.checked_rem(right),
        b"+\0" => left.checked_add(right),
        b"-\0" => left.checked_sub(right),
        b"<<" | b">>" if !(0..64).contains(&right) => {
            return Err(fault("this shift is not by 0 to 63 bits"));
        }
        b"<<" => left.checked_mul(1 << right),
        b">>" => Some(left >> right),
        b"&\0" => Some(left & right),
        b"^\0" => Some(left ^ right),
        b"|\0" => Some(left | right),
        b"<\0" => return truth(left < right),
        b">\0" => return truth(left > right),
        b"<=" => return truth(left <= right),
        b">=" => return truth(left >= right),
        b"==" => return truth(left == right),
        b"!=" => return truth(left != right),
        b"&&" => return truth(left != 0 && right != 0),
        _ => return truth(left != 0 || right != 0),
    };
    let range = i128::from(i64::MIN)..=i128::from(u64::MAX);
    value.filter(|value| range.contains(value)).ok_or_else(|| fault("the result has more than 64 bits"))
}

/// A number as trafgen writes it; none if the word is none or has more than 64 bits. A single letter is its code.
pub(crate) fn number(word: &[u8]) -> Option<u64> {
    let lower = word.to_ascii_lowercase();
    let digits = |digits: &[u8], radix: u32| {
        let text = std::str::from_utf8(digits).ok()?;
        if text.starts_with('+') { None } else { u64::from_str_radix(text, radix).ok() }
    };
    match lower.as_slice() {
        [b'0', b'x', rest @ ..] | [b'x', rest @ ..] if !rest.is_empty() => digits(rest, 16),
        [b'0', b'b', rest @ ..] if !rest.is_empty() => digits(rest, 2),
        [b'b', rest @ ..] if !rest.is_empty() && rest.iter().all(|&byte| byte == b'0' || byte == b'1') => {
            digits(rest, 2)
        }
        [letter] if letter.is_ascii_alphabetic() => Some(u64::from(word[0])),
        [b'0', rest @ ..] if !rest.is_empty() => digits(rest, 8),
        [b'0'..=b'9', ..] => digits(&lower, 10),
        _ => None,
    }
}

/// A string made of `\xNN` alone, decoded; none if it has anything else in it.
pub(crate) fn shellcode(text: &[u8]) -> Option<Vec<u8>> {
    if text.is_empty() || !text.len().is_multiple_of(4) {
        return None;
    }
    text.chunks_exact(4)
        .map(|part| match part {
            [b'\\', b'x', high, low] => Some(hex_digit(*high)? << 4 | hex_digit(*low)?),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_all_kinds() {
        let cases: [(&str, Option<u64>); 14] = [
            ("255", Some(255)),
            ("0xFf", Some(255)),
            ("xff", Some(255)),
            ("011", Some(9)),
            ("0b11", Some(3)),
            ("b11", Some(3)),
            ("A", Some(65)),
            ("b", Some(98)),
            ("x", Some(120)),
            ("0", Some(0)),
            ("08", None),
            ("0b12", None),
            ("18446744073709551616", None),
            ("ab", None),
        ];
        for (word, wanted) in cases {
            assert_eq!(number(word.as_bytes()), wanted, "{word}");
        }
    }

    #[test]
    fn shellcode_is_all_escapes() {
        assert_eq!(shellcode(b"\\x41\\x00\\xfF"), Some(vec![0x41, 0, 0xff]));
        assert_eq!(shellcode(b"ab\\x41"), None);
        assert_eq!(shellcode(b""), None);
    }
}
