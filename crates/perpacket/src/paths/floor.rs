//! `floor`: frames are made and dropped at once by the injecting program. What is left is the cost of injecting,
//! which every injected path contains.

use anyhow::Result;
use lab::Lab;

use super::ending::Ending;
use super::{About, Ends, Path};
use crate::cell::Cell;
use crate::scenario::Clock;
use traffic::BackendKind;

#[derive(Debug)]
pub(crate) struct Floor;

impl Path for Floor {
    fn about(&self) -> &'static About {
        &About {
            summary: "injected and dropped at once: the cost of injecting",
            ingresses: &[BackendKind::Inject],
            ends: Ends::Injector,
            on_the_way: &[],
            crosses: false,
            clock: Clock::Thread,
            filtered: false,
            needs_bpf: true,
        }
    }

    fn open(&self, _lab: &Lab, _cell: &Cell) -> Result<Ending> {
        Ok(Ending { terminal: None, attached: Vec::new(), burst: None })
    }
}
