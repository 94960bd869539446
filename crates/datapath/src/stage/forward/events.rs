//! What a router does beside forwarding.

use crate::wire::icmp::error::{Problem, Silence};

macro_rules! events {
    ($($variant:ident $name:literal,)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Event {
            $($variant,)*
        }

        const NAMES: [&str; events!(@count $($variant)*)] = [$($name),*];
    };
    (@count $($variant:ident)*) => { <[Event]>::len(&[$(Event::$variant),*]) };
}

events! {
    TimeExceeded "sent: time exceeded",
    NoRoute "sent: no route",
    HostUnreachable "sent: host unreachable",
    PortUnreachable "sent: port unreachable",
    TooBig "sent: too big",
    Prohibited "sent: prohibited",
    Limited "not sent: limit of errors",
    NoAddress "not sent: no address to send from",
    Echo "echo answered",
    ArpAnswered "arp answered",
    ArpAsked "arp asked",
    NdAnswered "neighbour discovery answered",
    NdAsked "neighbour discovery asked",
    Learnt "neighbour learnt",
    Changed "neighbour has another link address",
    Failed "neighbour does not answer",
    Full "no room for another neighbour",
    Conflict "another host has our address",
    HeldOverflow "held packet gave way to a later one",
}

/// How often each was.
#[derive(Debug, Default)]
pub(super) struct Events {
    counts: [u64; NAMES.len()],
    silences: [u64; Silence::ALL.len()],
}

impl Events {
    pub(super) fn count(&mut self, event: Event) {
        self.count_many(event, 1);
    }

    pub(super) fn count_many(&mut self, event: Event, times: u64) {
        self.counts[event as usize] += times;
    }

    pub(super) fn silent(&mut self, why: Silence) {
        self.silences[why.index()] += 1;
    }

    /// Those that there were.
    pub(super) fn named(&self) -> Vec<(&'static str, u64)> {
        let silences = Silence::ALL.iter().map(|why| why.name()).zip(self.silences);
        NAMES.into_iter().zip(self.counts).chain(silences).filter(|(_, count)| *count > 0).collect()
    }
}

impl From<Problem> for Event {
    fn from(problem: Problem) -> Self {
        match problem {
            Problem::HopLimit => Event::TimeExceeded,
            Problem::NoRoute => Event::NoRoute,
            Problem::NoNeighbour => Event::HostUnreachable,
            Problem::Prohibited => Event::Prohibited,
            Problem::NoPort => Event::PortUnreachable,
            Problem::TooBig { .. } => Event::TooBig,
        }
    }
}
