//! The stores of this crate against the suite, and what the suite cannot see.

mod commit;
mod conversion;
mod deferred;
mod faults;
mod memory;
