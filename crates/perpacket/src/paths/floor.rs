//! `floor`: frames are made and dropped at once by the injecting program. What is left is the cost of injecting,
//! which every injected path contains.

use anyhow::Result;
use lab::{Lab, Plan};
use template::Addresses;

use super::ending::Ending;
use super::{About, Path, topology};
use crate::cell::Cell;
use traffic::BackendKind;

#[derive(Debug)]
pub(crate) struct Floor;

impl Path for Floor {
    fn about(&self) -> &'static About {
        &About {
            summary: "injected and dropped at once: the cost of injecting",
            ingresses: &[BackendKind::Inject],
            filtered: false,
            needs_bpf: true,
        }
    }

    fn plan(&self, _cell: &Cell, _plan: &mut Plan) {}

    fn addresses(&self) -> ([u8; 6], Addresses) {
        (topology::MAC_IN0, topology::to_this_host())
    }

    fn open(&self, _lab: &Lab, _cell: &Cell) -> Result<Ending> {
        Ok(Ending { terminal: None, attached: Vec::new(), burst: None })
    }
}
