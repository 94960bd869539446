//! `xdp-tx`: a native XDP program on the receiving veth sends the frame back where it came from; there, another
//! one counts and drops it. Both programs are in the figure.

use anyhow::Result;
use lab::Lab;
use traffic::programs::Action;

use super::ending::{Ending, Hook, attach_counter};
use super::{About, Ends, Path, XDP_DROPS, topology};
use crate::cell::Cell;
use crate::scenario::Clock;

#[derive(Debug)]
pub(crate) struct XdpTx;

impl Path for XdpTx {
    fn about(&self) -> &'static About {
        &About {
            summary: "a native XDP program sends back, counted where it came from",
            ingresses: super::INTO_THE_DRIVER,
            ends: Ends::Driver,
            on_the_way: &[(topology::GEN, XDP_DROPS)],
            crosses: false,
            clock: Clock::Thread,
            filtered: false,
            needs_bpf: true,
        }
    }

    fn open(&self, lab: &Lab, _cell: &Cell) -> Result<Ending> {
        let back = (topology::GEN, topology::INGRESS_PEER);
        let (count, counting) =
            attach_counter(lab, back, Hook::Xdp, Action::XdpDrop, "XDP program at the sender")?;
        let there = (topology::SYS, topology::INGRESS);
        let (_, sending) =
            attach_counter(lab, there, Hook::Xdp, Action::XdpTx, "XDP program that sends back")?;
        Ok(Ending::of(count).holding((counting, sending)))
    }
}
