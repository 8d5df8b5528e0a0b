//! Authentication hook against servers, and the server of its documentation.

use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use braid_access::hook::{Hook, HookAnswer, HookOptions, Question};
use braid_access::http::HttpProblem;
use braid_auth::claims::Claims;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::time::{advance, pause, resume};

use crate::server::{Server, client, reply};

const NOW: u64 = 1_700_000_000;

fn question<'a>(username: &'a str, password: &'a [u8]) -> Question<'a> {
    Question {
        username: Some(username),
        password: Some(password),
        client_id: "c1",
        peer_host: Some([192, 0, 2, 7].into()),
        protocol: "mqtts",
        listener: Some("public"),
        cert_common_name: None,
    }
}

fn hook(url: &str, cache_secs: u64) -> Hook {
    let options = HookOptions { cache: Duration::from_secs(cache_secs), ..HookOptions::default() };
    Hook::new(client(url), options).expect("random numbers")
}

/// A server with an answer that can be changed.
async fn changeable(status: u16, body: &'static str) -> (Server, Arc<Mutex<(u16, &'static str)>>) {
    let answer = Arc::new(Mutex::new((status, body)));
    let current = Arc::clone(&answer);
    let server = Server::start(move || {
        let (status, body) = *current.lock().expect("lock");
        async move { reply(status, body) }
    });
    (server.await, answer)
}

#[tokio::test]
async fn questions_have_all_facts_in_json() {
    let (mut server, _) = changeable(204, "").await;
    let hook = hook(&server.url(), 0);
    let full = Question { cert_common_name: Some("sensor"), ..question("bob\"", "p\u{e4}ss".as_bytes()) };
    let empty = Question {
        username: None,
        password: None,
        client_id: "",
        peer_host: None,
        protocol: "mqtt",
        listener: None,
        cert_common_name: None,
    };
    let cases = [
        (
            full,
            r#"{"username":"bob\"","password":"päss","clientid":"c1","peerhost":"192.0.2.7","protocol":"mqtts","listener":"public","cert_common_name":"sensor"}"#,
        ),
        (
            empty,
            r#"{"username":null,"password":null,"clientid":"","peerhost":null,"protocol":"mqtt","listener":null}"#,
        ),
    ];
    for (question, expected) in cases {
        assert_eq!(hook.ask(&question, NOW).await, Ok(HookAnswer::Allow(Claims::default())));
        let received = server.next().await;
        assert_eq!(received.method.as_str(), "POST");
        assert_eq!(str::from_utf8(&received.body), Ok(expected));
    }
    assert_eq!(hook.ask(&question("bob", b"\xff\xfe"), NOW).await, Ok(HookAnswer::Deny));
    assert_eq!(server.count(), 0, "a password that is not UTF-8 is not sent");
}

#[tokio::test]
async fn failures_of_the_service_are_errors_and_not_cached() {
    let (mut server, answer) = changeable(500, "").await;
    let hook = hook(&server.url(), 60);
    let cases = [
        (500, "{\"result\":\"allow\"}", "unexpected status 500"),
        (302, "", "unexpected status 302: redirects are not followed, set the final URL"),
        (200, "<html>s3cret</html>", "the answer is HTML or XML instead of JSON; check the path of the URL"),
        (200, "", "the answer is empty instead of JSON"),
        (200, "{\"result\":\"s3cret\"}", "`result` is not \"allow\", \"deny\" or \"ignore\""),
    ];
    for (status, body, expected) in cases {
        *answer.lock().expect("lock") = (status, body);
        let error = hook.ask(&question("bob", b"s3cret"), NOW).await.expect_err(body);
        assert_eq!(error.to_string(), format!("{}: {expected}", server.url()));
        assert_eq!(server.count(), 1);
    }
    *answer.lock().expect("lock") = (200, "{\"result\":\"ignore\"}");
    for _ in 0..2 {
        assert_eq!(hook.ask(&question("bob", b"s3cret"), NOW).await, Ok(HookAnswer::Ignore));
        assert_eq!(server.count(), 1);
    }
    let url = server.url();
    drop(server);
    let error = self::hook(&url.replace("/auth", "/"), 0).ask(&question("bob", b""), NOW).await;
    assert!(!matches!(error, Err(ref error) if error.problem == HttpProblem::Busy), "{error:?}");
}

