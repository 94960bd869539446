//! Frames of a synthetic device from a program in the packet language.

use anyhow::{Context, Result, bail};
use datapath::device::{Frames, Synthetic};
use template::{Compiled, Emitter};

use crate::device::hosts::SENDER6;
use crate::device::wire::{RING_ENTRIES, SENDER, SENDER_MAC};
use crate::generate::{compile, period};
use crate::scenario::Packets;

/// The most packets that are made beforehand, and their bytes.
const CYCLE_MAX: u64 = 4096;
const CYCLE_BYTES_MAX: usize = 4 << 20;

/// A program as the frames of a synthetic device.
pub(crate) struct Template {
    compiled: Compiled,
    threads: u32,
    seed: u64,
}

impl Template {
    /// Compiles it, for so many threads.
    ///
    /// # Errors
    /// What is wrong in it and where, or that its frames are of several lengths and never repeat.
    pub(crate) fn compile(program: &str, name: Option<&str>, threads: usize, seed: u64) -> Result<Self> {
        let packets = Packets { name: name.map(str::to_owned), seed, ..Packets::default() };
        // What the program does not say: to the device under test, from the network that it is in.
        let device = template::Device { mac: Some(SENDER_MAC), ipv4: Some(SENDER), ipv6: Some(SENDER6) };
        let compiled = compile(&packets, program, device)?;
        let template = Self { compiled, threads: threads as u32, seed };
        for thread in 0..threads {
            template.frames(thread)?;
        }
        Ok(template)
    }

    /// What is understood differently from trafgen, or probably not as meant.
    pub(crate) fn warnings(&self) -> &[template::Warning] {
        &self.compiled.warnings
    }

    /// Length of the longest frame, without FCS.
    pub(crate) fn longest_l2_bytes(&self) -> usize {
        self.compiled.plan.longest_l2_bytes()
    }

    /// A thread's receiving queue: threads split the packets, so that none comes twice.
    pub(crate) fn queue(&self, thread: usize) -> Result<Synthetic> {
        Ok(Synthetic::new(self.frames(thread)?, RING_ENTRIES)?)
    }

    fn frames(&self, thread: usize) -> Result<Frames> {
        let plan = &self.compiled.plan;
        let emitter: Emitter = plan
            .emitter(thread as u32, self.threads, self.seed)
            .with_context(|| format!("frames of thread {thread}"))?;
        let longest = plan.longest_l2_bytes();
        let cycle =
            period(plan, &emitter, CYCLE_MAX).filter(|&count| count as usize * longest <= CYCLE_BYTES_MAX);
        if let Some(count) = cycle {
            return Ok(Frames::Cycle((0..count).map(|index| emitter.to_vec(index).into()).collect()));
        }
        if (0..plan.packets()).any(|packet| plan.l2_bytes(packet) != Some(longest)) {
            bail!(
                "the program has frames of several lengths, and does not repeat within {CYCLE_MAX} frames: give all of them \
                 one length, or fewer values"
            );
        }
        let mut index = 0;
        let make = move |frame: &mut [u8]| {
            emitter.emit(index, frame);
            index += 1;
        };
        Ok(Frames::Made { l2_bytes: longest, make: Box::new(make) })
    }
}
