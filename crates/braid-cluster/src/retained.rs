//! Retained messages at the start of a node.

use std::collections::HashMap;
use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::pull::OrderedConfig;
use async_nats::jetstream::stream::Stream;
use braid_proto::packet::QoS;
use braid_proto::topic::TopicName;
use braid_store::{Lsn, StoredMessage};
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::time::timeout;

use crate::error::ClusterError;
use crate::layout::Layout;
use crate::logged::{Logged, NODE_TOPICS, read};
use crate::message::LoggedMessage;
use crate::name::Name;
use crate::publish::{Outgoing, Tried, send};

/// Header of a message that the servers have copied: its stream and sequence number there.
const SOURCE: &str = "Nats-Stream-Source";

/// Time for the servers to copy what is retained.
const PATIENCE: Duration = Duration::from_secs(30);

/// Tries to append a mark.
const TRIES: u32 = 20;

/// Retained message.
#[derive(Debug)]
pub(crate) struct RetainedMessage {
    pub(crate) lsn: Lsn,
    pub(crate) message: StoredMessage,
}

/// Retained messages, and the position in each shard up to which they are complete.
pub(crate) struct Snapshot {
    pub(crate) messages: Vec<RetainedMessage>,
    pub(crate) positions: Vec<u64>,
}

/// Reads all retained messages. A mark in each shard, which is copied in order like the messages before it, tells up to
/// where they are complete.
pub(crate) async fn load(
    jetstream: &Context,
    layout: &Layout,
    node: &Name,
) -> Result<Snapshot, ClusterError> {
    let within = PATIENCE;
    let failed = |reason: String| ClusterError::NoJetStream { within, reason };
    let mut positions = Vec::new();
    for index in 0..layout.parts() {
        positions.push(mark(jetstream, layout, node, index).await?);
    }
    let stream = jetstream.get_stream_no_info(layout.retained_stream()).await;
    let stream = stream.map_err(|error| failed(error.to_string()))?;
    let loaded = timeout(PATIENCE, read_all(&stream, layout, node, &positions)).await;
    let loaded = loaded.map_err(|_| failed("retained messages are not copied".to_owned()))?;
    let messages = loaded.map_err(|error| failed(error.to_string()))?;
    Ok(Snapshot { messages, positions })
}

fn mark_topic(node: &Name, index: usize) -> Option<TopicName> {
    TopicName::parse(&format!("{NODE_TOPICS}{node}/{index}")).ok()
}

/// Appends a mark to a shard: its sequence number.
async fn mark(jetstream: &Context, layout: &Layout, node: &Name, index: usize) -> Result<u64, ClusterError> {
    let mut reason = String::new();
    let Some(topic) = mark_topic(node, index) else { return Ok(0) };
    let mark = LoggedMessage {
        qos: QoS::AtMostOnce,
        publisher: String::new(),
        identity: None,
        expires_at: None,
        properties: None,
        payload: Bytes::from_static(b"1"),
    };
    let subject = layout.message(layout.shard_at(index), true, &topic);
    let (headers, payload) = mark.write();
    let message = Outgoing { subject, headers, payload };
    for _ in 0..TRIES {
        match send(&jetstream.client(), message.clone()).await {
            Tried::Stored(Some(sequence)) => return Ok(sequence),
            Tried::Unknown(problem) => reason = problem,
            Tried::Stored(None) | Tried::Refused => {}
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Err(ClusterError::NoJetStream { within: PATIENCE, reason })
}

async fn read_all(
    stream: &Stream<()>,
    layout: &Layout,
    node: &Name,
    positions: &[u64],
) -> Result<Vec<RetainedMessage>, async_nats::Error> {
    let config = OrderedConfig {
        filter_subject: format!("{}.r.>", layout.cluster()),
        deliver_policy: DeliverPolicy::LastPerSubject,
        ..OrderedConfig::default()
    };
    let mut messages = stream.create_consumer(config).await?.messages().await?;
    let mut missing: HashMap<TopicName, (usize, u64)> = positions
        .iter()
        .enumerate()
        .filter_map(|(index, sequence)| Some((mark_topic(node, index)?, (index, *sequence))))
        .collect();
    let prefix = format!("{}.r.", layout.cluster());
    let mut found: HashMap<TopicName, RetainedMessage> = HashMap::new();
    while !missing.is_empty() {
        let Some(received) = messages.next().await else { break };
        let async_nats::Message { subject, headers, payload, .. } = received?.message;
        let Some(tokens) = subject.strip_prefix(&prefix) else { continue };
        let source =
            headers.as_ref().and_then(|headers| headers.get(SOURCE)).map(|it| it.as_str().to_owned());
        let Some((index, sequence)) = source.and_then(|source| position(layout, &source)) else { continue };
        if let Some(topic) = crate::subject::parse_topic(tokens)
            && topic.as_str().starts_with(NODE_TOPICS)
        {
            if missing.get(&topic).is_some_and(|(at, wanted)| *at == index && sequence >= *wanted) {
                missing.remove(&topic);
            }
            continue;
        }
        // The subject that it had in the log.
        let logged = format!("{}.m.0.r.{tokens}", layout.cluster());
        let is_removal = payload.is_empty();
        let read = read(layout, index, sequence, &logged, headers.as_ref(), payload);
        if let Some(Logged { lsn, message, .. }) = read {
            let topic = message.topic().clone();
            if is_removal {
                found.remove(&topic);
            } else {
                found.insert(topic, RetainedMessage { lsn, message });
            }
        }
    }
    Ok(found.into_values().collect())
}

/// Place of the shard and sequence number of a copied message: `stream sequence ...`.
fn position(layout: &Layout, source: &str) -> Option<(usize, u64)> {
    let mut words = source.split(' ');
    let (stream, sequence) = (words.next()?, words.next()?.parse().ok()?);
    let index =
        (0..layout.parts()).find(|index| layout.messages_stream(layout.shard_at(*index)) == stream)?;
    Some((index, sequence))
}
