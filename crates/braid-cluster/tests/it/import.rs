//! Import of the store of a single broker.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use braid_cluster::import::{ImportError, ImportOptions, Imported, import};
use braid_cluster::{ClusterOptions, Node, Risk};
use braid_proto::packet::{AckKind, QoS};
use braid_store::{EmbeddedStore, Existing, OfflineStore, Options};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::broker::BrokerNode;
use super::servers::{Servers, Settings};

/// Store with the records of an export, between the first and the last one.
struct Export {
    _folder: TempDir,
    store: Arc<EmbeddedStore>,
}

impl Export {
    fn of(records: &[Value]) -> Self {
        let first = json!({"type": "store", "format": 2, "next_session": 100, "next_lsn": 100});
        let last = json!({"type": "end", "records": records.len() + 1});
        let lines: Vec<_> =
            [&first].into_iter().chain(records).chain([&last]).map(Value::to_string).collect();
        let folder = tempfile::tempdir().unwrap();
        let text = lines.join("\n");
        OfflineStore::restore(folder.path(), Existing::Keep, &mut text.as_bytes(), Options::default())
            .unwrap();
        let store = Arc::new(EmbeddedStore::open(folder.path(), Options::default()).unwrap());
        Self { _folder: folder, store }
    }

    async fn import(&self, options: &ClusterOptions, skip_existing: bool) -> Result<Imported, ImportError> {
        let import_options =
            ImportOptions { mark: "m".to_owned(), skip_existing, is_urgent: Arc::new(|_| false) };
        import(options, self.store.clone(), &import_options, &|_| {}).await
    }

