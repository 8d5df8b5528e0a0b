//! The stages of a path, one file each: what the specification says of it, and what it does.

mod delay;
mod distribution;
mod limit;
mod loss;
mod order;
mod policer;
mod rate;
mod selector;

pub use delay::Delay;
pub use distribution::Distribution;
pub use limit::Limit;
pub use loss::{Loss, LossModel};
pub use order::Order;
pub(crate) use policer::Bucket;
pub use policer::Policer;
pub use rate::Rate;
pub use selector::{Rule, Selector};
