//! Tokens with keys from files and from a server, and what they and a service say about a client.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use braid_access::hook::{Hook, HookOptions};
use braid_access::remote_keys::RemoteKeysOptions;
use braid_access::{Chain, KeyFileKind, Link, Rules, Tokens};
use braid_auth::jwt::JwtOptions;
use braid_broker::{Action, Authorize, Grant};
use braid_proto::packet::ClientId;
use braid_proto::topic::TopicName;
use ring::signature::{Ed25519KeyPair, KeyPair};
use tempfile::TempDir;

use crate::login::{Login, SECRET, token, tokens, write};
use crate::server::{Server, client, reply};

const REMOTE: RemoteKeysOptions =
    RemoteKeysOptions { refresh: Duration::from_secs(600), max_stale: Duration::from_secs(86_400) };

fn now() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_secs()
}

/// Token that this key has signed.
pub(crate) fn signed(key: &Ed25519KeyPair, id: Option<&str>, claims: &str) -> String {
    let id = id.map(|id| format!(r#","kid":"{id}""#)).unwrap_or_default();
    let header = format!(r#"{{"alg":"EdDSA"{id}}}"#);
    let text = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(key.sign(text.as_bytes())))
}

fn key_set(key: &Ed25519KeyPair, id: &str) -> String {
    key_sets(&[(key, id)])
}

/// Set of these keys with their names.
pub(crate) fn key_sets(keys: &[(&Ed25519KeyPair, &str)]) -> String {
    let one = |(key, id): &(&Ed25519KeyPair, &str)| {
        let x = URL_SAFE_NO_PAD.encode(key.public_key());
        format!(r#"{{"kty":"OKP","crv":"Ed25519","kid":"{id}","x":"{x}"}}"#)
    };
    format!(r#"{{"keys":[{}]}}"#, keys.iter().map(one).collect::<Vec<_>>().join(","))
}

pub(crate) fn key(seed: u8) -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).expect("a key")
}

#[tokio::test]
async fn keys_come_from_a_file_or_a_server() {
    let folder = TempDir::new().expect("folder");
    let (known, unknown) = (key(1), key(2));
    let set = key_set(&known, "k1");
    let file = write(&folder, "set.json", &set);
    let body = set.clone();
    let mut server = Server::start(move || {
        let body = body.clone();
        async move { reply(200, &body) }
    })
    .await;
    let options = JwtOptions::default();
    let from_file = Tokens::from_file(&file, KeyFileKind::Jwks, options.clone()).expect("keys");
    let from_url = Tokens::from_url(client(&server.url()), REMOTE, options).await.expect("keys");
    assert_eq!(server.count(), 1);
    let claims = r#"{"sub":"joe","exp":9999999999}"#;
    for tokens in [from_file, from_url] {
        let chain = Chain::new(vec![Link::Token(Arc::new(tokens))], false);
        let answer = async |token: String| Login::with("any", token).answer(&chain).await;
        assert_eq!(answer(signed(&known, Some("k1"), claims)).await, "joe by jwt");
        assert!(answer(signed(&unknown, Some("k1"), claims)).await.starts_with("0x87"));
        // Not a reason to fetch the keys again so soon.
        assert!(answer(signed(&unknown, Some("k2"), claims)).await.starts_with("0x87"));
        assert!(answer(token(SECRET, claims)).await.starts_with("0x87"));
    }
    assert_eq!(server.count(), 0);
}

/// Key sets that are none, from a file and from a server: there is no authenticator without keys.
#[tokio::test]
async fn sets_without_keys_are_refused() {
    let folder = TempDir::new().expect("folder");
    for text in ["", "{}", r#"{"keys":[]}"#, "<html></html>", "null", r#"{"keys":[{"kty":"#] {
        let file = write(&folder, "set.json", text);
        let refused =
            Tokens::from_file(&file, KeyFileKind::Jwks, JwtOptions::default()).expect_err(text).to_string();
        assert!(refused.contains("set.json") && !refused.contains('\n'), "{refused}");
        let server = Server::start(move || async move { reply(200, text) }).await;
        let refused = Tokens::from_url(client(&server.url()), REMOTE, JwtOptions::default()).await;
        let refused = refused.expect_err(text).to_string();
        assert!(refused.contains(&server.url()) && !refused.contains('\n'), "{refused}");
    }
}

/// Time that is left, Client Identifier, groups and rules.
#[tokio::test]
async fn facts_about_a_client_are_those_of_its_token_or_service() {
    let folder = TempDir::new().expect("folder");
    let secret = write(&folder, "secret", SECRET);
    let by_token = Chain::new(vec![tokens(&secret)], false);
    let list = write(&folder, "acl", "allow publish group staff topic of-staff\n");
    let list = braid_access::AclFile { path: list, format: braid_access::AclFormat::Braidmq };
    let rules = Rules::open(Some(list), Vec::new(), true).expect("rules");
    let may_publish = |grant: &Grant, topic: &str| {
        let topic = TopicName::parse(topic).expect("a topic");
        rules.decide(&grant.identity, &ClientId::from("c1"), Action::Publish(&topic)).allowed
    };
    let in_an_hour = now() + 3600;
    let just_now = now() - 5;
    for (is_token, claims, seconds, client_id, topics) in [
        (true, format!(r#"{{"sub":"joe","exp":{in_an_hour}}}"#), Some(3630), None, [false, false]),
        // Within the leeway of 30 s: accepted, and until its end.
        (true, format!(r#"{{"sub":"joe","exp":{just_now}}}"#), Some(25), None, [false, false]),
        (true, format!(r#"{{"sub":"joe","exp":{in_an_hour},"groups":["staff"]}}"#), Some(3630), None, [true, false]),
        (true, format!(r#"{{"sub":"joe","exp":{in_an_hour},"acl":["allow all topic own/%c"],"client":"c1"}}"#), Some(3630), Some("c1"), [false, true]),
        (false, r#"{"result":"allow"}"#.to_owned(), None, None, [false, false]),
        (false, format!(r#"{{"result":"allow","expire_at":{in_an_hour}}}"#), Some(3600), None, [false, false]),
        (false, r#"{"result":"allow","clientid":"c9","groups":["staff"]}"#.to_owned(), None, Some("c9"), [true, false]),
        (false, r#"{"result":"allow","acl":[{"permission":"allow","action":"publish","topic":"own/${clientid}"}]}"#.to_owned(), None, None, [false, true]),
        (false, r#"{"result":"allow","is_superuser":true}"#.to_owned(), None, None, [true, true]),
    ] {
        let grant = if is_token {
            Login::with("joe", token(SECRET, &claims)).grant(&by_token).await
        } else {
            let body = claims.clone();
            let server = Server::start(move || {
                let body = body.clone();
                async move { reply(200, &body) }
            })
            .await;
            let hook = Hook::new(client(&server.url()), HookOptions::default()).expect("random numbers");
            Login::with("joe", "x").grant(&Chain::new(vec![Link::Http(Arc::new(hook))], false)).await
        };
        let grant = grant.unwrap_or_else(|refusal| panic!("{claims}: {refusal:?}"));
        match (grant.expiry.map(|expiry| expiry.left()), seconds) {
            (None, None) => {}
            (Some(left), Some(seconds)) => {
                assert!((u64::saturating_sub(seconds, 20)..=seconds).contains(&left.as_secs()), "{claims}: {left:?}");
            }
            (left, _) => panic!("{claims}: {left:?}"),
        }
        let given = grant.client_id.as_ref().map(|id| id.as_str());
        // A token with a Client Identifier demands it of CONNECT, and changes nothing.
        assert!(given == client_id || is_token && given.is_none(), "{claims}: {given:?}");
        assert_eq!([may_publish(&grant, "of-staff"), may_publish(&grant, "own/c1")], topics, "{claims}");
        for topic in ["else", "$x/y"] {
            assert_eq!(may_publish(&grant, topic), claims.contains("superuser"), "{topic} {claims}");
        }
    }
}
