//! Subscriptions of data streams: whose they are, and where they go when a stream or a connection ends.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::future::poll_fn;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use braid_broker::{Anonymous, Broker, BrokerConfig, Handle, LimitsConfig, StreamsConfig, SysConfig};
use braid_proto::codec::Decoder;
use braid_proto::packet::{
    Ack, AckKind, Connect, Disconnect, Packet, ProtocolVersion, Publish, QoS, SubscribeEntry,
};
use braid_proto::reason::ReasonCode;
use braid_proto::session::RetainHandling;
use braid_proto::stream::StreamKey;
use braid_store::{MemoryStore, Store};
use braid_transport::quic::QuicOptions;
use braid_transport::sim::{Connector, Network};
use braid_transport::{
    ClientTls, ClientTlsOptions, Close, Dir, Link, ListenOptions, Read, ServerTls, self_signed,
};
use tokio::io::ReadBuf;

use crate::support::{
    DRAIN, connect_v5, filter, id, lasting, message, publish_packet, quiet, subscribe_packet,
    unsubscribe_packet,
};

const CONTROL: StreamKey = StreamKey::CONTROL;

/// A broker behind a simulated network.
struct QuicBroker {
    connector: Connector,
    handle: Handle,
    _certificate: tempfile::TempDir,
}

impl QuicBroker {
    fn start(config: BrokerConfig, store: Arc<dyn Store>) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let files = self_signed(directory.path(), &["localhost".to_owned()]).expect("a certificate");
        let ca_files = vec![files.certificate.clone()];
        let tls = ServerTls::load(files, braid_transport::ClientAuth::None).expect("a certificate");
        let network = Network::new(7);
        let listener = network.listen(tls, &ListenOptions::default()).expect("a port");
        let server = listener.local_addr().expect("an address");
        let tls = ClientTls::new(ClientTlsOptions { ca_files, ..ClientTlsOptions::default() });
        let connector = network.host("client").connector(server, tls, QuicOptions::client());
        let rule = Box::new(Anonymous { from_anywhere: true });
        let broker = Broker::build(config, rule, store, vec![listener]).expect("memory can be read");
        let handle = broker.handle();
        tokio::spawn(broker.run(DRAIN));
        Self { connector, handle, _certificate: directory }
    }

    fn with_defaults() -> Self {
        Self::start(quiet(), Arc::new(MemoryStore::new()))
    }

    fn strict(store: Arc<dyn Store>) -> Self {
        let streams = StreamsConfig { strict_streams: true, ..StreamsConfig::default() };
        Self::start(BrokerConfig { streams, ..quiet() }, store)
    }

    async fn connect(&self, connect: Connect) -> Lanes {
        let link = self.connector.connect().await.expect("the broker listens");
        let mut lanes = Lanes::new(link);
        lanes.send(CONTROL, Packet::Connect(Box::new(connect))).await;
        let (on, packet) = lanes.next().await;
        assert!(on == CONTROL && matches!(packet, Packet::Connack(_)), "{packet:?}");
        lanes
    }
}

/// A client that sees which packet came on which stream.
struct Lanes {
    link: Link,
    decoders: HashMap<StreamKey, Decoder>,
    inbox: VecDeque<(StreamKey, Packet)>,
    /// Streams that are not read.
    ignored: BTreeSet<StreamKey>,
    last_id: u16,
}

impl Lanes {
    fn new(link: Link) -> Self {
        let (decoders, inbox) = (HashMap::new(), VecDeque::new());
        Self { link, decoders, inbox, ignored: BTreeSet::new(), last_id: 0 }
    }

    /// Opens a data stream.
    async fn open(&mut self) -> StreamKey {
        poll_fn(|context| self.link.poll_open(context, Dir::Bidi)).await.expect("credit")
    }

    async fn send(&mut self, on: StreamKey, packet: Packet) {
        let mut bytes = bytes::BytesMut::new();
        packet.encode(ProtocolVersion::V5, &mut bytes);
        while !bytes.is_empty() {
            let write = poll_fn(|context| self.link.poll_write(context, on, &[IoSlice::new(&bytes)]));
            let taken = write.await.expect("the stream is open");
            let _ = bytes.split_to(taken);
        }
    }

