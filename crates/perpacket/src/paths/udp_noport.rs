//! `udp-noport`: a UDP packet to a port that nobody listens on, and the ICMP answer to it. The answer is counted where
//! the packet came from. The kernel's limits on ICMP are lifted in the lab: with them, two costs would be mixed.

use anyhow::Result;
use lab::{Lab, Plan};
use template::Addresses;

use linux::nft::Family;

use super::ending::{Ending, RuleCount};
use super::{About, Path, topology};
use crate::cell::Cell;

#[derive(Debug)]
pub(crate) struct UdpNoport;

impl Path for UdpNoport {
    fn about(&self) -> &'static About {
        &About {
            summary: "to a closed UDP port, the ICMP answer counted at the sender",
            ingresses: super::INTO_THE_STACK,
            filtered: true,
            needs_bpf: false,
        }
    }

    fn plan(&self, cell: &Cell, plan: &mut Plan) {
        topology::unlimited_icmp(plan);
        topology::filler_rules(plan, Family::Ip, cell.setting.rules);
        topology::count_and_drop(plan, topology::GEN, topology::INGRESS_PEER);
    }

    fn addresses(&self) -> ([u8; 6], Addresses) {
        (topology::MAC_IN0, topology::to_this_host())
    }

    fn open(&self, lab: &Lab, _cell: &Cell) -> Result<Ending> {
        Ok(Ending::of(RuleCount::open(lab, topology::GEN, Family::Netdev, "ICMP answers at the sender")?))
    }
}
