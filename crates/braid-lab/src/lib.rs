//! The network laboratory of BraidMQ: links with chosen physics, the same for every program that is put on them.
//!
//! This crate never speaks MQTT itself; programs do. Links are those of `braid-emulator`, between wires of the kernel.

pub mod experiment;
pub mod report;
pub mod scenario;
pub mod selftest;
pub mod testbed;
pub mod wire;
