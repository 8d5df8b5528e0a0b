//! CONNECT and CONNACK (MQTT 3.1, 3.2): authentication, refusals and negotiated values.

use std::net::SocketAddr;

use braid_broker::{
    Anonymous, Authenticate, Authentication, BrokerConfig, Counter, Credentials, ListenerPolicy, MqttConfig,
    Outcome, Refusal,
};
use braid_proto::packet::{ClientId, Connect, Packet, ProtocolVersion, QoS};
use braid_proto::reason::ReasonCode;
use braid_transport::{EndpointHealth, Peer, Transport};

use crate::support::{TestBroker, connect_v3, connect_v5, lasting, message, pass, quiet, settle, will};

fn with_mqtt(mqtt: MqttConfig) -> BrokerConfig {
    BrokerConfig { mqtt, ..quiet() }
}

// [MQTT-3.2.2-16], [MQTT-3.1.3-6], [MQTT-3.1.3-7]
#[tokio::test(start_paused = true)]
async fn a_client_without_identifier_gets_one_and_can_resume_with_it() {
    let broker = TestBroker::start();
    let first = broker.connect(lasting("")).await;
    let second = broker.connect(lasting("")).await;
    let assigned = |client: &crate::support::Client| {
        client.connack().properties.assigned_client_id.clone().expect("an assigned client identifier")
    };
    assert_ne!(assigned(&first), assigned(&second));
    let client_id = assigned(&first);
    first.disconnect().await;
    let again = broker.resume(client_id.as_str()).await;
    assert!(again.connack().session_present);
    assert_eq!(again.connack().properties.assigned_client_id, None);
}

// [MQTT3-3.1.3-7], [MQTT3-3.1.3-8]
#[tokio::test(start_paused = true)]
async fn mqtt_3_without_identifier_must_start_clean() {
    let broker = TestBroker::start();
    broker.v3("").await.disconnect().await;
    let mut client = broker.link(ProtocolVersion::V311).await;
    client.send_connect(Connect { clean_start: false, ..connect_v3("") }).await;
    assert_eq!(client.expect_connack().await.reason, ReasonCode::ClientIdentifierNotValid);
    client.expect_end().await;
}

// [MQTT-3.1.2-22], [MQTT-3.2.2-22]
#[tokio::test(start_paused = true)]
async fn the_server_keep_alive_replaces_a_longer_one() {
    let mqtt = MqttConfig { maximum_keep_alive: 20, ..MqttConfig::default() };
    let broker = TestBroker::start_with(with_mqtt(mqtt));
    for (asked, told) in [(10, None), (20, None), (21, Some(20)), (0, Some(20))] {
        let client = broker.connect(Connect { keep_alive: asked, ..connect_v5("client") }).await;
        assert_eq!(client.connack().properties.server_keep_alive, told, "asked for {asked}");
        client.disconnect().await;
    }
    let mut silent = broker.connect(Connect { keep_alive: 600, ..connect_v5("silent") }).await;
    let start = tokio::time::Instant::now();
    silent.expect_disconnect(ReasonCode::KeepAliveTimeout).await;
    assert_eq!(start.elapsed().as_secs(), 30);
}

// [MQTT-3.12.4-1]
#[tokio::test(start_paused = true)]
async fn pings_keep_a_connection_and_keep_alive_0_needs_none() {
    let broker = TestBroker::start();
    let mut pinging = broker.connect(Connect { keep_alive: 10, ..connect_v5("pinging") }).await;
    let mut silent = broker.v5("silent").await;
    for _ in 0..20 {
        pass(14).await;
        pinging.send(Packet::Pingreq).await;
        assert_eq!(pinging.next().await, Some(Packet::Pingresp));
    }
    pass(100_000).await;
    pinging.expect_disconnect(ReasonCode::KeepAliveTimeout).await;
    silent.expect_silence().await;
    silent.send(Packet::Pingreq).await;
    assert_eq!(silent.next().await, Some(Packet::Pingresp));
}

// [MQTT-3.1.2-28]
#[tokio::test(start_paused = true)]
async fn response_information_is_sent_on_request() {
    let mqtt = MqttConfig { response_information: "answers/".into(), ..MqttConfig::default() };
    let broker = TestBroker::start_with(with_mqtt(mqtt));
    for (asks, told) in [(None, None), (Some(false), None), (Some(true), Some("answers/"))] {
        let mut connect = connect_v5("client");
        connect.properties.request_response_information = asks;
        let client = broker.connect(connect).await;
        assert_eq!(client.connack().properties.response_information.as_deref(), told);
    }
}

