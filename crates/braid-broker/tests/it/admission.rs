//! Limits of addresses, flapping clients, and bans.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use braid_auth::identity::{Attributes, Identity};
use braid_broker::bans::{BanError, BanTarget};
use braid_broker::{
    Authenticate, Authentication, BrokerConfig, Counter, Credentials, Limit, LimitsConfig, Outcome,
    SecurityAction,
};
use braid_proto::packet::{ClientId, Connect, Packet, ProtocolVersion, QoS, Will};
use braid_proto::reason::ReasonCode;
use braid_transport::proxy::ProxyOptions;
use braid_transport::quic::QuicOptions;
use braid_transport::{ListenOptions, Listener, ListenerKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{
    CONTROL, Client, QuicBroker, TestBroker, anyone, connect_v3, connect_v5, lasting, pass, quiet, settle,
    wait, will,
};

fn with_limits(limits: LimitsConfig) -> BrokerConfig {
    BrokerConfig { limits, ..quiet() }
}

fn address(text: &str) -> SocketAddr {
    SocketAddr::new(text.parse().expect("an address"), 40_000)
}

/// Answer to a CONNECT from this address; `None` if the connection is closed without one. The link lives on.
pub(crate) async fn answer(
    broker: &TestBroker,
    from: &str,
    connect: Connect,
) -> (Option<ReasonCode>, Client) {
    let mut client = broker.link_from(address(from), connect.version).await;
    let mut bytes = bytes::BytesMut::new();
    Packet::Connect(Box::new(connect.clone())).encode(connect.version, &mut bytes);
    client.try_send_bytes(&bytes).await;
    settle().await;
    let reason = match client.next().await {
        Some(Packet::Connack(connack)) => Some(connack.reason),
        None => None,
        other => panic!("{other:?}"),
    };
    (reason, client)
}

async fn reason(broker: &TestBroker, from: &str, connect: Connect) -> Option<ReasonCode> {
    answer(broker, from, connect).await.0
}

/// Every user name is let in.
struct Named;

impl Authenticate for Named {
    fn authenticate<'a>(&'a self, credentials: &'a Credentials<'a>) -> Authentication<'a> {
        let identity = credentials.user_name.map_or_else(Identity::anonymous, Identity::named);
        Box::pin(async { Ok(Outcome::from(identity)) })
    }
}

/// Every user name is let in, with the address of the client.
struct Located;

impl Authenticate for Located {
    fn authenticate<'a>(&'a self, credentials: &'a Credentials<'a>) -> Authentication<'a> {
        let attributes =
            Attributes { user: credentials.user_name.map(Into::into), ..credentials.attributes() };
        let identity = Identity::new(attributes).expect("no rules");
        Box::pin(async { Ok(Outcome::from(identity)) })
    }
}

fn user(name: &str, connect: Connect) -> Connect {
    Connect { user_name: Some(name.into()), ..connect }
}

const ACCEPTED: Option<ReasonCode> = Some(ReasonCode::Success);
const BANNED: Option<ReasonCode> = Some(ReasonCode::Banned);

