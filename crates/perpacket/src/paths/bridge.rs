//! `bridge`: the receiving device and another one are ports of a bridge; the frame goes to a known address behind
//! the other port, where it is counted and dropped.

use anyhow::Result;
use lab::{Lab, Plan};
use template::Addresses;

use linux::nft::Family;

use super::ending::{Ending, RuleCount};
use super::{About, Ends, Path, topology};
use crate::cell::Cell;
use crate::scenario::Clock;

#[derive(Debug)]
pub(crate) struct Bridge;

impl Path for Bridge {
    fn about(&self) -> &'static About {
        &About {
            summary: "switched by a bridge to another port, counted behind it",
            ingresses: super::INTO_THE_STACK,
            ends: Ends::Stack,
            on_the_way: &[],
            crosses: true,
            clock: Clock::Thread,
            filtered: false,
            needs_bpf: false,
        }
    }

    fn plan(&self, _cell: &Cell, plan: &mut Plan) {
        topology::bridge(plan);
        topology::count_and_drop(plan, topology::FAR, topology::EGRESS_PEER);
    }

    fn addresses(&self) -> ([u8; 6], Addresses) {
        (topology::MAC_F0, topology::beyond_the_next_hop())
    }

    fn open(&self, lab: &Lab, _cell: &Cell) -> Result<Ending> {
        Ok(Ending::of(RuleCount::open(lab, topology::FAR, Family::Netdev, "ingress rule behind the bridge")?))
    }
}