    /// The next packet that is no acknowledgement of ours, which is acknowledged if it is a PUBLISH of QoS 1;
    /// `None` when nothing comes for a second.
    async fn try_next(&mut self) -> Option<(StreamKey, Packet)> {
        let (on, packet) = tokio::time::timeout(Duration::from_secs(1), self.read()).await.ok()?;
        if let Packet::Publish(Publish { packet_id: Some(packet_id), .. }) = &packet {
            let ack = Ack::new(AckKind::Puback, *packet_id, ReasonCode::Success);
            // What came on a stream that has ended is acknowledged elsewhere. [BQ-22]
            self.send(CONTROL, Packet::Ack(ack)).await;
        }
        Some((on, packet))
    }

    async fn read(&mut self) -> (StreamKey, Packet) {
        loop {
            if let Some(first) = self.inbox.pop_front() {
                return first;
            }
            let mut space = vec![0; 64 * 1024];
            let mut buffer = ReadBuf::new(&mut space);
            let (link, ignored) = (&mut self.link, &self.ignored);
            let mut wants = |stream| !ignored.contains(&stream);
            let read = poll_fn(|context| link.poll_read(context, &mut buffer, &mut wants)).await;
            if let Read::Bytes(on) = read.expect("the link lives") {
                let decoder =
                    self.decoders.entry(on).or_insert_with(|| Decoder::new(ProtocolVersion::V5, 1 << 28));
                let mut input = buffer.filled();
                while let Some(packet) = decoder.decode(&mut input).expect("the broker sends packets") {
                    self.inbox.push_back((on, packet));
                }
            }
        }
    }

    async fn next(&mut self) -> (StreamKey, Packet) {
        self.try_next().await.expect("something comes")
    }

    /// Everything that comes: the payloads, each with its stream.
    async fn take_all(&mut self) -> Vec<(StreamKey, String)> {
        let mut all = Vec::new();
        while let Some((on, packet)) = self.try_next().await {
            match packet {
                Packet::Publish(publish) => {
                    all.push((on, String::from_utf8_lossy(&publish.payload).into_owned()));
                }
                Packet::Ack(_) => {}
                other => panic!("PUBLISH expected, not {other:?}"),
            }
        }
        all.sort();
        all
    }

    fn next_id(&mut self) -> u16 {
        self.last_id += 1;
        self.last_id
    }

    /// Subscribes on a stream; SUBACK must come on the same. [BQ-14]
    async fn subscribe_as(&mut self, on: StreamKey, entry: SubscribeEntry) -> ReasonCode {
        let packet_id = self.next_id();
        self.send(on, subscribe_packet(packet_id, None, vec![entry])).await;
        match self.next().await {
            (answered_on, Packet::Suback(suback)) => {
                assert_eq!((answered_on, suback.packet_id), (on, id(packet_id)));
                suback.codes[0]
            }
            other => panic!("SUBACK expected, not {other:?}"),
        }
    }

    async fn subscribe(&mut self, on: StreamKey, text: &str) {
        let code = self.subscribe_as(on, SubscribeEntry::new(filter(text), QoS::AtLeastOnce)).await;
        assert_eq!(code, ReasonCode::GrantedQos1);
    }

    /// Unsubscribes on a stream; UNSUBACK must come on the same. [BQ-14]
    async fn unsubscribe(&mut self, on: StreamKey, text: &str) -> ReasonCode {
        let packet_id = self.next_id();
        self.send(on, unsubscribe_packet(packet_id, &[text])).await;
        match self.next().await {
            (answered_on, Packet::Unsuback(unsuback)) => {
                assert_eq!(answered_on, on);
                unsuback.codes[0]
            }
            other => panic!("UNSUBACK expected, not {other:?}"),
        }
    }

    /// Publishes on the control stream, and takes what comes of it: where.
    async fn streams_of(&mut self, topic: &str) -> Vec<StreamKey> {
        let packet_id = self.next_id();
        self.send(CONTROL, publish_packet(topic, "x", QoS::AtLeastOnce, packet_id)).await;
        self.take_all().await.into_iter().map(|(on, _)| on).collect()
    }

