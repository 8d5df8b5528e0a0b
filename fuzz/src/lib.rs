//! Bodies of the fuzz targets: properties that hold for any bytes.
//!
//! This crate runs nothing by itself: `fuzz_targets/` calls a body with the input of libFuzzer, and the
//! tests of `braid-auth`, `braid-proto`, `braid-store`, `braid-transport` and `braidmq` with the files of `corpus/`.

pub mod bodies;
#[allow(dead_code, missing_docs, unused_imports, reason = "a part of the program is used")]
#[path = "../../crates/braidmq/src/config/mod.rs"]
mod config;
pub mod configuration;
pub mod credentials;
pub mod proxy_header;
pub mod rules;
pub mod stored;
pub mod tokens;
