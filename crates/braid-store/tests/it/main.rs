//! The stores of this crate against the suite, and what the suite cannot see.

mod commit;
mod conversion;
mod deferred;
mod device;
mod disk;
mod embedded;
mod example;
mod faults;
mod format;
mod memory;
mod offline;
mod opening;
mod size;
