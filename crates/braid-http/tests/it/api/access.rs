//! Users, roles and rates.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use braid_broker::Expiry;
use braid_broker::bans::BanTarget;
use braid_http::{Route, RouteTarget};
use braid_proto::message::Message;
use braid_proto::packet::QoS;
use braid_proto::topic::TopicName;
use serde_json::json;

use super::support::{Setup, TestApi, TestRules, TestUsers, basic};

fn bearer(token: &str) -> (&'static str, String) {
    ("Authorization", format!("Bearer {token}"))
}

#[test]
fn a_role_permits_reading_or_everything() {
    let api = TestApi::with(Setup { users: Some(Arc::default()), ..Setup::default() });
    let ban = json!({ "user": "mallory" }).to_string();
    for (login, read, write) in [
        (basic("alice", "right"), 200, 201),
        (basic("carol", "right"), 200, 201),
        (bearer("token"), 200, 201),
        (basic("bob", "right"), 200, 403),
        (basic("dave", "right"), 403, 403),
        (basic("alice", "wrong"), 401, 401),
        (bearer("other"), 401, 401),
        (("Authorization", "Basic ???".to_owned()), 401, 401),
        (basic("slow", "right"), 503, 503),
    ] {
        for path in ["/api/v1/overview", "/metrics"] {
            assert_eq!(
                api.send("GET", path, None, std::slice::from_ref(&login)).status,
                read,
                "{login:?} {path}"
            );
        }
        let headers = [login.clone(), ("Content-Type", "application/json".to_owned())];
        let answer = api.send("POST", "/api/v1/bans", Some(&ban), &headers);
        assert_eq!(answer.status, write, "{login:?}");
        if write >= 400 {
            answer.refusal(write);
        }
    }
    // A question with a body is no command.
    let question = json!({ "client": "c", "action": "publish", "topic": "a" }).to_string();
    for (user, status) in [("alice", 200), ("bob", 200), ("dave", 403)] {
        let headers = [basic(user, "right"), ("Content-Type", "application/json".to_owned())];
        assert_eq!(
            api.send("POST", "/api/v1/rules/test", Some(&question), &headers).status,
            status,
            "{user}"
        );
        let text = json!({ "text": "allow" }).to_string();
        let replaced = api.send("PUT", "/api/v1/rules", Some(&text), &headers).status;
        assert_eq!(replaced, if user == "alice" { 204 } else { 403 }, "{user}");
    }
    let answer = api.ask("GET", "/api/v1/overview");
    answer.refusal(401);
    assert_eq!(answer.header("www-authenticate"), "Basic realm=\"braidmq\", charset=\"UTF-8\"");
    // These are read before there is a login.
    for path in ["/", "/app.js", "/api/", "/api/v1/openapi.json", "/health/live"] {
        assert_eq!(api.ask("GET", path).status, 200, "{path}");
    }
}

#[test]
fn right_credentials_are_remembered_until_users_change() {
    let users = Arc::<TestUsers>::default();
    let api = TestApi::with(Setup { users: Some(users.clone()), ..Setup::default() });
    let login = [basic("alice", "right")];
    for _ in 0..3 {
        assert_eq!(api.send("GET", "/api/v1/bans", None, &login).status, 200);
    }
    assert_eq!(users.asked.load(Ordering::Relaxed), 1);
    assert_eq!(api.send("DELETE", "/api/v1/users/absent", None, &login).status, 404);
    assert_eq!(users.asked.load(Ordering::Relaxed), 1, "nothing has changed");
    let json = ("Content-Type", "application/json".to_owned());
    let body = json!({ "password": "secret" }).to_string();
    assert_eq!(api.send("PUT", "/api/v1/users/eve", Some(&body), &[login[0].clone(), json]).status, 201);
    assert_eq!(api.send("GET", "/api/v1/bans", None, &login).status, 200);
    assert_eq!(users.asked.load(Ordering::Relaxed), 2);
    // As after other keys were fetched.
    api.api.forget_logins();
    assert_eq!(api.send("GET", "/api/v1/bans", None, &login).status, 200);
    assert_eq!(users.asked.load(Ordering::Relaxed), 3);
}

