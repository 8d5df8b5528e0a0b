//! Keys from a URL: start, refresh, unknown keys, and failures, on virtual time.

use std::cell::RefCell;
use std::io;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use braid_access::http::HttpOptions;
use braid_access::remote_keys::{
    MAX_KEYS_BODY, MIN_INTERVAL, RemoteKeys, RemoteKeysError, RemoteKeysOptions,
};
use braid_access::{AccessControl, Chain, HashPool, Link, Tokens};
use braid_auth::jwt::JwtOptions;
use futures_util::FutureExt;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::advance;

use crate::login::{Login, line, users, write};
use crate::server::{Server, client, options, patient, raw, reply};
use crate::tokens::{key, key_sets, signed};

const OPTIONS: RemoteKeysOptions =
    RemoteKeysOptions { refresh: Duration::from_secs(600), max_stale: Duration::from_secs(1_800) };

/// Keys of the tests: the body itself.
fn parse(body: &[u8]) -> Result<String, String> {
    let text = str::from_utf8(body).map_err(|error| error.to_string())?;
    if text.starts_with("keys") { Ok(text.to_owned()) } else { Err("there are no keys".to_owned()) }
}

/// Paused time that only [`advance`] moves: the runtime leaves it alone while a blocking task runs, so that nothing
/// times out while bytes cross a socket.
struct FrozenTime {
    end: Option<mpsc::Sender<()>>,
    task: Option<JoinHandle<()>>,
}

impl FrozenTime {
    fn new() -> Self {
        let (end, ended) = mpsc::channel::<()>();
        let task = tokio::task::spawn_blocking(move || {
            let _ = ended.recv();
        });
        tokio::time::pause();
        Self { end: Some(end), task: Some(task) }
    }
}

impl Drop for FrozenTime {
    fn drop(&mut self) {
        drop((self.end.take(), self.task.take()));
    }
}

/// Moves the time by `time` and the millisecond to which timers are rounded up, once all tasks have set theirs.
async fn pass(time: Duration) {
    tokio::task::yield_now().await;
    advance(time + Duration::from_millis(1)).await;
}

type Answer = Arc<Mutex<(u16, String)>>;

async fn serve() -> (Server, Answer) {
    let answer: Answer = Arc::new(Mutex::new((200, "keys 0".to_owned())));
    let current = Arc::clone(&answer);
    let server = Server::start(move || {
        let (status, body) = current.lock().expect("lock").clone();
        async move { reply(status, &body) }
    });
    (server.await, answer)
}

fn set(answer: &Answer, status: u16, body: &str) {
    *answer.lock().expect("lock") = (status, body.to_owned());
}

fn current(keys: &RemoteKeys<String>) -> Option<String> {
    keys.current().map(|keys| String::clone(&keys))
}

/// Waits for a request to the server, and until the client has taken its answer.
async fn fetched(server: &mut Server, keys: &RemoteKeys<String>) {
    server.next().await;
    keys.refresh_for_unknown_key().await;
}

#[tokio::test]
async fn start_fails_without_keys() {
    let (server, answer) = serve().await;
    let url = server.url();
    let cases = [
        (500, "keys", "unexpected status 500"),
        (204, "", "unexpected status 204"),
        (200, " <html>keys", "the answer is HTML or XML instead of keys; check the path of the URL"),
        (200, "{}", "there are no keys"),
        (200, "", "there are no keys"),
        (200, &"keys".repeat(MAX_KEYS_BODY / 4 + 1), "the answer is larger than 1024 KiB"),
    ];
    for (status, body, expected) in cases {
        set(&answer, status, body);
        let client = patient(HttpOptions { max_body: MAX_KEYS_BODY, ..options(&url) });
        let error = RemoteKeys::start(client, OPTIONS, parse).await.expect_err(expected);
        assert_eq!(error.to_string(), format!("cannot fetch keys from {url}: {expected}"));
    }
}

#[tokio::test(start_paused = true)]
async fn start_fails_if_the_server_is_slow() {
    let url = raw(|_, stream| async move {
        std::future::pending::<()>().await;
        drop(stream);
    });
    let url = url.await;
    let client = braid_access::http::HttpClient::new(options(&url)).expect("options");
    let error = RemoteKeys::start(client, OPTIONS, parse).await.expect_err("slow");
    assert_eq!(error.to_string(), format!("cannot fetch keys from {url}: no complete answer within 5s"));
}

#[tokio::test]
async fn start_refuses_times_that_cannot_work() {
    let (mut server, _) = serve().await;
    let second = Duration::from_secs(1);
    let cases = [
        (
            RemoteKeysOptions { refresh: MIN_INTERVAL - second, ..OPTIONS },
            "keys cannot be fetched every 29s: set 30s",
        ),
        (
            RemoteKeysOptions { max_stale: OPTIONS.refresh, ..OPTIONS },
            "keys of at most 600s are too old before the next fetch: set 630s or more",
        ),
    ];
    for (options, expected) in cases {
        let error = RemoteKeys::start(client(&server.url()), options, parse).await.expect_err(expected);
        assert!(
            !matches!(error, RemoteKeysError::Fetch(_)) && error.to_string().starts_with(expected),
            "{error}"
        );
    }
    assert_eq!(server.count(), 0);
}

