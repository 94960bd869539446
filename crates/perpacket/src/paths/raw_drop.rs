//! `raw-drop`: a packet-filter rule at the hook prerouting, priority raw, counts the packet and drops it, before
//! connection tracking and routing.

use anyhow::Result;
use lab::{Lab, Plan};
use template::Addresses;

use linux::nft::Family;

use super::ending::{Ending, RuleCount};
use super::{About, Path, topology};
use crate::cell::Cell;

#[derive(Debug)]
pub(crate) struct RawDrop;

impl Path for RawDrop {
    fn about(&self) -> &'static About {
        &About {
            summary: "a packet-filter rule at prerouting, priority raw, drops",
            ingresses: super::INTO_THE_STACK,
            filtered: true,
            needs_bpf: false,
        }
    }

    fn plan(&self, cell: &Cell, plan: &mut Plan) {
        topology::raw_drop_rules(plan, cell.setting.rules);
    }

    fn addresses(&self) -> ([u8; 6], Addresses) {
        (topology::MAC_IN0, topology::to_this_host())
    }

    fn open(&self, lab: &Lab, _cell: &Cell) -> Result<Ending> {
        Ok(Ending::of(RuleCount::open(lab, topology::SYS, Family::Ip, "drop rule in table raw")?))
    }
}
