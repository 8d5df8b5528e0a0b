//! Enhanced authentication (MQTT 5, 4.12), and the time for which credentials are valid.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use braid_auth::identity::{Attributes, Identity};
use braid_broker::{
    Authenticate, Authentication, Challenge, Counter, Credential, Credentials, Exchange, Expiry, Grant,
    Outcome, Refusal, SecurityAction,
};
use braid_proto::packet::{Auth, Connect, Disconnect, Packet, ProtocolVersion, QoS, UserProperties, Will};
use braid_proto::reason::ReasonCode;
use bytes::{Bytes, BytesMut};
use tokio::time::Instant;

use crate::support::{
    AclRules, Client, TestBroker, connect_v3, connect_v5, lasting, named, pass, publish_packet, quiet,
    settle, will,
};

const METHOD: &str = "STEPS";

/// Steps of the method between the name of the user and its acceptance.
const STEPS: u8 = 3;

/// Properties of the next client that is accepted.
#[derive(Clone, Copy, Default)]
struct Next {
    expires_in: Option<Duration>,
    rules: Option<&'static str>,
    credential: Option<&'static Revocable>,
}

/// Credential that a test revokes.
#[derive(Debug)]
struct Revocable(AtomicBool);

impl Revocable {
    const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    fn revoke(&self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Credential for &'static Revocable {
    fn is_revoked(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Authenticator of user names, and of a method whose client names its user and repeats the data of each challenge.
#[derive(Clone, Default)]
struct Steps(Arc<Mutex<Next>>);

struct Step {
    user: String,
    number: u8,
    next: Steps,
}

impl Steps {
    fn set(&self, next: Next) {
        *self.0.lock().expect("not poisoned") = next;
    }

    fn grant(&self, user: Option<&str>, data: Option<Bytes>) -> Result<Outcome, Refusal> {
        let Next { expires_in, rules, credential } = *self.0.lock().expect("not poisoned");
        let attributes =
            Attributes { user: user.map(Into::into), rules: rules.map(Into::into), ..Attributes::default() };
        let identity = Identity::new(attributes).expect("valid rules");
        let credential = credential.map(|credential| -> Box<dyn Credential> { Box::new(credential) });
        let expiry = expires_in.map(|left| Expiry::new(wall_clock() + left, wall_clock));
        Ok(Outcome::Accepted(Box::new(Grant { identity, expiry, data, client_id: None, credential })))
    }

    fn challenge(&self, user: String, number: u8) -> Result<Outcome, Refusal> {
        let exchange = Box::new(Step { user, number, next: self.clone() });
        Ok(Outcome::Challenge(Challenge { data: number.to_string().into(), exchange }))
    }
}

impl Authenticate for Steps {
    fn authenticate<'a>(&'a self, credentials: &'a Credentials<'a>) -> Authentication<'a> {
        let answer = match (credentials.method, credentials.data) {
            (None, _) => self.grant(credentials.user_name, None),
            (Some(METHOD), Some(user)) => self.challenge(String::from_utf8_lossy(user).into_owned(), 1),
            _ => Err(Refusal::new(ReasonCode::BadAuthenticationMethod, "unknown")),
        };
        Box::pin(std::future::ready(answer))
    }
}

impl Exchange for Step {
    fn proceed(self: Box<Self>, data: Option<Bytes>) -> Authentication<'static> {
        Box::pin(async move {
            let Self { user, number, next } = *self;
            match data.as_deref() {
                Some(b"never") => std::future::pending().await,
                Some(data) if data == number.to_string().as_bytes() => {}
                _ => return Err(Refusal::new(ReasonCode::NotAuthorized, "wrong data")),
            }
            match number {
                STEPS => next.grant(Some(&user), Some("done".into())),
                _ => next.challenge(user, number + 1),
            }
        })
    }
}

thread_local! {
    /// Start of the virtual clock, and the wall clock then.
    static WALL_CLOCK: Cell<Option<(Instant, Duration)>> = const { Cell::new(None) };
}

