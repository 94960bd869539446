//! What a server needs to know of a protocol.

use std::net::TcpStream;

use super::doors::Served;
use crate::limits::{Halt, Limits};
use crate::outcome::Side;
use crate::own::wire::{HELLO_BYTES, Hello};
use crate::own::{Key, server};
use crate::plan::Plan;

/// A protocol that clients are served in.
pub trait Protocol: Send + Sync {
    /// Its name, in the field's own words.
    fn name(&self) -> &'static str;

    /// How many bytes every connection begins with, before anything is answered.
    fn first_bytes(&self) -> u32;

    /// What these first bytes say. They are still to be read.
    fn judge(&self, first: &[u8]) -> Verdict;

    /// Serves a client on the calling thread until it is done. It looks at `halt` at least twice a second.
    ///
    /// # Errors
    /// Why it was not served to the end, in words.
    fn serve(&self, connection: TcpStream, limits: &Limits, halt: &Halt) -> Result<Account, Refused>;

    /// Takes a connection that needs no place of its own ([`Verdict::Joins`]). It must not block.
    fn join(&self, _connection: TcpStream) {}

    /// Clients that came by [`Self::join`] and have ended since the last call.
    fn ended(&self) -> Vec<Served> {
        Vec::new()
    }

    /// Waits, not long, until clients that came by [`Self::join`] have ended: the server is ending.
    fn finish(&self) {}

    /// Tells a client that there is no place for it, without waiting long.
    fn turn_away(&self, connection: TcpStream, halt: &Halt);
}

/// Whose connection it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A client's first one: it needs a place.
    Client,
    /// One of a client who has a place, or whose places the protocol itself counts.
    Joins,
    /// None of this protocol's.
    Stranger,
}

/// What was done for a client, as far as its protocol lets the server know.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Account {
    /// What it asked for.
    pub plan: Option<Plan>,
    /// What this end counted.
    pub side: Option<Side>,
}

/// Why a client was not served to the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused(pub String);

impl<E: std::error::Error> From<E> for Refused {
    fn from(error: E) -> Self {
        let (mut text, mut cause) = (error.to_string(), error.source());
        while let Some(error) = cause {
            let more = error.to_string();
            if !text.contains(&more) {
                text = format!("{text}: {more}");
            }
            cause = error.source();
        }
        Self(text)
    }
}

/// perpacket's own protocol.
#[derive(Debug, Default)]
pub struct Own {
    /// Only clients that have it are served.
    pub key: Option<Key>,
}

impl Protocol for Own {
    fn name(&self) -> &'static str {
        "perpacket"
    }

    fn first_bytes(&self) -> u32 {
        HELLO_BYTES as u32
    }

    fn judge(&self, first: &[u8]) -> Verdict {
        if Hello::read(first).is_some() { Verdict::Client } else { Verdict::Stranger }
    }

    fn serve(&self, connection: TcpStream, limits: &Limits, halt: &Halt) -> Result<Account, Refused> {
        let (plan, side) = server::serve(connection, self.key.as_ref(), limits, halt)?;
        Ok(Account { plan: Some(plan), side: Some(side) })
    }

    fn turn_away(&self, connection: TcpStream, halt: &Halt) {
        // Whether it heard of it changes nothing here.
        let _ = server::turn_away(connection, halt);
    }
}
