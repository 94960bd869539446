//! `raw-drop`: a packet-filter rule at the hook prerouting, priority raw, counts the packet and drops it, before
//! connection tracking and routing.

use anyhow::Result;
use lab::{Lab, Plan};

use linux::nft::Family;

use super::ending::{Ending, RuleCount};
use super::{About, Ends, Path, topology};
use crate::cell::Cell;
use crate::scenario::Clock;

#[derive(Debug)]
pub(crate) struct RawDrop;

impl Path for RawDrop {
    fn about(&self) -> &'static About {
        &About {
            summary: "a packet-filter rule at prerouting, priority raw, drops",
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
        topology::raw_drop_rules(plan, cell.setting.rules);
    }

    fn open(&self, lab: &Lab, _cell: &Cell) -> Result<Ending> {
        Ok(Ending::of(RuleCount::open(lab, topology::SYS, Family::Ip, "drop rule in table raw")?))
    }
}
