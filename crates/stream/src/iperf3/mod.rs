//! iperf3's protocol: a client that talks to `iperf3 -s`, and a server that `iperf3 -c` can talk to.
//!
//! Read from iperf3 3.12 and 3.21; deliberately without SCTP, and without files as source or sink.
//!
//! | module | what it holds |
//! |---|---|
//! | [`wire`] | cookie, states, frames of JSON, hello and header of datagrams |
//! | [`parameters`] | what a client asks for |
//! | [`plan`] | a plan in the words of parameters, and back |
//! | [`results`] | what each end counted |
//! | [`auth`] | tokens and who may |
//! | [`client`] | a client for servers of iperf3 |
//! | [`server`] | a server for several clients at once |
//! | [`json`] | the JSON that `iperf3 -J` prints |
//! | [`error`] | what can go wrong, with iperf3's numbers |

pub mod auth;
pub mod client;
pub mod error;
pub mod json;
mod line;
pub mod parameters;
pub mod plan;
mod report;
pub mod results;
pub mod server;
pub mod wire;
