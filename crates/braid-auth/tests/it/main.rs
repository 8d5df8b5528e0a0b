//! Tests of file formats and decisions, against plain models, and of SCRAM.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod corpus;
#[expect(unreachable_pub, reason = "they are public where they live, in the fuzz crate")]
#[path = "../../../../fuzz/src/credentials/mod.rs"]
mod credentials;
mod credentials_corpus;
mod examples;
mod format;
mod generator;
mod model;
mod mosquitto;
#[expect(unreachable_pub, reason = "they are public where they live, in the fuzz crate")]
#[path = "../../../../fuzz/src/rules/mod.rs"]
mod rules;
mod rules_json;
mod password;
mod scram;
