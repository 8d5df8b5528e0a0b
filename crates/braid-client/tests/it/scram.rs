//! Authentication by SCRAM-SHA-256 against servers that know the password, and servers that do not.

use braid_auth::scram::{Nonce, ScramCredential, ScramLookup, ScramServer, ScramServerFinal};
use braid_client::{Builder, Client, Error, ProtocolVersion, Publication, ReasonCode};
use braid_proto::connection::SendError;
use braid_proto::error::Violation;
use braid_proto::packet::Connect;
use tokio::join;

use super::server::{Listening, Peer, network, quic};

const PASSWORD: &str = "pencil, \u{e9}";

fn scram(builder: Builder) -> Builder {
    builder.credentials("us,er", PASSWORD).scram()
}

/// The server's side of an exchange, after the first message of the client.
fn server(first: &[u8], password: &str) -> (Vec<u8>, ScramServerFinal) {
    let credential = ScramCredential::derive(password.as_bytes(), &[7; 16], 4096).unwrap();
    let server = ScramServer::new(Nonce::new([9; Nonce::RANDOM_BYTES]), [0; 32]);
    server
        .handle_first(first, |user| {
            assert_eq!(user, "us,er");
            ScramLookup::Known(credential)
        })
        .unwrap()
}

/// First message of a CONNECT, which has nothing else about the user.
fn first_message(connect: &Connect) -> Vec<u8> {
    assert_eq!((&connect.user_name, &connect.password), (&None, &None));
    assert_eq!(connect.properties.authentication_method.as_deref(), Some("SCRAM-SHA-256"));
    connect.properties.authentication_data.as_ref().unwrap().to_vec()
}

/// Accepts the next connection of a client that knows the password; returns its first message too.
async fn accept(listening: &mut Listening) -> (Peer, Vec<u8>) {
    let mut peer = listening.incoming().await;
    let first = first_message(&peer.connect().await);
    let (challenge, last) = server(&first, PASSWORD);
    let answer = peer.challenge(challenge).await.unwrap();
    let success = last.handle_final(&answer).unwrap();
    peer.accept_authenticated(Some(success.message.into())).await;
    (peer, first)
}

fn publication() -> Publication {
    Publication::to("t", "secret").unwrap()
}

#[tokio::test(start_paused = true)]
async fn both_prove_that_they_know_the_password_at_each_connection_and_on_request() {
    for (mut listening, builder) in [network(), quic()] {
        let ((mut peer, first), parts) = join!(accept(&mut listening), scram(builder).connect());
        let (client, _messages) = parts.unwrap();
        client.try_publish(publication()).unwrap();
        assert_eq!(peer.take().await.1, "secret");
        // Two callers share one exchange.
        let again = async {
            let first = peer.auth().await.unwrap();
            let (challenge, last) = server(&first, PASSWORD);
            let answer = peer.challenge(challenge).await.unwrap();
            peer.finish_reauthentication(last.handle_final(&answer).unwrap().message).await;
            (peer, first)
        };
        let (one, other, (peer, second)) = join!(client.reauthenticate(), client.reauthenticate(), again);
        one.unwrap();
        other.unwrap();
        drop(peer);
        let (_peer, third) = accept(&mut listening).await;
        assert!(first != second && second != third && first != third, "a nonce is used once");
    }
}

#[tokio::test(start_paused = true)]
async fn a_wrong_password_is_refused_by_the_server() {
    let (mut listening, builder) = network();
    let (result, ()) = join!(scram(builder).connect(), async {
        let mut peer = listening.incoming().await;
        let (challenge, last) = server(&first_message(&peer.connect().await), "another");
        let answer = peer.challenge(challenge).await.unwrap();
        assert!(last.handle_final(&answer).is_err());
        peer.reject(ReasonCode::NotAuthorized).await;
    });
    let error = result.unwrap_err();
    assert!(matches!(error, Error::Refused { reason: ReasonCode::NotAuthorized, .. }), "{error:?}");
}

/// Behaviour of a server that does not know the password.
#[derive(Clone, Copy, Debug)]
enum Lie {
    NoChallenge,
    NoProof,
    WrongProof,
    ErrorValue,
    SecondChallenge,
    ForeignNonce,
    TooManyIterations,
    NoText,
}

