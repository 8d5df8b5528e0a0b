//! Users, roles and rates.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use braid_proto::message::Message;
use braid_proto::packet::QoS;
use braid_proto::topic::TopicName;
use serde_json::json;

use super::support::{Setup, TestApi, TestUsers, basic};

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
}

#[test]
fn wrong_credentials_are_limited_and_right_ones_are_not() {
    let users = Arc::<TestUsers>::default();
    let api = TestApi::with(Setup { users: Some(users.clone()), ..Setup::default() });
    let right = [basic("alice", "right")];
    assert_eq!(api.send("GET", "/api/v1/bans", None, &right).status, 200);
    for number in 0..10 {
        let wrong = [basic("alice", &number.to_string())];
        assert_eq!(api.send("GET", "/api/v1/bans", None, &wrong).status, 401, "{number}");
    }
    let answer = api.send("GET", "/api/v1/bans", None, &[basic("alice", "11")]);
    answer.refusal(429);
    let wait: u64 = answer.header("retry-after").parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    assert_eq!(users.asked.load(Ordering::Relaxed), 11, "the last one was not verified");
    assert_eq!(api.send("GET", "/api/v1/bans", None, &right).status, 200, "remembered");
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
fn without_authenticators_only_clients_of_this_machine_are_operators() {
    let api = TestApi::start();
    assert_eq!(api.put("POST", "bans", &json!({ "user": "mallory" })).status, 201);
    for header in ["Forwarded", "X-Forwarded-For", "Via"] {
        let answer = api.send("GET", "/api/v1/overview", None, &[(header, "for=192.0.2.1".to_owned())]);
        assert!(answer.refusal(401).contains("[[authenticator]]"), "{header}");
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
            let message = Message::new(topic, "x".into(), QoS::AtMostOnce, true);
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
    let began = std::time::Instant::now();
    api.server.take().unwrap().stop();
    assert!(began.elapsed().as_secs() < 20);
}
