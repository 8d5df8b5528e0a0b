//! Tests of the access control list against plain models, and of its file format.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod corpus;
mod examples;
mod format;
mod generator;
mod model;
mod mosquitto;
#[expect(unreachable_pub, reason = "they are public where they live, in the fuzz crate")]
#[path = "../../../../fuzz/src/rules/mod.rs"]
mod rules;
mod rules_json;
