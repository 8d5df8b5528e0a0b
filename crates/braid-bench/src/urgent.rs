//! Small urgent messages beside bulk that the link cannot carry in time: how many are on time?
//!
//! One client publishes both, another subscribes to both: `braid-client`, because what its defaults come to is the
//! question. Which of the two is behind the bad link is the caller's choice.

use std::convert::Infallible;
use std::future::{pending, poll_fn};
use std::time::Duration;

use braid_client::{Client, Error, Messages, Priority, Publication, QoS, Received, StreamPolicy, Subscribe};
use braid_measure::Latencies;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::Serialize;
use tokio::time::{Instant, timeout_at};

use crate::failure::{Failure, topic_filter, topic_name};
use crate::pace::{Pace, Schedule};
use crate::timer::TimerService;

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
pub struct UrgentLoad {
    /// Bytes of an urgent message (QoS 0); at least 8.
    pub urgent_size: usize,
    /// Urgent messages per second.
    pub urgent_rate: f64,
    /// Urgent messages in all.
    pub urgent_messages: u32,
    /// Bytes of a bulk message (QoS 1).
    pub bulk_size: usize,
    /// Bulk messages in all.
    pub bulk_messages: u32,
    /// Most bulk messages per second; `None`: as soon as the link takes them.
    pub bulk_rate: Option<f64>,
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
#[derive(Clone, Debug, Default)]
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

impl UrgentLoad {
    /// 100 bytes every 100 ms for a minute, after [`CONVERGENCE`].
    #[must_use]
    pub fn new(bulk_messages: u32, bulk_size: usize, lanes: Lanes) -> Self {
        Self {
            urgent_size: 100,
            urgent_rate: 10.0,
            urgent_messages: 630,
            bulk_size,
            bulk_messages,
            bulk_rate: None,
            lanes,
        }
    }

    /// Number of urgent messages that are due within [`CONVERGENCE`].
    #[must_use]
    pub fn early_messages(&self) -> u32 {
        (1..=self.urgent_messages).take_while(|n| self.due(*n) <= CONVERGENCE).map(|_| 1).sum()
    }

    /// Due time of urgent message `n`, counted from 1, after the start.
    fn due(&self, n: u32) -> Duration {
        Schedule::new(self.urgent_rate, 1).due_of(n.into())
    }

    /// Subscribes.
    ///
    /// # Errors
    /// A client is closed, or the server does not take the load.
    pub async fn set_up(
        self,
        publisher: Client,
        (subscriber, messages): (Client, Messages),
    ) -> Result<Ready, Failure> {
        let mut to_urgent = Subscribe::new([topic_filter(URGENT_TOPIC)?]).qos(QoS::AtMostOnce);
        let mut to_bulk = Subscribe::new([topic_filter(BULK_TOPIC)?]).qos(QoS::AtLeastOnce);
        if self.lanes != Lanes::Single {
            (to_urgent, to_bulk) = (to_urgent.stream(1), to_bulk.stream(2));
        }
        let mut urgent = Publication::new(topic_name(URGENT_TOPIC)?, Bytes::new());
        let mut bulk =
            Publication::new(topic_name(BULK_TOPIC)?, vec![0xB5; self.bulk_size]).qos(QoS::AtLeastOnce);
        match self.lanes {
            Lanes::Priorities => (urgent, to_urgent) = (urgent.priority(URGENT), to_urgent.priority(URGENT)),
            // By themselves they would share one stream, or what is large would yield.
            Lanes::Equal => (urgent, bulk) = (urgent.stream(1), bulk.stream(2)),
            Lanes::Single => {}
        }
        for subscribe in [to_urgent, to_bulk] {
            subscriber.subscribe(subscribe).await?;
        }
        Ok(Ready { load: self, publisher, urgent, bulk, _subscriber: subscriber, messages })
    }
}

/// Both clients, with everything subscribed.
pub struct Ready {
    load: UrgentLoad,
    publisher: Client,
    urgent: Publication,
    bulk: Publication,
    /// Held: without it the connection would end.
    _subscriber: Client,
    messages: Messages,
}

impl Ready {
    /// Publishes and measures for as long as the urgent messages take.
    ///
    /// # Errors
    /// A client is closed, or the server does not take the load.
    pub async fn run(mut self) -> Result<Outcome, Failure> {
        let load = self.load;
        let (start, mut outcome) = (Instant::now(), Outcome::default());
        let end = start + load.due(load.urgent_messages) + PATIENCE;
        let receive = async {
            while let Some(received) = self.messages.recv().await {
                outcome.take(&received, &load, start)?;
            }
            Err(Error::Closed.into())
        };
        let all = async {
            tokio::select! {
                ended = publish_urgent(&self.publisher, &self.urgent, load, start) => ended,
                ended = publish_bulk(&self.publisher, &self.bulk, load, start) => ended,
                ended = receive => ended,
            }
        };
        if let Ok(Err(failure)) = timeout_at(end, all).await {
            return Err(failure);
        }
        let early = load.early_messages();
        let Outcome { latencies, early: early_latencies, .. } = &mut outcome;
        for (latencies, due) in [(early_latencies, early), (latencies, load.urgent_messages - early)] {
            latencies.record_missing(u64::from(due).saturating_sub(latencies.arrived()));
        }
        Ok(Outcome { elapsed: start.elapsed(), ..outcome })
    }
}

/// Publishes until it is dropped.
async fn publish_urgent(
    client: &Client,
    urgent: &Publication,
    load: UrgentLoad,
    start: Instant,
) -> Result<Infallible, Failure> {
    let mut pace = Pace::new(start, load.urgent_rate, &TimerService::coarse());
    for number in 1..=load.urgent_messages {
        poll_fn(|cx| pace.poll_step(cx)).await;
        // Its number and then filling.
        let mut payload = BytesMut::with_capacity(load.urgent_size);
        payload.put_u64(number.into());
        payload.resize(load.urgent_size.max(8), 0xA5);
        // Not awaited: what is due next does not wait for it.
        client.try_publish(urgent.clone().payload(payload.freeze()))?;
    }
    pending().await
}

/// Publishes until it is dropped.
async fn publish_bulk(
    client: &Client,
    bulk: &Publication,
    load: UrgentLoad,
    start: Instant,
) -> Result<Infallible, Failure> {
    let mut pace = load.bulk_rate.map(|rate| Pace::new(start, rate, &TimerService::coarse()));
    for _ in 0..load.bulk_messages {
        if let Some(pace) = &mut pace {
            poll_fn(|cx| pace.poll_step(cx)).await;
        }
        drop(client.enqueue(bulk.clone()).await?);
    }
    pending().await
}

impl Outcome {
    fn take(&mut self, received: &Received, load: &UrgentLoad, start: Instant) -> Result<(), Failure> {
        let message = &received.message;
        match message.topic.as_str() {
            BULK_TOPIC => self.bulk_messages += 1,
            URGENT_TOPIC if message.payload.len() >= 8 => {
                let number = (&message.payload[..]).get_u64();
                let number = u32::try_from(number).map_err(|_| Failure::Stray(URGENT_TOPIC.into()))?;
                let due = load.due(number);
                let latencies = if due <= CONVERGENCE { &mut self.early } else { &mut self.latencies };
                latencies.record(start.elapsed().saturating_sub(due));
            }
            stray => return Err(Failure::Stray(stray.into())),
        }
        Ok(())
    }
}