#[test]
fn wrong_credentials_of_a_user_are_limited_and_hinder_no_other() {
    let users = Arc::<TestUsers>::default();
    let api = TestApi::with(Setup { users: Some(users.clone()), ..Setup::default() });
    let ask = |user: &str, password: &str| api.send("GET", "/api/v1/bans", None, &[basic(user, password)]);
    let guess = |user: &str| {
        for number in 0..10 {
            assert_eq!(ask(user, &number.to_string()).status, 401, "{number}");
        }
        let answer = ask(user, "11");
        let wait: u64 = answer.header("retry-after").parse().unwrap();
        assert!((1..=60).contains(&wait), "{wait}");
        let detail = answer.refusal(429);
        assert!(detail.contains("wrong passwords of this user"), "{detail}");
    };
    guess("alice");
    assert_eq!(users.asked.load(Ordering::Relaxed), 10, "the last one was not verified");
    ask("alice", "right").refusal(429);
    assert_eq!(ask("bob", "right").status, 200, "another user of the address");
    // The right password is verified again after others were guessed.
    guess("bob");
    api.api.forget_logins();
    assert_eq!(ask("bob", "right").status, 200);
    assert_eq!(users.asked.load(Ordering::Relaxed), 22);
    // Not any more once it was wrong.
    users.former.lock().unwrap().push("bob");
    api.api.forget_logins();
    assert_eq!(ask("bob", "right").status, 401);
    api.api.forget_logins();
    ask("bob", "right").refusal(429);
    // Nor is an outage a wrong password.
    assert!((0..20).all(|_| ask("slow", "right").status == 503));
}

#[test]
fn wrong_credentials_of_an_address_are_limited_and_hinder_no_known_user() {
    let users = Arc::<TestUsers>::default();
    let api = TestApi::with(Setup { users: Some(users.clone()), ..Setup::default() });
    let ask = |login: (&'static str, String)| api.send("GET", "/api/v1/bans", None, &[login]);
    assert_eq!(ask(basic("bob", "right")).status, 200);
    // Those of a program that does not know of a change are verified once, and count once.
    for login in [bearer("wrong"), basic("dave", "wrong")] {
        assert!((0..200).all(|_| ask(login.clone()).status == 401), "{login:?}");
    }
    assert_eq!(users.asked.load(Ordering::Relaxed), 3);
    let guess = |number: u32| ask(basic(&number.to_string(), "wrong"));
    let permitted = (0..300).find(|number| guess(*number).status == 429).unwrap();
    // 98 of 100 are left, and others come with time.
    assert!((98..150).contains(&permitted), "{permitted}");
    let detail = guess(300).refusal(429);
    assert!(detail.contains("of several users"), "{detail}");
    for login in [basic("alice", "right"), bearer("token")] {
        ask(login).refusal(429);
    }
    api.api.forget_logins();
    for (password, expected) in [("right", 200), ("wrong", 401), ("also right", 200)] {
        assert_eq!(ask(basic("bob", password)).status, expected, "{password}");
    }
}

#[test]
fn wrong_credentials_that_come_at_once_are_limited_too() {
    let users = Arc::<TestUsers>::default();
    let api = TestApi::with(Setup { users: Some(users.clone()), ..Setup::default() });
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let login = |number: u32| {
            let (api, wrong) = (&api, [basic("alice", &number.to_string())]);
            scope.spawn(move || api.send("GET", "/api/v1/bans", None, &wrong).status)
        };
        let logins: Vec<_> = (0..40).map(login).collect();
        logins.into_iter().map(|login| login.join().unwrap()).collect()
    });
    assert_eq!(statuses.iter().filter(|status| **status == 401).count(), 10, "{statuses:?}");
    assert_eq!(users.asked.load(Ordering::Relaxed), 10);
}

#[test]
fn bans_reach_requests() {
    let api = TestApi::with(Setup { users: Some(Arc::default()), ..Setup::default() });
    let [alice, bob, carol] = ["alice", "bob", "carol"].map(|user| [basic(user, "right")]);
    let ban =
        |target: BanTarget| api.runtime.block_on(api.handle.ban(target, None, "secret reason")).unwrap();
    let network = |text: &str| BanTarget::Addresses(text.parse().unwrap());
    ban(BanTarget::Client("alice".into()));
    ban(network("192.0.2.0/24"));
    for login in [&alice, &bob, &carol] {
        assert_eq!(api.send("GET", "/api/v1/overview", None, login).status, 200, "others are banned");
    }
    let body = json!({ "user": "alice" }).to_string();
    let headers = [carol[0].clone(), ("Content-Type", "application/json".to_owned())];
    assert_eq!(api.send("POST", "/api/v1/bans", Some(&body), &headers).status, 201);
    for (method, path) in
        [("GET", "/api/v1/overview"), ("GET", "/metrics"), ("DELETE", "/api/v1/bans?user=alice")]
    {
        let detail = api.send(method, path, None, &alice).refusal(403);
        assert!(detail.contains("\"alice\" is banned") && !detail.contains("reason"), "{path}: {detail}");
    }
    assert_eq!(api.send("GET", "/api/v1/overview", None, &bob).status, 200);
    ban(network("127.0.0.0/8"));
    for login in [&bob[..], &carol, &[basic("bob", "wrong")], &[]] {
        let detail = api.send("GET", "/api/v1/overview", None, login).refusal(403);
        assert!(detail.contains("127.0.0.0/8 are banned"), "{detail}");
    }
    assert!(api.handle.unban(network("127.0.0.0/8")) && api.handle.unban(BanTarget::User("alice".into())));
    assert_eq!(api.send("GET", "/api/v1/overview", None, &alice).status, 200);
}

