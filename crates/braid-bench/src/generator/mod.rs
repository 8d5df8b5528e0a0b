//! Publishers, subscribers and idle connections by the thousand: what `braidmq bench pub|sub|conn` does.
//!
//! A [`Plan`] says what is to be done, a [`Dialer`] how the broker is reached, and [`run`] does it on the runtime
//! that it is called on, a task for each client. Meanwhile and afterwards a [`Board`] shows what was counted.
//!
//! Publishing is open loop: every message is due at a time that nothing moves, and its latency counts from then. A
//! message that cannot leave yet waits and keeps that time. What was due and never acknowledged is counted as failed.

mod board;
mod client;
mod dial;
mod plan;
mod publisher;
mod run;
mod self_measure;
mod shared;
mod subscriber;
#[cfg(test)]
mod tests;
mod timestamp;
mod who;

pub use board::{Board, Glance, GlanceTopic};
pub use dial::{DialError, Dialer};
pub use plan::{
    Clients, Credentials, Ending, Payload, Plan, PlanError, PublishPlan, PublishedTopic, Retries, Start,
    SubscribePlan, SubscribedFilter, Work,
};
pub use run::{Ended, run};
pub use self_measure::{SelfMeasure, SelfMeasured, measure_self};
pub use timestamp::{TimestampField, TimestampFieldError};

pub use crate::alarm::Alarm;
pub use crate::clock::Clock;
