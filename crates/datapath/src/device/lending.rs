//! A queue that writes into pages, used as one that lends its frames.

use std::time::Duration;

use pagefrag::PagePool;

use super::{DeviceError, Land, Lend, RxTotals};

/// Shows each frame in its page, and gives the page back to the device at once.
pub struct Lending {
    queue: Box<dyn Land>,
    pool: PagePool,
}

impl Lending {
    /// Over this queue, with pages of this pool.
    pub fn new(queue: Box<dyn Land>, pool: PagePool) -> Self {
        Self { queue, pool }
    }
}

impl Lend for Lending {
    fn lend(&mut self, budget: usize, each: &mut dyn FnMut(&[u8])) -> Result<usize, DeviceError> {
        let Self { queue, pool } = self;
        for _ in 0..queue.room() {
            let Ok(page) = pool.alloc() else { break };
            if let Err(page) = queue.post(page) {
                pool.recycle(page);
                break;
            }
        }
        let mut lent = 0;
        while lent < budget {
            let Some(landed) = queue.landed()? else { break };
            lent += 1;
            each(landed.page.get(landed.offset..landed.offset + landed.l2_bytes).unwrap_or_default());
            if let Err(page) = queue.post(landed.page) {
                pool.recycle(page);
            }
        }
        Ok(lent)
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), DeviceError> {
        self.queue.wait(timeout)
    }

    fn totals(&mut self) -> RxTotals {
        self.queue.totals()
    }
}
