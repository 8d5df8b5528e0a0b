//! Enhanced authentication and re-authentication of a client.

use super::*;
use braid_proto::connection::ServerProof;
use braid_proto::packet::{Auth, UserProperties};

const METHOD: &str = "TEST";

/// Pair whose CONNECT named the method; the server has to decide about it.
fn requesting(session: Option<Session>) -> Pair {
    let mut connect = connect(ProtocolVersion::V5);
    connect.clean_start = session.is_none();
    connect.properties.authentication_method = Some(METHOD.into());
    connect.properties.authentication_data = Some("first".into());
    let mut pair = Pair::new(connect, session, ServerOptions::default());
    pair.drive();
    pair
}

impl Pair {
    /// The server asks, and the client answers and expects this proof.
    fn challenge(&mut self, proof: &'static [u8]) {
        self.server.challenge("challenge".into(), self.now);
        self.drive();
        self.client.answer_challenge("answer".into(), ServerProof::new(move |data| data == proof));
        self.drive();
    }

    /// The server accepts a new session with this proof.
    fn accept_with(&mut self, proof: &'static str) {
        let authentication_data = Some(proof.into());
        let acceptance = Acceptance { authentication_data, ..Acceptance::default() };
        self.server.accept(session(), &acceptance, self.now, |_| true);
        self.drive();
    }

    /// AUTH packets that the server received and the client received, as reasons and data.
    fn auths(&self) -> [Vec<(ReasonCode, Bytes)>; 2] {
        let content = |auth: &Auth| {
            assert_eq!(auth.method.as_deref(), Some(METHOD)); // [MQTT-4.12.0-5], [MQTT-4.12.1-1]
            (auth.reason, auth.authentication_data.clone().unwrap())
        };
        let up = self.server_events.iter().filter_map(|event| match event {
            Event::Auth(auth) => Some(content(auth)),
            _ => None,
        });
        let down = self.client_events.iter().filter_map(|event| match event {
            ClientEvent::Auth(auth) => Some(content(auth)),
            _ => None,
        });
        [up.collect(), down.collect()]
    }
}

#[test]
fn both_ends_are_authenticated_and_again_on_request() {
    // [MQTT-4.12.0-3], [MQTT-4.12.0-5], [MQTT-4.12.1-1]
    use ReasonCode::{ContinueAuthentication, ReAuthenticate, Success};
    let mut pair = requesting(None);
    pair.challenge(b"proof");
    assert!(!pair.client.is_established());
    pair.accept_with("proof");
    assert!(pair.client.is_established());
    assert!(pair.client.reauthenticate("again".into()));
    assert!(!pair.client.reauthenticate("twice".into()), "the first one is not over");
    pair.drive();
    pair.challenge(b"second proof");
    pair.server.finish_reauthentication(Some("second proof".into()));
    pair.drive();
    assert!(pair.client.is_established());
    assert!(matches!(pair.publish(QoS::AtMostOnce), Sent::Out(_)));
    let [up, down] = pair.auths();
    assert_eq!(
        up,
        [(ContinueAuthentication, "answer"), (ReAuthenticate, "again"), (ContinueAuthentication, "answer")]
            .map(|(reason, data)| (reason, Bytes::from(data)))
    );
    assert_eq!(
        down,
        [
            (ContinueAuthentication, "challenge"),
            (ContinueAuthentication, "challenge"),
            (Success, "second proof")
        ]
        .map(|(reason, data)| (reason, Bytes::from(data)))
    );
}

#[test]
fn nothing_but_auth_is_sent_before_connack() {
    // [MQTT-3.1.2-30]
    let mut pair = requesting(None);
    assert!(matches!(pair.publish(QoS::AtMostOnce), Sent::Blocked(_)));
    assert!(!pair.client.takes_early(&[entry("a")], &UserProperties::new()));
    let early =
        pair.client.subscribe_early(StreamKey::CONTROL, vec![entry("a")], None, UserProperties::new());
    assert_eq!(early, Err(SendError::NotConnected));
    assert!(!pair.client.reauthenticate("early".into()));
    let not_asked = ServerProof::new(|_| true);
    pair.client.answer_challenge("not asked".into(), not_asked);
    assert!(pair.client.outbox(StreamKey::CONTROL).unwrap().is_empty());
}

/// The session stays as it was: its messages are for the server that proves itself.
#[test]
fn a_server_without_proof_gets_no_message_and_ends_no_session() {
    for (is_asked, proof) in [(false, "proof"), (true, "wrong"), (true, "")] {
        let mut first = Pair::established(connect(ProtocolVersion::V5), None, None);
        assert!(matches!(first.publish(QoS::AtLeastOnce), Sent::Out(_)));
        let (kept, _) = first.cut();
        let mut pair = requesting(kept);
        if is_asked {
            pair.challenge(b"proof");
        }
        pair.accept_with(proof);
        assert_eq!(pair.client.cause(), Some(Cause::Violation(Violation::ServerNotAuthenticated)));
        assert!(!pair.client_events.iter().any(|event| matches!(event, ClientEvent::Connected(_))));
        assert_eq!(pair.routed(), 0);
        let kept = pair.client.take_session().expect("the session of before");
        assert_eq!(kept.outbound.len(), 1, "{proof}");
    }
}

#[test]
fn a_reauthentication_without_proof_ends_the_connection() {
    // [MQTT-4.12.1-2]
    let mut pair = requesting(None);
    pair.challenge(b"proof");
    pair.accept_with("proof");
    assert!(pair.client.reauthenticate("again".into()));
    pair.drive();
    pair.challenge(b"proof");
    pair.server.finish_reauthentication(Some("wrong".into()));
    pair.drive();
    assert_eq!(pair.client.cause(), Some(Cause::Violation(Violation::ServerNotAuthenticated)));
    let end = pair.server.take_end().expect("the client has said why");
    assert_eq!(end.cause, Cause::Disconnected(ReasonCode::UnspecifiedError));
}

#[test]
fn a_client_without_a_method_sends_no_auth() {
    // [MQTT-4.12.0-7]
    let mut pair = Pair::established(connect(ProtocolVersion::V5), None, None);
    assert!(!pair.client.reauthenticate("data".into()));
    pair.client.answer_challenge("data".into(), ServerProof::new(|_| true));
    assert!(pair.client.outbox(StreamKey::CONTROL).unwrap().is_empty());
}
