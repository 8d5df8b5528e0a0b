//! Tests of the core through its public interface, on virtual time.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod allocation;
mod arbitrary;
#[expect(unreachable_pub, reason = "they are public where they live, in the fuzz crate")]
#[path = "../../../../fuzz/src/bodies/mod.rs"]
mod bodies;
mod conversation_parts;
mod corpus;
mod deliveries;
mod durable;
mod fields;
mod hex;
mod pair;
mod resume;
mod rig;
mod round_trip;
mod secrets;

mod server;
mod session_halves;
mod session_model;
mod spool;
mod streams;
mod transcripts;
mod vectors;
mod violations;