#[tokio::test(start_paused = true)]
async fn connections_of_an_address_are_limited_and_their_end_makes_room() {
    let limits = LimitsConfig { connections_per_address: 2, ..LimitsConfig::default() };
    let broker = TestBroker::start_with_rule(with_limits(limits), anyone());
    let mut events = broker.handle.security_events();
    for (here, same_host, elsewhere) in
        [("10.0.0.1", "10.0.0.1", "10.0.0.2"), ("2001:db8::1", "2001:db8::2", "2001:db8:0:1::1")]
    {
        let before = broker.statistics().reached(Limit::AddressConnections);
        let (first, second) = (
            answer(&broker, here, connect_v5("1")).await,
            broker.link_from(address(here), ProtocolVersion::V5).await,
        );
        settle().await;
        assert_eq!(first.0, ACCEPTED);
        assert_eq!(
            reason(&broker, same_host, connect_v5("3")).await,
            None,
            "a link without CONNECT counts too"
        );
        assert_eq!(reason(&broker, elsewhere, connect_v5("4")).await, ACCEPTED);
        assert_eq!(broker.statistics().reached(Limit::AddressConnections), before + 1);
        let event = events.try_recv().expect("a security event");
        assert_eq!((&event.action, event.address), (&SecurityAction::Limited, Some(address(same_host))));
        drop(second);
        settle().await;
        assert_eq!(reason(&broker, same_host, connect_v5("3")).await, ACCEPTED);
        first.1.vanish().await;
    }
    assert_eq!(broker.statistics().get(Counter::ConnectionsRefused), 2);
    let mut local = Vec::new();
    for number in 0..10 {
        local.push(answer(&broker, "127.0.0.1", connect_v5(&number.to_string())).await);
    }
    assert_eq!(broker.statistics().get(Counter::ConnectionsRefused), 2, "loopback has no limit");
}

#[tokio::test(start_paused = true)]
async fn connects_of_an_address_have_a_rate_and_use_nothing_of_the_listener() {
    let limits = LimitsConfig {
        connects_per_address_per_second: 2,
        connections_per_second: 5,
        flapping_connects: 0,
        ..LimitsConfig::default()
    };
    let broker = TestBroker::start_with_rule(with_limits(limits), anyone());
    let (v5, v3) = (Some(ReasonCode::ConnectionRateExceeded), Some(ReasonCode::ServerUnavailable));
    for round in 1..=2 {
        let mut answers = Vec::new();
        for number in 0..20 {
            let connect = if number % 2 == 0 { connect_v5("client") } else { connect_v3("client") };
            answers.push(reason(&broker, "10.0.0.1", connect).await);
        }
        assert_eq!(answers[..4], [ACCEPTED, ACCEPTED, v5, v3]);
        assert!(answers[4..].iter().all(Option::is_none), "{answers:?}");
        assert_eq!(reason(&broker, "10.0.0.2", connect_v5("other")).await, ACCEPTED);
        assert_eq!(broker.statistics().reached(Limit::AddressRate), 18 * round);
        assert_eq!(broker.statistics().get(Counter::ConnectionsRefused), 18 * round);
        wait(Duration::from_secs(2)).await;
    }
}

/// Each CONNACK costs a handshake: the listener bounds those of all addresses together.
#[tokio::test(start_paused = true)]
async fn answers_to_an_address_count_for_the_listener() {
    let limits = LimitsConfig {
        connects_per_address_per_second: 2,
        connections_per_second: 1,
        ..LimitsConfig::default()
    };
    let broker = TestBroker::start_with_rule(with_limits(limits), anyone());
    let mut answers = Vec::new();
    for number in 0..4 {
        answers.push(reason(&broker, "10.0.0.1", connect_v5(&number.to_string())).await);
    }
    assert_eq!(answers, [ACCEPTED, Some(ReasonCode::ConnectionRateExceeded), None, None]);
    let reached = [Limit::AddressRate, Limit::ListenerRate].map(|limit| broker.statistics().reached(limit));
    assert_eq!(reached, [2, 1]);
}

/// The address of a QUIC client is proved by its handshake: before that nothing is counted.
#[tokio::test(start_paused = true)]
async fn limits_of_an_address_hold_on_quic() {
    let limits = LimitsConfig { connections_per_address: 2, ..LimitsConfig::default() };
    let broker = QuicBroker::start_with(with_limits(limits));
    let connect = async |client_id: &str| {
        let mut lanes = broker.link("host").await;
        lanes.send_connect(connect_v5(client_id));
        lanes.accepted().await;
        lanes
    };
    let (first, _second) = (connect("1").await, connect("2").await);
    let connector = broker.connector("host", QuicOptions::client());
    assert!(connector.connect().await.is_err(), "refused without a handshake");
    assert_eq!(broker.memory.statistics().reached(Limit::AddressConnections), 1);
    let _other = broker.v5("other").await;
    first.disconnect().await.expect("an orderly end");
    pass(5).await;
    let _third = connect("3").await;
    assert_eq!(broker.memory.statistics().reached(Limit::AddressConnections), 1);
}

