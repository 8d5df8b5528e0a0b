//! Conformance suite on the stores of this crate, and tests of behaviour that the suite does not cover.

mod chunks;
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
#[path = "../../../../fuzz/src/seeds.rs"]
mod seeds;
mod size;
mod spool;
#[expect(unreachable_pub, reason = "they are public where they live, in the fuzz crate")]
#[path = "../../../../fuzz/src/stored/mod.rs"]
mod stored;
