//! Small urgent messages beside bulk that the link cannot carry in time: how many are on time?
//!
//! One client publishes both, another subscribes to both: `braid-client`, because what its defaults come to is the
//! question. Which of the two is behind the bad link is the caller's choice.

mod publisher;
mod subscriber;

use std::time::Duration;

use braid_client::{Client, Messages, Priority, StreamPolicy};
use serde::Serialize;
use tokio::time::{Instant, timeout_at};

use crate::failure::Failure;
use braid_measure::Latencies;

const URGENT_TOPIC: &str = "alarms/door";
const BULK_TOPIC: &str = "files/log";

/// Far above [`Priority::DEFAULT`].
pub const URGENT: Priority = Priority::new(60_000);

/// Time after the last due time from which a message counts as lost.
const PATIENCE: Duration = Duration::from_secs(2);

/// Time in which a sender may estimate the link.
pub const CONVERGENCE: Duration = Duration::from_secs(3);

/// Messages that are published.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Load {
    /// Bytes of an urgent message (QoS 0); at least 8.
    pub urgent_size: usize,
    /// Urgent messages per second.
    pub urgent_rate: f64,
    /// Urgent messages in all.
    pub urgent_messages: u32,
    /// Bytes of a bulk message (QoS 1).
    pub bulk_size: usize,
    /// Bulk messages in all, as soon as the link takes them.
    pub bulk_messages: u32,
    /// Streams of both kinds of messages.
    pub lanes: Lanes,
}

/// Use of streams by the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lanes {
    /// Urgent messages have a priority, and each subscription a stream of its own; the rest is the client's default.
    Priorities,
    /// As many streams, all of equal priority: the effect of streams alone.
    Equal,
    /// Everything on the control stream, all alike: what every MQTT client can do.
    Single,
}

/// Measurements of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Latencies of the urgent messages from due time to arrival.
    pub latencies: Latencies,
    /// Latencies of the urgent messages due within [`CONVERGENCE`], which `latencies` leaves out.
    pub early: Latencies,
    /// Bulk messages that arrived whole.
    pub bulk_messages: u64,
    /// Duration of the run.
    pub elapsed: Duration,
}

impl Lanes {
    /// Stream policy for both clients.
    #[must_use]
    pub fn policy(self) -> StreamPolicy {
        match self {
            Self::Priorities | Self::Equal => StreamPolicy::default(),
            Self::Single => StreamPolicy::control(),
        }
    }
}

impl Load {
    /// 100 bytes every 100 ms for a minute, after [`CONVERGENCE`].
    #[must_use]
    pub fn new(bulk_messages: u32, bulk_size: usize, lanes: Lanes) -> Self {
        Self { urgent_size: 100, urgent_rate: 10.0, urgent_messages: 630, bulk_size, bulk_messages, lanes }
    }

    /// Number of urgent messages that are due within [`CONVERGENCE`].
    #[must_use]
    pub fn early_messages(&self) -> u32 {
        (1..=self.urgent_messages).take_while(|n| self.due(*n) <= CONVERGENCE).map(|_| 1).sum()
    }

    /// When urgent message `n`, counted from 1, is due, after the start.
    fn due(&self, n: u32) -> Duration {
        Duration::from_secs_f64(f64::from(n) / self.urgent_rate)
    }

    /// Subscribes.
    ///
    /// # Errors
    /// A client is closed, or the server does not take the load.
    pub async fn set_up(self, publisher: Client, subscriber: (Client, Messages)) -> Result<Ready, Failure> {
        let subscriber = subscriber::Subscriber::begin(subscriber, &self).await?;
        let publisher = publisher::Publisher::new(publisher, &self)?;
        Ok(Ready { load: self, publisher, subscriber })
    }
}

/// Both clients, with everything subscribed.
pub struct Ready {
    load: Load,
    publisher: publisher::Publisher,
    subscriber: subscriber::Subscriber,
}

impl Ready {
    /// Publishes and measures for as long as the urgent messages take.
    ///
    /// # Errors
    /// A client is closed, or the server does not take the load.
    pub async fn run(self) -> Result<Outcome, Failure> {
        let Self { load, publisher, mut subscriber } = self;
        let start = Instant::now();
        let end = start + load.due(load.urgent_messages) + PATIENCE;
        let both = async {
            tokio::select! {
                failure = publisher.run(&load, start) => failure,
                failure = subscriber.run(&load, start) => failure,
            }
        };
        if let Ok(failure) = timeout_at(end, both).await {
            return Err(failure);
        }
        Ok(subscriber.outcome(&load, start.elapsed()))
    }
}