/// Seconds of the wall clock by which tokens end.
static WALL_CLOCK: AtomicU64 = AtomicU64::new(0);

#[test]
fn requests_and_event_streams_end_with_the_right_to_use_the_api() {
    let users = Arc::<TestUsers>::default();
    let wall_clock = || Duration::from_secs(WALL_CLOCK.load(Ordering::Relaxed));
    *users.token_ends.lock().unwrap() = Some(Expiry::new(Duration::from_secs(100), wall_clock));
    let rules = Arc::<TestRules>::default();
    let setup = Setup { users: Some(users.clone()), rules: rules.clone(), ..Setup::default() };
    let api = TestApi::with(setup);
    let [alice, bob, carol] = ["alice", "bob", "carol"].map(|user| [basic(user, "right")]);
    let token = [bearer("token")];
    let status = |login: &[(&str, String)]| api.send("GET", "/api/v1/bans", None, login).status;
    let all = [&alice, &bob, &carol, &token];
    let mut kept = api.events_of("events?kinds=connected", &bob);
    // As a reload does.
    let recheck = || {
        api.api.forget_logins();
        api.runtime.block_on(api.handle.recheck_clients());
    };
    let mut number = 0;
    // Each step: the login that it concerns, and the status of its requests from then on.
    let mut step = |change: &dyn Fn(), is_signalled: bool, login: &[(&str, String)], expected: u16| {
        assert!(all.iter().all(|login| status(&login[..]) == 200));
        let mut stream = api.events_of("events?kinds=connected", login);
        let began = Instant::now();
        change();
        assert_eq!((status(login), stream.next()), (expected, None), "{login:?}");
        assert!(!is_signalled || began.elapsed() < Duration::from_secs(2), "{login:?}");
        number += 1;
        let _client = api.tcp(&number.to_string());
        assert_eq!(kept.next().unwrap().1["client_id"], number.to_string(), "other streams go on");
    };
    step(&|| WALL_CLOCK.store(100, Ordering::Relaxed), false, &token, 401);
    WALL_CLOCK.store(0, Ordering::Relaxed);
    recheck();
    step(&|| users.revoked.lock().unwrap().push("alice"), false, &alice, 401);
    users.revoked.lock().unwrap().clear();
    recheck();
    let former = |user| {
        users.former.lock().unwrap().push(user);
        recheck();
    };
    step(&|| former("alice"), true, &alice, 401);
    users.former.lock().unwrap().clear();
    recheck();
    step(&|| former("carol"), true, &carol, 403);
    users.former.lock().unwrap().clear();
    recheck();
    let revoked = || {
        rules.0.lock().unwrap().push("carol");
        recheck();
    };
    step(&revoked, true, &carol, 401);
    rules.0.lock().unwrap().clear();
    recheck();
    let ban = || api.runtime.block_on(api.handle.ban(BanTarget::User("carol".into()), None, "")).unwrap();
    step(&ban, true, &carol, 403);
}

#[test]
fn live_views_end_with_the_user_too() {
    let api = TestApi::with(Setup { users: Some(Arc::default()), ..Setup::default() });
    let (_client, _messages) = api.tcp("client");
    let mut stream = api.events_of("clients/client/streams/live?interval_ms=250", &[basic("bob", "right")]);
    assert!(stream.next().is_some());
    api.runtime.block_on(api.handle.ban(BanTarget::User("bob".into()), None, "")).unwrap();
    while stream.next().is_some() {}
}

#[test]
fn without_authenticators_only_clients_of_this_machine_are_operators() {
    let api = TestApi::start();
    assert_eq!(api.put("POST", "bans", &json!({ "user": "mallory" })).status, 201);
    for header in [
        "Forwarded",
        "Via",
        "X-Forwarded-For",
        "X-Forwarded-Host",   // Apache
        "X-Forwarded-Server", // Traefik
        "X-Forwarded-Proto",  // Caddy
        "X-Forwarded-Anything",
        "X-Real-IP",
        "X-Envoy-Expected-Rq-Timeout-Ms",
        "X-Request-Id",
        "CF-Ray",
        "CDN-Loop",
        "X-Original-URI",
        "X-Amzn-Trace-Id",
        "True-Client-IP",
    ] {
        let answer = api.send("GET", "/api/v1/overview", None, &[(header, "for=192.0.2.1".to_owned())]);
        let detail = answer.refusal(401);
        let name = format!("({})", header.to_ascii_lowercase());
        assert!(detail.contains("[[authenticator]]") && detail.contains(&name), "{detail}");
    }
    for header in ["Accept", "User-Agent", "X-Requested-With", "Origin", "traceparent"] {
        let answer = api.send("GET", "/api/v1/overview", None, &[(header, "a".to_owned())]);
        assert_eq!(answer.status, 200, "{header}");
    }
    // nginx that was given `proxy_pass` only.
    let mut stream = TcpStream::connect(api.http).unwrap();
    write!(stream, "GET /api/v1/overview HTTP/1.0\r\nHost: {}\r\nConnection: close\r\n\r\n", api.http)
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.0 401 ") && answer.contains("(HTTP/1.0)"), "{answer}");
}

