//! Stores over others with a disk that dies, or one that is slow: for tests of what stands above.

mod failing;
mod holding;

pub use failing::FailingStore;
pub use holding::HoldingStore;
