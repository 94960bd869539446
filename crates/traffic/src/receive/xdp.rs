//! An XDP program that counts every frame in the kernel and drops it: the receiver that costs least.
//!
//! Counters lie apart for each CPU, so that counting needs no atomic instruction and is exact. Flows are told apart up to
//! [`super::FLOWS_MAX`]; none is ever thrown out to make room for another. Needs Linux 5.18.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use linux::bpf::{Link, Map, PerCpuHash, Program, ProgramKind, ProgramSpec, XdpMode};

use super::program::{self, CountingMaps, FLOW_WORDS, KEY_BYTES, QUEUE_WORDS};
use super::tally::{Count, FLOWS_MAX, Tally};
use super::{Loss, ReceiveError, Receiver, ReceiverKind, attach, failed};

/// How often the counters are looked at.
const LOOK: Duration = Duration::from_millis(10);

/// Counts in the kernel.
#[derive(Debug)]
pub struct Xdp {
    /// None when it has been taken off the device.
    link: Option<Link>,
    mode: XdpMode,
    flows: PerCpuHash,
    queues: Map,
}

impl Xdp {
    /// Attaches the program to a device with so many receive queues, in the driver or, where that has no XDP, in the stack.
    ///
    /// From now on the device's frames reach nobody else.
    ///
    /// # Errors
    /// EBUSY when the device has an XDP program already; EPERM without CAP_BPF and CAP_NET_ADMIN; ENOMEM.
    pub fn attach(ifindex: u32, queues: u32) -> Result<Self, ReceiveError> {
        let failed = failed(ReceiverKind::Xdp);
        let flows = PerCpuHash::new(KEY_BYTES, FLOW_WORDS, FLOWS_MAX as u32).map_err(&failed)?;
        let queue_map = Map::percpu_array(8 * QUEUE_WORDS, queues.saturating_add(1)).map_err(&failed)?;
        let maps = CountingMaps { flows_fd: flows.fd(), queues_fd: queue_map.fd(), queues };
        let code = program::counting(&maps)
            .map_err(|source| ReceiveError::Program { kind: ReceiverKind::Xdp, source })?;
        let spec = ProgramSpec { has_frags: true, ..ProgramSpec::new(ProgramKind::Xdp, "sink", &code) };
        let program = Program::load(&spec).map_err(&failed)?;
        let (link, mode) = attach(&program, ifindex).map_err(&failed)?;
        Ok(Self { link: Some(link), mode, flows, queues: queue_map })
    }

    /// Whether the program runs in the driver or in the stack.
    pub fn mode(&self) -> XdpMode {
        self.mode
    }

    /// Sets the totals by queue and by CPU to what the kernel has counted.
    fn read_totals(&self, tally: &mut Tally) -> Result<(), ReceiveError> {
        let (mut total, mut other) = (Count::default(), Count::default());
        let (mut queues, mut cpus) = (BTreeMap::new(), BTreeMap::<u32, Count>::new());
        let known = self.queues.entries() - 1;
        for queue in 0..=known {
            let value = self.queues.lookup(queue).map_err(failed(ReceiverKind::Xdp))?;
            let mut here = Count::default();
            for (cpu, words) in value.as_chunks::<8>().0.chunks_exact(QUEUE_WORDS).enumerate() {
                let word = |index: usize| words.get(index).map_or(0, |bytes| u64::from_ne_bytes(*bytes));
                here.add(word(0), word(1));
                other.add(word(2), word(3));
                if word(0) > 0 {
                    cpus.entry(cpu as u32).or_default().add(word(0), word(1));
                }
            }
            total.add(here.frames, here.bytes);
            // The last one stands for queues that the device did not have at the start.
            if queue < known || here.frames > 0 {
                queues.insert(queue, here);
            }
        }
        (tally.total, tally.other_flows) = (total, other);
        (tally.queues, tally.cpus) = (Some(queues), Some(cpus));
        Ok(())
    }

    fn read_flows(&self, tally: &mut Tally) -> Result<(), ReceiveError> {
        let add = |key: &[u8], words: &[u64]| {
            let Some(flow) = program::flow(key) else { return };
            let count = tally.flows.entry(flow).or_default();
            words.as_chunks::<FLOW_WORDS>().0.iter().for_each(|&[frames, bytes]| count.add(frames, bytes));
        };
        self.flows.for_each(add).map_err(failed(ReceiverKind::Xdp))
    }
}

impl Receiver for Xdp {
    fn kind(&self) -> ReceiverKind {
        ReceiverKind::Xdp
    }

    /// A CPU that counts while its counters are read may have counted a frame and not yet its bytes.
    fn poll(&mut self, timeout: Duration, tally: &mut Tally) -> Result<u64, ReceiveError> {
        thread::sleep(timeout.min(LOOK));
        let before = tally.total.frames;
        self.read_totals(tally)?;
        Ok(tally.total.frames - before)
    }

    fn finish(&mut self, tally: &mut Tally) -> Result<(), ReceiveError> {
        self.link = None;
        self.read_totals(tally)?;
        self.read_flows(tally)
    }

    /// None: what reaches the program is counted.
    fn losses(&mut self) -> Result<Vec<Loss>, ReceiveError> {
        Ok(Vec::new())
    }
}
