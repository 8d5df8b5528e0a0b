//! Messages, records and retained messages in the streams.

use async_nats::jetstream::consumer::pull::OrderedConfig;
use braid_cluster::{Layout, Node, Shard, subject};
use braid_proto::topic::{TopicFilter, TopicName};
use futures_util::StreamExt;

use super::servers::Servers;

const TOPICS: [&str; 9] =
    ["a", "a/b", "a//b", "/", "$SYS/x", "a.b/c d", "%/*/>", "a/b/c", "Zürich/\u{7f}\t/~"];

const FILTERS: [&str; 9] = ["#", "a/#", "+", "a/+", "+/+", "$SYS/#", "a.b/+", "a/b", "$share/g/a/+/b"];

/// Sequence numbers of the messages of a stream that `filter` selects.
async fn selected(node: &Node, stream: &str, filter: String) -> Vec<(u64, String)> {
    let stream = node.connections.ordinary.get_stream(stream).await.unwrap();
    let config = OrderedConfig { filter_subject: filter, ..OrderedConfig::default() };
    let mut consumer = stream.create_consumer(config).await.unwrap();
    let mut left = consumer.info().await.unwrap().num_pending;
    let mut messages = consumer.messages().await.unwrap();
    let mut found = Vec::new();
    while left > 0 {
        let message = messages.next().await.unwrap().unwrap();
        found.push((message.info().unwrap().stream_sequence, message.subject.to_string()));
        left -= 1;
    }
    found
}

#[tokio::test]
async fn filters_select_the_messages_that_they_match() {
    let servers = Servers::three().await;
    let options = servers.options("a", "1");
    let node = Node::join(&options, "1.0").await.unwrap();
    let layout = Layout::new(options.cluster, options.dimensions);
    let (shard, jetstream) = (Shard::Ordinary(1), &node.connections.ordinary);
    let mut sent = Vec::new();
    for topic in TOPICS {
        let topic = TopicName::parse(topic).unwrap();
        for retain in [false, true] {
            let subject = layout.message(shard, retain, &topic);
            let (found, tokens) = layout.parse_message(&subject).unwrap();
            assert_eq!((found, subject::parse_topic(tokens)), (retain, Some(topic.clone())));
            let ack = jetstream.publish(subject, "x".into()).await.unwrap().await.unwrap();
            assert_eq!(ack.stream, "test-m-1");
            sent.push((ack.sequence, topic.clone()));
        }
    }
    for filter in FILTERS {
        let filter = TopicFilter::parse(filter).unwrap();
        let expected: Vec<_> =
            sent.iter().filter(|(_, topic)| filter.matches(topic)).map(|(sequence, _)| *sequence).collect();
        let found = selected(&node, "test-m-1", layout.messages(shard, &filter)).await;
        let found: Vec<_> = found.into_iter().map(|(sequence, _)| sequence).collect();
        assert_eq!(found, expected, "{filter}");
        assert!(!expected.is_empty(), "{filter} matches nothing");
    }
    // The servers copy what is with RETAIN.
    let stream = jetstream.get_stream("test-r").await.unwrap();
    while stream.get_info().await.unwrap().state.messages < TOPICS.len() as u64 {
        tokio::task::yield_now().await;
    }
    let retained = selected(&node, "test-r", "test.r.>".to_owned()).await;
    let topics: Vec<_> = retained
        .iter()
        .map(|(_, subject)| subject::parse_topic(subject.strip_prefix("test.r.").unwrap()).unwrap())
        .collect();
    assert_eq!(topics, TOPICS.map(|topic| TopicName::parse(topic).unwrap()));
}
