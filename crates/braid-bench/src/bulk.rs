//! Duration of one large message.
//!
//! Both ends are `braid-client`, because its defaults are measured. The caller decides which of them is behind the
//! link under test.

use std::time::Duration;

use braid_client::{Client, Error, Messages, Publication, QoS, Subscribe};
use tokio::time::Instant;

use crate::failure::{Failure, topic_filter, topic_name};

const TOPIC: &str = "files/recording";

/// Both clients with their subscriptions.
pub struct Bulk {
    publisher: Client,
    /// Held, because dropping it ends the connection.
    _subscriber: Client,
    messages: Messages,
}

impl Bulk {
    /// Subscribes.
    ///
    /// # Errors
    /// A client is closed, or the server refuses.
    pub async fn set_up(
        publisher: Client,
        (subscriber, messages): (Client, Messages),
    ) -> Result<Self, Failure> {
        subscriber.subscribe(Subscribe::new([topic_filter(TOPIC)?]).qos(QoS::AtLeastOnce)).await?;
        Ok(Self { publisher, _subscriber: subscriber, messages })
    }

    /// Time from the PUBLISH of one message of `size` bytes (QoS 1) until the subscriber has all of it.
    ///
    /// # Errors
    /// A client is closed, the server does not take the message, or it arrived as another.
    pub async fn transfer(&mut self, size: usize) -> Result<Duration, Failure> {
        let bulk = Publication::new(topic_name(TOPIC)?, vec![0xB5; size]).qos(QoS::AtLeastOnce);
        let start = Instant::now();
        let (published, received) = tokio::join!(self.publisher.enqueue(bulk), self.messages.recv());
        drop(published?);
        let message = received.ok_or(Error::Closed)?.message;
        if message.topic.as_str() != TOPIC || message.payload.len() != size {
            return Err(Failure::Stray(message.topic.as_str().into()));
        }
        Ok(start.elapsed())
    }
}
