//! The first words on a control connection: version, and keys where there are some.

use std::time::Duration;

use super::channel::Channel;
use super::error::OwnError;
use super::key::Key;
use super::wire::{Answer, HELLO_BYTES, Hello, VERSION, Way};
use crate::engine::End;

/// The protocol of Noise: no keys that last, one that both ends share, before everything else (revision 34, section 9.4).
const NOISE: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// Each of its two messages: an ephemeral key and a tag.
const NOISE_HANDSHAKE: usize = 48;

/// The server's part. `busy`: there is no place.
///
/// # Errors
/// The client was turned away; it was told why, where it speaks this protocol.
pub(super) fn welcome(
    channel: &mut Channel,
    key: Option<&Key>,
    busy: bool,
    patience: Duration,
) -> Result<(), OwnError> {
    let mut theirs = [0; HELLO_BYTES];
    channel.read_exactly(&mut theirs, patience, "the hello")?;
    let hello = Hello::read(&theirs).ok_or(OwnError::NotOurs)?;
    let answer = answer_to(hello, key.is_some(), busy);
    let ours = Hello { version: VERSION, code: answer as u8 }.bytes();
    channel.write_all(&ours, patience)?;
    match answer {
        Answer::Welcome => {}
        Answer::OtherVersion => return Err(OwnError::Version { theirs: hello.version }),
        answer => return Err(OwnError::Turned(answer)),
    }
    let Some(key) = key else { return Ok(()) };
    let mut noise = noise(key, &theirs, &ours, End::Server)?;
    let first = read_message(channel, patience)?;
    if noise.read_message(&first, &mut []).is_err() {
        // A message of nothing says so.
        channel.write_all(&[0, 0], patience)?;
        return Err(OwnError::WrongKey);
    }
    write_message(channel, &mut noise, patience)?;
    channel.encrypt(noise.into_transport_mode().map_err(OwnError::Cipher)?);
    Ok(())
}

fn answer_to(hello: Hello, has_key: bool, busy: bool) -> Answer {
    if hello.version != VERSION {
        Answer::OtherVersion
    } else if busy {
        Answer::Busy
    } else if hello.code == Way::Plain as u8 {
        if has_key { Answer::KeyNeeded } else { Answer::Welcome }
    } else if hello.code == Way::Keyed as u8 {
        if has_key { Answer::Welcome } else { Answer::NoKeyHere }
    } else {
        Answer::UnknownWay
    }
}

/// The client's part.
///
/// # Errors
/// The server turned it away, or is none.
pub(super) fn join(channel: &mut Channel, key: Option<&Key>, patience: Duration) -> Result<(), OwnError> {
    let way = if key.is_some() { Way::Keyed } else { Way::Plain };
    let ours = Hello { version: VERSION, code: way as u8 }.bytes();
    channel.write_all(&ours, patience)?;
    let mut theirs = [0; HELLO_BYTES];
    channel.read_exactly(&mut theirs, patience, "the server's hello")?;
    let hello = Hello::read(&theirs).ok_or(OwnError::NotOurs)?;
    match Answer::of(hello.code) {
        Some(Answer::OtherVersion) => return Err(OwnError::Version { theirs: hello.version }),
        _ if hello.version != VERSION => return Err(OwnError::Version { theirs: hello.version }),
        Some(Answer::Welcome) => {}
        Some(answer) => return Err(OwnError::TurnedAway(answer)),
        None => return Err(OwnError::NotOurs),
    }
    let Some(key) = key else { return Ok(()) };
    let mut noise = noise(key, &ours, &theirs, End::Client)?;
    write_message(channel, &mut noise, patience)?;
    let answer = read_message(channel, patience)?;
    noise.read_message(&answer, &mut []).map_err(|_| OwnError::WrongKey)?;
    channel.encrypt(noise.into_transport_mode().map_err(OwnError::Cipher)?);
    Ok(())
}

/// Both hellos are part of what is authenticated, so that nobody in between can change them.
fn noise(
    key: &Key,
    client: &[u8; HELLO_BYTES],
    server: &[u8; HELLO_BYTES],
    end: End,
) -> Result<snow::HandshakeState, OwnError> {
    let prologue = [*client, *server].concat();
    let made = || {
        let builder = snow::Builder::new(NOISE.parse()?).prologue(&prologue)?.psk(0, key.bytes())?;
        if end == End::Client { builder.build_initiator() } else { builder.build_responder() }
    };
    made().map_err(OwnError::Cipher)
}

/// A message of the handshake: its length (u16, big-endian), which is known, and its bytes.
fn read_message(channel: &mut Channel, patience: Duration) -> Result<[u8; NOISE_HANDSHAKE], OwnError> {
    let mut length = [0; 2];
    channel.read_exactly(&mut length, patience, "the exchange of keys")?;
    if usize::from(u16::from_be_bytes(length)) != NOISE_HANDSHAKE {
        return Err(OwnError::WrongKey);
    }
    let mut message = [0; NOISE_HANDSHAKE];
    channel.read_exactly(&mut message, patience, "the exchange of keys")?;
    Ok(message)
}

fn write_message(
    channel: &mut Channel,
    noise: &mut snow::HandshakeState,
    patience: Duration,
) -> Result<(), OwnError> {
    let mut bytes = [0; 2 + NOISE_HANDSHAKE];
    let length = noise.write_message(&[], &mut bytes[2..]).map_err(OwnError::Cipher)?;
    bytes[..2].copy_from_slice(&(length as u16).to_be_bytes());
    channel.write_all(&bytes[..2 + length], patience)
}
