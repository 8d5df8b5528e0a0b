//! Brokers of this process that are nodes of a cluster, and clients that exchange packets with them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use braid_broker::cluster::Storage;
use braid_broker::{
    Anonymous, Broker, BrokerConfig, Handle, LimitsConfig, PermitAll, PriorityRule, SysConfig,
};
use braid_cluster::{ClusterNode, ClusterOptions, RunningNode};
use braid_proto::decoder::Decoder;
use braid_proto::packet::{
    Ack, AckKind, Connect, MessageProperties, Packet, PacketId, ProtocolVersion, Publish, QoS, Subscribe,
    SubscribeEntry, Unsubscribe, UserProperties, Will,
};
use braid_proto::reason::ReasonCode;
use braid_proto::session::RetainHandling;
use braid_proto::topic::{TopicFilter, TopicName};
use braid_store::StoreError;
use braid_transport::mem::{self, Connector};
use braid_transport::{ByteStream, Link};
use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Above any wait of a test that succeeds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Broker that is a node.
pub(crate) struct BrokerNode {
    connector: Connector,
    pub(crate) handle: Handle,
    running: RunningNode,
    task: JoinHandle<Result<(), StoreError>>,
}

impl BrokerNode {
    pub(crate) async fn start(options: &ClusterOptions) -> Self {
        Self::start_with(options, Vec::new()).await
    }

    pub(crate) async fn start_with(options: &ClusterOptions, priority: Vec<PriorityRule>) -> Self {
        let node = ClusterNode::join(options, "1.0").await.unwrap();
        let (listener, connector) = mem::listener();
        let storage = Storage { store: node.store(), spool: None, cluster: node.cluster() };
        let limits = LimitsConfig { flapping_connects: 0, ..LimitsConfig::default() };
        let sys = SysConfig { interval_secs: 0 };
        let config = BrokerConfig { limits, sys, priority, ..BrokerConfig::default() };
        let (rule, authorize) = (Box::new(Anonymous::default()), Arc::new(PermitAll));
        let broker =
            Broker::recover(config, rule, authorize, storage, vec![listener.into()], |_| {}).unwrap();
        let handle = broker.handle();
        let task = tokio::spawn(broker.run(Duration::from_secs(1)));
        let running = node.start(&handle.node_handle());
        Self { connector, handle, running, task }
    }

    pub(crate) async fn stop(self) {
        self.running.find_successors().await;
        self.handle.stop();
        self.task.await.unwrap().unwrap();
        self.running.leave().await;
    }

    /// A client whose session lasts for an hour, and whether it had one.
    pub(crate) async fn connect(&self, client_id: &str) -> (Client, bool) {
        match self.try_connect(client_id, None).await {
            (client, ReasonCode::Success, is_present) => (client, is_present),
            (_, reason, _) => panic!("CONNECT is refused: {reason:?}"),
        }
    }

    /// Reason code for a client with a Will to this topic. `delay`: of the Will, seconds.
    pub(crate) async fn connect_with_will(
        &self,
        client_id: &str,
        topic: &str,
        delay: u32,
    ) -> (Client, ReasonCode) {
        let will = Will {
            topic: TopicName::parse(topic).unwrap(),
            payload: "will".into(),
            qos: QoS::AtLeastOnce,
            retain: false,
            delay,
            properties: None,
        };
        let (client, reason, _) = self.try_connect(client_id, Some(will)).await;
        (client, reason)
    }

    /// Reason code with which a client is refused.
    pub(crate) async fn refused(&self, client_id: &str) -> ReasonCode {
        self.try_connect(client_id, None).await.1
    }

    async fn try_connect(&self, client_id: &str, will: Option<Will>) -> (Client, ReasonCode, bool) {
        let Link::Single(single) = self.connector.connect().await.unwrap() else { panic!("one stream") };
        let decoder = Decoder::new(ProtocolVersion::V5, 268_435_460);
        let mut client = Client { io: single.io, decoder, decoded: VecDeque::new() };
        let mut connect = Connect { keep_alive: 0, will, ..Connect::new(ProtocolVersion::V5, client_id) };
        connect.clean_start = false;
        connect.properties.session_expiry = Some(3600);
        client.send(Packet::Connect(Box::new(connect))).await;
        match client.next().await {
            Packet::Connack(connack) => (client, connack.reason, connack.session_present),
            other => panic!("CONNACK expected, not {other:?}"),
        }
    }
}

/// Client of MQTT 5 on a link in memory.
pub(crate) struct Client {
    io: Box<dyn ByteStream>,
    decoder: Decoder,
    decoded: VecDeque<Packet>,
}

fn packet_id(value: u16) -> PacketId {
    PacketId::new(value).unwrap()
}

