use std::convert::Infallible;
use std::future::{pending, poll_fn};

use braid_client::{Client, Publication, QoS, TopicName};
use bytes::{BufMut, Bytes, BytesMut};
use tokio::time::Instant;

use super::{BULK_TOPIC, Lanes, Load, URGENT, URGENT_TOPIC};
use crate::failure::Failure;
use crate::pace::Pace;

/// Publishes both kinds of messages.
pub(super) struct Publisher {
    client: Client,
    urgent: Publication,
    bulk: Publication,
}

impl Publisher {
    pub(super) fn new(client: Client, load: &Load) -> Result<Self, Failure> {
        let topic = |name| TopicName::parse(name).map_err(|_| Failure::Stray(name.into()));
        let mut urgent = Publication::new(topic(URGENT_TOPIC)?, Bytes::new());
        let mut bulk = Publication::new(topic(BULK_TOPIC)?, vec![0xB5; load.bulk_size]).qos(QoS::AtLeastOnce);
        match load.lanes {
            Lanes::Priorities => urgent = urgent.priority(URGENT),
            // By themselves they would share one stream, or what is large would yield.
            Lanes::Equal => (urgent, bulk) = (urgent.stream(1), bulk.stream(2)),
            Lanes::Single => {}
        }
        Ok(Self { client, urgent, bulk })
    }

    /// Publishes until it is dropped.
    pub(super) async fn run(&self, load: &Load, start: Instant) -> Failure {
        let ended = tokio::select! {
            ended = self.publish_urgent(load, start) => ended,
            ended = self.publish_bulk(load) => ended,
        };
        match ended {
            Err(failure) => failure,
        }
    }

    async fn publish_urgent(&self, load: &Load, start: Instant) -> Result<Infallible, Failure> {
        let mut pace = Pace::new(start, load.urgent_rate);
        for number in 1..=load.urgent_messages {
            poll_fn(|cx| pace.poll_step(cx)).await;
            // Not awaited: what is due next does not wait for it.
            self.client.try_publish(self.urgent.clone().payload(payload(number, load.urgent_size)))?;
        }
        pending().await
    }

    async fn publish_bulk(&self, load: &Load) -> Result<Infallible, Failure> {
        for _ in 0..load.bulk_messages {
            drop(self.client.enqueue(self.bulk.clone()).await?);
        }
        pending().await
    }
}

/// Its number and then filling.
fn payload(number: u32, size: usize) -> Bytes {
    let mut payload = BytesMut::with_capacity(size);
    payload.put_u64(number.into());
    payload.resize(size.max(8), 0xA5);
    payload.freeze()
}
