//! Links with chosen physics, the same for every packet that crosses them.
//!
//! This crate never reads a clock, opens a socket, starts a thread or draws a random number: a [`Pipeline`] for each
//! direction takes packets with their times and gives packets with their times. Time is a [`std::time::Duration`] since
//! the start of the link and never goes back; a packet is the bytes of an IP packet. The same code runs on virtual time
//! in tests and on the clock between namespaces.

mod direction;
mod nat;
mod packet;
mod pipeline;
mod prf;
mod queue;
mod spec;
mod stage;
mod stages;
mod verdict;

pub use direction::Direction;
pub use nat::{Nat, NatKind, NatTimes};
pub use packet::{PacketView, ecn_of, set_ecn};
pub use pipeline::{Departure, Pipeline};
pub use prf::{CounterPrf, Stage};
pub use spec::quantity::{duration_text, parse_duration};
pub use spec::{Change, LinkError, LinkSpec, PathSpec, Probability, Timeline};
pub use stage::{
    Codel, Delay, Distribution, Ecn, Limit, LineRate, Loss, LossModel, Management, Order, Policer, Rate,
    Replay, Rule, Selector, Stall, Trace,
};
pub use verdict::{Fate, PacketCount, PathCounters, Verdict};
