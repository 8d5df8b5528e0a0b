//! `braidmq bench` against `braidmq serve`.

#![expect(clippy::panic, reason = "a test fails by panicking")]

mod choice;
mod counts;
mod endings;
mod identities;
mod output;
mod refusals;
mod rig;
mod topics;
