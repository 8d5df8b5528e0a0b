//! Metrics: the numbers of `$SYS/broker`, with names, kinds and units.

use crate::core::Core;
use crate::sys;

use self::MetricKind::{Counter, Gauge};
use self::MetricUnit::{Bytes, Count};

/// Kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Never falls while the broker runs.
    Counter,
    /// Rises and falls.
    Gauge,
}

/// Unit of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricUnit {
    /// Number of things.
    Count,
    /// Bytes.
    Bytes,
}

/// Metric with its present value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Topic below `$SYS/broker/`.
    pub topic: &'static str,
    /// Kind.
    pub kind: MetricKind,
    /// Unit.
    pub unit: MetricUnit,
    /// Meaning, one sentence.
    pub help: &'static str,
    /// Present value.
    pub value: u64,
}

impl Metric {
    /// Name of the metric, by the conventions of Prometheus: lower case with underscores, the unit at the end, then
    /// `total` for a counter. Without a prefix.
    pub fn name(&self) -> String {
        let mut words: Vec<_> = self.topic.split(['/', ' ']).collect();
        words.retain(|word| !matches!(*word, "total" | "count"));
        if self.unit == Bytes {
            words.retain(|word| *word != "bytes");
            words.push("bytes");
        }
        if self.kind == Counter {
            words.push("total");
        }
        words.join("_")
    }
}

/// Descriptions of the numbers of `$SYS`, which a test compares with them.
#[rustfmt::skip]
const DESCRIPTIONS: &[(&str, MetricKind, MetricUnit, &str)] = &[
    ("clients/connected", Gauge, Count, "Clients whose CONNECT was accepted."),
    ("clients/total", Gauge, Count, "Sessions, connected or not."),
    ("clients/disconnected", Gauge, Count, "Sessions without a connection."),
    ("connections/total", Counter, Count, "Connections accepted."),
    ("connections/refused", Counter, Count, "Connections refused, for any reason."),
    ("clients/banned/flapping", Counter, Count, "Bans of clients that connected too often."),
    ("clients/disconnected/banned", Counter, Count, "Clients disconnected by a ban."),
    ("security/refused", Counter, Count, "Security events."),
    ("messages/received", Counter, Count, "PUBLISH packets received."),
    ("messages/sent", Counter, Count, "PUBLISH packets sent."),
    ("messages/dropped", Counter, Count, "Messages not delivered to a receiver, or not accepted from a publisher."),
    ("messages/dropped/overflow", Counter, Count, "Dropped deliveries that did not fit into the queue of their session."),
    ("messages/dropped/resting", Counter, Count, "Dropped deliveries for which the queues of all offline clients together had no room."),
    ("messages/dropped/age", Counter, Count, "Dropped deliveries that had waited for too long."),
    ("clients/disconnected/overflow", Counter, Count, "Clients disconnected because their queue was full."),
    ("publish/messages/received", Counter, Count, "PUBLISH packets received, by the name that mosquitto has for it."),
    ("publish/messages/sent", Counter, Count, "PUBLISH packets sent, by the name that mosquitto has for it."),
    ("memory/used", Gauge, Bytes, "Bytes held for connected clients, and of incomplete packets."),
    ("memory/resting", Gauge, Bytes, "Bytes of messages that are queued for disconnected clients, or are retained."),
    ("memory/queued", Gauge, Bytes, "Bytes queued for all disconnected clients together."),
    ("memory/overloads", Counter, Count, "Times that memory was above the high mark."),
    ("bytes/received", Counter, Bytes, "Bytes received from clients."),
    ("bytes/sent", Counter, Bytes, "Bytes sent to clients."),
    ("datagrams/sent", Counter, Count, "Messages sent to clients in QUIC datagrams."),
    ("datagrams/received", Counter, Count, "QUIC datagrams received from clients."),
    ("datagrams/dropped", Counter, Count, "QUIC datagrams dropped, unsent or unread, because others needed their room."),
    ("datagrams/refused", Counter, Count, "QUIC datagrams received that were no message, or came without an agreement."),
    ("datagrams/streamed", Counter, Count, "Messages sent on a stream because they did not fit into a QUIC datagram."),
    ("quic/received", Counter, Count, "UDP datagrams received on QUIC connections of MQTT."),
    ("quic/full", Counter, Count, "Times that a QUIC stream found no room to send: its client grants no more, or too much is unacknowledged."),
    ("quic/moves", Counter, Count, "Changes of the address of QUIC clients, validated or not."),
    ("subscriptions/count", Gauge, Count, "Subscriptions, shared ones included."),
    ("retained messages/count", Gauge, Count, "Retained messages."),
    ("spool/bytes", Gauge, Bytes, "Bytes of large messages in the spool."),
    ("spool/refused", Counter, Count, "Large messages refused because the spool had no room."),
    ("store/bytes", Gauge, Bytes, "Bytes of the files of the store."),
    ("store/ahead", Gauge, Count, "Groups of changes that are durable in the write-ahead log and not yet in the tables."),
];

