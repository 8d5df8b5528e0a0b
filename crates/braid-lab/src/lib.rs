//! The network laboratory of BraidMQ: links with chosen physics, the same for every program that is put on them.
//!
//! This crate never speaks MQTT itself; programs do. Its link emulator ([`Pipeline`]) never reads a clock, opens a
//! socket, starts a thread or draws a random number: packets and times go in, packets and times come out.

mod emulator;

pub mod experiment;
pub mod report;
pub mod scenario;
pub mod selftest;
pub mod testbed;
pub mod wire;

pub use emulator::{
    Change, CounterPrf, Delay, Departure, Direction, Distribution, Fate, Limit, LinkError, LinkSpec, Loss,
    LossModel, Nat, NatKind, NatTimes, Order, PacketCount, PacketView, PathCounters, PathSpec, Pipeline,
    Policer, Probability, Rate, Rule, Selector, Stage, Timeline, Verdict,
};
