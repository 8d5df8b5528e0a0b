//! The broker's own topics below `$SYS/broker`, named as mosquitto names them.

use std::sync::Arc;
use std::time::Duration;

use braid_proto::message::Message;
use braid_proto::packet::QoS;
use braid_proto::topic::TopicName;
use bytes::Bytes;

use crate::health::{memory_state, spool_state, store_state};
use crate::hub::Hub;
use crate::memory::Level;

/// Told when it changes, and not with the others.
const STORE_STATE: &str = "store/state";

/// Publishes all topics now and then every interval.
pub(crate) async fn run(hub: Arc<Hub>) {
    let interval = hub.config.sys.interval_secs;
    if interval == 0 {
        return;
    }
    let mut ticks = tokio::time::interval(Duration::from_secs(interval));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let version = format!("braidmq version {}", env!("CARGO_PKG_VERSION"));
    publish(&hub, "version", version);
    publish_store(&hub);
    loop {
        ticks.tick().await;
        for (topic, value) in values(&hub) {
            publish(&hub, topic, value);
        }
    }
}

/// Publishes whether the store works, and why it does not.
pub(crate) fn publish_store(hub: &Hub) {
    if hub.config.sys.interval_secs == 0 {
        return;
    }
    publish(hub, STORE_STATE, store_state(hub.persist.failure().as_ref()));
}

/// Publishes whether the broker holds too much, and what it does about it.
pub(crate) fn publish_memory(hub: &Hub, level: Level) {
    if hub.config.sys.interval_secs > 0 {
        publish(hub, "memory/state", memory_state(level).to_owned());
    }
}

/// Publishes whether large messages find room.
pub(crate) fn publish_spool(hub: &Hub) {
    if hub.config.sys.interval_secs > 0 {
        publish(hub, "spool/state", spool_state(&hub.statistics).to_owned());
    }
}

fn values(hub: &Hub) -> Vec<(&'static str, String)> {
    let statistics = &hub.statistics;
    let subscriptions = hub.subscriptions();
    let (sessions, online) = (hub.registry.slots().len(), statistics.clients());
    let spool = hub.server_options.spool.as_ref();
    let (spooled, refused) = spool.map_or((0, 0), |spool| (spool.used(), spool.refused()));
    let store = hub.persist.store();
    let values: [(&str, u64); 26] = [
        ("clients/connected", online),
        ("clients/total", sessions as u64),
        ("clients/disconnected", (sessions as u64).saturating_sub(online)),
        ("connections/total", statistics.connections_total()),
        ("connections/refused", statistics.connections_refused()),
        ("messages/received", statistics.messages_received()),
        ("messages/sent", statistics.messages_sent()),
        ("messages/dropped", statistics.messages_dropped()),
        ("messages/dropped/overflow", statistics.messages_overflowed()),
        ("messages/dropped/resting", statistics.messages_crowded_out()),
        ("messages/dropped/age", statistics.messages_outdated()),
        ("clients/disconnected/overflow", statistics.clients_overwhelmed()),
        ("publish/messages/received", statistics.messages_received()),
        ("publish/messages/sent", statistics.messages_sent()),
        ("memory/used", hub.memory.used()),
        ("memory/resting", hub.memory.resting()),
        ("memory/queued", hub.memory.queued()),
        ("memory/overloads", statistics.overloads()),
        ("bytes/received", statistics.bytes_received()),
        ("bytes/sent", statistics.bytes_sent()),
        ("subscriptions/count", subscriptions.subscriptions as u64),
        ("retained messages/count", hub.retained.len() as u64),
        ("spool/bytes", spooled),
        ("spool/refused", refused),
        ("store/bytes", store.size()),
        ("store/ahead", store.ahead()),
    ];
    let mut texts: Vec<_> = values.into_iter().map(|(topic, value)| (topic, value.to_string())).collect();
    texts.push(("memory/state", memory_state(hub.memory.level()).to_owned()));
    texts.push(("spool/state", spool_state(statistics).to_owned()));
    texts.push(("uptime", format!("{} seconds", hub.started.elapsed().as_secs())));
    texts
}

fn publish(hub: &Hub, topic: &str, value: String) {
    let Ok(topic) = TopicName::parse(&format!("$SYS/broker/{topic}")) else { return };
    hub.publish(Message::new(topic, Bytes::from(value), QoS::AtMostOnce, true));
}

#[cfg(test)]
mod tests {
    use braid_store::{MemoryStore, NextIds};

    use super::*;
    use crate::auth::Anonymous;
    use crate::config::BrokerConfig;
    use crate::memory::Memory;

    /// The last column of the table.
    #[test]
    fn the_table_of_queues_names_topics_that_there_are() {
        let store = Arc::new(MemoryStore::new());
        let (config, rule) = (BrokerConfig::default(), Box::new(Anonymous::default()));
        let memory = Arc::new(Memory::new(&config.limits));
        let hub = Hub::new(config, rule, store, None, NextIds::FIRST, memory);
        let values = values(&hub);
        let page = include_str!("../../../docs/limits.md");
        let (_, table) = page.split_once("## The broker").expect("a table");
        let (table, _) = table.split_once("## The client").expect("another");
        let columns = table.lines().filter_map(|row| row.strip_suffix('|')?.rsplit('|').next());
        let topics: Vec<_> = columns.flat_map(|column| column.split('`').skip(1).step_by(2)).collect();
        assert!(topics.len() > 10);
        for topic in topics {
            assert!(topic == STORE_STATE || values.iter().any(|(name, _)| *name == topic), "{topic}");
        }
    }
}
