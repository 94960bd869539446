//! `xdp-drop`: a native XDP program on the receiving veth counts the frame and drops it, before there is an skb.

use anyhow::Result;
use lab::Lab;
use traffic::programs::Action;

use super::ending::{Ending, Hook, attach_counter};
use super::{About, Ends, Path, XDP_DROPS, topology};
use crate::cell::Cell;
use crate::scenario::Clock;

#[derive(Debug)]
pub(crate) struct XdpDrop;

impl Path for XdpDrop {
    fn about(&self) -> &'static About {
        &About {
            summary: "a native XDP program on the receiving veth drops",
            ingresses: super::INTO_THE_DRIVER,
            ends: Ends::Driver,
            on_the_way: &[(topology::SYS, XDP_DROPS)],
            crosses: false,
            clock: Clock::Thread,
            filtered: false,
            needs_bpf: true,
        }
    }

    fn open(&self, lab: &Lab, _cell: &Cell) -> Result<Ending> {
        let at = (topology::SYS, topology::INGRESS);
        let (count, link) = attach_counter(lab, at, Hook::Xdp, Action::XdpDrop, "XDP program that drops")?;
        Ok(Ending::of(count).holding(link))
    }
}
