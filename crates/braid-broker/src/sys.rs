//! Statistics topics below `$SYS/broker`, named as mosquitto names them.

use std::sync::Arc;
use std::time::Duration;

use braid_proto::message::Message;
use braid_proto::packet::QoS;
use braid_proto::topic::TopicName;
use bytes::Bytes;

use crate::core::Core;
use crate::health::{memory_state, spool_state, store_state};
use crate::limit::Limit;
use crate::memory::Level;
use crate::statistics::Counter;

/// Published when it changes, and not with the others.
const STORE_STATE: &str = "store/state";

/// Publishes all topics at once and then at every interval.
pub(crate) async fn run(core: Arc<Core>) {
    let interval = core.config.sys.interval_secs;
    if interval == 0 {
        return;
    }
    let mut ticks = tokio::time::interval(Duration::from_secs(interval));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let version = format!("braidmq version {}", env!("CARGO_PKG_VERSION"));
    publish(&core, "version", version);
    publish_store(&core);
    loop {
        ticks.tick().await;
        for (topic, value) in values(&core) {
            publish(&core, topic, value);
        }
    }
}

/// Publishes the state of the store.
pub(crate) fn publish_store(core: &Core) {
    publish(core, STORE_STATE, store_state(core.persist.failure().as_ref(), &core.statistics));
}

/// Publishes the memory level.
pub(crate) fn publish_memory(core: &Core, level: Level) {
    publish(core, "memory/state", memory_state(level).to_owned());
}

/// Publishes whether the spool has room.
pub(crate) fn publish_spool(core: &Core) {
    publish(core, "spool/state", spool_state(&core.statistics).to_owned());
}

/// Numbers, of which `$SYS` and [`metrics`](crate::view) are made. Takes no lock that a message passes.
pub(crate) fn numbers(core: &Core) -> Vec<(&'static str, u64)> {
    let statistics = &core.statistics;
    let (sessions, online) = (core.sessions.registry.len(), statistics.clients());
    let spool = core.server_options.spool.as_ref();
    let (spooled, refused) = spool.map_or((0, 0), |spool| (spool.used(), spool.refused()));
    let store = core.persist.store();
    let values: [(&str, u64); 37] = [
        ("clients/connected", online),
        ("clients/total", sessions as u64),
        ("clients/disconnected", (sessions as u64).saturating_sub(online)),
        ("connections/total", statistics.get(Counter::ConnectionsTotal)),
        ("connections/refused", statistics.get(Counter::ConnectionsRefused)),
        ("clients/banned/flapping", statistics.get(Counter::FlappingBans)),
        ("clients/disconnected/banned", statistics.get(Counter::ClientsBanned)),
        ("security/refused", core.access.audit.total()),
        ("messages/received", statistics.get(Counter::MessagesReceived)),
        ("messages/sent", statistics.get(Counter::MessagesSent)),
        ("messages/dropped", statistics.get(Counter::MessagesDropped)),
        ("messages/dropped/overflow", statistics.get(Counter::MessagesOverflowed)),
        ("messages/dropped/resting", statistics.get(Counter::MessagesCrowdedOut)),
        ("messages/dropped/age", statistics.get(Counter::MessagesOutdated)),
        ("clients/disconnected/overflow", statistics.get(Counter::ClientsOverwhelmed)),
        ("publish/messages/received", statistics.get(Counter::MessagesReceived)),
        ("publish/messages/sent", statistics.get(Counter::MessagesSent)),
        ("memory/used", core.memory.used()),
        ("memory/resting", core.memory.resting()),
        ("memory/queued", core.memory.queued()),
        ("memory/overloads", statistics.get(Counter::Overloads)),
        ("bytes/received", statistics.get(Counter::BytesReceived)),
        ("bytes/sent", statistics.get(Counter::BytesSent)),
        ("datagrams/sent", statistics.get(Counter::DatagramsSent)),
        ("datagrams/received", statistics.get(Counter::DatagramsReceived)),
        ("datagrams/dropped", statistics.get(Counter::DatagramsDropped)),
        ("datagrams/refused", statistics.get(Counter::DatagramsRefused)),
        ("datagrams/streamed", statistics.get(Counter::DatagramsFallenBack)),
        ("quic/received", statistics.get(Counter::QuicReceived)),
        ("quic/full", statistics.get(Counter::QuicRefusedWrites)),
        ("quic/moves", statistics.get(Counter::QuicMoves)),
        ("subscriptions/count", core.routing.subscriptions() as u64),
        ("retained messages/count", core.retained.len() as u64),
        ("spool/bytes", spooled),
        ("spool/refused", refused),
        ("store/bytes", store.size()),
        ("store/ahead", store.wal_groups()),
    ];
    let limits = Limit::TOPICS.into_iter().map(|(limit, topic)| (topic, statistics.reached(limit)));
    values.into_iter().chain(limits).collect()
}

fn values(core: &Core) -> Vec<(&'static str, String)> {
    let statistics = &core.statistics;
    let mut texts: Vec<_> =
        numbers(core).into_iter().map(|(topic, value)| (topic, value.to_string())).collect();
    texts.push(("memory/state", memory_state(core.memory.level()).to_owned()));
    texts.push(("spool/state", spool_state(statistics).to_owned()));
    texts.push(("uptime", format!("{} seconds", core.lifecycle.started.elapsed().as_secs())));
    texts
}

/// Publishes a value, unless the topics are turned off.
fn publish(core: &Core, topic: &str, value: String) {
    if core.config.sys.interval_secs == 0 {
        return;
    }
    let Ok(topic) = TopicName::parse(&format!("$SYS/broker/{topic}")) else { return };
    core.dispatcher.publish_own(Message::new(topic, Bytes::from(value), QoS::AtMostOnce, true));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::BrokerConfig;

    /// The last column of the table.
    #[test]
    fn the_table_of_limits_has_topics_that_exist_and_each_counter_of_a_limit() {
        let core = Core::in_memory(BrokerConfig::default());
        let values = values(&core);
        let page = include_str!("../../../docs/limits.md");
        let (_, table) = page.split_once("## The broker").expect("a table");
        let (table, _) = table.split_once("## The client").expect("another");
        let columns = table.lines().filter_map(|row| row.strip_suffix('|')?.rsplit('|').next());
        let topics: Vec<_> = columns.flat_map(|column| column.split('`').skip(1).step_by(2)).collect();
        assert!(topics.len() > 10);
        assert_eq!(Limit::TOPICS.into_iter().find(|(_, topic)| !topics.contains(topic)), None);
        for topic in topics {
            assert!(topic == STORE_STATE || values.iter().any(|(name, _)| *name == topic), "{topic}");
        }
    }
}
