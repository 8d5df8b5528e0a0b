//! The whole broker over in-memory links, on virtual time: what a client sees on the wire.

#![allow(clippy::panic, reason = "what a test calls may end it, not only its own function")]

mod support;

mod aged;
mod connecting;
mod crowded;
mod delivery;
mod disk;
mod durability;
mod expired;
mod fairness;
mod filters;
mod flow;
mod hostile;
mod memory;
mod permissions;
mod priorities;
mod queues;
mod random;
mod rates;
mod retained;
mod sessions;
mod shared;
mod shelved;
mod slow;
mod spooled;
mod stopping;
mod stream_subscriptions;
mod streams;
mod subscriptions;
mod takeover;
mod waiting;
mod wills;