fn publish(topic: &str, payload: Bytes, qos: QoS) -> Publish {
    Publish {
        dup: false,
        qos,
        retain: false,
        topic: Some(TopicName::parse(topic).unwrap()),
        packet_id: (qos > QoS::AtMostOnce).then(|| packet_id(1)),
        topic_alias: None,
        subscription_ids: Vec::new(),
        properties: None,
        payload: payload.into(),
        spooled: false,
    }
}

impl Client {
    pub(crate) async fn send(&mut self, packet: Packet) {
        let mut bytes = BytesMut::new();
        packet.encode(ProtocolVersion::V5, &mut bytes);
        self.io.write_all(&bytes).await.unwrap();
    }

    pub(crate) async fn acknowledge(&mut self, kind: AckKind, id: u16) {
        self.send(Packet::Ack(Ack::new(kind, packet_id(id), ReasonCode::Success))).await;
    }

    /// Publishes with QoS 1, and waits for PUBACK.
    pub(crate) async fn publish(&mut self, topic: &str, payload: impl Into<Bytes>, retain: bool) {
        self.send_message(topic, payload, QoS::AtLeastOnce, retain).await;
        assert!(self.text().await.starts_with("Puback 1 "));
    }

    pub(crate) async fn send_publish(&mut self, topic: &str, payload: impl Into<Bytes>, qos: QoS) {
        self.send_message(topic, payload, qos, false).await;
    }

    async fn send_message(&mut self, topic: &str, payload: impl Into<Bytes>, qos: QoS, retain: bool) {
        let publish = publish(topic, payload.into(), qos);
        self.send(Packet::Publish(Publish { retain, ..publish })).await;
    }

    /// Publishes with QoS 1 and properties.
    pub(crate) async fn send_with(&mut self, topic: &str, properties: MessageProperties) {
        let publish = publish(topic, Bytes::new(), QoS::AtLeastOnce);
        self.send(Packet::Publish(Publish { properties: Some(Box::new(properties)), ..publish })).await;
    }

    /// Subscribes, and waits for SUBACK.
    pub(crate) async fn subscribe(&mut self, filter: &str, qos: QoS) -> ReasonCode {
        let entry = SubscribeEntry {
            filter: TopicFilter::parse(filter),
            qos,
            no_local: false,
            retain_as_published: false,
            retain_handling: RetainHandling::SendAlways,
        };
        let subscribe = Subscribe {
            packet_id: packet_id(1),
            id: None,
            user: UserProperties::new(),
            entries: vec![entry],
        };
        self.send(Packet::Subscribe(Box::new(subscribe))).await;
        // Retained messages may come first.
        let mut before = Vec::new();
        let reason = loop {
            match self.next().await {
                Packet::Suback(suback) => break suback.codes[0],
                other => before.push(other),
            }
        };
        before.into_iter().rev().for_each(|packet| self.decoded.push_front(packet));
        reason
    }

    /// Unsubscribes, and waits for UNSUBACK.
    pub(crate) async fn unsubscribe(&mut self, filter: &str) {
        let filters = vec![TopicFilter::parse(filter)];
        let unsubscribe = Unsubscribe { packet_id: packet_id(1), user: UserProperties::new(), filters };
        self.send(Packet::Unsubscribe(Box::new(unsubscribe))).await;
        assert!(matches!(self.next().await, Packet::Unsuback(_)));
    }

    pub(crate) async fn next(&mut self) -> Packet {
        timeout(PATIENCE, self.read()).await.expect("a packet")
    }

    async fn read(&mut self) -> Packet {
        loop {
            if let Some(packet) = self.decoded.pop_front() {
                return packet;
            }
            let mut bytes = vec![0; 64 << 10];
            let length = self.io.read(&mut bytes).await.unwrap();
            assert!(length > 0, "the broker has closed the link");
            let mut input = &bytes[..length];
            while let Some(packet) = self.decoder.decode(&mut input).unwrap() {
                self.decoded.push_back(packet);
            }
        }
    }

    /// The next packet as a text.
    pub(crate) async fn text(&mut self) -> String {
        match self.next().await {
            Packet::Publish(publish) => {
                let Publish { dup, qos, packet_id, payload, subscription_ids, retain, .. } = publish;
                let flag = |is_set, text: &'static str| if is_set { text } else { "" };
                let ids: String = subscription_ids.iter().map(|id| format!(" #{id}")).collect();
                let payload = String::from_utf8_lossy(&payload);
                let id = packet_id.map_or(0, PacketId::value);
                let (dup, retain) = (flag(dup, " dup"), flag(retain, " retain"));
                format!("{payload} q{} {id}{dup}{retain}{ids}", qos as u8)
            }
            Packet::Ack(ack) => format!("{:?} {} {:?}", ack.kind, ack.packet_id.value(), ack.reason),
            other => format!("{other:?}"),
        }
    }

    /// The next packets as texts.
    pub(crate) async fn texts(&mut self, count: usize) -> Vec<String> {
        let mut texts = Vec::new();
        while texts.len() < count {
            texts.push(self.text().await);
        }
        texts
    }
}
