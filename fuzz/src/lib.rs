//! The bodies of the fuzz targets: what must hold for any bytes.
//!
//! This crate never runs anything by itself: `fuzz_targets/` calls a body with what libFuzzer makes up, and the
//! tests of `braid-proto` and `braid-store` call it with what `corpus/` holds.

pub mod bodies;
pub mod stored;