/// Neither the message nor another attempt follows.
#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_prove_itself_gets_no_message() {
    const NOT_PROVEN: &str = "it may be an impostor";
    for (lie, text) in [
        (Lie::NoChallenge, NOT_PROVEN),
        (Lie::NoProof, NOT_PROVEN),
        (Lie::WrongProof, NOT_PROVEN),
        (Lie::ErrorValue, NOT_PROVEN),
        (Lie::SecondChallenge, "authentication failed: the server asks more"),
        (Lie::ForeignNonce, "authentication failed: the SCRAM nonce is not the one of this exchange"),
        (Lie::TooManyIterations, "authentication failed: the server asks for an iteration count outside"),
        (Lie::NoText, "authentication failed: the SCRAM message is not UTF-8"),
    ] {
        let (mut listening, builder) = network();
        let (client, _messages) = scram(builder).start().unwrap();
        client.try_publish(publication()).unwrap();
        let mut peer = listening.incoming().await;
        let first = first_message(&peer.connect().await);
        let (challenge, _) = server(&first, "another");
        let challenge = String::from_utf8(challenge).unwrap();
        match lie {
            Lie::NoChallenge => {}
            Lie::ForeignNonce => drop(peer.challenge(challenge.replace("r=", "r=x")).await),
            Lie::TooManyIterations => drop(peer.challenge(challenge.replace("i=4096", "i=1000001")).await),
            Lie::NoText => drop(peer.challenge(&b"\xff"[..]).await),
            _ => assert!(peer.challenge(challenge.clone()).await.is_some(), "{lie:?}"),
        }
        match lie {
            Lie::NoChallenge => peer.accept_authenticated(Some("v=AAAA".into())).await,
            Lie::NoProof => peer.accept_authenticated(None).await,
            Lie::WrongProof => peer.accept_authenticated(Some(format!("v={}=", "A".repeat(43)).into())).await,
            Lie::ErrorValue => peer.accept_authenticated(Some("e=other-error".into())).await,
            Lie::SecondChallenge => drop(peer.challenge(challenge).await),
            Lie::ForeignNonce | Lie::TooManyIterations | Lie::NoText => {}
        }
        assert!(peer.event().await.is_none(), "{lie:?}: the client leaves without a word");
        let error = client.closed().await.unwrap_err();
        assert!(error.to_string().contains(text), "{lie:?}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_reauthentication_that_fails_ends_the_connection() {
    let (mut listening, builder) = network();
    let ((mut peer, _), parts) = join!(accept(&mut listening), scram(builder).connect());
    let (client, _messages) = parts.unwrap();
    let (result, ()) = join!(client.reauthenticate(), async {
        let (challenge, _) = server(&peer.auth().await.unwrap(), "another");
        peer.challenge(challenge).await.unwrap();
        peer.finish_reauthentication(format!("v={}=", "A".repeat(43))).await;
        assert!(peer.event().await.is_none());
    });
    let error = result.unwrap_err();
    assert!(matches!(error, Error::Violation(Violation::ServerNotAuthenticated)), "{error:?}");
    assert!(client.closed().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_reauthentication_ends_with_its_connection() {
    let (mut listening, builder) = network();
    let ((mut peer, _), parts) = join!(accept(&mut listening), scram(builder).connect());
    let (client, _messages) = parts.unwrap();
    let (result, ()) = join!(client.reauthenticate(), async {
        peer.auth().await.unwrap();
        drop(peer);
    });
    assert!(matches!(result, Err(Error::ConnectionLost)), "{result:?}");
    assert!(matches!(client.reauthenticate().await, Err(Error::Send(SendError::NotConnected))));
}

#[tokio::test(start_paused = true)]
async fn without_a_method_nothing_is_authenticated_again() {
    let (mut listening, builder) = network();
    let (_peer, parts) = join!(listening.accept(), builder.connect());
    let result = parts.unwrap().0.reauthenticate().await;
    assert!(matches!(result, Err(Error::NoAuthenticationMethod)), "{result:?}");
}

#[tokio::test]
async fn options_that_scram_cannot_use_are_refused() {
    let (_listening, builder) = network();
    let refused = |builder: Builder| match builder.scram().start() {
        Err(Error::Options(error)) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let error = refused(builder.clone().credentials("u", "p").version(ProtocolVersion::V311));
    assert!(error.contains("MQTT 5"), "{error}");
    assert!(refused(builder.clone().password("p")).contains("a user name"));
    assert!(refused(builder.clone().user_name("u")).contains("a password"));
    for user in ["", "\u{7}", &"u".repeat(5000)] {
        assert!(refused(builder.clone().credentials(user, "hidden")).contains("user name"), "{user:?}");
    }
    let url = Client::builder("mqtt://u:pencil@localhost").scram();
    assert!(!format!("{url:?}").contains("pencil"));
}
