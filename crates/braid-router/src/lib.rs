//! Topic matching: the receivers of a message, and their deliveries.
//!
//! The crate never opens a socket, reads a clock, draws a random number, takes a lock or knows a
//! runtime. All functions work on plain values:
//!
//! - [`Router`]: subscriptions that match a Topic Name (MQTT 4.7, 4.8.2)
//! - [`Retained`]: retained messages that match a Topic Filter (MQTT 3.3.1.3)
//! - [`route`], [`route_shared`] and [`replay`]: deliveries to one session (MQTT 3.3.4,
//!   3.8.3.1)
//!
//! Results depend on the arguments, never on a hash seed: two runs of the same load never differ in
//! order.

mod exact;
mod group;
mod matches;
mod retained;
mod route;
mod router;
mod runs;
mod subscribers;
mod trie;

pub use group::{Group, Readiness};
pub use matches::Matches;
pub use retained::{Retained, Walked};
pub use route::{Overlap, replay, replays_at_subscribe, route, route_shared};
pub use router::{Router, Statistics};
pub use runs::Match;