    /// Ends a stream with FIN, and waits until the broker has ended its side.
    async fn finish(&mut self, stream: StreamKey) {
        self.link.finish(stream);
        let ended = async {
            loop {
                let mut space = vec![0; 1024];
                let mut buffer = ReadBuf::new(&mut space);
                let link = &mut self.link;
                let read = poll_fn(|context| link.poll_read(context, &mut buffer, &mut |_| true)).await;
                if read.expect("the link lives") == Read::Finished(stream) {
                    return;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(60), ended).await.expect("FIN is answered");
    }

    /// DISCONNECT, and the broker has parked the session.
    async fn disconnect(mut self) {
        self.send(CONTROL, Packet::Disconnect(Box::new(Disconnect::new(ReasonCode::Success)))).await;
        let _ = poll_fn(|context| self.link.poll_close(context, Close { code: 0, stop: None })).await;
        pass().await;
    }
}

/// [BQ-14], [BQ-15], [BQ-16]
#[tokio::test(start_paused = true)]
async fn the_same_filter_on_two_streams_gives_two_copies() {
    let broker = QuicBroker::with_defaults();
    let mut client = broker.connect(connect_v5("client")).await;
    let (one, two) = (client.open().await, client.open().await);
    client.subscribe(one, "a").await;
    client.subscribe(two, "a").await;
    client.subscribe(two, "#").await;
    client.subscribe(CONTROL, "b").await;
    assert_eq!(client.streams_of("a").await, [one, two]);
    assert_eq!(client.streams_of("b").await, [CONTROL, two]);
    // The same filter on the same stream is the same subscription.
    client.subscribe(one, "a").await;
    assert_eq!(client.streams_of("a").await, [one, two]);
    assert_eq!(broker.handle.statistics().messages_dropped(), 0);
}

/// [BQ-15]
#[tokio::test(start_paused = true)]
async fn retained_messages_come_on_the_stream_that_subscribed() {
    let broker = QuicBroker::with_defaults();
    let mut client = broker.connect(connect_v5("client")).await;
    let one = client.open().await;
    client.send(CONTROL, Packet::Publish(Publish { retain: true, ..message("a", "kept") })).await;
    client.subscribe(one, "a").await;
    assert_eq!(client.take_all().await, [(one, "kept".to_owned())]);
}

/// [BQ-42]
#[tokio::test(start_paused = true)]
async fn what_a_stream_subscribed_goes_to_the_control_stream_when_it_ends() {
    let broker = QuicBroker::with_defaults();
    let mut client = broker.connect(connect_v5("client")).await;
    let (one, two) = (client.open().await, client.open().await);
    client.subscribe(one, "a").await;
    client.subscribe(one, "$share/g/s").await;
    client.subscribe(two, "a").await;
    client.finish(one).await;
    assert_eq!(client.streams_of("a").await, [CONTROL, two]);
    assert_eq!(client.streams_of("s").await, [CONTROL]);
    // The control stream has the filter: one copy there is enough.
    client.finish(two).await;
    assert_eq!(client.streams_of("a").await, [CONTROL]);
    assert_eq!(client.unsubscribe(CONTROL, "a").await, ReasonCode::Success);
    assert_eq!(client.streams_of("a").await, []);
}

/// [BQ-43]
#[tokio::test(start_paused = true)]
async fn a_stream_that_subscribes_the_filter_again_takes_it_from_the_control_stream() {
    let broker = QuicBroker::with_defaults();
    let mut client = broker.connect(connect_v5("client")).await;
    client.send(CONTROL, Packet::Publish(Publish { retain: true, ..message("a", "kept") })).await;
    let (one, two, three) = (client.open().await, client.open().await, client.open().await);
    for stream in [one, two] {
        client.subscribe(stream, "a").await;
        assert_eq!(client.take_all().await, [(stream, "kept".to_owned())]);
    }
    client.finish(one).await;
    assert_eq!(client.streams_of("a").await, [CONTROL, two]);
    // It replaces what was left: Retain Handling 1 has nothing new.
    let if_new = |text: &str| SubscribeEntry {
        retain_handling: RetainHandling::SendIfNew,
        ..SubscribeEntry::new(filter(text), QoS::AtLeastOnce)
    };
    client.subscribe_as(three, if_new("a")).await;
    assert_eq!(client.take_all().await, []);
    assert_eq!(client.streams_of("a").await, [two, three]);
    // A third stream finds nothing left over: there it is new.
    let four = client.open().await;
    client.subscribe_as(four, if_new("a")).await;
    assert_eq!(client.take_all().await, [(four, "kept".to_owned())]);
    client.finish(four).await;
    // A stream that has the filter already takes what is left over, too.
    client.subscribe_as(two, if_new("a")).await;
    assert_eq!(client.take_all().await, []);
    assert_eq!(client.streams_of("a").await, [two, three]);
}

/// [BQ-42], [BQ-43]
#[tokio::test(start_paused = true)]
async fn a_session_that_is_resumed_begins_on_the_control_stream() {
    let broker = QuicBroker::with_defaults();
    let mut client = broker.connect(lasting("client")).await;
    let (one, two) = (client.open().await, client.open().await);
    client.subscribe(one, "a").await;
    client.subscribe(two, "a").await;
    client.subscribe(two, "b").await;
    client.disconnect().await;
    let mut publisher = broker.connect(connect_v5("publisher")).await;
    assert_eq!(publisher.streams_of("a").await, []);
    let mut client = broker.connect(lasting("client")).await;
    let one = client.open().await;
    assert_eq!(client.take_all().await, [(CONTROL, "x".to_owned())]);
    client.subscribe(one, "a").await;
    assert_eq!(client.streams_of("a").await, [one]);
    assert_eq!(client.streams_of("b").await, [CONTROL]);
}

/// [BQ-42]
#[tokio::test(start_paused = true)]
async fn a_take_over_leaves_no_subscription_on_a_stream_that_is_gone() {
    let broker = QuicBroker::with_defaults();
    let mut client = broker.connect(lasting("client")).await;
    let (one, two) = (client.open().await, client.open().await);
    client.subscribe(one, "a").await;
    client.subscribe(two, "b").await;
    let mut other = broker.connect(lasting("client")).await;
    // As far as the numbers go these are the same streams; but nobody subscribed on them.
    let streams = [other.open().await, other.open().await];
    assert_eq!(streams, [one, two]);
    other.subscribe(two, "c").await;
    other.subscribe(one, "c").await;
    assert_eq!(other.streams_of("a").await, [CONTROL]);
    assert_eq!(other.streams_of("b").await, [CONTROL]);
    assert_eq!(other.streams_of("c").await, [one, two]);
}

/// [BQ-17]
#[tokio::test(start_paused = true)]
async fn unsubscribe_ends_the_filter_on_every_stream() {
    let broker = QuicBroker::with_defaults();
    let mut client = broker.connect(connect_v5("client")).await;
    let (one, two) = (client.open().await, client.open().await);
    client.subscribe(one, "a").await;
    client.subscribe(two, "a").await;
    assert_eq!(client.unsubscribe(CONTROL, "a").await, ReasonCode::Success);
    assert_eq!(client.streams_of("a").await, []);
    assert_eq!(client.unsubscribe(one, "a").await, ReasonCode::NoSubscriptionExisted);
}

/// [BQ-17]
#[tokio::test(start_paused = true)]
async fn with_strict_streams_unsubscribe_ends_the_filter_on_its_own() {
    let broker = QuicBroker::strict(Arc::new(MemoryStore::new()));
    let mut client = broker.connect(connect_v5("client")).await;
    let (one, two) = (client.open().await, client.open().await);
    client.subscribe(one, "a").await;
    client.subscribe(two, "a").await;
    assert_eq!(client.unsubscribe(CONTROL, "a").await, ReasonCode::NoSubscriptionExisted);
    assert_eq!(client.unsubscribe(one, "a").await, ReasonCode::Success);
    assert_eq!(client.streams_of("a").await, [two]);
}

/// The store knows filters only.
#[tokio::test(start_paused = true)]
async fn after_a_restart_a_filter_is_there_as_long_as_any_stream_had_it() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let broker = QuicBroker::strict(store.clone());
    let mut client = broker.connect(lasting("client")).await;
    let (one, two) = (client.open().await, client.open().await);
    client.subscribe(one, "kept").await;
    client.subscribe_as(two, SubscribeEntry::new(filter("kept"), QoS::AtMostOnce)).await;
    client.subscribe(one, "ended").await;
    assert_eq!(client.unsubscribe(two, "kept").await, ReasonCode::Success);
    assert_eq!(client.unsubscribe(one, "ended").await, ReasonCode::Success);
    // The control stream's own is what stays when those of data streams end.
    client.subscribe(CONTROL, "merged").await;
    client.subscribe_as(two, SubscribeEntry::new(filter("merged"), QoS::AtMostOnce)).await;
    client.finish(two).await;
    drop(broker); // Its tasks live on, but nobody talks to them any more.
    let broker = QuicBroker::strict(store);
    let mut client = broker.connect(lasting("client")).await;
    for (topic, expected) in
        [("kept", Some(QoS::AtLeastOnce)), ("merged", Some(QoS::AtLeastOnce)), ("ended", None)]
    {
        let packet_id = client.next_id();
        client.send(CONTROL, publish_packet(topic, "x", QoS::AtLeastOnce, packet_id)).await;
        let mut received = None;
        while let Some((_, packet)) = client.try_next().await {
            if let Packet::Publish(publish) = packet {
                received = Some(publish.qos);
            }
        }
        assert_eq!(received, expected, "{topic}");
    }
}

/// A client that is owed `count` retained messages of 2,000 bytes on a stream that it does not read.
async fn owed(broker: &QuicBroker, count: usize) -> (Lanes, StreamKey) {
    let mut client = broker.connect(connect_v5("client")).await;
    for number in 0..count {
        let retained = Publish { retain: true, ..message(&format!("r/{number}"), format!("{number:02000}")) };
        client.send(CONTROL, Packet::Publish(retained)).await;
    }
    let one = client.open().await;
    client.ignored.insert(one);
    let entry = SubscribeEntry::new(filter("r/#"), QoS::AtMostOnce);
    client.send(one, subscribe_packet(1, None, vec![entry])).await;
    pass().await;
    (client, one)
}

/// Long enough for everything that needs no more than the network.
async fn pass() {
    tokio::time::sleep(Duration::from_secs(1)).await;
}

/// [BQ-42]
#[tokio::test(start_paused = true)]
async fn retained_messages_that_a_stream_is_owed_go_on_on_the_control_stream() {
    const COUNT: usize = 600;
    let broker = QuicBroker::with_defaults();
    let (mut client, one) = owed(&broker, COUNT).await;
    client.link.abort(one, 0);
    let all = client.take_all().await;
    // What was on its way with QoS 0 went with the stream; most was not.
    assert!((COUNT / 4..COUNT).contains(&all.len()), "{} came", all.len());
    assert!(all.iter().all(|(on, _)| *on == CONTROL));
    assert_eq!(all.last().map(|(_, text)| text.trim_start_matches('0')), Some("599"));
}

/// [MQTT-3.10.4-2]
#[tokio::test(start_paused = true)]
async fn unsubscribe_ends_what_is_owed_of_retained_messages_wherever_it_goes() {
    const COUNT: usize = 1500;
    let broker = QuicBroker::with_defaults();
    for ends_stream in [false, true] {
        let (mut client, one) = owed(&broker, COUNT).await;
        client.ignored.insert(CONTROL);
        if ends_stream {
            client.link.abort(one, 0);
            pass().await;
        }
        client.send(CONTROL, unsubscribe_packet(2, &["r/#"])).await;
        pass().await;
        client.ignored.clear();
        let (mut messages, mut is_answered) = (0, false);
        while let Some((_, packet)) = client.try_next().await {
            match packet {
                Packet::Publish(_) => messages += 1,
                Packet::Unsuback(unsuback) => is_answered = unsuback.codes == [ReasonCode::Success],
                _ => {}
            }
        }
        // What the session was given before goes its way.
        assert!(is_answered && (1..COUNT / 2).contains(&messages), "{messages} messages came");
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_of_a_session_that_ends_is_left() {
    let config = BrokerConfig { sys: SysConfig { interval_secs: 1 }, ..BrokerConfig::default() };
    let broker = QuicBroker::start(config, Arc::new(MemoryStore::new()));
    let mut client = broker.connect(connect_v5("client")).await;
    let (one, two) = (client.open().await, client.open().await);
    client.subscribe(one, "a/+").await;
    client.subscribe(two, "a/+").await;
    client.subscribe(two, "$share/g/a").await;
    client.disconnect().await;
    pass().await;
    let mut other = broker.connect(connect_v5("other")).await;
    other.subscribe(CONTROL, "$SYS/broker/subscriptions/count").await;
    let (_, packet) = other.next().await;
    assert!(matches!(&packet, Packet::Publish(publish) if publish.payload == "0"), "{packet:?}");
}

#[tokio::test(start_paused = true)]
async fn the_limit_counts_every_filter_of_every_stream() {
    let limits = LimitsConfig { subscriptions: 2, ..LimitsConfig::default() };
    let broker = QuicBroker::start(BrokerConfig { limits, ..quiet() }, Arc::new(MemoryStore::new()));
    let mut client = broker.connect(connect_v5("client")).await;
    let (one, two) = (client.open().await, client.open().await);
    let entry = |text: &str| SubscribeEntry::new(filter(text), QoS::AtMostOnce);
    assert_eq!(client.subscribe_as(one, entry("a")).await, ReasonCode::Success);
    assert_eq!(client.subscribe_as(two, entry("a")).await, ReasonCode::Success);
    assert_eq!(client.subscribe_as(CONTROL, entry("a")).await, ReasonCode::QuotaExceeded);
    assert_eq!(client.subscribe_as(one, entry("a")).await, ReasonCode::Success);
    // What waits for a stream is replaced, not added to.
    client.finish(one).await;
    let three = client.open().await;
    assert_eq!(client.subscribe_as(three, entry("a")).await, ReasonCode::Success);
    assert_eq!(client.subscribe_as(three, entry("b")).await, ReasonCode::QuotaExceeded);
}
