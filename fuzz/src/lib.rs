//! Bodies of the fuzz targets: properties that hold for any bytes.
//!
//! This crate runs nothing by itself: `fuzz_targets/` calls a body with the input of libFuzzer, and the
//! tests of `braid-auth`, `braid-proto`, `braid-store` and `braid-transport` with the files of `corpus/`.

pub mod bodies;
pub mod credentials;
pub mod proxy_header;
pub mod rules;
pub mod stored;
pub mod tokens;