#[tokio::test]
async fn keys_are_fetched_again_until_they_are_dropped() {
    let _frozen = FrozenTime::new();
    let (mut server, answer) = serve().await;
    let keys = RemoteKeys::start(client(&server.url()), OPTIONS, parse).await.expect("keys");
    server.next().await;
    for round in 1..4 {
        set(&answer, 200, &format!("keys {round}"));
        pass(OPTIONS.refresh - Duration::from_secs(1)).await;
        assert_eq!(server.count(), 0);
        assert_eq!(current(&keys), Some(format!("keys {}", round - 1)));
        pass(Duration::from_secs(1)).await;
        fetched(&mut server, &keys).await;
        assert_eq!(current(&keys), Some(format!("keys {round}")));
    }
    drop(keys);
    // The task is gone after the next turn of the runtime: nothing is left that could hold the server's connection.
    pass(OPTIONS.refresh * 10).await;
    tokio::task::yield_now().await;
    assert_eq!(server.count(), 0);
}

#[tokio::test]
async fn unknown_keys_cause_one_fetch_in_thirty_seconds() {
    let _frozen = FrozenTime::new();
    let (mut server, answer) = serve().await;
    let keys = RemoteKeys::start(client(&server.url()), OPTIONS, parse).await.expect("keys");
    server.next().await;
    set(&answer, 200, "keys 1");
    pass(MIN_INTERVAL - Duration::from_secs(1)).await;
    assert!(!keys.refresh_for_unknown_key().await, "the start has fetched them");
    pass(Duration::from_secs(1)).await;
    let both = tokio::join!(keys.refresh_for_unknown_key(), keys.refresh_for_unknown_key());
    assert_eq!(both, (true, true));
    assert_eq!(current(&keys).as_deref(), Some("keys 1"));
    assert!(!keys.refresh_for_unknown_key().await);
    assert_eq!(server.count(), 1);
    // The next fetch in turn is a whole period later.
    pass(OPTIONS.refresh - Duration::from_secs(1)).await;
    assert_eq!(server.count(), 0);
    pass(Duration::from_secs(1)).await;
    fetched(&mut server, &keys).await;
    // A caller that leaves ends nothing.
    pass(MIN_INTERVAL).await;
    set(&answer, 200, "keys 2");
    {
        let mut left = Box::pin(keys.refresh_for_unknown_key());
        assert!((&mut left).now_or_never().is_none());
    }
    fetched(&mut server, &keys).await;
    assert_eq!(current(&keys).as_deref(), Some("keys 2"));
}

