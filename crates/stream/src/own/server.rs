//! The server's part: one client from its hello to its results.

use std::net::TcpStream;
use std::time::Duration;

use super::channel::Channel;
use super::course::{Course, longest};
use super::error::OwnError;
use super::handshake;
use super::key::Key;
use super::sockets;
use super::wire::{Asked, Cookie, LARGE_FRAME, Message, Ready};
use crate::engine::End;
use crate::limits::{Halt, Limits};
use crate::outcome::Side;
use crate::plan::Plan;

/// The longest that a client may take for each of its first words.
const FIRST_WORDS: Duration = Duration::from_secs(5);

/// Serves one control connection, on the calling thread and those of the engine; what was done for it. With a key only
/// clients that have it are served.
///
/// # Errors
/// The client was turned away, asked for what cannot be, went away, or this process is ending. It was told why where it can
/// be told.
pub fn serve(
    connection: TcpStream,
    key: Option<&Key>,
    limits: &Limits,
    halt: &Halt,
) -> Result<(Plan, Side), OwnError> {
    let mut channel = Channel::new(connection, halt)?;
    let patience = limits.idle.min(FIRST_WORDS);
    handshake::welcome(&mut channel, key, false, patience)?;
    attend(&mut channel, limits, patience).inspect_err(|error| channel.give_up(error))
}

/// Tells a client that there is no place for it.
///
/// # Errors
/// Always: that it was told so, or could not be.
pub fn turn_away(connection: TcpStream, halt: &Halt) -> Result<(), OwnError> {
    let mut channel = Channel::new(connection, halt)?;
    handshake::welcome(&mut channel, None, true, Duration::from_millis(200))
}

fn attend(channel: &mut Channel, limits: &Limits, patience: Duration) -> Result<(Plan, Side), OwnError> {
    let asked = match channel.expect(patience, "a plan")? {
        Message::Plan(asked) => asked,
        other => return Err(OwnError::Unexpected { got: other.name(), wanted: "a plan" }),
    };
    sockets::check(&asked.plan)?;
    limits.check(&asked.plan)?;
    limits.check_intervals(&asked.plan, asked.interval)?;
    let cookie = cookie()?;
    let (opened, ports) = sockets::open(&asked.plan, channel.local()?, channel.peer()?.ip())?;
    let ready = Message::Ready(Ready { cookie, ports, idle: limits.idle });
    channel.send(&ready, LARGE_FRAME, limits.idle)?;
    let flows = sockets::gather(opened, &asked.plan, cookie, channel, limits.idle)?;
    let course = Course {
        asked: &asked,
        end: End::Server,
        idle: limits.idle,
        longest: longest(&asked, limits.idle, limits.duration),
        fastest: limits.bits_per_second,
        on_interval: None,
        on_peer_interval: None,
    };
    let mut side = course.run(flows, channel)?.side;
    tell(channel, &mut side, limits.idle)?;
    let Asked { plan, .. } = *asked;
    Ok((plan, side))
}

/// Sends the results; without periods and series where they are too long for a message.
fn tell(channel: &mut Channel, side: &mut Side, patience: Duration) -> Result<(), OwnError> {
    match channel.send(&Message::Results(Box::new(side.clone())), LARGE_FRAME, patience) {
        Err(OwnError::TooLong(_)) => {}
        sent => return sent,
    }
    side.intervals = Vec::new();
    for tcp in side.flows.iter_mut().filter_map(|flow| flow.tcp.as_mut()) {
        tcp.series = Vec::new();
    }
    side.warnings.push("the server's periods were too many to be sent and are left out".into());
    channel.send(&Message::Results(Box::new(side.clone())), LARGE_FRAME, patience)
}

/// 16 bytes that nobody can guess.
fn cookie() -> Result<Cookie, OwnError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| OwnError::io("ask for a random cookie", std::io::Error::other(error)))?;
    Ok(Cookie(bytes))
}
