//! `datapath:…`: paths through the device under test in user space, as data. What they do is in `device`.

use traffic::BackendKind;

use super::{About, Ends};
use crate::cell::PathName;
use crate::scenario::Clock;

/// What is known about one of them.
pub(super) fn about(name: PathName) -> &'static About {
    match name {
        PathName::DatapathDrop => &DROP,
        PathName::DatapathDummy => &DUMMY,
        PathName::DatapathForward => &FORWARD,
        _ => &UDP,
    }
}

/// Dropped before a byte is looked at.
const DROP: About = in_user_space("in user space: dropped before it is looked at");
const DUMMY: About = in_user_space("in user space: sent unread into a black hole with queues");
const FORWARD: About = in_user_space("in user space: routed by a table, sent into a black hole with queues");
const UDP: About = in_user_space("in user space: put into the queue of a receiver, and taken out");

const fn in_user_space(summary: &'static str) -> About {
    About {
        summary,
        ingresses: &[BackendKind::Memory],
        ends: Ends::Device,
        on_the_way: &[],
        crosses: false,
        clock: Clock::Thread,
        filtered: false,
        needs_bpf: false,
    }
}
