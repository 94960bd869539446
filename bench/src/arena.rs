//! The network that everything is sent into: a veth pair whose far end is a program in XDP.

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

/// The veth pair, whose sending side the calling thread has entered.
pub struct Wire {
    _link: Link,
    // Last, so that the program goes before the device that it is attached to.
    lab: Lab,
}

impl Wire {
    /// Builds it with so many queues at both ends and the program at the far end, and moves the calling thread, and the
    /// processes that it will start, to the sending side.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn build(queues: u32, far_program: &[[u8; 8]]) -> Result<Self> {
        let mut plan = Plan::new();
        plan.namespace(NEAR.0).namespace(FAR.0);
        plan.veth(
            Port::new(NEAR.0, NEAR.1).mac(NEAR_MAC).queues(queues),
            Port::new(FAR.0, FAR.1).mac(FAR_MAC).queues(queues),
        );
        let lab = Lab::build(&plan)?;
        let program = Program::load(&ProgramSpec::new(ProgramKind::Xdp, "bench_far_end", far_program))?;
        let ifindex = lab.device(FAR.0, FAR.1).ifindex;
        let link = lab
            .netns(FAR.0)
            .run(|| Link::attach_xdp(&program, ifindex, XdpMode::Native))?
            .context("attach the program to the receiving veth")?;
        lab.netns(NEAR.0).enter()?;
        Ok(Self { _link: link, lab })
    }

    /// The sending device's number, in the namespace of the calling thread.
    pub fn ifindex(&self) -> u32 {
        self.lab.device(NEAR.0, NEAR.1).ifindex
    }

    /// The sending device's name, in the namespace of the calling thread.
    pub fn device(&self) -> &'static str {
        NEAR.1
    }
}

/// A wire whose far end counts and drops.
pub struct Arena {
    /// The wire.
    pub wire: Wire,
    sink: ProgramSink,
}

impl Arena {
    /// Builds it, as [`Wire::build`].
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn build(queues: u32) -> Result<Self> {
        let sink = ProgramSink::new()?;
        let wire = Wire::build(queues, &programs::counter(Action::XdpDrop, sink.map_fd())?)?;
        Ok(Self { wire, sink })
    }

    /// Frames counted so far.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn received(&self) -> Result<u64> {
        Ok(self.sink.received()?)
    }

    /// Frames counted once `expected` are there, or no more come.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn received_of(&self, expected: u64) -> Result<u64> {
        Ok(self.sink.wait_until(expected, ARRIVAL)?)
    }
}

/// A frame of one flow that takes the wire, of so many bytes with FCS.
///
/// # Errors
/// A size that no such frame has.
pub fn frame(frame_bytes: u32) -> Result<CheckedFrame> {
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
        sources: 1,
        stamp: false,
        frame_bytes,
    };
    Ok(frame.check()?)
}
