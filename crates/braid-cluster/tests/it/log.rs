//! Messages, records and retained messages in the streams.

use async_nats::jetstream::consumer::pull::OrderedConfig;
use braid_cluster::{Layout, Node, Shard, subject};
use braid_proto::topic::{TopicFilter, TopicName};
use futures_util::StreamExt;

use super::servers::Servers;

const TOPICS: [&str; 9] =
    ["a", "a/b", "a//b", "/", "$SYS/x", "a.b/c d", "%/*/>", "a/b/c", "Zürich/\u{7f}\t/~"];

const FILTERS: [&str; 9] = ["#", "a/#", "+", "a/+", "+/+", "$SYS/#", "a.b/+", "a/b", "$share/g/a/+/b"];

/// Sequence numbers and subjects of the messages of a stream that `filter` selects: at least `count`, which the server
/// of the consumer may not have yet.
async fn selected(node: &Node, stream: &str, filter: String, count: usize) -> Vec<(u64, String)> {
    let stream = node.connections.ordinary.get_stream(stream).await.unwrap();
    let config = OrderedConfig { filter_subject: filter, ..OrderedConfig::default() };
    let mut messages = stream.create_consumer(config).await.unwrap().messages().await.unwrap();
    let mut found = Vec::new();
    loop {
        let message = messages.next().await.unwrap().unwrap();
        let info = message.info().unwrap();
        found.push((info.stream_sequence, message.subject.to_string()));
        if found.len() >= count && info.pending == 0 {
            return found;
        }
    }
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
        assert!(!expected.is_empty(), "{filter} matches nothing");
        let found = selected(&node, "test-m-1", layout.messages(shard, &filter), expected.len()).await;
        let found: Vec<_> = found.into_iter().map(|(sequence, _)| sequence).collect();
        assert_eq!(found, expected, "{filter}");
    }
    // The servers copy what is with RETAIN.
    let retained = selected(&node, "test-r", "test.r.>".to_owned(), TOPICS.len()).await;
    let topics: Vec<_> = retained
        .iter()
        .map(|(_, subject)| subject::parse_topic(subject.strip_prefix("test.r.").unwrap()).unwrap())
        .collect();
    assert_eq!(topics, TOPICS.map(|topic| TopicName::parse(topic).unwrap()));
}
