//! `tc-drop`: a program at the tc ingress hook (tcx) counts the skb and drops it, before any protocol sees it.

use anyhow::Result;
use lab::Lab;
use traffic::programs::Action;

use super::ending::{Ending, Hook, attach_counter};
use super::{About, Ends, Path, topology};
use crate::cell::Cell;
use crate::scenario::Clock;

#[derive(Debug)]
pub(crate) struct TcDrop;

impl Path for TcDrop {
    fn about(&self) -> &'static About {
        &About {
            summary: "a program at the tc ingress hook drops",
            ingresses: super::INTO_THE_STACK,
            ends: Ends::Stack,
            on_the_way: &[],
            crosses: false,
            clock: Clock::Thread,
            filtered: false,
            needs_bpf: true,
        }
    }

    fn open(&self, lab: &Lab, _cell: &Cell) -> Result<Ending> {
        let at = (topology::SYS, topology::INGRESS);
        let (count, link) = attach_counter(lab, at, Hook::Tcx, Action::TcDrop, "tc program that drops")?;
        Ok(Ending::of(count).holding(link))
    }
}
