//! Consumers that read a stream in its order, and notice soon that the server that has them is gone.

use std::time::Duration;

use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::pull::OrderedConfig;

/// Longest wait of the servers for messages. async-nats wants a heartbeat in half of it, and makes the consumer again
/// when none has come twice in this time. Its own choice is 30 s, in which a node would deliver nothing.
pub(crate) const EXPIRES: Duration = Duration::from_secs(2);

/// Settings of a consumer.
pub(crate) fn ordered(filter_subject: String, deliver_policy: DeliverPolicy) -> OrderedConfig {
    OrderedConfig { filter_subject, deliver_policy, max_expires: EXPIRES, ..OrderedConfig::default() }
}