/// Wall clock of the tests, which runs with the virtual one and jumps with [`jump`].
fn wall_clock() -> Duration {
    let (start, wall) = WALL_CLOCK.get().expect("set by `start`");
    wall + start.elapsed()
}

fn jump(seconds: i64) {
    let (start, wall) = WALL_CLOCK.get().expect("set by `start`");
    WALL_CLOCK.set(Some((start, Duration::from_secs(wall.as_secs().saturating_add_signed(seconds)))));
}

fn start(steps: &Steps) -> TestBroker {
    WALL_CLOCK.set(Some((Instant::now(), Duration::from_secs(1_800_000_000))));
    TestBroker::start_with_rule(quiet(), steps.clone())
}

/// A CONNECT that begins the method as this user.
fn by_steps(user: &str, mut connect: Connect) -> Connect {
    connect.properties.authentication_method = Some(METHOD.into());
    connect.properties.authentication_data = Some(Bytes::copy_from_slice(user.as_bytes()));
    connect
}

fn auth(reason: ReasonCode, method: &str, data: &str) -> Packet {
    let authentication_data = Some(Bytes::copy_from_slice(data.as_bytes()));
    let method = Some(method.into());
    Packet::Auth(Box::new(Auth {
        reason,
        method,
        authentication_data,
        reason_string: None,
        user: UserProperties::new(),
    }))
}

fn answer(data: &str) -> Packet {
    auth(ReasonCode::ContinueAuthentication, METHOD, data)
}

async fn expect_auth(client: &mut Client, reason: ReasonCode, data: &str) {
    match client.next().await {
        Some(Packet::Auth(auth)) => {
            assert_eq!((auth.reason, auth.method.as_deref()), (reason, Some(METHOD))); // [MQTT-4.12.0-5]
            assert_eq!(auth.authentication_data.as_deref(), Some(data.as_bytes()));
        }
        other => panic!("AUTH expected, not {other:?}"),
    }
}

/// Answers every challenge.
async fn answer_all(client: &mut Client) {
    for number in 1..=STEPS {
        let number = number.to_string();
        expect_auth(client, ReasonCode::ContinueAuthentication, &number).await; // [MQTT-4.12.0-2]
        client.send(answer(&number)).await; // [MQTT-4.12.0-3]
    }
}

async fn connect(broker: &TestBroker, connect: Connect) -> Client {
    let mut client = broker.link(ProtocolVersion::V5).await;
    client.send_connect(connect).await;
    answer_all(&mut client).await;
    client.accepted().await;
    client
}

async fn reauthenticate(client: &mut Client, user: &str) {
    client.send(auth(ReasonCode::ReAuthenticate, METHOD, user)).await;
    answer_all(client).await;
}

async fn is_connected(client: &mut Client) -> bool {
    client.send(Packet::Pingreq).await;
    client.next().await == Some(Packet::Pingresp)
}

/// The identity of the last step owns the session.
#[tokio::test(start_paused = true)]
async fn several_steps_lead_to_the_session_of_their_user() {
    let broker = start(&Steps::default());
    let client = connect(&broker, by_steps("u", lasting("client"))).await;
    let properties = &client.connack().properties;
    assert_eq!(properties.authentication_method.as_deref(), Some(METHOD));
    assert_eq!(properties.authentication_data.as_deref(), Some(&b"done"[..]));
    client.vanish().await;
    for (user, is_resumed) in [("v", false), ("u", true)] {
        let mut client = broker.link(ProtocolVersion::V5).await;
        client.send_connect(by_steps(user, lasting("client"))).await;
        answer_all(&mut client).await;
        let connack = client.expect_connack().await;
        assert_eq!(
            (connack.reason == ReasonCode::Success, connack.session_present),
            (is_resumed, is_resumed)
        );
    }
}

/// An end of the exchange: what the client sends after the first challenge, and what it gets.
struct Failure {
    name: &'static str,
    sends: Option<Packet>,
    /// CONNACK; `None` for the end of the link alone.
    gets: Option<ReasonCode>,
    seconds: u64,
}

