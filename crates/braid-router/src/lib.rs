//! Topic matching: who receives a message, and how.
//!
//! This crate never opens a socket, reads a clock, draws a random number, takes a lock or knows a
//! runtime. It answers three questions, each with plain values:
//!
//! - [`Router`]: which subscriptions match a Topic Name? (MQTT 4.7, 4.8.2)
//! - [`Retained`]: which retained messages match a Topic Filter? (MQTT 3.3.1.3)
//! - [`route`], [`route_shared`] and [`replay`]: what does one session receive because of that? (MQTT 3.3.4,
//!   3.8.3.1)
//!
//! Answers depend on what was asked, never on a hash seed: two runs of the same load never differ in
//! order.

mod audience;
mod exact;
mod group;
mod label;
mod level_order;
mod matches;
mod retained;
mod route;
mod router;
mod subscribers;
mod trie;
mod verdict;

pub use group::Group;
pub use matches::{Match, Matches};
pub use retained::{Retained, Walked};
pub use route::{Overlap, replay, replays_at_subscribe, route, route_shared};
pub use router::{Router, Statistics};
