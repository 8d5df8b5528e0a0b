//! Selection of the transport protocol, QUIC or TCP, by measurements of the paths.
//!
//! The crate never opens a socket, reads a clock, draws a random number or knows HTTP, MQTT or a runtime: callers pass
//! times and readings of their connections, and take decisions.
//!
//! A server asks the [`Selector`] which protocol to advertise to a client network; a client asks it which protocol to
//! try first. Both feed it in the same way:
//!
//! 1. [`Selector::observe_tcp`] with `TCP_INFO` of each TCP connection, [`Selector::observe_quic`] with the path
//!    statistics of each QUIC connection, once a second and at the end of the connection.
//! 2. [`Selector::observe_response`] with the completion time of responses, where it is known.
//! 3. [`Selector::quic_works`] and [`Selector::quic_failed`] with the results of handshakes.
//!
//! Each call may return a [`Decision`]; a server then sends [`Selector::alt_svc`] with each response and, on a decision
//! for TCP, GOAWAY on its HTTP/3 connections of this network. Times are durations since an epoch that the caller chose,
//! of a clock that does not go backwards. If it does all the same, the time since the last event counts as zero.
//!
//! - [`cost`]: cost model: urgent latency, completion time and processor time of a workload on a path
//! - [`decision`]: decisions and their reasons, as events
//! - [`explain`]: present state of one key in numbers
//! - [`key`]: client networks and origins
//! - [`reading`]: statistics of connections
//! - [`selector`]: the selector, its configuration and its limits

mod backoff;
pub mod cost;
pub mod decision;
mod entry;
mod estimate;
pub mod explain;
pub mod key;
mod protocol;
pub mod reading;
pub mod selector;
mod switch;

pub use cost::{Cost, Workload};
pub use decision::{Decision, Reason};
pub use explain::Explanation;
pub use key::{Key, Network};
pub use protocol::{Mode, Protocol};
pub use reading::{DeliveryRate, QuicCounters, QuicMeter, QuicReading, QuicSampler, TcpMeter, TcpReading};
pub use selector::{AltSvc, Config, Failure, First, Remembered, Selector};