#[tokio::test]
async fn answers_are_cached_by_all_facts_for_their_time() {
    let (mut server, answer) = changeable(200, "{\"result\":\"allow\",\"username\":\"bob\"}").await;
    let hook = hook(&server.url(), 60);
    let base = question("bob", b"secret");
    let allow = HookAnswer::Allow(Claims { user: Some("bob".into()), ..Claims::default() });
    assert_eq!(hook.ask(&base, NOW).await, Ok(allow.clone()));
    *answer.lock().expect("lock") = (200, "{\"result\":\"deny\"}");
    assert_eq!(hook.ask(&base, NOW).await, Ok(allow.clone()));
    assert_eq!(server.count(), 1);
    let others = [
        question("bob2", b"secret"),
        question("bob", b"secre"),
        Question { password: None, ..base },
        Question { client_id: "c2", ..base },
        Question { peer_host: None, ..base },
        Question { protocol: "mqtt", ..base },
        Question { listener: None, ..base },
        Question { cert_common_name: Some(""), ..base },
    ];
    for other in &others {
        for expected in [1, 0] {
            assert_eq!(hook.ask(other, NOW).await, Ok(HookAnswer::Deny));
            assert_eq!(server.count(), expected);
        }
    }
    pause();
    advance(Duration::from_secs(60)).await;
    resume();
    assert_eq!(hook.ask(&base, NOW).await, Ok(HookAnswer::Deny));
    assert_eq!(server.count(), 1);
}

#[tokio::test]
async fn without_a_cache_every_question_is_sent() {
    let (mut server, _) = changeable(204, "").await;
    let hook = hook(&server.url(), 0);
    let base = question("bob", b"secret");
    let (first, second) = tokio::join!(hook.ask(&base, NOW), hook.ask(&base, NOW));
    assert!(first.is_ok() && second.is_ok());
    assert_eq!(server.count(), 2);
}

#[tokio::test]
async fn concurrent_questions_share_a_request() {
    let (mut server, _) = changeable(204, "").await;
    let hook = hook(&server.url(), 60);
    let base = question("bob", b"secret");
    let (first, second) = tokio::join!(hook.ask(&base, NOW), hook.ask(&base, NOW));
    assert!(first.is_ok() && second.is_ok());
    assert_eq!(server.count(), 1);
}

#[tokio::test]
async fn answers_that_have_ended_permit_nothing() {
    let (mut server, _) = changeable(200, "{\"result\":\"allow\",\"expire_at\":1700000010}").await;
    let hook = hook(&server.url(), 3_600);
    let base = question("bob", b"secret");
    let allow = HookAnswer::Allow(Claims { expires_at: Some(NOW + 10), ..Claims::default() });
    for (now, expected, requests) in
        [(NOW, &allow, 1), (NOW + 9, &allow, 0), (NOW + 10, &HookAnswer::Deny, 1), (NOW + 9, &allow, 0)]
    {
        assert_eq!(hook.ask(&base, now).await.as_ref(), Ok(expected), "{now}");
        assert_eq!(server.count(), requests, "{now}");
    }
}

/// The program in the documentation, run as it is but for its port.
#[tokio::test]
async fn example_of_the_documentation_answers() {
    let page = include_str!("../../../../docs/http-hook.md");
    let program =
        page.split("```python\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a program");
    let program = program.replace("8090", "0");
    let mut child = Command::new("python3")
        .args(["-u", "-c", &program])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("python3, which `make test` installs");
    let mut lines = BufReader::new(child.stdout.take().expect("stdout")).lines();
    let url = lines.next_line().await.expect("output").expect("the URL");
    let hook = hook(&url, 0);
    let HookAnswer::Allow(claims) =
        hook.ask(&question("alice", b"wonderland"), NOW).await.expect("an answer")
    else {
        unreachable!("alice is let in")
    };
    assert_eq!(claims.groups, ["staff".into()]);
    assert_eq!(
        claims.rules.as_deref(),
        Some("allow publish topic \"users/%u/#\"\nallow subscribe,receive topic \"news/#\"\n")
    );
    assert_eq!(hook.ask(&question("alice", b"wrong"), NOW).await, Ok(HookAnswer::Deny));
    assert_eq!(hook.ask(&question("mallory", b""), NOW).await, Ok(HookAnswer::Ignore));
}
