//! Stages of a path: their specifications and what they do to packets.

mod active_queue;
mod delay;
mod line;
mod loss;
mod policer;
mod queueing;
mod replay;
mod selector;
mod trace;

pub(crate) use active_queue::{ActiveQueue, Turn};
pub use active_queue::{Codel, Ecn, Management};
pub use delay::{Delay, Distribution};
pub(crate) use line::Aggregate;
pub(crate) use line::{Line, LineSpec, Service};
pub use line::{LineRate, Stall};
pub use loss::{Loss, LossModel};
pub(crate) use policer::Bucket;
pub use policer::{Policer, Rate};
pub use queueing::{Limit, Order};
pub(crate) use replay::Recorder;
pub use replay::Replay;
pub use selector::{Rule, Selector};
pub use trace::Trace;
