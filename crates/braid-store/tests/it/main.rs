//! The stores of this crate against the suite, and what the suite cannot see.

mod commit;
mod conversion;
mod copies;
mod corpus;
mod deferred;
mod device;
mod disk;
mod embedded;
mod example;
mod faults;
mod format;
mod journal;
mod memory;
mod offline;
mod opening;
mod parts;
mod size;
mod spool;
#[expect(unreachable_pub, reason = "they are public where they live, in the fuzz crate")]
#[path = "../../../../fuzz/src/stored/mod.rs"]
mod stored;
