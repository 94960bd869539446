//! The client's part: from a plan to what both ends counted.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use linux::socket;

use super::channel::Channel;
use super::course::Course;
use super::error::OwnError;
use super::handshake;
use super::key::Key;
use super::sockets;
use super::wire::{Asked, Message, SMALL_FRAME};
use crate::engine::End;
use crate::limits::Halt;
use crate::outcome::{Exchanged, Interval};
use crate::plan::Plan;

/// How a client asks, beside the plan.
#[derive(Clone, Copy)]
pub struct Asking<'a> {
    /// The key, where the server has one.
    pub key: Option<&'a Key>,
    /// The address of this host that all connections come from; `None`: what the routes say.
    pub bind: Option<IpAddr>,
    /// How long each period is; `None`: there are none.
    pub interval: Option<Duration>,
    /// Whether both ends account for CPU time.
    pub cpu: bool,
    /// How long the server may be silent.
    pub patience: Duration,
    /// Ends the run early, as an error.
    pub halt: &'a Halt,
    /// Called with each period of this end.
    pub on_interval: Option<&'a (dyn Fn(&Interval) + Sync)>,
    /// Called with each period of the server.
    pub on_server_interval: Option<&'a (dyn Fn(&Interval) + Sync)>,
}

impl<'a> Asking<'a> {
    /// Without a key, without periods, with CPU time, and 10 s of patience.
    #[must_use]
    pub fn new(halt: &'a Halt) -> Self {
        Self {
            key: None,
            bind: None,
            interval: None,
            cpu: true,
            patience: Duration::from_secs(10),
            halt,
            on_interval: None,
            on_server_interval: None,
        }
    }
}

impl std::fmt::Debug for Asking<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Asking")
            .field("key", &self.key)
            .field("bind", &self.bind)
            .field("interval", &self.interval)
            .finish_non_exhaustive()
    }
}

/// Whether this protocol can carry out a plan; nothing is sent.
///
/// # Errors
/// Why not, and what can be done.
pub fn check(plan: &Plan) -> Result<(), OwnError> {
    sockets::check(plan)
}

/// Carries out a plan together with the server at `to`; what both ends counted, each in its own clock.
///
/// # Errors
/// The server cannot be reached, is none, turns the client away, refuses the plan (in its words) or vanishes; the plan cannot
/// be carried out over this protocol; a call of the kernel failed.
pub fn run(to: SocketAddr, plan: &Plan, asking: &Asking<'_>) -> Result<Exchanged, OwnError> {
    sockets::check(plan)?;
    let from = asking.bind.map(|ip| SocketAddr::new(ip, 0));
    let control = socket::connect_within(socket::stream(to, false)?, to, from, asking.patience)?;
    let mut channel = Channel::new(control, asking.halt)?;
    handshake::join(&mut channel, asking.key, asking.patience)?;
    ask(&mut channel, plan, asking).inspect_err(|error| channel.give_up(error))
}

fn ask(channel: &mut Channel, plan: &Plan, asking: &Asking<'_>) -> Result<Exchanged, OwnError> {
    let asked = Asked { plan: plan.clone(), interval: asking.interval, cpu: asking.cpu };
    channel.send(&Message::Plan(Box::new(asked.clone())), SMALL_FRAME, asking.patience)?;
    let ready = match channel.expect(asking.patience, "the server to open its sockets")? {
        Message::Ready(ready) => ready,
        other => return Err(OwnError::Unexpected { got: other.name(), wanted: "`ready`" }),
    };
    let flows = sockets::reach(plan, &ready, asking.bind, channel, asking.patience)?;
    let course = Course {
        asked: &asked,
        end: End::Client,
        // So that the server hears of this end often enough, and this end waits no longer than it would.
        idle: asking.patience.min(ready.idle).max(Duration::from_millis(200)),
        longest: Duration::MAX,
        fastest: None,
        on_interval: asking.on_interval,
        on_peer_interval: asking.on_server_interval,
    };
    let finished = course.run(flows, channel)?;
    Ok(Exchanged { client: finished.side, server: finished.peer.unwrap_or_default() })
}
