//! Consumers that read a stream in its order, and notice soon that the server that has them is gone.

use std::time::Duration;

use async_nats::jetstream::Message;
use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::pull::{Ordered, OrderedConfig, OrderedError};
use futures_util::StreamExt;
use tokio::time::timeout;

/// Longest wait of the servers for messages. async-nats wants a heartbeat in half of it, and makes the consumer again
/// when none has come twice in this time. Its own choice is 30 s, in which a node would deliver nothing.
pub(crate) const EXPIRES: Duration = Duration::from_secs(2);

/// Time between two looks for messages. async-nats does not wake its caller for the second heartbeat that is missing.
const LOOK: Duration = Duration::from_millis(500);

/// Settings of a consumer.
pub(crate) fn ordered(filter_subject: String, deliver_policy: DeliverPolicy) -> OrderedConfig {
    OrderedConfig { filter_subject, deliver_policy, max_expires: EXPIRES, ..OrderedConfig::default() }
}

/// The next message of a consumer.
pub(crate) async fn next(messages: &mut Ordered) -> Option<Result<Message, OrderedError>> {
    loop {
        if let Ok(next) = timeout(LOOK, messages.next()).await {
            return next;
        }
    }
}
