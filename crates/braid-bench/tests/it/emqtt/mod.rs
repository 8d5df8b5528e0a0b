//! The vocabulary of emqtt_bench, by exact bytes and lines.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "what a test calls may end it, not only its own function"
)]

mod any_input;
mod lines;
mod metrics;
mod payloads;
mod placeholders;
mod topics;