fn failures() -> Vec<Failure> {
    let failure = |name, sends, gets, seconds| Failure { name, sends, gets, seconds };
    vec![
        failure("wrong data", Some(answer("9")), Some(ReasonCode::NotAuthorized), 0),
        failure("answer of a later step", Some(answer("2")), Some(ReasonCode::NotAuthorized), 0),
        failure(
            "another method",
            Some(auth(ReasonCode::ContinueAuthentication, "OTHER", "1")),
            Some(ReasonCode::BadAuthenticationMethod),
            0,
        ),
        failure(
            "re-authentication",
            Some(auth(ReasonCode::ReAuthenticate, METHOD, "1")),
            Some(ReasonCode::ProtocolError),
            0,
        ),
        failure(
            "another packet",
            Some(publish_packet("t", "early", QoS::AtLeastOnce, 1)),
            Some(ReasonCode::ProtocolError),
            0,
        ),
        failure(
            "disconnect",
            Some(Packet::Disconnect(Box::new(Disconnect::new(ReasonCode::Success)))),
            None,
            0,
        ),
        failure(
            "disconnect with Will",
            Some(Packet::Disconnect(Box::new(Disconnect::new(ReasonCode::DisconnectWithWill)))),
            None,
            0,
        ),
        failure("no answer", None, None, 5),
        failure("no decision", Some(answer("never")), Some(ReasonCode::ServerUnavailable), 5),
    ]
}