/// Behind a proxy the limits mean the client's address, which its header tells.
#[tokio::test]
async fn limits_of_an_address_hold_behind_a_proxy() {
    let proxy = Some(ProxyOptions { trusted: vec!["127.0.0.0/8".parse().expect("a network")] });
    let options = ListenOptions { proxy, ..ListenOptions::default() };
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let listener = Listener::bind(ListenerKind::Tcp, loopback, &options).expect("bind");
    let to = listener.local_addr().expect("an address");
    let limits = LimitsConfig { connections_per_address: 1, ..LimitsConfig::default() };
    let broker = TestBroker::start_listening(with_limits(limits), vec![listener.into()]);
    let mut connect = bytes::BytesMut::new();
    Packet::Connect(Box::new(connect_v5(""))).encode(ProtocolVersion::V5, &mut connect);
    let answer = async |from: &str| {
        let mut stream = TcpStream::connect(to).await.expect("connect");
        let header = format!("PROXY TCP4 {from} 203.0.113.1 56324 1883\r\n");
        stream.write_all(&[header.as_bytes(), &connect].concat()).await.expect("write");
        let is_answered = stream.read_u8().await.is_ok();
        (is_answered, stream)
    };
    let first = answer("192.0.2.7").await;
    let second = answer("192.0.2.7").await;
    let other = answer("192.0.2.8").await;
    assert_eq!((first.0, second.0, other.0), (true, false, true));
    assert_eq!(broker.statistics().reached(Limit::AddressConnections), 1);
}

#[tokio::test(start_paused = true)]
async fn a_flapping_client_is_banned_at_its_address_and_no_other() {
    let broker = TestBroker::start_with_rule(with_limits(LimitsConfig::default()), anyone());
    let mut events = broker.handle.security_events();
    let here = "10.0.0.1";
    for connect in 0..15 {
        let (reason, client) = answer(&broker, here, connect_v5("client")).await;
        assert_eq!(reason, ACCEPTED, "{connect}");
        client.disconnect().await;
        wait(Duration::from_secs(3)).await;
    }
    assert_eq!(reason(&broker, here, connect_v5("client")).await, BANNED);
    assert_eq!(
        reason(&broker, here, connect_v3("client")).await,
        Some(ReasonCode::NotAuthorized),
        "return code 5"
    );
    let statistics = broker.statistics();
    assert_eq!((statistics.get(Counter::FlappingBans), statistics.reached(Limit::Bans)), (1, 2));
    let event = events.try_recv().expect("a security event");
    assert_eq!((&event.action, &*event.cause), (&SecurityAction::Banned, "the client connected too often"));
    assert_eq!(event.client_id.as_ref().map(ClientId::as_str), Some("client"));
    // Others behind the same address, and the client elsewhere.
    assert_eq!(reason(&broker, here, connect_v5("other")).await, ACCEPTED);
    assert_eq!(reason(&broker, "10.0.0.2", connect_v5("client")).await, ACCEPTED);
    let bans = broker.handle.bans();
    assert!(bans.len() == 1 && bans[0].is_flapping);
    pass(290).await;
    assert_eq!(reason(&broker, here, connect_v5("client")).await, BANNED);
    pass(11).await;
    assert_eq!(reason(&broker, here, connect_v5("client")).await, ACCEPTED);
    assert!(broker.handle.bans().is_empty());
}

/// A client that knows the identifier of another must not get that one banned.
#[tokio::test(start_paused = true)]
async fn refused_connects_are_not_flapping() {
    let broker = TestBroker::start_with(with_limits(LimitsConfig::default()));
    for _ in 0..50 {
        assert_eq!(reason(&broker, "10.0.0.1", connect_v5("client")).await, Some(ReasonCode::NotAuthorized));
    }
    assert!(broker.handle.bans().is_empty());
    for _ in 0..50 {
        assert_eq!(
            reason(&broker, "127.0.0.1", connect_v5("client")).await,
            ACCEPTED,
            "loopback has no limit"
        );
    }
}

