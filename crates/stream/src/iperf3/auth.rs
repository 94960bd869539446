//! How a client of iperf3 says who it is: a token in its parameters, made with the server's public RSA key
//! (iperf_auth.c, 3.12 and 3.21).
//!
//! The text `user: NAME\npwd:  PASSWORD\nts:   SECONDS` is encrypted with OAEP (SHA-1, as OpenSSL does where nothing is
//! said) or, for old servers, with PKCS #1 1.5, and written in base64. The server looks up the hash of `{NAME}PASSWORD`.
//! Nothing else is protected: a token can be sent again within the allowed skew of the clocks, and neither data nor
//! results are encrypted.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64ct::{Base64, Encoding};
use rsa::pkcs1::{DecodeRsaPrivateKey, DecodeRsaPublicKey};
use rsa::pkcs8::{DecodePrivateKey, DecodePublicKey};
use rsa::sha2::{Digest, Sha256};
use rsa::{PrivateKey, PublicKey};
use sha1::Sha1;

/// How far the clocks of both ends may differ where nothing is said (`DEFAULT_TIME_SKEW_THRESHOLD`).
pub const SKEW: Duration = Duration::from_secs(10);

/// How the token is padded before it is encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Padding {
    /// RSAES-OAEP with SHA-1: iperf3's own.
    #[default]
    Oaep,
    /// RSAES-PKCS1-v1_5 (`--use-pkcs1-padding`, and all before 3.17 and its backports).
    Pkcs1,
}

/// A file or a token that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    /// A file cannot be read.
    #[error("read {file}: {source}")]
    File {
        /// Which.
        file: String,
        /// Why.
        source: std::io::Error,
    },
    /// A file is no key.
    #[error("{file} is no {kind} RSA key in PEM; iperf3's manual shows how openssl makes one")]
    Key {
        /// Which.
        file: String,
        /// `public` or `private`.
        kind: &'static str,
    },
    /// The key is too short for name and password.
    #[error("encrypt user name and password: {0}; with a longer RSA key more of them fits")]
    Encrypt(rsa::Error),
    /// The token is not one that this server's key opens, or not for this user, password and time. Which of them is
    /// deliberately not told to a client.
    #[error("authorization failed: {0}")]
    Denied(&'static str),
}

/// Who a client is, and for which server.
#[derive(Clone)]
pub struct Login {
    /// The name.
    pub user: String,
    /// The password.
    pub password: String,
    /// The server's public key.
    pub key: PublicKey,
    /// How it is padded.
    pub padding: Padding,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

impl Login {
    /// The token for a time.
    ///
    /// # Errors
    /// The key is too short for so much text.
    pub fn token(&self, now: SystemTime) -> Result<String, AuthError> {
        let text = format!("user: {}\npwd:  {}\nts:   {}", self.user, self.password, seconds(now));
        let encrypted = match self.padding {
            Padding::Oaep => self.key.oaep_encrypt::<Sha1>(text.as_bytes()),
            Padding::Pkcs1 => self.key.pkcs1v15_encrypt(text.as_bytes()),
        };
        encrypted.map(|bytes| Base64::encode_string(&bytes)).map_err(AuthError::Encrypt)
    }
}

/// The public key of a server from a PEM file, as `openssl rsa -pubout` writes it.
///
/// # Errors
/// The file cannot be read, or is no key.
pub fn public_key(file: &Path) -> Result<PublicKey, AuthError> {
    let text = read(file)?;
    PublicKey::from_public_key_pem(&text)
        .ok()
        .or_else(|| PublicKey::from_pkcs1_pem(&text).ok())
        .ok_or_else(|| AuthError::Key { file: file.display().to_string(), kind: "public" })
}

/// The private key of a server from a PEM file without a passphrase (PKCS #8 or PKCS #1).
///
/// # Errors
/// The file cannot be read, or is no key.
pub fn private_key(file: &Path) -> Result<PrivateKey, AuthError> {
    let text = read(file)?;
    PrivateKey::from_pkcs8_pem(&text)
        .ok()
        .or_else(|| PrivateKey::from_pkcs1_pem(&text).ok())
        .ok_or_else(|| AuthError::Key { file: file.display().to_string(), kind: "private" })
}

fn read(file: &Path) -> Result<String, AuthError> {
    fs::read_to_string(file).map_err(|source| AuthError::File { file: file.display().to_string(), source })
}

/// Who may have a test of a server.
pub struct Guard {
    key: PrivateKey,
    padding: Padding,
    skew: Duration,
    hashes: HashMap<String, String>,
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("padding", &self.padding)
            .field("users", &self.hashes.len())
            .finish_non_exhaustive()
    }
}

impl Guard {
    /// From a private key and a file of users: lines `user,hash`; empty lines, lines without a comma and those that begin
    /// with `#` say nothing.
    ///
    /// # Errors
    /// A file cannot be read, or is no key.
    pub fn open(key: &Path, users: &Path, padding: Padding, skew: Duration) -> Result<Self, AuthError> {
        Ok(Self::new(private_key(key)?, &read(users)?, padding, skew))
    }

