//! Integration tests of the whole broker over in-memory links, on virtual time, at the level of packets.

#![allow(clippy::panic, reason = "what a test calls may end it, not only its own function")]

#[path = "../../../braid-transport/tests/it/noq_peer.rs"]
mod noq_peer;
mod support;

mod admission;
mod authentication;
mod connecting;
mod delivery;
mod disk;
mod durability;
mod durable_acks;
mod fairness;
mod filters;
mod flow;
mod limits;
mod malformed;
mod memory;
mod message_expiry;
mod offline_limit;
mod permissions;
mod priorities;
mod queue_age;
mod queues;
mod random;
mod rates;
mod resume;
mod retained;
mod revoked_certificates;
mod security;
mod security_permissions;
mod security_retained;
mod sessions;
mod shared;
mod slow;
mod sockets;
mod spooled;
mod stopping;
mod stored_queues;
mod stream_subscriptions;
mod streams;
mod subscriptions;
mod takeover;
mod tenants;
mod views;
mod wills;
