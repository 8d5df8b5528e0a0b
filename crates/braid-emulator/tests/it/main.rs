//! The emulator on virtual time.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod delay;
mod determinism;
mod drive;
mod grammar;
mod line;
mod loss;
mod managed;
mod nat;
mod netem;
mod packets;
mod policer;
mod queue;
mod replay;
mod round_trip;
mod statistics;
mod timeline;
