//! Chain of authenticators: the answers of each, what follows from them, and their order.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use braid_access::hook::{Hook, HookOptions};
use braid_access::http::HttpOptions;
use braid_access::{CertificateName, Certificates, Chain, HashPool, Link, SCRAM_SHA_256};
use braid_auth::password::{Argon2idParams, PasswordHash};
use braid_auth::scram::{Nonce, ScramClient};
use braid_broker::{Challenge, Grant, ListenerPolicy, Outcome, Refusal};
use braid_proto::reason::ReasonCode;
use bytes::Bytes;
use futures_util::FutureExt;
use tempfile::TempDir;

use crate::login::{Login, SECRET, certificate, line, token, tokens, users, write};
use crate::server::{Server, client, options, reply};

const NAMES: Certificates = Certificates { user: CertificateName::CommonName, client_id: None };

/// A service whose answer can be changed.
async fn service() -> (Server, Arc<Mutex<(u16, &'static str)>>, Link) {
    let answer = Arc::new(Mutex::new((200, "")));
    let current = Arc::clone(&answer);
    let server = Server::start(move || {
        let (status, body) = *current.lock().expect("lock");
        async move { reply(status, body) }
    });
    let server = server.await;
    let hook = Hook::new(client(&server.url()), HookOptions::default()).expect("random numbers");
    (server, answer, Link::Http(Arc::new(hook)))
}

const YES: &str = "unknown by none";
const IGNORE: (u16, &str) = (200, r#"{"result":"ignore"}"#);
const ALLOW: (u16, &str) = (200, r#"{"result":"allow"}"#);
const DENY: (u16, &str) = (200, r#"{"result":"deny"}"#);

/// The table of the chain, each result of each authenticator, with the number of authenticators behind it that are
/// asked: the service is the last one.
#[tokio::test]
async fn each_result_is_followed_by_its_own() {
    let folder = TempDir::new().expect("folder");
    let file = write(&folder, "users", line("jane", "right"));
    let secret = write(&folder, "secret", SECRET);
    let (mut server, answer, hook) = service().await;
    let links = vec![users(&file, &HashPool::default()), tokens(&secret), Link::Certificate(NAMES), hook];
    let chain = Chain::new(links, false);
    let right = token(SECRET, r#"{"sub":"joe","exp":9999999999}"#);
    let wrong = token(b"another secret of thirty-two bytes or more", r#"{"sub":"joe","exp":9999999999}"#);
    let expired = token(SECRET, r#"{"sub":"joe","exp":1000000000}"#);
    let other_client = token(SECRET, r#"{"sub":"joe","exp":9999999999,"client":"c2"}"#);
    let bad_rules = token(SECRET, r#"{"sub":"joe","exp":9999999999,"acl":["allow all topic a/#/b"]}"#);
    let with = |certificate| Login { certificate: Some(certificate), ..Login::default() };
    let without_password = Login { user: Some("jane"), ..Login::default() };
    let without_user = Login { password: Some("right".into()), ..Login::default() };
    let rows: Vec<(Login, (u16, &str), &str, usize)> = vec![
        // Password file.
        (Login::with("jane", "right"), ALLOW, "jane by password", 0),
        (Login::with("jane", "wrong"), ALLOW, "0x86 wrong password", 0),
        (Login::with("jane", ""), ALLOW, "0x86 wrong password", 0),
        (Login::with("jane", &right), ALLOW, "0x86 wrong password", 0),
        (Login::with("Jane", "right"), ALLOW, "Jane by http", 1),
        (without_password.clone(), ALLOW, "jane by http", 1),
        (without_user, ALLOW, "unknown by http", 1),
        // Tokens.
        (Login::with("joe", &right), ALLOW, "joe by jwt", 0),
        (Login::with("any", &right), ALLOW, "joe by jwt", 0),
        (Login::with("joe", &wrong), ALLOW, "0x87", 0),
        (Login::with("joe", &expired), ALLOW, "0x87", 0),
        (Login::with("joe", &other_client), ALLOW, "0x87", 0),
        (Login::with("joe", &bad_rules), ALLOW, "0x87", 0),
        (Login::with("joe", "no.token.either"), ALLOW, "joe by http", 1),
        // Certificates.
        (with(certificate(&["device"], &[])), ALLOW, "device by x509", 0),
        (with(certificate(&[], &[])), ALLOW, "0x87 the certificate has no name", 0),
        (
            Login { certificate: Some(certificate(&["device"], &[])), ..Login::with("jane", "right") },
            ALLOW,
            "jane by password",
            0,
        ),
        (
            Login { certificate: Some(certificate(&["device"], &[])), ..Login::with("jane", "wrong") },
            ALLOW,
            "0x86",
            0,
        ),
        (
            Login { certificate: Some(certificate(&["device"], &[])), ..Login::with("else", "wrong") },
            ALLOW,
            "device by x509",
            0,
        ),
        // Service.
        (Login::with("joe", "x"), DENY, "0x87 the service denies it", 1),
        (Login::with("joe", "x"), IGNORE, "0x86 no authenticator knows the credentials", 1),
        (Login::with("joe", "x"), (200, r#"{"result":"allow","username":"carl"}"#), "carl by http", 1),
        (Login::with("joe", "x"), (500, ""), "0x88", 1),
        (Login::with("joe", "x"), (200, "{"), "0x88", 1),
        (Login::default(), ALLOW, "unknown by http", 1),
        (Login::default(), IGNORE, "0x87 there are no credentials", 1),
        (Login::default(), (500, ""), "0x88", 1),
        (without_password, IGNORE, "0x86", 1),
    ];
    for (number, (login, service, expected, questions)) in rows.into_iter().enumerate() {
        *answer.lock().expect("lock") = service;
        let said = login.answer(&chain).await;
        assert!(said.starts_with(expected), "row {number}: {said} instead of {expected}");
        assert!(!said.contains("right") && !said.contains(&right), "{said}");
        assert_eq!(server.count(), questions, "row {number}");
    }
}

#[tokio::test]
async fn authenticators_are_asked_in_their_order() {
    let folder = TempDir::new().expect("folder");
    let pool = HashPool::default();
    let first = users(&write(&folder, "first", line("jane", "one")), &pool);
    let second = users(&write(&folder, "second", line("jane", "two") + &line("joe", "three")), &pool);
    let (mut server, answer, hook) = service().await;
    *answer.lock().expect("lock") = ALLOW;
    for (links, password, expected, questions) in [
        (vec![first.clone(), second.clone()], "one", "jane by password", 0),
        (vec![first.clone(), second.clone()], "two", "0x86", 0),
        (vec![second.clone(), first.clone()], "two", "jane by password", 0),
        (vec![hook.clone(), first.clone()], "anything", "jane by http", 1),
        (vec![first.clone(), hook.clone()], "anything", "0x86", 0),
    ] {
        let said = Login::with("jane", password).answer(&Chain::new(links, true)).await;
        assert!(said.starts_with(expected), "{said} instead of {expected}");
        assert_eq!(server.count(), questions);
    }
    assert_eq!(
        Login::with("joe", "three").answer(&Chain::new(vec![first, second], false)).await,
        "joe by password"
    );
}

/// Clients without credentials, by their address, the listener and the broker.
#[tokio::test]
async fn anonymous_clients_come_in_only_where_that_was_asked_for() {
    let folder = TempDir::new().expect("folder");
    let file = users(&write(&folder, "users", line("jane", "right")), &HashPool::default());
    let local = Some(([127, 0, 0, 1], 1).into());
    let outside = Login::default().address;
    for (has_link, allow_anonymous, listener, address, expected) in [
        (false, false, None, local, YES),
        (false, false, None, None, YES),
        (false, false, None, outside, "0x87"),
        (false, true, None, outside, YES),
        (false, false, Some(true), outside, YES),
        (false, false, Some(false), local, "0x87"),
        (false, true, Some(false), outside, "0x87"),
        (true, false, None, local, "0x87"),
        (true, false, None, None, "0x87"),
        (true, false, None, outside, "0x87"),
        (true, true, None, outside, YES),
        (true, false, Some(true), outside, YES),
        (true, true, Some(false), outside, "0x87"),
    ] {
        let context = format!("{has_link} {allow_anonymous} {listener:?} {address:?}");
        let chain = Chain::new(has_link.then(|| file.clone()).into_iter().collect(), allow_anonymous);
        let listener = ListenerPolicy { anonymous: listener, ..ListenerPolicy::default() };
        let anonymous = Login { address, listener, ..Login::default() };
        let said = anonymous.answer(&chain).await;
        assert!(said.starts_with(expected), "{context}: {said}");
        // Credentials that are not known make no client anonymous, unless nothing could know them.
        for wrong in [
            Login { user: Some("joe"), ..anonymous.clone() },
            Login { address, listener: anonymous.listener.clone(), ..Login::with("joe", "x") },
        ] {
            let said = wrong.answer(&chain).await;
            let expected = if has_link { "0x86" } else { expected };
            assert!(said.starts_with(expected), "{context}: {said}");
        }
    }
}

/// A proxy on this machine whose header names no client does not make the client one of this machine.
#[tokio::test]
async fn clients_that_a_proxy_does_not_name_are_not_local() {
    let proxy: Option<SocketAddr> = Some(([127, 0, 0, 1], 40_000).into());
    for (address, proxy, expected) in [
        (proxy, None, YES),
        (Some(([127, 0, 0, 1], 40_001).into()), proxy, YES),
        (proxy, proxy, "0x87"),
        (Login::default().address, proxy, "0x87"),
    ] {
        let login = Login { address, proxy, ..Login::default() };
        let said = login.answer(&Chain::new(Vec::new(), false)).await;
        assert!(said.starts_with(expected), "{address:?} {proxy:?}: {said}");
        let said = login.answer(&Chain::new(Vec::new(), true)).await;
        assert_eq!(said, YES, "{address:?} {proxy:?}");
    }
}

/// Name of a client by its certificate, of each kind.
#[tokio::test]
async fn certificates_name_their_client_or_unknown() {
    use CertificateName::{AlternativeName, CommonName, Fingerprint};
    let plain = certificate(&["device"], &[]);
    let one = certificate(&["device"], &["a.example"]);
    let two = certificate(&["device"], &["a.example", "b.example"]);
    let none = certificate(&[], &[]);
    let print = plain.fingerprint_sha256();
    for (names, certificate, expected) in [
        ((CommonName, None), &plain, Some(("device", None))),
        ((CommonName, None), &none, None),
        ((AlternativeName, None), &one, Some(("a.example", None))),
        ((AlternativeName, None), &two, None),
        ((AlternativeName, None), &plain, None),
        ((Fingerprint, None), &plain, Some((print.as_str(), None))),
        ((CommonName, Some(AlternativeName)), &one, Some(("device", Some("a.example")))),
        ((CommonName, Some(AlternativeName)), &two, None),
        ((CommonName, Some(AlternativeName)), &plain, None),
        ((AlternativeName, Some(CommonName)), &one, Some(("a.example", Some("device")))),
        ((AlternativeName, Some(CommonName)), &none, None),
    ] {
        let (user, client_id) = names;
        let chain = Chain::new(vec![Link::Certificate(Certificates { user, client_id })], false);
        let login = Login { certificate: Some(certificate.clone()), ..Login::default() };
        let granted = login.grant(&chain).await;
        let named = granted.as_ref().ok().map(|Grant { identity, client_id, .. }| {
            (identity.user().expect("a user"), client_id.as_ref().map(|id| id.as_str()))
        });
        assert_eq!(named, expected, "{names:?}");
        if let Err(refusal) = granted {
            assert_eq!(refusal.reason, ReasonCode::NotAuthorized);
        }
    }
    // Names that no log line and no topic should carry.
    for name in ["", "a\nb", "a\0b", "\u{7f}"] {
        let with_both = certificate(&[name], &[name]);
        for user in [CommonName, AlternativeName] {
            let login = Login { certificate: Some(with_both.clone()), ..Login::default() };
            let names = Certificates { user, client_id: None };
            let said = login.answer(&Chain::new(vec![Link::Certificate(names)], false)).await;
            assert!(said.starts_with("0x87"), "{name:?}: {said}");
        }
    }
}

/// Runs SCRAM-SHA-256 with a chain; returns the acceptance once the server has proved that it knows the password.
pub(crate) async fn scram(chain: &Chain, user: &str, password: &str) -> Result<Grant, String> {
    scram_of(Login::default(), chain, user, password).await
}

async fn scram_of(client: Login, chain: &Chain, user: &str, password: &str) -> Result<Grant, String> {
    let (first, scram) = ScramClient::start(user, password.as_bytes(), Nonce::new([3; 18])).expect("a user");
    let login = Login { method: Some(SCRAM_SHA_256), data: Some(first.into()), ..client };
    let refused = |refusal: Refusal| format!("first: {:#x}", refusal.reason.value());
    let outcome = login.outcome(chain).await.map_err(refused)?;
    let Outcome::Challenge(Challenge { data, exchange }) = outcome else { panic!("a challenge") };
    let (last, scram) = scram.handle_first(&data).expect("a challenge that any client takes");
    let outcome = exchange
        .proceed(Some(last.into()))
        .await
        .map_err(|refusal| format!("last: {:#x}", refusal.reason.value()))?;
    let Outcome::Accepted(grant) = outcome else { panic!("an acceptance") };
    scram.handle_final(grant.data.as_deref().expect("a proof")).expect("the proof of the server");
    Ok(*grant)
}

#[tokio::test]
async fn scram_takes_the_users_of_all_password_files() {
    let folder = TempDir::new().expect("folder");
    let pool = HashPool::default();
    let hash = PasswordHash::argon2id(b"one", [7; 16], Argon2idParams::default()).expect("a hash");
    let old = format!("old:{}\n", hash.to_text());
    let first = users(&write(&folder, "first", line("jane", "one") + &old), &pool);
    let second = users(&write(&folder, "second", line("jane", "two") + &line("joe", "three")), &pool);
    let secret = tokens(&write(&folder, "secret", SECRET));
    let chain = Chain::new(vec![secret.clone(), first, second], true);
    for (user, password, expected) in [
        ("jane", "one", Ok("jane")),
        ("joe", "three", Ok("joe")),
        ("jane", "two", Err("last: 0x87")),
        ("joe", "wrong", Err("last: 0x87")),
        // As a wrong password: a client does not learn who is known.
        ("unknown", "one", Err("last: 0x87")),
        ("old", "one", Err("last: 0x87")),
    ] {
        let granted = scram(&chain, user, password).await;
        let named =
            granted.as_ref().map(|grant| grant.identity.user().expect("a user")).map_err(String::as_str);
        assert_eq!(named, expected, "{user} {password}");
        assert!(granted.is_err() || granted.is_ok_and(|grant| grant.identity.source() == Some("password")));
    }
    let first_of = |chain: Chain, method, data: Option<&'static [u8]>| async move {
        let login = Login { method: Some(method), data: data.map(Bytes::from_static), ..Login::default() };
        login.outcome(&chain).await.err().map(|refusal| refusal.reason)
    };
    let malformed: [Option<&'static [u8]>; 5] =
        [None, Some(b""), Some(b"n,,n=jane"), Some(b"n,a=root,n=jane,r=abcdefgh"), Some(b"\xff")];
    for data in malformed {
        assert_eq!(
            first_of(chain.clone(), SCRAM_SHA_256, data).await,
            Some(ReasonCode::NotAuthorized),
            "{data:?}"
        );
    }
    for method in ["SCRAM-SHA-1", "", "scram-sha-256", "SCRAM-SHA-256-PLUS"] {
        let refused = first_of(chain.clone(), method, None).await;
        assert_eq!(refused, Some(ReasonCode::BadAuthenticationMethod), "{method}");
    }
    for links in [vec![], vec![secret]] {
        let refused =
            first_of(Chain::new(links, true), SCRAM_SHA_256, Some(b"n,,n=jane,r=abcdefgh".as_slice())).await;
        assert_eq!(refused, Some(ReasonCode::BadAuthenticationMethod));
    }
}

/// An authenticator that could refuse a client is not passed by with an Authentication Method that it does not know.
#[tokio::test]
async fn scram_passes_by_no_authenticator_in_front() {
    let folder = TempDir::new().expect("folder");
    let pool = HashPool::default();
    let hash = PasswordHash::argon2id(b"one", [7; 16], Argon2idParams::default()).expect("a hash");
    let slow = users(&write(&folder, "slow", format!("jane:{}\n", hash.to_text())), &pool);
    let other = users(&write(&folder, "other", line("joe", "one")), &pool);
    let file = users(&write(&folder, "users", line("jane", "one")), &pool);
    let secret = tokens(&write(&folder, "secret", SECRET));
    let (mut server, answer, hook) = service().await;
    *answer.lock().expect("lock") = DENY;
    let device = Link::Certificate(NAMES);
    let (plain, named, unnamed) = (None, Some(certificate(&["d"], &[])), Some(certificate(&[], &[])));
    for (links, certificate, expected) in [
        (vec![&hook, &file], &plain, Err("first: 0x8c")),
        (vec![&file, &hook], &plain, Ok("jane")),
        (vec![&secret, &file], &plain, Ok("jane")),
        (vec![&device, &file], &plain, Ok("jane")),
        (vec![&device, &file], &named, Err("first: 0x8c")),
        (vec![&device, &file], &unnamed, Err("first: 0x8c")),
        (vec![&file, &device], &named, Ok("jane")),
        // A client does not learn of the authenticator in the middle whether the first file has the user.
        (vec![&other, &hook, &file], &plain, Err("last: 0x87")),
        (vec![&other, &device, &file], &named, Err("last: 0x87")),
        (vec![&other, &file], &plain, Ok("jane")),
        // The first file with the user decides, by whatever hash.
        (vec![&slow, &file], &plain, Err("last: 0x87")),
    ] {
        let context = format!("{links:?} {}", certificate.is_some());
        let chain = Chain::new(links.into_iter().cloned().collect(), true);
        let client = Login { certificate: certificate.clone(), ..Login::default() };
        let granted = scram_of(client, &chain, "jane", "one").await;
        let named = granted.as_ref().map(|grant| grant.identity.user().expect("a user"));
        assert_eq!(named.map_err(String::as_str), expected, "{context}");
    }
    assert_eq!(server.count(), 0, "the service cannot decide without a password");
}

/// An answer of the client that is none.
#[tokio::test]
async fn scram_refuses_a_last_message_that_is_none() {
    let folder = TempDir::new().expect("folder");
    let chain =
        Chain::new(vec![users(&write(&folder, "users", line("jane", "one")), &HashPool::default())], true);
    let malformed: [Option<&'static [u8]>; 4] =
        [None, Some(b""), Some(b"c=biws,r=x,p=AAAA"), Some(b"\xff\xff")];
    for last in malformed {
        let (first, _) = ScramClient::start("jane", b"one", Nonce::new([3; 18])).expect("a user");
        let login = Login { method: Some(SCRAM_SHA_256), data: Some(first.into()), ..Login::default() };
        let Ok(Outcome::Challenge(Challenge { exchange, .. })) = login.outcome(&chain).await else {
            panic!("a challenge")
        };
        let refused =
            exchange.proceed(last.map(Bytes::from_static)).await.err().map(|refusal| refusal.reason);
        assert_eq!(refused, Some(ReasonCode::NotAuthorized), "{last:?}");
    }
}

/// Passwords above the bound of the pool are refused at once, those that wait are answered, and clients with other
/// credentials are not delayed.
#[tokio::test]
async fn a_flood_of_passwords_is_refused_and_delays_unknown_else() {
    let folder = TempDir::new().expect("folder");
    let pool = HashPool::new(1, 2);
    let file = write(&folder, "users", line("jane", "right"));
    let chain = Chain::new(vec![users(&file, &pool), Link::Certificate(NAMES)], false);
    let (release, released) = mpsc::channel::<()>();
    let mut blocked = Box::pin(pool.run(move || released.recv()));
    assert!((&mut blocked).now_or_never().is_none());
    let login = Login::with("jane", "right");
    let mut waiting: Vec<_> = (0..2).map(|_| Box::pin(login.answer(&chain))).collect();
    for answer in &mut waiting {
        assert!(answer.now_or_never().is_none());
    }
    let busy = "0x89 too many passwords wait for their verification";
    for _ in 0..1000 {
        assert_eq!(login.answer(&chain).now_or_never().as_deref(), Some(busy));
        let unknown = Login::with("unknown", "x");
        assert_eq!(unknown.answer(&chain).now_or_never().as_deref(), Some(busy), "as a known user");
    }
    let device = Login { certificate: Some(certificate(&["device"], &[])), ..Login::default() };
    assert_eq!(device.answer(&chain).now_or_never().as_deref(), Some("device by x509"));
    // A client that is gone gives its place to another one.
    waiting.pop();
    let mut other = Box::pin(login.answer(&chain));
    assert!((&mut other).now_or_never().is_none());
    release.send(()).expect("the blocked one waits");
    assert!(blocked.await.is_ok());
    for answer in waiting {
        assert_eq!(answer.await, "jane by password");
    }
    assert_eq!(other.await, "jane by password");
}

/// A service that cannot answer more at once refuses, and one that is slow ends with its time.
#[tokio::test(start_paused = true)]
async fn a_service_that_is_busy_or_slow_refuses() {
    let url = crate::server::raw(|_, stream| async move {
        std::future::pending::<()>().await;
        drop(stream);
    });
    let url = url.await;
    let mut limited = options(&url);
    limited.max_concurrent = 1;
    limited.max_waiting = 0;
    let hook = |options: HttpOptions, timeout| {
        let client =
            braid_access::http::HttpClient::new(HttpOptions { timeout, ..options }).expect("options");
        let hook = Hook::new(client, HookOptions::default()).expect("random numbers");
        Chain::new(vec![Link::Http(Arc::new(hook))], true)
    };
    let slow = Login::with("joe", "x").answer(&hook(options(&url), Duration::from_secs(5))).await;
    assert!(slow.starts_with("0x88") && slow.ends_with("within 5s"), "{slow}");
    let chain = hook(limited, Duration::from_secs(600));
    let first = Login::with("joe", "x");
    let mut first = Box::pin(first.answer(&chain));
    assert!((&mut first).now_or_never().is_none());
    let busy = Login::with("carl", "x").answer(&chain).await;
    assert!(busy.starts_with("0x89"), "{busy}");
}