#[test]
fn without_anonymous_access_there_are_no_operators() {
    let api = TestApi::with(Setup { refuses_anonymous: Some("the reason"), ..Setup::default() });
    for path in ["/api/v1/overview", "/metrics", "/api/v1/events"] {
        let detail = api.ask("GET", path).refusal(401);
        assert!(detail.starts_with("the reason, and there are no users"), "{detail}");
    }
    assert_eq!(api.ask("GET", "/").status, 200);
}

/// The scope of a worker is the directory of its script.
#[test]
fn no_page_of_a_route_installs_a_worker_for_the_api() {
    let files = tempfile::tempdir().unwrap();
    std::fs::create_dir(files.path().join("sub")).unwrap();
    for name in ["worker.js", "sub/worker.js"] {
        std::fs::write(files.path().join(name), "0").unwrap();
    }
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = format!("http://{}", upstream.local_addr().unwrap()).parse().unwrap();
    let routes = vec![
        Route::new("/", RouteTarget::Directory(files.path().to_owned())),
        Route::new("/app", RouteTarget::Upstream(target)),
    ];
    let api = TestApi::with(Setup { routes, ..Setup::default() });
    let worker = [("Service-Worker", "script".to_owned())];
    // The second time it is in memory.
    for _ in 0..2 {
        assert_eq!(api.ask("GET", "/worker.js").status, 200);
        for path in ["/worker.js", "/app"] {
            let detail = api.send("GET", path, None, &worker).refusal(403);
            assert!(detail.contains("http.api.listen"), "{path}: {detail}");
        }
        assert_eq!(api.send("GET", "/sub/worker.js", None, &worker).status, 200);
    }
}

#[test]
fn requests_of_an_address_are_limited() {
    let api = TestApi::with(Setup { requests_per_sec: 1, ..Setup::default() });
    let mut statuses: Vec<_> = (0..10).map(|_| api.ask("GET", "/api/v1/listeners").status).collect();
    statuses.dedup();
    assert_eq!(statuses, [200], "ten at once");
    // A second brings another one; the requests above took less than that, or some of them more.
    let refused = (0..100).map(|_| api.ask("GET", "/api/v1/listeners")).find(|answer| answer.status == 429);
    let refused = refused.unwrap();
    refused.refusal(429);
    assert!(refused.header("retry-after").parse::<u64>().unwrap() >= 1);
    assert_eq!(api.ask("GET", "/").status, 200, "pages are not");
}

#[test]
fn a_query_costs_what_it_visits() {
    let api = TestApi::with(Setup { requests_per_sec: 1, ..Setup::default() });
    let retain = async {
        for number in 0..6000 {
            let topic = TopicName::parse(&format!("t/{number}/a")).unwrap();
            let message = Message::new(topic, "x", QoS::AtMostOnce, true);
            api.handle.publish_durably(message).await.unwrap();
        }
    };
    api.runtime.block_on(retain);
    // Ten at once; each of these visits 4,096 topics, for the price of two more.
    let statuses: Vec<_> =
        (0..6).map(|_| api.ask("GET", "/api/v1/retained?filter=%2B%2F%2B%2Fx").status).collect();
    assert_eq!((statuses[0], statuses[1], statuses[5]), (200, 200, 429), "{statuses:?}");
    let refused = api.ask("GET", "/api/v1/listeners");
    refused.refusal(429);
    assert!(refused.header("retry-after").parse::<u64>().unwrap() >= 1);
}

#[test]
fn the_broker_is_let_go_when_it_has_ended() {
    let mut api = TestApi::start();
    let mut stream = api.events("events");
    let other = braid_http::Api::clone(&api.api);
    api.runtime.block_on(other.ended());
    assert_eq!(stream.next(), None, "event streams end with the broker");
    api.ask("GET", "/api/v1/overview").refusal(503);
    api.ask("GET", "/metrics").refusal(503);
    // Does not wait for event streams.
    let began = Instant::now();
    api.server.take().unwrap().stop();
    assert!(began.elapsed().as_secs() < 20);
}