// [MQTT-3.1.2-29]
#[tokio::test(start_paused = true)]
async fn problem_information_is_left_out_on_request() {
    let broker = TestBroker::start();
    for (wants, has) in [(None, true), (Some(true), true), (Some(false), false)] {
        let mut connect = connect_v5("client");
        connect.properties.request_problem_information = wants;
        let mut client = broker.connect(connect).await;
        client.send(Packet::Connect(Box::new(connect_v5("client")))).await; // [MQTT-3.1.0-2]
        let disconnect = client.expect_disconnect(ReasonCode::ProtocolError).await;
        assert_eq!(disconnect.reason_string.is_some(), has, "wants {wants:?}");
    }
}

// [MQTT-4.12.0-1], [MQTT-4.12.0-4]
#[tokio::test(start_paused = true)]
async fn enhanced_authentication_is_refused() {
    let broker = TestBroker::start();
    let mut connect = connect_v5("client");
    connect.properties.authentication_method = Some("SCRAM-SHA-1".into());
    let mut client = broker.link(ProtocolVersion::V5).await;
    client.send_connect(connect).await;
    assert_eq!(client.expect_connack().await.reason, ReasonCode::BadAuthenticationMethod);
    client.expect_end().await; // [MQTT-3.2.2-7]
}

struct RefuseAll;

impl Authenticate for RefuseAll {
    fn authenticate<'a>(&'a self, _credentials: &'a Credentials<'a>) -> Authentication<'a> {
        Box::pin(async {
            tokio::task::yield_now().await;
            Err(Refusal::new(ReasonCode::NotAuthorized, "all are refused"))
        })
    }
}

// [MQTT-3.1.4-2], [MQTT-3.1.4-6], [MQTT-3.2.2-6], [MQTT-3.2.2-7]
#[tokio::test(start_paused = true)]
async fn packets_after_a_refused_connect_are_ignored_and_its_will_is_not_published() {
    let broker = TestBroker::start_with_rule(quiet(), RefuseAll);
    let mut events = broker.handle.security_events();
    for connect in [connect_v3("client"), connect_v5("client")] {
        let mut client = broker.link(connect.version).await;
        let connect = Connect { user_name: Some("u".repeat(300).into()), ..connect };
        let connect = Connect { will: Some(will("t", "will")), ..connect };
        let publish = Packet::Publish(braid_proto::packet::Publish { retain: true, ..message("t", "x") });
        client.send_all([Packet::Connect(Box::new(connect)), publish]).await;
        let connack = client.expect_connack().await;
        assert_eq!((connack.reason, connack.session_present), (ReasonCode::NotAuthorized, false));
        client.expect_end().await;
        let event = events.try_recv().expect("an event");
        assert_eq!((event.action.name(), &*event.cause), ("connect", "all are refused"));
        assert_eq!(event.claimed_user.as_deref(), Some(&*"u".repeat(256)));
    }
    settle().await;
    assert_eq!(broker.statistics().get(Counter::MessagesReceived), 0);
    assert_eq!(broker.statistics().connections(), 0);
}

#[tokio::test]
async fn anonymous_clients_are_refused_from_outside_unless_that_was_switched_on() {
    let peer = |address: Option<&str>| Peer {
        address: address.map(|text| text.parse::<SocketAddr>().expect("an address")),
        proxy: None,
        transport: Transport::Tcp,
        certificate: None,
        tls_version: None,
        alpn: None,
    };
    let admits = async |rule: Anonymous, anonymous: Option<bool>, address: Option<&str>| {
        let listener = ListenerPolicy { anonymous, ..ListenerPolicy::default() };
        let (client_id, peer) = (ClientId::from("client"), peer(address));
        let credentials = Credentials {
            client_id: &client_id,
            user_name: Some("ignored"),
            password: None,
            method: None,
            data: None,
            peer: &peer,
            listener: &listener,
        };
        match rule.authenticate(&credentials).await {
            Ok(Outcome::Accepted(grant)) => {
                assert_eq!(grant.identity.user(), None);
                true
            }
            Ok(Outcome::Challenge(_)) => panic!("there is no method"),
            Err(refusal) => {
                assert_eq!(refusal.reason, ReasonCode::NotAuthorized);
                false
            }
        }
    };
    let at_home = Anonymous::default();
    let anywhere = Anonymous { from_anywhere: true };
    for local in
        [None, Some("127.0.0.1:1"), Some("127.8.8.8:1"), Some("[::1]:1"), Some("[::ffff:127.0.0.1]:1")]
    {
        assert!(admits(at_home, None, local).await, "{local:?}");
        assert!(!admits(at_home, Some(false), local).await, "{local:?}");
    }
    for outside in ["10.0.0.1:1", "[::ffff:10.0.0.1]:1", "[fe80::1]:1", "0.0.0.0:1"] {
        assert!(!admits(at_home, None, Some(outside)).await, "{outside}");
        assert!(admits(at_home, Some(true), Some(outside)).await, "{outside}");
        assert!(admits(anywhere, None, Some(outside)).await, "{outside}");
        assert!(!admits(anywhere, Some(false), Some(outside)).await, "{outside}");
    }
}

