//! Asking a real broker how it is.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod asking;
