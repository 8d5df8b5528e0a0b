//! Tests of health over HTTP with a real broker.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod health;