    /// The same of what was read.
    pub fn new(key: PrivateKey, users: &str, padding: Padding, skew: Duration) -> Self {
        let hashes = users
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.trim_end().split_once(','))
            .map(|(user, hash)| (user.to_owned(), hash.to_ascii_lowercase()))
            .collect();
        Self { key, padding, skew, hashes }
    }

    /// Whether a token may have a test now, and whose it is.
    ///
    /// # Errors
    /// It may not: [`AuthError::Denied`].
    pub fn admit(&self, token: Option<&str>, now: SystemTime) -> Result<String, AuthError> {
        let token = token.ok_or(AuthError::Denied(
            "no token came; the client gives --username and --rsa-public-key-path",
        ))?;
        let text = self
            .open_token(token)
            .ok_or(AuthError::Denied("the token is not made with this server's key and padding"))?;
        let (user, password, then) =
            parse(&text).ok_or(AuthError::Denied("the token does not say what it should"))?;
        if seconds(now).abs_diff(then) > self.skew.as_secs() {
            return Err(AuthError::Denied(
                "the clocks differ by more than is allowed; set them, or allow more",
            ));
        }
        let hash = credential(user, password);
        match self.hashes.get(user) {
            Some(known) if same(known, &hash) => Ok(user.to_owned()),
            _ => Err(AuthError::Denied("user or password is not known")),
        }
    }

    fn open_token(&self, token: &str) -> Option<String> {
        let encrypted = Base64::decode_vec(token).ok()?;
        let text = match self.padding {
            Padding::Oaep => self.key.oaep_decrypt::<Sha1>(&encrypted),
            Padding::Pkcs1 => self.key.pkcs1v15_decrypt(&encrypted),
        };
        String::from_utf8(text.ok()?).ok()
    }
}

/// What stands in the file of users for a user and a password: the SHA-256 of `{user}password` in hexadecimal digits.
pub fn credential(user: &str, password: &str) -> String {
    let hash = Sha256::digest(format!("{{{user}}}{password}"));
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Name, password and seconds of a text.
fn parse(text: &str) -> Option<(&str, &str, i64)> {
    let rest = text.strip_prefix("user: ")?;
    let (user, rest) = rest.split_once("\npwd:")?;
    let (password, then) = rest.split_once("\nts:")?;
    Some((user, password.trim_start_matches(' '), then.trim_matches([' ', '\0', '\n']).parse().ok()?))
}

/// Whether two hashes are the same, in a time that does not tell where they differ.
fn same(a: &str, b: &str) -> bool {
    a.len() == b.len() && a.bytes().zip(b.bytes()).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

fn seconds(now: SystemTime) -> i64 {
    now.duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Keys of 1024 bits, made with openssl for these tests only.
    const PRIVATE: &str = include_str!("../../tests/data/iperf3/private.pem");
    const PUBLIC: &str = include_str!("../../tests/data/iperf3/public.pem");
    /// What a client of iperf3 3.12 sent with this key, in PKCS #1 padding, for user `mia`, password `pass word`.
    const TOKEN: &str = include_str!("../../tests/data/iperf3/token.txt");
    const TOKEN_SECONDS: u64 = 1_796_141_851;

    fn guard(padding: Padding) -> Guard {
        let users = format!("# users\n\nmia,{}\nnobody\n", credential("mia", "pass word"));
        Guard::new(PrivateKey::from_pkcs8_pem(PRIVATE).unwrap(), &users, padding, SKEW)
    }

    fn login(user: &str, password: &str, padding: Padding) -> Login {
        let key = PublicKey::from_public_key_pem(PUBLIC).unwrap();
        Login { user: user.into(), password: password.into(), key, padding }
    }

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn the_hash_of_the_manual() {
        // echo -n "{mario}rossi" | sha256sum, iperf3(1)
        assert_eq!(
            credential("mario", "rossi"),
            "bf7a49a846d44b454a5d11e7acfaf13d138bbe0b7483aa3e050879700572709b"
        );
    }

    #[test]
    fn who_knows_the_password_is_admitted_near_the_time() {
        for padding in [Padding::Oaep, Padding::Pkcs1] {
            let token = login("mia", "pass word", padding).token(at(1000)).unwrap();
            let guard = guard(padding);
            assert_eq!(guard.admit(Some(&token), at(1010)).unwrap(), "mia");
            assert_eq!(guard.admit(Some(&token), at(990)).unwrap(), "mia");
            assert!(guard.admit(Some(&token), at(1011)).is_err());
            assert!(guard.admit(Some(&token), at(989)).is_err());
        }
    }

    #[test]
    fn others_are_not() {
        let guard = guard(Padding::Oaep);
        for (user, password) in [("mia", "password"), ("max", "pass word"), ("", ""), ("nobody", "")] {
            let token = login(user, password, Padding::Oaep).token(at(1000)).unwrap();
            assert!(guard.admit(Some(&token), at(1000)).is_err(), "{user}");
        }
        let other_padding = login("mia", "pass word", Padding::Pkcs1).token(at(1000)).unwrap();
        for token in [None, Some(""), Some("AAAA"), Some("no base64"), Some(other_padding.as_str())] {
            assert!(guard.admit(token, at(1000)).is_err());
        }
    }

    #[test]
    fn a_token_of_iperf3_is_read() {
        let admitted = guard(Padding::Oaep).admit(Some(TOKEN.trim()), at(TOKEN_SECONDS));
        let admitted =
            admitted.or_else(|_| guard(Padding::Pkcs1).admit(Some(TOKEN.trim()), at(TOKEN_SECONDS)));
        assert_eq!(admitted.unwrap(), "mia");
    }

    #[test]
    fn what_is_too_long_for_the_key_is_an_error() {
        assert!(matches!(
            login(&"x".repeat(200), "", Padding::Oaep).token(at(0)),
            Err(AuthError::Encrypt(_))
        ));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn any_token_is_denied_without_harm(token in "[A-Za-z0-9+/]{0,200}={0,2}") {
            prop_assert!(guard(Padding::Oaep).admit(Some(&token), at(0)).is_err());
            prop_assert!(guard(Padding::Pkcs1).admit(Some(&token), at(0)).is_err());
        }

        #[test]
        fn any_text_is_parsed_without_harm(text in "(user: )?.{0,9}(\npwd: )?.{0,9}(\nts: )?.{0,9}") {
            let _ = parse(&text);
        }
    }
}
