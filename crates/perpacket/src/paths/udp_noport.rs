//! `udp-noport`: a UDP packet to a port that nobody listens on, and the ICMP answer to it. The answer is counted where
//! the packet came from. The kernel's limits on ICMP are lifted in the lab: with them, two costs would be mixed.

use anyhow::Result;
use lab::{Lab, Plan};

use linux::nft::Family;

use super::ending::{Ending, RuleCount};
use super::{About, Ends, Path, topology};
use crate::cell::Cell;
use crate::scenario::Clock;

#[derive(Debug)]
pub(crate) struct UdpNoport;

impl Path for UdpNoport {
    fn about(&self) -> &'static About {
        &About {
            summary: "to a closed UDP port, the ICMP answer counted at the sender",
            ingresses: super::INTO_THE_STACK,
            ends: Ends::Stack,
            on_the_way: &[(topology::SYS, "Udp.NoPorts")],
            crosses: true,
            clock: Clock::Thread,
            filtered: true,
            needs_bpf: false,
        }
    }

    fn plan(&self, cell: &Cell, plan: &mut Plan) {
        topology::unlimited_icmp(plan);
        topology::filler_rules(plan, Family::Ip, cell.setting.rules);
        topology::count_and_drop(plan, topology::GEN, topology::INGRESS_PEER);
    }

    fn open(&self, lab: &Lab, _cell: &Cell) -> Result<Ending> {
        Ok(Ending::of(RuleCount::open(lab, topology::GEN, Family::Netdev, "ICMP answers at the sender")?))
    }
}