/// Description of each counter of a limit that is outside of `limits/`.
#[rustfmt::skip]
const REFUSED: &[(&str, MetricKind, MetricUnit, &str)] = &[
    ("connections/refused/address", Counter, Count, "Connections refused because limits.connections_per_address was reached for their address."),
    ("connections/refused/rate", Counter, Count, "Connections refused because limits.connects_per_address_per_second was exceeded by their address."),
    ("connections/refused/handshake_wait", Counter, Count, "QUIC clients refused because their handshake would have had to wait for too long."),
    ("connections/refused/banned", Counter, Count, "Connections refused because their address, client or user is banned."),
];

/// Description of the counter of another limit.
const LIMIT: (&str, MetricKind, MetricUnit, &str) =
    ("limits", Counter, Count, "Times that a client met this limit.");

/// Present values of all metrics, in the order of `$SYS`. A number without a description is that of a limit in
/// `limits/`.
pub(super) fn read(core: &Core) -> Vec<Metric> {
    let metric = |(topic, value)| {
        let found = DESCRIPTIONS.iter().chain(REFUSED).find(|(of, ..)| *of == topic);
        let (_, kind, unit, help) = *found.unwrap_or(&LIMIT);
        Metric { topic, kind, unit, help, value }
    };
    sys::numbers(core).into_iter().map(metric).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::config::BrokerConfig;
    use crate::limit::Limit;

    #[test]
    fn each_number_of_sys_has_one_description_and_a_name_of_its_own() {
        let core = Core::in_memory(BrokerConfig::default());
        let numbers: Vec<_> = sys::numbers(&core).into_iter().map(|(topic, _)| topic).collect();
        let (numbers, limits) = numbers.split_at(numbers.len() - Limit::TOPICS.len());
        assert!(limits.iter().eq(Limit::TOPICS.iter().map(|(_, topic)| topic)));
        let described: Vec<_> = DESCRIPTIONS.iter().map(|(topic, ..)| *topic).collect();
        assert_eq!(described, numbers);
        let outside: Vec<_> = Limit::TOPICS
            .iter()
            .map(|(_, topic)| *topic)
            .filter(|topic| !topic.starts_with("limits/"))
            .collect();
        assert_eq!(REFUSED.iter().map(|(topic, ..)| *topic).collect::<Vec<_>>(), outside);
        let metrics = read(&core);
        let names: BTreeSet<_> = metrics.iter().map(Metric::name).collect();
        assert_eq!(names.len(), metrics.len());
        let is_word = |name: &String| name.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_');
        assert!(names.iter().all(is_word), "{names:?}");
        let name_of = |topic| metrics.iter().find(|metric| metric.topic == topic).map(Metric::name).unwrap();
        assert_eq!(name_of("bytes/received"), "received_bytes_total");
        assert_eq!(name_of("memory/used"), "memory_used_bytes");
        assert_eq!(name_of("retained messages/count"), "retained_messages");
    }

    /// The bar of `/metrics`: no lock that a message passes.
    #[cfg(debug_assertions)]
    #[test]
    fn reading_takes_no_ranked_lock() {
        let core = Core::in_memory(BrokerConfig::default());
        let before = crate::lock_order::locks();
        assert!(!read(&core).is_empty());
        assert_eq!(crate::lock_order::locks(), before);
        drop(core.sessions.registry.entries());
        assert_eq!(crate::lock_order::locks(), before + 1, "this is one");
    }
}
