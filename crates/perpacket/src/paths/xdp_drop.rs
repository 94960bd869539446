//! `xdp-drop`: a native XDP program on the receiving veth counts the frame and drops it, before there is an skb.

use anyhow::Result;
use lab::{Lab, Plan};
use template::Addresses;
use traffic::programs::Action;

use super::ending::{Ending, Hook, attach_counter};
use super::{About, Path, topology};
use crate::cell::Cell;

#[derive(Debug)]
pub(crate) struct XdpDrop;

impl Path for XdpDrop {
    fn about(&self) -> &'static About {
        &About {
            summary: "a native XDP program on the receiving veth drops",
            ingresses: super::INTO_THE_DRIVER,
            filtered: false,
            needs_bpf: true,
        }
    }

    fn plan(&self, _cell: &Cell, _plan: &mut Plan) {}

    fn addresses(&self) -> ([u8; 6], Addresses) {
        (topology::MAC_IN0, topology::to_this_host())
    }

    fn open(&self, lab: &Lab, _cell: &Cell) -> Result<Ending> {
        let at = (topology::SYS, topology::INGRESS);
        let (count, link) = attach_counter(lab, at, Hook::Xdp, Action::XdpDrop, "XDP program that drops")?;
        Ok(Ending::of(count).holding(link))
    }
}
