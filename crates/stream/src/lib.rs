//! Bulk and request/response workloads over sockets, and the protocols by which two hosts agree on one.
//!
//! What is to flow is a [`plan::Plan`]; what one end moved, in which time of its own clock and with how much CPU, is an
//! [`outcome::Side`]. The protocols (`own`, `netperf`, `iperf3`) arrange sockets between two ends and exchange what each of
//! them counted; the `engine` moves the bytes, whoever arranged them.
//!
//! It deliberately prints nothing, makes no namespace and computes no statistics over runs: the binary does the first
//! two, `measure` the last.
//!
//! # Map
//!
//! | module | what it holds |
//! |---|---|
//! | [`engine`] | moves the bytes of one end, and counts them |
//! | [`netperf`] | netperf's control protocol and columns |
//! | [`plan`] | what is to flow: transport, work, sizes, socket options, pace, and when it ends |
//! | [`outcome`] | what one end of it counted |
//! | [`limits`] | what a server grants its clients, and how it is told to end |
//! | [`iperf3`] | iperf3's protocol: server, client, and its JSON |
//! | [`datagrams`] | which numbered datagrams were lost, came twice, late, or out of order |
//! | [`latency`] | how long transactions took, recorded and looked at |
//! | [`cpu`] | what CPUs did between two looks, by kind |
//! | [`demand`] | CPU time for each KB and transaction |
//! | [`own`] | perpacket's own protocol: wire format, client, server |
//! | [`serve`] | one process that serves clients of several protocols at once |
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![forbid(unsafe_code)]

pub mod cpu;
pub mod datagrams;
pub mod demand;
pub mod engine;
pub mod iperf3;
pub mod latency;
pub mod limits;
pub mod netperf;
pub mod outcome;
pub mod own;
pub mod plan;
pub mod serve;
