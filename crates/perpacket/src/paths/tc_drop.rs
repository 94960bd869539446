//! `tc-drop`: a program at the tc ingress hook (tcx) counts the skb and drops it, before any protocol sees it.

use anyhow::Result;
use lab::{Lab, Plan};
use template::Addresses;
use traffic::programs::Action;

use super::ending::{Ending, Hook, attach_counter};
use super::{About, Path, topology};
use crate::cell::Cell;

#[derive(Debug)]
pub(crate) struct TcDrop;

impl Path for TcDrop {
    fn about(&self) -> &'static About {
        &About {
            summary: "a program at the tc ingress hook drops",
            ingresses: super::INTO_THE_STACK,
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
        let (count, link) = attach_counter(lab, at, Hook::Tcx, Action::TcDrop, "tc program that drops")?;
        Ok(Ending::of(count).holding(link))
    }
}
