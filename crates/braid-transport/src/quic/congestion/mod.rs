//! Congestion control: the gate, which keeps urgent packets out of queues, and extensions of BBR version 3.
//!
//! [`path_model`] is pure: what happened and when comes in as arguments, send decisions come out. It uses no clock, no
//! runtime and no random numbers. [`controller`] connects it with the QUIC library.

mod bbr_extensions;
pub(super) mod controller;
pub(super) mod path_activity;
mod path_model;
pub(super) mod pto_filter;

pub(super) use bbr_extensions::{BbrExtensions, permit_extra_packet};
pub use path_model::{Class, GateState, Level, Reason};
