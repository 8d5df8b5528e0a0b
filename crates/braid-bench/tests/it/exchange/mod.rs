//! Requests and responses: in memory and over a simulated network on virtual time, and over loopback.

mod deaths;
mod hostile;
mod load;
mod loopback;
mod quic;
mod rig;
mod service;