// [MQTT-3.1.2-1], [MQTT-3.1.2-2]
#[tokio::test(start_paused = true)]
async fn an_unknown_protocol_version_is_refused_in_a_format_that_its_client_knows() {
    let broker = TestBroker::start();
    // CONNECT of "MQTT" at level 6, 7 and 2: flags, Keep Alive, and an empty Client Identifier follow.
    for (level, answer) in
        [(6, &[0x20, 3, 0, 0x84, 0][..]), (7, &[0x20, 3, 0, 0x84, 0]), (2, &[0x20, 2, 0, 1])]
    {
        let version = if level > 5 { ProtocolVersion::V5 } else { ProtocolVersion::V311 };
        let mut client = broker.link(version).await;
        client.send_bytes(&[0x10, 12, 0, 4, b'M', b'Q', b'T', b'T', level, 2, 0, 0, 0, 0]).await;
        let connack = client.expect_connack().await;
        assert_eq!(connack.reason, ReasonCode::UnsupportedProtocolVersion, "level {level}");
        let mut bytes = bytes::BytesMut::new();
        Packet::Connack(Box::new(connack)).encode(version, &mut bytes);
        assert_eq!(&bytes[..], answer);
        client.expect_end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn mqtt_3_1_is_supported() {
    let broker = TestBroker::start();
    let connect = Connect { keep_alive: 0, ..Connect::new(ProtocolVersion::V31, "old") };
    let mut client = broker.connect(connect).await;
    client.subscribe("t", QoS::ExactlyOnce).await;
    client.publish("t", "x", QoS::ExactlyOnce).await;
    assert_eq!(client.take().await, "x");
    client.disconnect().await;
}

#[tokio::test(start_paused = true)]
async fn connack_tells_the_granted_values() {
    let mqtt = MqttConfig {
        receive_maximum: 7,
        maximum_packet_size: 1000,
        topic_alias_maximum: 3,
        maximum_session_expiry: 60,
        ..MqttConfig::default()
    };
    let broker = TestBroker::start_with(with_mqtt(mqtt));
    let client = broker.resume("client").await;
    let properties = &client.connack().properties;
    assert_eq!(properties.receive_maximum, Some(7));
    assert_eq!(properties.maximum_packet_size, Some(1000));
    assert_eq!(properties.topic_alias_maximum, Some(3));
    assert_eq!(properties.session_expiry, Some(60));
    assert_eq!(properties.authentication_method, None); // [MQTT-4.12.0-6]
    client.vanish().await;
    pass(59).await;
    let client = broker.resume("client").await;
    assert!(client.connack().session_present);
    client.vanish().await;
    pass(61).await;
    assert!(!broker.resume("client").await.connack().session_present);
}

/// A QUIC endpoint whose task fails shows in the accept of its listener, and in the health of the broker.
#[tokio::test(start_paused = true)]
async fn failures_of_an_endpoint_are_counted_and_connections_are_accepted_again() {
    let broker = TestBroker::start();
    let fails = async |restarts, is_available| {
        let health = EndpointHealth { restarts, is_available, turned_away: 0 };
        broker.fail_accept(health).await;
        // The listener pauses after an accept that failed.
        drop(broker.v5("client").await);
        let statistics = broker.statistics();
        (statistics.get(Counter::QuicRestarts), statistics.is_quic_unavailable())
    };
    assert_eq!(fails(1, true).await, (1, false));
    assert_eq!(fails(1, false).await, (1, true));
    assert_eq!(fails(3, true).await, (3, false));
}
