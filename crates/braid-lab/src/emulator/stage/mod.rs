//! Stages of a path: their specifications and what they do to packets.

mod delay;
mod loss;
mod policer;
mod queueing;
mod selector;

pub use delay::{Delay, Distribution};
pub use loss::{Loss, LossModel};
pub(crate) use policer::Bucket;
pub use policer::{Policer, Rate};
pub use queueing::{Limit, Order};
pub use selector::{Rule, Selector};
