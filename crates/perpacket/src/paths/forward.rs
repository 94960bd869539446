//! `forward` and `forward6`: full IP forwarding, routed to a next hop on another device, which counts each packet
//! as it comes in and drops it. The far side's reception is in the figure.

use anyhow::Result;
use lab::{Lab, Plan};
use template::Addresses;

use linux::nft::Family;

use super::ending::{Ending, RuleCount};
use super::{About, Ends, Path, topology};
use crate::cell::Cell;
use crate::scenario::Clock;

#[derive(Debug)]
pub(crate) struct Forward;

impl Path for Forward {
    fn about(&self) -> &'static About {
        &About {
            summary: "routed to a next hop, counted there",
            ingresses: super::INTO_THE_STACK,
            ends: Ends::Stack,
            on_the_way: &[],
            crosses: true,
            clock: Clock::Thread,
            filtered: true,
            needs_bpf: false,
        }
    }

    fn plan(&self, cell: &Cell, plan: &mut Plan) {
        topology::forwarding(plan);
        topology::filler_rules(plan, Family::Ip, cell.setting.rules);
        topology::count_and_drop(plan, topology::FAR, topology::EGRESS_PEER);
    }

    fn addresses(&self) -> ([u8; 6], Addresses) {
        (topology::MAC_IN0, topology::beyond_the_next_hop())
    }

    fn open(&self, lab: &Lab, _cell: &Cell) -> Result<Ending> {
        Ok(Ending::of(RuleCount::open(lab, topology::FAR, Family::Netdev, "ingress rule at the next hop")?))
    }
}

#[derive(Debug)]
pub(crate) struct Forward6;

impl Path for Forward6 {
    fn about(&self) -> &'static About {
        &About {
            summary: "routed to a next hop over IPv6, counted there",
            ingresses: super::INTO_THE_STACK_RAW, // no next header (59): there is no payload to send
            ends: Ends::Stack,
            on_the_way: &[],
            crosses: true,
            clock: Clock::Thread,
            filtered: true,
            needs_bpf: false,
        }
    }

    fn plan(&self, cell: &Cell, plan: &mut Plan) {
        topology::forwarding6(plan);
        topology::filler_rules(plan, Family::Ip6, cell.setting.rules);
        topology::count_and_drop(plan, topology::FAR, topology::EGRESS_PEER);
    }

    fn addresses(&self) -> ([u8; 6], Addresses) {
        (topology::MAC_IN0, topology::beyond_the_next_hop6())
    }

    fn open(&self, lab: &Lab, cell: &Cell) -> Result<Ending> {
        Forward.open(lab, cell)
    }
}