/// Tokens of keys that came since the last fetch, of the same algorithm or another one, with a name or without.
#[tokio::test]
async fn a_token_that_may_lack_its_key_causes_a_fetch() {
    let _frozen = FrozenTime::new();
    let (old, new) = (key(1), key(2));
    let secret = format!(r#"{{"keys":[{{"kty":"oct","kid":"s","k":"{}"}}]}}"#, "A".repeat(43));
    let without_kid = |set: &str| set.replace(r#""kid":"old","#, "");
    for (before, kid, expected) in [
        (key_sets(&[(&old, "old")]), Some("new"), Some("the name is not known")),
        (key_sets(&[(&old, "old")]), None, Some("the token has no name")),
        (without_kid(&key_sets(&[(&old, "old")])), Some("new"), Some("the key has no name")),
        (secret, Some("new"), Some("the algorithm has no key")),
        (key_sets(&[(&old, "old")]), Some("old"), None),
    ] {
        let (mut server, answer) = serve().await;
        set(&answer, 200, &before);
        let tokens = Tokens::from_url(client(&server.url()), OPTIONS, JwtOptions::default()).await;
        let chain = Chain::new(vec![Link::Token(Arc::new(tokens.expect("keys")))], false);
        server.next().await;
        set(&answer, 200, &key_sets(&[(&new, "new")]));
        let login = Login::with("joe", signed(&new, kid, r#"{"sub":"joe","exp":9999999999}"#));
        assert!(login.answer(&chain).await.starts_with("0x87"), "{expected:?}: not so soon");
        assert_eq!(server.count(), 0);
        pass(MIN_INTERVAL).await;
        let said = login.answer(&chain).await;
        assert_eq!(said == "joe by jwt", expected.is_some(), "{said} {expected:?} {before}");
        assert_eq!(server.count(), usize::from(expected.is_some()));
    }
}

/// The key of a connected client may be gone.
#[tokio::test]
async fn other_keys_are_noticed_and_the_same_are_not() {
    let _frozen = FrozenTime::new();
    let (mut server, answer) = serve().await;
    set(&answer, 200, &key_sets(&[(&key(1), "old")]));
    let tokens = Tokens::from_url(client(&server.url()), OPTIONS, JwtOptions::default()).await.expect("keys");
    server.next().await;
    let chain = Chain::new(vec![Link::Token(Arc::new(tokens))], false);
    let mut changes = AccessControl::open(chain.clone(), None).expect("no files").key_changes();
    let token = signed(&key(1), Some("old"), r#"{"sub":"joe","exp":9999999999}"#);
    let grant = Login::with("joe", &token).grant(&chain).await.expect("accepted");
    let credential = grant.credential.expect("a credential");
    let unknown = Login::with("joe", signed(&key(3), Some("new"), r#"{"sub":"joe","exp":9999999999}"#));
    for (status, seed, is_changed) in [(200, 1, false), (503, 2, false), (200, 2, true), (200, 2, false)] {
        set(&answer, status, &key_sets(&[(&key(seed), "old")]));
        pass(MIN_INTERVAL).await;
        // Waits for the end of a fetch.
        assert!(unknown.answer(&chain).await.starts_with("0x87"));
        server.next().await;
        assert_eq!(changes.changed().now_or_never().is_some(), is_changed, "{status} {seed}");
        assert_eq!(credential.is_revoked(), (status, seed) == (200, 2));
    }
    let mut none = AccessControl::open(Chain::new(Vec::new(), true), None).expect("no files").key_changes();
    assert!(none.changed().now_or_never().is_none());
}

/// Keys that are too old refuse tokens, and leave other passwords to the next authenticator.
#[tokio::test]
async fn passwords_that_are_no_tokens_need_no_keys() {
    let _frozen = FrozenTime::new();
    let folder = TempDir::new().expect("folder");
    let file = users(&write(&folder, "users", line("jane", "right")), &HashPool::default());
    let (server, answer) = serve().await;
    set(&answer, 200, &key_sets(&[(&key(1), "k")]));
    let tokens = Tokens::from_url(client(&server.url()), OPTIONS, JwtOptions::default()).await.expect("keys");
    let chain = Chain::new(vec![Link::Token(Arc::new(tokens)), file], false);
    set(&answer, 503, "");
    let token = signed(&key(1), Some("k"), r#"{"sub":"joe","exp":9999999999}"#);
    assert_eq!(Login::with("any", &token).answer(&chain).await, "joe by jwt");
    pass(OPTIONS.max_stale + Duration::from_secs(1)).await;
    assert!(Login::with("any", &token).answer(&chain).await.starts_with("0x88"));
    assert_eq!(Login::with("jane", "right").answer(&chain).await, "jane by password");
    assert!(Login::with("jane", "no.token.either").answer(&chain).await.starts_with("0x86"));
}

thread_local! {
    /// Log of this thread.
    static LOG: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

struct ThreadLog;

impl io::Write for ThreadLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOG.with_borrow_mut(|log| log.extend_from_slice(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The lines since the last call.
fn logged() -> Vec<String> {
    String::from_utf8(LOG.take()).expect("text").lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn failures_keep_the_last_keys_until_they_are_too_old() {
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .without_time()
        .with_max_level(tracing_subscriber::filter::LevelFilter::INFO)
        .with_writer(|| ThreadLog)
        .finish();
    // One of this thread alone could miss an event that another test logs first: whether any wants it is found then,
    // and by the subscriber of that thread.
    tracing::subscriber::set_global_default(subscriber).expect("the only one");
    let _frozen = FrozenTime::new();
    let (mut server, answer) = serve().await;
    let keys = RemoteKeys::start(client(&server.url()), OPTIONS, parse).await.expect("keys");
    server.next().await;
    set(&answer, 503, "");
    pass(OPTIONS.refresh).await;
    fetched(&mut server, &keys).await;
    // A failed fetch is tried again every 30 s: the 40th of these attempts is after the maximum age.
    let attempts = (OPTIONS.max_stale - OPTIONS.refresh).as_secs() / MIN_INTERVAL.as_secs() - 1;
    for attempt in 1..=attempts {
        assert_eq!(current(&keys).as_deref(), Some("keys 0"), "{attempt}");
        pass(MIN_INTERVAL).await;
        fetched(&mut server, &keys).await;
    }
    let lines = logged();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("WARN") && lines[0].contains("unexpected status 503"), "{lines:?}");
    assert_eq!(current(&keys).as_deref(), Some("keys 0"));
    pass(MIN_INTERVAL - Duration::from_secs(1)).await;
    assert_eq!(current(&keys).as_deref(), Some("keys 0"));
    pass(Duration::from_secs(1)).await;
    assert_eq!(current(&keys), None);
    fetched(&mut server, &keys).await;
    for _ in 0..3 {
        pass(MIN_INTERVAL).await;
        fetched(&mut server, &keys).await;
    }
    let lines = logged();
    assert!(lines.len() == 1 && lines[0].contains("ERROR") && lines[0].contains("too old"), "{lines:?}");
    assert_eq!(current(&keys), None);
    set(&answer, 200, "keys 1");
    pass(MIN_INTERVAL).await;
    fetched(&mut server, &keys).await;
    assert_eq!(current(&keys).as_deref(), Some("keys 1"));
    let lines = logged();
    assert!(lines.len() == 1 && lines[0].contains("INFO"), "{lines:?}");
}
