//! Tests of file formats and decisions, against plain models, of tokens and of SCRAM.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod corpus;
#[expect(unreachable_pub, reason = "they are public where they live, in the fuzz crate")]
#[path = "../../../../fuzz/src/credentials/mod.rs"]
mod credentials;
mod credentials_corpus;
mod examples;
mod format;
mod generator;
mod jwt;
mod model;
mod mosquitto;
mod password;
#[expect(unreachable_pub, reason = "they are public where they live, in the fuzz crate")]
#[path = "../../../../fuzz/src/rules/mod.rs"]
mod rules;
mod rules_json;
mod scram;
#[path = "../../../../fuzz/src/seeds.rs"]
mod seeds;
#[expect(unreachable_pub, reason = "they are public where they live, in the fuzz crate")]
#[path = "../../../../fuzz/src/tokens.rs"]
mod tokens;
mod tokens_corpus;