/// A user behind the address of another must not get that one banned by the use of its Client Identifier, whether it
/// has a session or not.
#[tokio::test(start_paused = true)]
async fn connects_of_another_user_are_not_flapping() {
    let broker = TestBroker::start_with_rule(with_limits(LimitsConfig::default()), Named);
    let here = "10.0.0.1";
    let (accepted, victim) = answer(&broker, here, user("v", lasting("victim"))).await;
    for client in ["victim", "absent"] {
        let mut reasons = Vec::new();
        for _ in 0..17 {
            reasons.push(reason(&broker, here, user("eve", connect_v5(client))).await);
        }
        let usual = if client == "victim" { Some(ReasonCode::NotAuthorized) } else { ACCEPTED };
        assert!(reasons[..15].iter().all(|reason| *reason == usual), "{client}: {reasons:?}");
        assert_eq!(reasons[15..], [BANNED; 2], "{client}");
    }
    victim.vanish().await;
    let again = reason(&broker, here, user("v", lasting("victim"))).await;
    let absent = reason(&broker, here, user("v", lasting("absent"))).await;
    assert_eq!((accepted, again, absent, broker.handle.bans().len()), (ACCEPTED, ACCEPTED, ACCEPTED, 2));
}

/// The connect that is one too many does not take the session over.
#[tokio::test(start_paused = true)]
async fn a_session_outlives_the_flapping_of_its_client() {
    let limits = LimitsConfig { flapping_connects: 2, flapping_ban_secs: 100, ..LimitsConfig::default() };
    let broker = TestBroker::start_with_rule(with_limits(limits), anyone());
    let here = "10.0.0.1";
    let (_, mut first) = answer(&broker, here, lasting("client")).await;
    let (reasons, mut second) = answer(&broker, here, lasting("client")).await;
    first.expect_disconnect(ReasonCode::SessionTakenOver).await;
    second.subscribe("t", QoS::AtLeastOnce).await;
    let too_many = reason(&broker, here, lasting("client")).await;
    assert_eq!((reasons, too_many, broker.statistics().clients()), (ACCEPTED, BANNED, 1));
    broker.v5("publisher").await.publish("t", "delivered", QoS::AtLeastOnce).await;
    assert_eq!(second.take().await, "delivered");
    second.vanish().await;
    broker.v5("publisher").await.publish("t", "kept", QoS::AtLeastOnce).await;
    pass(101).await;
    let (reason, mut client) = answer(&broker, here, lasting("client")).await;
    assert_eq!((reason, client.take().await.as_str()), (ACCEPTED, "kept"));
}

