//! The pre-shared key of a control connection.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// 32 random bytes that both ends have: who has them may ask, and nobody else can read what is asked.
///
/// It is written as 64 hexadecimal digits. A password is no key: what it encrypts could be tried at leisure.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl Key {
    pub(super) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl From<[u8; 32]> for Key {
    fn from(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl FromStr for Key {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let digits = text.trim();
        if digits.len() != 64 {
            return Err(KeyError { characters: digits.chars().count() });
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
            let digit = |at: usize| char::from(pair[at]).to_digit(16);
            match (digit(0), digit(1)) {
                (Some(high), Some(low)) => *byte = (high << 4 | low) as u8,
                _ => return Err(KeyError { characters: 64 }),
            }
        }
        Ok(Self(bytes))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

/// Text that is no key. What it says is not repeated.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error(
    "a key is 64 hexadecimal digits, and these {characters} characters are none; make one with: head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \\n'"
)]
pub struct KeyError {
    /// How long the text is, without white space around it.
    pub characters: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_64_digits_with_or_without_an_end_of_line() {
        let digits = "00ff".repeat(16);
        let key: Key = format!("{digits}\n").parse().unwrap();
        assert_eq!(key.bytes()[..4], [0, 255, 0, 255]);
        assert_eq!(format!("{key:?}"), "Key(…)");
        for bad in
            ["", "secret", &digits[1..], &format!("{digits}0"), &digits.replace('f', "g"), &"é".repeat(32)]
        {
            let error = bad.parse::<Key>().unwrap_err().to_string();
            assert!(bad.is_empty() || !error.contains(bad), "{error}");
        }
    }
}
