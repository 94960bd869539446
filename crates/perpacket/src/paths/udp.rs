//! `udp`: delivered to a socket. The measuring thread itself reads it, right after each call, so that one clock sees
//! sending, delivery and reading, and no wake-up of another thread is mixed in.

use anyhow::Result;
use lab::{Lab, Plan};

use linux::nft::Family;

use super::ending::{Ending, SocketCount};
use super::{About, Ends, Path, topology};
use crate::cell::Cell;
use crate::scenario::Clock;

#[derive(Debug)]
pub(crate) struct Udp;

impl Path for Udp {
    fn about(&self) -> &'static About {
        &About {
            summary: "delivered to a UDP socket and read from it by the same thread",
            ingresses: super::INTO_THE_STACK,
            ends: Ends::Stack,
            on_the_way: &[],
            crosses: false,
            clock: Clock::Thread,
            filtered: true,
            needs_bpf: false,
        }
    }

    fn plan(&self, cell: &Cell, plan: &mut Plan) {
        topology::filler_rules(plan, Family::Ip, cell.setting.rules);
    }

    fn open(&self, lab: &Lab, cell: &Cell) -> Result<Ending> {
        let sockets = SocketCount::open(lab, topology::SYS, topology::IP_IN0.into(), cell.setting.flows)?;
        let burst = sockets.burst();
        Ok(Ending { burst, ..Ending::of(sockets) })
    }
}