/// A ban disconnects those whom it means and refuses them until it ends or is lifted; others are not touched.
#[tokio::test(start_paused = true)]
async fn a_ban_disconnects_and_refuses_whom_it_means() {
    let network = |text: &str| BanTarget::Addresses(text.parse().expect("a network"));
    for target in
        [BanTarget::Client(ClientId::from("eve")), BanTarget::User("u".into()), network("10.0.0.0/30")]
    {
        let broker = TestBroker::start_with_rule(quiet(), Named);
        let eve = || user("u", connect_v5("eve"));
        let (_, mut banned) = answer(&broker, "10.0.0.1", eve()).await;
        let (_, mut other) = answer(&broker, "10.0.0.5", user("v", connect_v5("other"))).await;
        let mut events = broker.handle.security_events();
        let handle = broker.handle.clone();
        handle.ban(target.clone(), Some(Duration::from_secs(60)), "abuse").await.expect("room");
        banned.expect_disconnect(ReasonCode::AdministrativeAction).await;
        assert_eq!(broker.statistics().get(Counter::ClientsBanned), 1, "{target:?}");
        let event = events.try_recv().expect("a security event");
        assert_eq!((&event.action, &*event.cause), (&SecurityAction::Banned, "abuse"));
        other.publish("t", "x", QoS::AtLeastOnce).await;
        let is_address = matches!(target, BanTarget::Addresses(_));
        let expected = if is_address { None } else { BANNED };
        assert_eq!(reason(&broker, "10.0.0.1", eve()).await, expected, "{target:?}");
        assert_eq!(broker.statistics().reached(Limit::Bans), 1, "{target:?}");
        assert_eq!(broker.statistics().get(Counter::ConnectionsRefused), 1, "{target:?}");
        assert!(broker.handle.unban(target.clone()) && !broker.handle.unban(target.clone()));
        assert_eq!(reason(&broker, "10.0.0.1", eve()).await, ACCEPTED, "{target:?}");
        handle.ban(target.clone(), Some(Duration::from_secs(60)), "abuse").await.expect("room");
        pass(61).await;
        assert_eq!(reason(&broker, "10.0.0.1", eve()).await, ACCEPTED, "{target:?}");
        let long = "x".repeat(2000);
        assert_eq!(handle.ban(target, None, &long).await, Err(BanError::ReasonTooLong));
    }
}

/// A banned client does not take over its session, and the session lives on.
#[tokio::test(start_paused = true)]
async fn a_session_outlives_a_ban_of_its_client() {
    let broker = TestBroker::start();
    let mut client = broker.connect(lasting("client")).await;
    client.subscribe("t", QoS::AtLeastOnce).await;
    let target = BanTarget::Client(ClientId::from("client"));
    broker.handle.ban(target.clone(), None, "").await.expect("room");
    client.expect_disconnect(ReasonCode::AdministrativeAction).await;
    let mut publisher = broker.v5("publisher").await;
    publisher.publish("t", "x", QoS::AtLeastOnce).await;
    assert_eq!(reason(&broker, "127.0.0.1", lasting("client")).await, BANNED);
    assert!(broker.handle.unban(target));
    let mut client = broker.resume("client").await;
    assert!(client.connack().session_present);
    assert_eq!(client.take().await, "x");
}

fn with_will(connect: Connect, delay: u32) -> Connect {
    Connect { will: Some(Will { delay, ..will("will/a", "gone") }), ..connect }
}

/// A client that may not be there any more sends nothing more either, also when it has been gone for a while.
#[tokio::test(start_paused = true)]
async fn the_will_of_a_banned_client_is_not_published() {
    let network = BanTarget::Addresses("10.0.0.0/30".parse().expect("a network"));
    for target in [BanTarget::Client(ClientId::from("eve")), BanTarget::User("u".into()), network] {
        for (delay, is_gone) in [(0, false), (30, false), (30, true)] {
            let broker = TestBroker::start_with_rule(quiet(), Located);
            let mut observer = broker.connect(user("v", connect_v5("observer"))).await;
            observer.subscribe("will/#", QoS::AtMostOnce).await;
            let connect = with_will(user("u", lasting("eve")), delay);
            let (_, mut eve) = answer(&broker, "10.0.0.1", connect).await;
            let mut events = broker.handle.security_events();
            if is_gone {
                eve.vanish().await;
                broker.handle.ban(target.clone(), None, "abuse").await.expect("room");
            } else {
                broker.handle.ban(target.clone(), None, "abuse").await.expect("room");
                eve.expect_disconnect(ReasonCode::AdministrativeAction).await;
            }
            pass(60).await;
            observer.expect_silence().await;
            let event = events.try_recv().expect("a security event");
            assert_eq!(
                (event.action.name(), &*event.cause),
                (if is_gone { "will" } else { "banned" }, "abuse")
            );
        }
    }
}