    async fn refused(&self, options: &ClusterOptions) -> String {
        let error = self.import(options, false).await.unwrap_err();
        assert!(!error.is_partial(), "{error}");
        let text = error.to_string();
        assert!(!text.contains('\n') && text.contains("nothing was imported"), "{text}");
        text
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

fn session(number: u64, client: &str) -> Value {
    json!({"type": "session", "session": number, "client_id": client, "expiry": 3600, "parked_at": [now(), 0]})
}

fn subscription(session: u64, filter: &str, id: Option<u32>) -> Value {
    json!({"type": "subscription", "session": session, "filter": filter, "qos": 2, "no_local": false,
        "retain_as_published": false, "retain_handling": 0, "id": id, "priority": null})
}

fn message(lsn: u64, topic: &str, payload: &str) -> Value {
    json!({"type": "message", "lsn": lsn, "content": {"topic": topic, "qos": 2, "retain": false, "payload": payload}})
}

fn queued(session: u64, lsn: u64, message: u64, qos: u8, sent: Option<(u16, u64)>) -> Value {
    let sent = sent.map(|(packet_id, step)| json!({"packet_id": packet_id, "step": step}));
    json!({"type": "queued", "session": session, "lsn": lsn, "message": message, "qos": qos, "retain": false,
        "subscription_ids": [7], "priority": 100, "shared": null, "sent": sent})
}

/// One server, which tests may use for what does not depend on replicas.
async fn one_server() -> (Servers, ClusterOptions) {
    let servers = Servers::start(1, &Settings::default()).await;
    let mut options = servers.options("a", "1");
    options.accepted = vec![Risk::Replicas];
    options.dimensions.replicas = 1;
    (servers, options)
}

fn named(options: &ClusterOptions, node: &str) -> ClusterOptions {
    ClusterOptions { node: node.parse().unwrap(), instance: node.to_owned(), ..options.clone() }
}

/// Two sessions: one with entries in every state, and one that refers to a message of the other.
fn records() -> Vec<Value> {
    let mut expired = message(6, "a/6", "m6");
    expired["content"]["expires_at"] = json!([now() - 10, 0]);
    let mut retained = message(7, "r/x", "kept");
    retained["content"]["retain"] = json!(true);
    vec![
        session(1, "c1"),
        session(2, "c2"),
        subscription(1, "a/#", Some(7)),
        subscription(1, "$share/g/s/#", None),
        subscription(2, "b", None),
        json!({"type": "received", "session": 1, "packet_id": 9, "exchanges": 1}),
        message(1, "a/1", "m1"),
        message(2, "a/2", "m2"),
        message(4, "a/4", "m4"),
        message(5, "a/5", "m5"),
        expired,
        retained,
        queued(1, 1, 1, 2, Some((3, 2))),
        queued(1, 2, 2, 1, Some((4, 1))),
        queued(1, 4, 4, 1, None),
        queued(1, 5, 5, 2, None),
        queued(1, 6, 6, 1, None),
        queued(2, 8, 1, 1, None),
        json!({"type": "released", "session": 1, "lsn": 3, "step": {"packet_id": 5, "step": 3}}),
        json!({"type": "retained", "message": 7}),
    ]
}

/// A session that existed gets nothing of the import, imported ones get their queues at any node, and then what was
/// published since.
#[tokio::test(flavor = "multi_thread")]
async fn an_imported_session_goes_on_at_any_node() {
    let (_servers, options) = one_server().await;
    let node = BrokerNode::start(&options).await;
    let (mut old, _) = node.connect("old").await;
    old.subscribe("a/#", QoS::AtLeastOnce).await;
    drop(old);
    node.stop().await;

    let export = Export::of(&records());
    let imported = export.import(&options, false).await.unwrap();
    let expected = Imported { sessions: 2, messages: 4, retained: 1, expired: 1, ..Imported::default() };
    assert_eq!(imported, expected);

    let (a, b) =
        (BrokerNode::start(&named(&options, "a")).await, BrokerNode::start(&named(&options, "b")).await);
    let (mut publisher, _) = a.connect("publisher").await;
    publisher.publish("a/8", "new", false).await;
    publisher.publish("s/1", "shared", false).await;
    let (mut c1, is_present) = a.connect("c1").await;
    assert!(is_present);
    let sent = ["Pubrel 5 Success", "m2 q1 4 dup #7", "m1 q2 3 dup #7"];
    assert_eq!(c1.texts(3).await, sent);
    let waiting = ["m4 q1 1 #7", "m5 q2 2 #7", "new q1 6 #7"];
    let mut texts = c1.texts(4).await;
    let shared = texts.iter().position(|text| text.starts_with("shared q")).expect("of the group");
    texts.remove(shared);
    let without_id =
        |text: &str| text.split(' ').filter(|word| word.parse::<u16>().is_err()).collect::<String>();
    assert_eq!(texts.iter().map(|text| without_id(text)).collect::<Vec<_>>(), waiting.map(without_id));
    // An exchange of the client that was open.
    c1.acknowledge(AckKind::Pubrel, 9).await;
    assert_eq!(c1.text().await, "Pubcomp 9 Success");
    c1.acknowledge(AckKind::Pubrel, 9).await;
    assert_eq!(c1.text().await, "Pubcomp 9 PacketIdentifierNotFound");
    c1.acknowledge(AckKind::Puback, 4).await;
    c1.acknowledge(AckKind::Pubcomp, 5).await;
    c1.acknowledge(AckKind::Pubrec, 3).await;
    assert_eq!(c1.text().await, "Pubrel 3 Success");
    // Taken over by another node, where the rest is sent again.
    let (mut c1, is_present) = b.connect("c1").await;
    assert!(is_present);
    let again: Vec<_> = c1.texts(4).await.iter().map(|text| without_id(text)).collect();
    let expected = ["m4 q1 dup #7", "m5 q2 dup #7", "new q1 dup #7", "Pubrel 3 Success"].map(without_id);
    assert!(expected.iter().all(|one| again.contains(one)), "{again:?}");

    let (mut c2, is_present) = b.connect("c2").await;
    assert!(is_present);
    assert_eq!(c2.text().await, "m1 q1 1 #7");
    c2.subscribe("r/+", QoS::AtLeastOnce).await;
    assert_eq!(without_id(&c2.text().await), without_id("kept q1 retain"));
    let (mut old, _) = b.connect("old").await;
    assert_eq!(without_id(&old.text().await), without_id("new q1"), "nothing of the import");
    a.stop().await;
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_is_refused_whole_and_goes_on_where_it_broke_off() {
    let (_servers, mut options) = one_server().await;
    options.largest_packet = 0;
    let node = Node::join(&options, "1.0").await.unwrap();
    let (jetstream, layout) = (node.connections.ordinary.clone(), node.layout.clone());
    let state = async |stream: &str| jetstream.get_stream(stream).await.unwrap().cached_info().state.clone();
    let export = Export::of(&records());
    let error = export.refused(&options).await;
    assert!(error.starts_with("brokers of the cluster are running: a."), "{error}");
    node.lease.give_back().await;

    let long = "x".repeat(4000);
    let of_one = |message: Value| {
        vec![session(1, "c"), subscription(1, "a/#", None), message, queued(1, 1, 1, 1, None)]
    };
    let many: Vec<_> = [session(1, "c"), message(1, "a", "x")]
        .into_iter()
        .chain((1..=150_000).map(|lsn| queued(1, lsn, 1, 1, None)))
        .collect();
    let mut will = session(1, "c");
    will["expiry"] = json!(3600);
    let will_of_long = vec![
        will,
        json!({"type": "will", "session": 1, "delay": 9, "content": {"topic": long, "qos": 1, "retain": false, "payload": ""}}),
    ];
    let unfit = [
        (of_one(message(1, "a", &"x".repeat(8 << 20))), "a message of the topic \"a\" takes 83"),
        (of_one(message(1, &long, "x")), "is too long for a subject"),
        (vec![session(1, &long)], "the client \"xxx"),
        (will_of_long, "the topic \"xxx"),
        (many, "the session of the client \"c\" with 150000 messages in its queue takes "),
    ];
    for (records, expected) in unfit {
        let error = Export::of(&records).refused(&options).await;
        assert!(error.contains(expected), "{error}");
    }
    let large: Vec<_> = (1..=15).map(|lsn| message(lsn, "a", &"x".repeat(7 << 20))).collect();
    let queue = (1..=15).map(|lsn| queued(1, lsn, lsn, 1, None));
    let records_of_large: Vec<_> = [session(1, "c")].into_iter().chain(large).chain(queue).collect();
    let error = Export::of(&records_of_large).refused(&options).await;
    assert!(error.contains("which has room for 104857600"), "{error}");
    for stream in ["test-m-0", "test-m-1", "test-m-u", "test-s"] {
        assert_eq!(state(stream).await.last_sequence, 0, "{stream}");
    }

    // Done, then interrupted before the last record, and done again.
    let whole = export.import(&options, false).await.unwrap();
    assert_eq!((whole.sessions, whole.messages, whole.retained), (2, 4, 1));
    let written = (state("test-m-0").await, state("test-m-1").await);
    let again = export.import(&options, false).await.unwrap();
    let expected = Imported { present: 2, kept: 1, ..Imported::default() };
    assert_eq!(again, expected);
    let subject = layout.session(&"c2".into());
    let records = jetstream.get_stream("test-s").await.unwrap();
    records.purge().filter(&subject).await.unwrap();
    let again = export.import(&options, false).await.unwrap();
    assert_eq!(again, Imported { sessions: 1, messages: 1, present: 1, kept: 1, ..Imported::default() });
    let last = |states: &(async_nats::jetstream::stream::State, async_nats::jetstream::stream::State)| {
        (states.0.last_sequence, states.1.last_sequence)
    };
    assert_eq!(
        last(&(state("test-m-0").await, state("test-m-1").await)),
        last(&written),
        "each message once"
    );
    // The servers still know the message, which is gone: it is appended again.
    records.purge().filter(&subject).await.unwrap();
    for stream in ["test-m-0", "test-m-1"] {
        jetstream.get_stream(stream).await.unwrap().purge().await.unwrap();
    }
    assert_eq!(export.import(&options, false).await.unwrap().messages, 1);
    let (first, second) = (state("test-m-0").await, state("test-m-1").await);
    assert_eq!(first.messages + second.messages, 1);

    // A client that has come meanwhile.
    records.purge().filter(&subject).await.unwrap();
    jetstream.publish(subject, r#"{"e":9}"#.into()).await.unwrap().await.unwrap();
    let error = export.refused(&options).await;
    assert!(
        error.starts_with("1 clients have a session in the cluster already, among them \"c2\""),
        "{error}"
    );
    let skipped = export.import(&options, true).await.unwrap();
    assert_eq!((skipped.present, skipped.skipped, skipped.sessions), (1, 1, 0));
}