/// Whatever ends the exchange, at whatever step: the session of the Client Identifier keeps its connection and its
/// messages, and nothing of the refused client is published.
#[tokio::test(start_paused = true)]
async fn a_failed_exchange_changes_nothing() {
    for steps in 0..STEPS {
        for is_present in [false, true] {
            for Failure { name, sends, gets, seconds } in failures() {
                let context = format!("{name} after {steps} steps");
                let broker = start(&Steps::default());
                let mut observer = broker.v5("observer").await;
                observer.subscribe("#", QoS::AtMostOnce).await;
                let mut present = broker.connect(named("u", lasting("client"))).await;
                present.subscribe("t", QoS::AtLeastOnce).await;
                let mut present = Some(present);
                if !is_present {
                    present.take().expect("a client").vanish().await;
                }
                let mut client = broker.link(ProtocolVersion::V5).await;
                let with_will = Connect { will: Some(will("w", "gone")), ..connect_v5("client") };
                client.send_connect(by_steps("u", with_will)).await;
                for number in 1..=steps {
                    expect_auth(&mut client, ReasonCode::ContinueAuthentication, &number.to_string()).await;
                    client.send(answer(&number.to_string())).await;
                }
                let last = (steps + 1).to_string();
                expect_auth(&mut client, ReasonCode::ContinueAuthentication, &last).await;
                let start = Instant::now();
                let is_right = name == "answer of a later step" && steps == 1;
                if is_right {
                    continue; // It is the answer of this step.
                }
                if let Some(packet) = sends {
                    client.send(packet).await;
                }
                if let Some(reason) = gets {
                    assert_eq!(client.expect_connack().await.reason, reason, "{context}");
                }
                client.expect_end().await;
                assert_eq!(start.elapsed().as_secs(), seconds, "{context}");
                settle().await;
                observer.expect_silence().await;
                broker.v5("publisher").await.publish("t", "kept", QoS::AtLeastOnce).await;
                assert_eq!(observer.take().await, "kept");
                let mut client = match present {
                    Some(client) => client,
                    None => broker.connect(named("u", lasting("client"))).await,
                };
                assert!(is_present || client.connack().session_present, "{context}");
                assert_eq!(client.take().await, "kept", "{context}");
                assert!(is_connected(&mut client).await, "{context}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_unknown_method_is_refused_and_recorded() {
    let broker = start(&Steps::default());
    let mut events = broker.handle.security_events();
    let mut connect = by_steps("u", connect_v5("client"));
    connect.properties.authentication_method = Some("OTHER".into());
    let mut client = broker.link(ProtocolVersion::V5).await;
    client.send_connect(connect).await;
    assert_eq!(client.expect_connack().await.reason, ReasonCode::BadAuthenticationMethod); // [MQTT-4.12.0-1]
    client.expect_end().await;
    let event = events.recv().await.expect("an event");
    assert_eq!((event.action.name(), &*event.cause), ("connect", "unknown"));
}

/// Messages go both ways between the steps of a re-authentication, and the session is kept.
#[tokio::test(start_paused = true)]
async fn a_client_is_served_between_the_steps_of_a_re_authentication() {
    let broker = start(&Steps::default());
    let mut client = connect(&broker, by_steps("u", connect_v5("client"))).await;
    client.subscribe("t", QoS::AtLeastOnce).await;
    let mut other = broker.v5("other").await;
    other.subscribe("o", QoS::AtLeastOnce).await;
    for _ in 0..2 {
        client.send(auth(ReasonCode::ReAuthenticate, METHOD, "u")).await;
        for number in 1..=STEPS {
            let number = number.to_string();
            expect_auth(&mut client, ReasonCode::ContinueAuthentication, &number).await;
            assert_eq!(client.publish("o", number.clone(), QoS::ExactlyOnce).await, ReasonCode::Success);
            assert_eq!(other.take().await, number);
            other.publish("t", number.clone(), QoS::AtLeastOnce).await;
            assert_eq!(client.take().await, number);
            // Longer than the broker waits for a CONNECT.
            pass(60).await;
            client.send(answer(&number)).await;
        }
        expect_auth(&mut client, ReasonCode::Success, "done").await;
        assert!(is_connected(&mut client).await);
    }
}

/// [MQTT-4.12.1-2]
#[tokio::test(start_paused = true)]
async fn a_re_authentication_that_fails_ends_the_connection() {
    let disconnect = |reason| Packet::Disconnect(Box::new(Disconnect::new(reason)));
    for (name, user, sends, reason) in [
        ("wrong data", "u", answer("9"), Some(ReasonCode::NotAuthorized)),
        ("no decision", "u", answer("never"), Some(ReasonCode::UnspecifiedError)),
        (
            "another method",
            "u",
            auth(ReasonCode::ContinueAuthentication, "OTHER", "1"),
            Some(ReasonCode::BadAuthenticationMethod),
        ),
        (
            "second beginning",
            "u",
            auth(ReasonCode::ReAuthenticate, METHOD, "u"),
            Some(ReasonCode::ProtocolError),
        ),
        ("another user", "v", answer("1"), Some(ReasonCode::NotAuthorized)),
        ("disconnect", "u", disconnect(ReasonCode::Success), None),
    ] {
        let broker = start(&Steps::default());
        let mut events = broker.handle.security_events();
        let mut client = connect(&broker, by_steps("u", lasting("client"))).await;
        client.send(auth(ReasonCode::ReAuthenticate, METHOD, user)).await;
        expect_auth(&mut client, ReasonCode::ContinueAuthentication, "1").await;
        client.send(sends).await;
        if name == "another user" {
            for number in ["2", "3"] {
                expect_auth(&mut client, ReasonCode::ContinueAuthentication, number).await;
                client.send(answer(number)).await;
            }
        }
        match reason {
            Some(reason) => drop(client.expect_disconnect(reason).await),
            None => client.expect_end().await,
        }
        let expected = match name {
            "wrong data" | "no decision" => Some("reauthenticate"),
            "another user" => Some("session"),
            _ => None,
        };
        let event = events.try_recv().ok();
        assert_eq!(event.as_ref().map(|event| event.action.name()), expected, "{name}");
        // The session is still that of the first user.
        assert!(connect(&broker, by_steps("u", lasting("client"))).await.connack().session_present, "{name}");
    }
}

/// Answers to earlier questions are not those for the new identity.
#[tokio::test(start_paused = true)]
async fn a_re_authentication_brings_its_own_rules() {
    let steps = Steps::default();
    let rules = AclRules::of("allow all topic #");
    let broker = TestBroker::start_with_rules(quiet(), steps.clone(), rules);
    let mut client = connect(&broker, by_steps("u", lasting("client"))).await;
    let mut publisher = broker.v5("publisher").await;
    client.subscribe("t/#", QoS::AtLeastOnce).await;
    client.subscribe("s", QoS::AtLeastOnce).await;
    for (own, publish, receives) in [
        (None, ReasonCode::Success, &["t/1", "t/2", "s"][..]),
        (
            Some("deny publish topic t/1\ndeny receive topic t/2\ndeny subscribe topic s\n"),
            ReasonCode::NotAuthorized,
            &["t/1"],
        ),
        (None, ReasonCode::Success, &["t/1", "t/2"]),
    ] {
        steps.set(Next { rules: own, ..Next::default() });
        reauthenticate(&mut client, "u").await;
        expect_auth(&mut client, ReasonCode::Success, "done").await;
        assert_eq!(client.publish("t/1", "own", QoS::AtLeastOnce).await, publish);
        if publish == ReasonCode::Success {
            assert_eq!(client.take().await, "own");
        }
        for topic in ["t/1", "t/2", "s"] {
            publisher.publish(topic, topic, QoS::AtLeastOnce).await;
        }
        for topic in receives {
            assert_eq!(client.take().await, *topic);
        }
        client.expect_silence().await;
    }
    // The Will is one of the new identity.
    drop(client);
    let mut observer = broker.v5("observer").await;
    observer.subscribe("w", QoS::AtMostOnce).await;
    for (own, is_published) in [(Some("deny publish topic w"), false), (None, true)] {
        steps.set(Next::default());
        let with_will = Connect { will: Some(will("w", "gone")), ..connect_v5("other") };
        let mut client = connect(&broker, by_steps("u", with_will)).await;
        steps.set(Next { rules: own, ..Next::default() });
        reauthenticate(&mut client, "u").await;
        expect_auth(&mut client, ReasonCode::Success, "done").await;
        client.vanish().await;
        match is_published {
            true => assert_eq!(observer.take().await, "gone"),
            false => observer.expect_silence().await,
        }
    }
}

/// The connection ends with 0x87 at the end of its credentials, not before, also if it is busy.
#[tokio::test(start_paused = true)]
async fn credentials_expire_at_their_time() {
    let steps = Steps::default();
    let broker = start(&steps);
    let mut events = broker.handle.security_events();
    let mut observer = broker.v5("observer").await;
    observer.subscribe("w", QoS::AtMostOnce).await;
    for is_v5 in [true, false] {
        steps.set(Next { expires_in: Some(Duration::from_secs(10)), ..Next::default() });
        let connect = if is_v5 { connect_v5("client") } else { connect_v3("client") };
        let connect = Connect { will: Some(will("w", "gone")), ..named("u", connect) };
        let mut client = broker.connect(connect).await;
        for _ in 0..9 {
            pass(1).await;
            assert!(is_connected(&mut client).await);
        }
        let start = Instant::now();
        match is_v5 {
            true => drop(client.expect_disconnect(ReasonCode::NotAuthorized).await),
            false => client.expect_end().await,
        }
        assert!(start.elapsed() <= Duration::from_secs(1));
        assert_eq!(observer.take().await, "gone");
        let event = events.recv().await.expect("an event");
        assert_eq!(event.action, SecurityAction::Expired);
        assert_eq!(event.identity.as_ref().and_then(Identity::user), Some("u"));
    }
    // Credentials that have expired by now are no longer good for anything.
    steps.set(Next { expires_in: Some(Duration::ZERO), ..Next::default() });
    let mut client = broker.connect(connect_v5("client")).await;
    client.expect_disconnect(ReasonCode::NotAuthorized).await;
}

/// Credentials of 300 s whose wall clock jumps after 100 s, and the time at which the connection ends: a jump forwards
/// is noticed after 120 s.
#[tokio::test(start_paused = true)]
async fn credentials_end_by_the_wall_clock_that_jumps() {
    let steps = Steps::default();
    let broker = start(&steps);
    for (jumps, ends_after) in
        [(&[0][..], 300), (&[150], 150), (&[2000], 120), (&[-50], 350), (&[2000, -2000], 300)]
    {
        steps.set(Next { expires_in: Some(Duration::from_secs(300)), ..Next::default() });
        let mut client = connect(&broker, by_steps("u", connect_v5("client"))).await;
        let start = Instant::now();
        pass(100).await;
        jumps.iter().copied().for_each(jump);
        client.expect_disconnect(ReasonCode::NotAuthorized).await;
        assert_eq!(start.elapsed().as_secs(), ends_after, "{jumps:?}");
    }
}

/// A re-authentication sets the time anew: longer, shorter or without end.
#[tokio::test(start_paused = true)]
async fn a_re_authentication_sets_the_end_of_the_credentials_anew() {
    let steps = Steps::default();
    let broker = start(&steps);
    for (renewed, ends_after) in [(Some(20), Some(20)), (Some(2), Some(2)), (None, None)] {
        steps.set(Next { expires_in: Some(Duration::from_secs(10)), ..Next::default() });
        let mut client = connect(&broker, by_steps("u", connect_v5("client"))).await;
        pass(5).await;
        steps.set(Next { expires_in: renewed.map(Duration::from_secs), ..Next::default() });
        reauthenticate(&mut client, "u").await;
        expect_auth(&mut client, ReasonCode::Success, "done").await;
        let start = Instant::now();
        match ends_after {
            Some(seconds) => {
                client.expect_disconnect(ReasonCode::NotAuthorized).await;
                assert_eq!(start.elapsed().as_secs(), seconds);
            }
            None => {
                pass(1_000_000).await;
                assert!(is_connected(&mut client).await);
            }
        }
    }
}

/// An exchange that is not finished does not outlast the credentials.
#[tokio::test(start_paused = true)]
async fn credentials_expire_during_a_re_authentication() {
    let steps = Steps::default();
    steps.set(Next { expires_in: Some(Duration::from_secs(10)), ..Next::default() });
    let broker = start(&steps);
    let mut client = connect(&broker, by_steps("u", connect_v5("client"))).await;
    client.send(auth(ReasonCode::ReAuthenticate, METHOD, "u")).await;
    expect_auth(&mut client, ReasonCode::ContinueAuthentication, "1").await;
    client.expect_disconnect(ReasonCode::NotAuthorized).await;
}

/// A client whose link always has bytes to read expires as well.
#[tokio::test(start_paused = true)]
async fn credentials_of_a_busy_client_expire() {
    const MESSAGES: u16 = 512;
    let steps = Steps::default();
    let broker = start(&steps);
    let mut observer = broker.v5("observer").await;
    observer.subscribe("t", QoS::AtMostOnce).await;
    steps.set(Next { expires_in: Some(Duration::from_secs(10)), ..Next::default() });
    let mut client = broker.narrow_link(ProtocolVersion::V5, 8 << 20).await;
    client.send_connect(named("u", connect_v5("client"))).await;
    client.accepted().await;
    let mut bytes = BytesMut::new();
    for _ in 0..MESSAGES {
        publish_packet("t", [0_u8; 8 << 10], QoS::AtMostOnce, 0).encode(ProtocolVersion::V5, &mut bytes);
    }
    client.send_bytes(&bytes).await;
    tokio::time::advance(Duration::from_secs(11)).await;
    client.expect_disconnect(ReasonCode::NotAuthorized).await;
    let received = broker.statistics().get(Counter::MessagesReceived);
    assert!(received < u64::from(MESSAGES), "all {received} messages were taken after the end");
}

/// A user that is removed while its credentials are verified does not stay.
#[tokio::test(start_paused = true)]
async fn a_user_that_was_removed_meanwhile_is_disconnected_at_once() {
    let rules = AclRules::of("allow all topic #");
    let broker = TestBroker::start_with_rules(quiet(), Steps::default(), rules.clone());
    rules.revoke("u");
    let mut client = broker.connect(named("u", connect_v5("client"))).await;
    client.expect_disconnect(ReasonCode::NotAuthorized).await;
    assert!(is_connected(&mut broker.connect(named("v", connect_v5("client"))).await).await);
}

/// The Will of a client that is revoked is dropped, with a delay or without, whether the recheck ends the connection or
/// the client itself. That of another client is published.
#[tokio::test(start_paused = true)]
async fn a_revoked_client_leaves_no_will() {
    static CREDENTIAL: Revocable = Revocable::new();
    let steps = Steps::default();
    let rules = AclRules::of("allow all topic #");
    let broker = TestBroker::start_with_rules(quiet(), steps.clone(), rules.clone());
    let mut observer = broker.v5("observer").await;
    observer.subscribe("w", QoS::AtMostOnce).await;
    let clients = |credential| {
        steps.set(Next { credential, ..Next::default() });
        [("u", 0), ("u", 5), ("v", 0), ("v", 5)]
    };
    for is_credential in [true, false] {
        let mut connected = Vec::new();
        for (user, delay) in clients(is_credential.then_some(&CREDENTIAL)) {
            // The others keep theirs.
            if user == "v" {
                steps.set(Next::default());
            }
            let will = Will { delay, ..will("w", user) };
            let connect = Connect { will: Some(will), ..lasting(&format!("{user}{delay}")) };
            connected.push(broker.connect(named(user, connect)).await);
        }
        match is_credential {
            true => CREDENTIAL.revoke(),
            false => rules.revoke("u"),
        }
        let [mut now, late, other_now, other_late] = <[Client; 4]>::try_from(connected).ok().expect("four");
        late.vanish().await;
        broker.handle.recheck_clients().await;
        now.expect_disconnect(ReasonCode::NotAuthorized).await;
        pass(10).await;
        observer.expect_silence().await;
        other_now.vanish().await;
        assert_eq!(observer.take().await, "v");
        other_late.vanish().await;
        pass(10).await;
        assert_eq!(observer.take().await, "v");
    }
}

/// A credential that was revoked, such as the key of a token that is gone, ends its connection at the recheck and no
/// other, and one that is revoked before the CONNECT is answered ends it at once. A re-authentication replaces it.
#[tokio::test(start_paused = true)]
async fn a_client_whose_credential_is_revoked_is_disconnected() {
    static OLD: Revocable = Revocable::new();
    static NEW: Revocable = Revocable::new();
    let steps = Steps::default();
    let broker = start(&steps);
    let mut events = broker.handle.security_events();
    let mut other = broker.connect(named("v", connect_v5("other"))).await;
    steps.set(Next { credential: Some(&OLD), ..Next::default() });
    let mut first = broker.connect(named("u", connect_v5("first"))).await;
    let mut v3 = broker.connect(named("u", connect_v3("v3"))).await;
    let mut renewed = connect(&broker, by_steps("w", connect_v5("renewed"))).await;
    steps.set(Next { credential: Some(&NEW), ..Next::default() });
    renewed.send(auth(ReasonCode::ReAuthenticate, METHOD, "w")).await;
    answer_all(&mut renewed).await;
    assert!(matches!(renewed.next().await, Some(Packet::Auth(_))));
    let mut second = broker.connect(named("u", connect_v5("second"))).await;
    broker.handle.recheck_clients().await;
    for client in [&mut other, &mut first, &mut v3, &mut renewed, &mut second] {
        assert!(is_connected(client).await);
    }
    OLD.revoke();
    assert!(is_connected(&mut first).await, "until the recheck");
    broker.handle.recheck_clients().await;
    first.expect_disconnect(ReasonCode::NotAuthorized).await;
    v3.expect_end().await;
    for client in [&mut other, &mut renewed, &mut second] {
        assert!(is_connected(client).await);
    }
    let event = events.recv().await.expect("an event");
    assert_eq!(event.action, SecurityAction::Revoked);
    assert_eq!(event.identity.as_ref().and_then(Identity::user), Some("u"));
    steps.set(Next { credential: Some(&OLD), ..Next::default() });
    broker.connect(connect_v5("late")).await.expect_disconnect(ReasonCode::NotAuthorized).await;
    NEW.revoke();
    broker.handle.recheck_clients().await;
    renewed.expect_disconnect(ReasonCode::NotAuthorized).await;
    second.expect_disconnect(ReasonCode::NotAuthorized).await;
    assert!(is_connected(&mut other).await);
}
