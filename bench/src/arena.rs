//! The network that everything is sent into: a veth pair whose far end counts and drops in XDP.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result};
use lab::{Lab, Plan, Port};
use linux::bpf::{Link, Program, ProgramKind, ProgramSpec, XdpMode};
use template::{Addresses, CheckedFrame, UdpFrame};
use traffic::ProgramSink;
use traffic::programs::{self, Action};

/// Role of the namespace that sends, and its device.
const NEAR: (&str, &str) = ("gen", "g0");
/// Role of the namespace that receives, and its device.
const FAR: (&str, &str) = ("sys", "s0");
const NEAR_MAC: [u8; 6] = [2, 0, 0, 0, 1, 1];
const FAR_MAC: [u8; 6] = [2, 0, 0, 0, 1, 2];
/// How long frames that were sent may take to be counted.
const ARRIVAL: Duration = Duration::from_secs(1);

/// The lab, entered by the calling thread.
pub(crate) struct Arena {
    /// The frame that every sender sends.
    pub(crate) frame: CheckedFrame,
    sink: ProgramSink,
    _link: Link,
    // Last, so that the program goes before the device that it is attached to.
    lab: Lab,
}

impl Arena {
    /// Builds it and moves the calling thread, and the processes that it will start, to the sending side.
    pub(crate) fn build(frame_bytes: u32) -> Result<Self> {
        let mut plan = Plan::new();
        plan.namespace(NEAR.0).namespace(FAR.0);
        plan.veth(
            Port::new(NEAR.0, NEAR.1).mac(NEAR_MAC).queues(1),
            Port::new(FAR.0, FAR.1).mac(FAR_MAC).queues(1),
        );
        let lab = Lab::build(&plan)?;
        let sink = ProgramSink::new()?;
        let insns = programs::counter(Action::XdpDrop, sink.map_fd())?;
        let program = Program::load(&ProgramSpec::new(ProgramKind::Xdp, "bench_count", &insns))?;
        let ifindex = lab.device(FAR.0, FAR.1).ifindex;
        let link = lab
            .netns(FAR.0)
            .run(|| Link::attach_xdp(&program, ifindex, XdpMode::Native))?
            .context("attach the counting program to the receiving veth")?;
        lab.netns(NEAR.0).enter()?;
        let frame = UdpFrame {
            source_mac: NEAR_MAC,
            destination_mac: FAR_MAC,
            addresses: Addresses::V4 {
                source: Ipv4Addr::new(198, 18, 0, 1),
                destination: Ipv4Addr::new(198, 18, 0, 2),
            },
            source_port: 1024,
            destination_port: 5000,
            flows: 1,
            frame_bytes,
        };
        Ok(Self { frame: frame.check()?, sink, _link: link, lab })
    }

    /// The sending device's number, in the namespace of the calling thread.
    pub(crate) fn ifindex(&self) -> u32 {
        self.lab.device(NEAR.0, NEAR.1).ifindex
    }

    /// The sending device's name, in the namespace of the calling thread.
    pub(crate) fn device(&self) -> &'static str {
        NEAR.1
    }

    /// Frames counted so far.
    pub(crate) fn received(&mut self) -> Result<u64> {
        Ok(self.sink.received()?)
    }

    /// Frames counted once `expected` are there, or no more come.
    pub(crate) fn received_of(&mut self, expected: u64) -> Result<u64> {
        Ok(self.sink.wait_until(expected, ARRIVAL)?)
    }
}
