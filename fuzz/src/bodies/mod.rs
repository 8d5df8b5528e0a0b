//! Bodies of the fuzz targets for packets, topics and protocol machines. Each panics on a failure.

mod client_streams;
mod datagrams;
mod decode;
mod filter_match;
mod peer;
mod round_trip;
mod session_operations;

pub use client_streams::client_streams;
pub use datagrams::datagrams;
pub use decode::{decode_v3, decode_v5};
pub use filter_match::filter_match;
pub use round_trip::round_trip;
pub use session_operations::session_operations;
