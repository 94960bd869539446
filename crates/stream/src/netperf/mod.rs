//! netperf's control protocol (2.7.0 and later), both ends of it, and its classic columns.
//!
//! | module | what it holds |
//! |---|---|
//! | [`wire`] | the messages of the control connection, as plain data |
//!
//! Read from netperf 2.7.1 (commit afc51ff) and checked against exchanges recorded from it.

pub mod wire;
