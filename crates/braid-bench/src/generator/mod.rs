//! Publishers, subscribers and idle connections by the thousand: the load of `braidmq bench pub|sub|conn`.
//!
//! A [`Plan`] describes the load, a [`Dialer`] the way to the broker, and [`run`] executes it on the calling
//! runtime, with a task for each client. [`RunStatistics`] holds the counters during the run and afterwards.
//!
//! Publishing is open loop: every message has a fixed due time, from which its latency counts. A
//! message that cannot leave yet keeps that time. Due messages without an acknowledgement count as failed.

mod client;
mod client_identity;
mod plan;
mod publisher;
mod run;
mod self_measure;
mod shared;
mod statistics;
mod subscriber;
#[cfg(test)]
mod tests;
mod timestamp;

use std::task::Context;

use tokio::time::Instant;

pub use plan::{
    Clients, Credentials, Ending, Payload, Plan, PlanError, PlannedEnd, PublishPlan, PublishedTopic, Retries,
    Start, SubscribePlan, SubscribedFilter, Work,
};
pub use run::{Ended, run};
pub use self_measure::{SelfMeasure, SelfMeasured, measure_self};
pub use statistics::{RunSnapshot, RunStatistics};
pub use timestamp::TimestampField;

pub use crate::clock::Clock;
pub use crate::dial::{DialError, Dialer};
pub use crate::timer::TimerService;

use client_identity::ClientIdentity;
use statistics::Shard;

use crate::connection::Connection;

/// Client of a worker during one turn.
struct ClientTurn<'a, 'w> {
    connection: &'a mut Connection,
    identity: &'a mut ClientIdentity,
    shard: &'a mut Shard,
    /// Start of the turn.
    now: Instant,
    cx: &'a mut Context<'w>,
}