/// A ban for flapping keeps a client from connecting again, whatever happens meanwhile: its session and its Will stay.
#[tokio::test(start_paused = true)]
async fn a_ban_for_flapping_does_not_end_a_connection() {
    let limits = LimitsConfig { flapping_connects: 2, ..LimitsConfig::default() };
    let broker = TestBroker::start_with_rule(with_limits(limits), anyone());
    let mut observer = broker.v5("observer").await;
    observer.subscribe("will/#", QoS::AtMostOnce).await;
    let here = "10.0.0.1";
    let (_, mut first) = answer(&broker, here, lasting("client")).await;
    let (_, mut second) = answer(&broker, here, with_will(lasting("client"), 0)).await;
    first.expect_disconnect(ReasonCode::SessionTakenOver).await;
    assert_eq!(reason(&broker, here, lasting("client")).await, BANNED);
    broker.handle.recheck_clients().await;
    second.subscribe("t", QoS::AtLeastOnce).await;
    second.vanish().await;
    assert_eq!(observer.take().await, "gone");
}

/// The list has the ban for flapping first here: its network is the larger one.
#[tokio::test(start_paused = true)]
async fn a_ban_for_flapping_hides_no_other_ban() {
    let limits = LimitsConfig { flapping_connects: 2, ..LimitsConfig::default() };
    let broker = TestBroker::start_with_rule(with_limits(limits), anyone());
    let here = "2001:db8::1";
    let _former = answer(&broker, here, lasting("client")).await;
    let (_, mut client) = answer(&broker, here, lasting("client")).await;
    assert_eq!(reason(&broker, here, lasting("client")).await, BANNED);
    let address = BanTarget::Addresses("2001:db8::1/128".parse().expect("a network"));
    broker.handle.ban(address, None, "abuse").await.expect("room");
    client.expect_disconnect(ReasonCode::AdministrativeAction).await;
}

/// Bans are replaced as a whole or not at all.
#[tokio::test(start_paused = true)]
async fn bans_that_have_no_room_change_nothing() {
    let broker = TestBroker::start();
    let target = |number: usize| BanTarget::User(number.to_string().into());
    for number in 0..10_000 {
        broker.handle.ban(target(number), None, "").await.expect("room");
    }
    let more = || vec![target(0), target(10_000), target(10_001)];
    let replaced = broker.handle.replace_bans(vec![target(1)], more(), "file");
    assert_eq!((replaced, broker.handle.bans().len()), (Err(BanError::TooMany), 10_000));
    let has = |number| broker.handle.bans().iter().any(|ban| ban.target == target(number));
    assert!(has(1) && !has(10_000));
    // One that is lifted makes room, unless it is set again.
    let replaced = broker.handle.replace_bans(vec![target(1), target(0)], more(), "file");
    assert_eq!(replaced, Err(BanError::TooMany));
    let replaced = broker.handle.replace_bans(vec![target(1), target(2)], more(), "file");
    assert_eq!((replaced, broker.handle.bans().len()), (Ok(()), 10_000));
    assert!(!has(1) && !has(2) && has(10_000) && has(10_001));
}

/// QUIC clients keep their connection when their address changes.
#[tokio::test(start_paused = true)]
async fn a_client_that_moves_to_a_banned_address_is_disconnected() {
    let broker = QuicBroker::start();
    let client = broker.v5("mobile").await;
    let ban = async |network: &str| {
        let target = BanTarget::Addresses(network.parse().expect("a network"));
        broker.memory.handle.ban(target, None, "abuse").await.expect("room");
    };
    // The addresses that the simulated network gives to hosts that move.
    ban("100.64.0.0/10").await;
    client.ping(CONTROL).await;
    broker.host("mobile").rebind_nat();
    client.send(CONTROL, &Packet::Pingreq);
    client.find_disconnect(ReasonCode::AdministrativeAction).await;
    assert_eq!(broker.memory.statistics().get(Counter::ClientsBanned), 1);
    ban("0.0.0.0/0").await;
    let connector = broker.connector("another", QuicOptions::client());
    assert!(connector.connect().await.is_err(), "refused without a handshake");
    assert_eq!(broker.memory.statistics().reached(Limit::Bans), 1);
}
