//! Overview, listeners, and what the process does.

use std::sync::atomic::Ordering;

use braid_client::{Publication, QoS, Subscribe};
use braid_http::{AutoQuic, AutoQuicMode};
use serde_json::{Value, json};

use super::support::{Setup, TestApi};

#[test]
fn the_overview_counts() {
    let api = TestApi::start();
    let (client, mut messages) = api.tcp("client");
    let (_other, _more) = api.quic("other");
    api.runtime.block_on(async {
        client.subscribe(Subscribe::to("a").unwrap()).await.unwrap();
        let message = Publication::to("a", "x").unwrap().qos(QoS::AtLeastOnce).retain(true);
        client.publish(message).await.unwrap();
        messages.recv().await.unwrap();
    });
    let overview = api.get("overview");
    assert_eq!((&overview["status"], &overview["reasons"]), (&json!("serving"), &json!([])));
    assert_eq!(
        overview["connections"],
        json!({ "tcp": 1, "tls": 0, "ws": 0, "wss": 0, "quic": 1, "total": 2 })
    );
    assert_eq!((&overview["sessions"], &overview["subscriptions"]), (&json!(2), &json!(1)));
    assert_eq!(
        (&overview["totals"]["messages_in"], &overview["totals"]["messages_out"]),
        (&json!(1), &json!(1))
    );
    assert_eq!(overview["retained"]["count"], 1);
    assert!(overview["retained"]["bytes"].as_u64() > Some(0));
    assert_eq!((&overview["totals"]["connects"], &overview["totals"]["refused"]), (&json!(2), &json!(0)));
    assert_eq!(overview["rates"]["messages_in_per_sec"], Value::Null, "nothing was sampled before");
    assert_eq!(
        (&overview["memory"]["low_bytes"], &overview["memory"]["high_bytes"]),
        (&json!(1000), &json!(2000))
    );
    assert_eq!((&overview["store"]["state"], &overview["spool"]["state"]), (&json!("ok"), &json!("ok")));
    assert_eq!((&overview["quic"]["state"], &overview["quic"]["handshakes"]), (&json!("ok"), &json!(1)));
    let listeners = api.get("listeners");
    let [tcp, quic, websocket, http] = &listeners["items"].as_array().unwrap()[..] else {
        panic!("{listeners}")
    };
    assert_eq!(
        (&tcp["name"], &tcp["transport"], &tcp["connections"]),
        (&json!("tcp"), &json!("tcp"), &json!(1))
    );
    assert_eq!(tcp["address"], api.tcp.to_string());
    assert_eq!((&websocket["transport"], &websocket["address"]), (&json!("ws"), &Value::Null));
    assert_eq!((&http["transport"], &http["address"]), (&json!("http"), &json!(api.http.to_string())));
    assert!(http["connections"].as_u64() >= Some(1) && http["accepted"].as_u64() >= Some(2), "{http}");
    assert_eq!((&http["available"], &http["restarts"]), (&json!(true), &json!(0)));
    assert_eq!(
        (&quic["transport"], &quic["available"], &quic["restarts"]),
        (&json!("quic"), &json!(true), &json!(0))
    );
}

#[test]
fn the_automatic_upgrade_shows_its_mode_and_nothing_of_unknown_networks() {
    let api = TestApi::start();
    assert_eq!(api.get("autoquic"), json!({ "mode": "off", "known": 0, "changes": [] }));
    assert_eq!(api.get("autoquic/networks"), json!({ "items": [], "cursor": null, "total": 0 }));
    assert_eq!(api.ask("GET", "/api/v1/autoquic/192.0.2.1").status, 409);
    let autoquic = Some(AutoQuic::new(AutoQuicMode::AutoquicCompat, None, 1));
    let api = TestApi::with(Setup { autoquic, ..Setup::default() });
    assert_eq!(api.get("autoquic")["mode"], "autoquic-compat");
    for (address, expected) in [("192.0.2.1", 404), ("2001:db8::1", 404), ("localhost", 400)] {
        assert_eq!(api.ask("GET", &format!("/api/v1/autoquic/{address}")).status, expected, "{address}");
    }
}

#[test]
fn a_stopping_broker_says_so() {
    let api = TestApi::start();
    api.handle.stop();
    assert_eq!(api.get("overview")["status"], "stopping");
    assert!(
        api.put("POST", "publish", &json!({ "topic": "a", "payload": "" })).refusal(503).contains("stopping")
    );
}

#[test]
fn users_rules_configuration_and_reload_are_those_of_the_process() {
    let api = TestApi::start();
    assert_eq!(api.put("PUT", "users/e%20v%2Fe", &json!({ "password": "secret" })).status, 201);
    assert_eq!(api.put("PUT", "users/e%20v%2Fe", &json!({ "password": "other" })).status, 204);
    let users = api.ask("GET", "/api/v1/users");
    let [alice, eve] = ["alice", "e v/e"].map(|name| json!({ "name": name, "hash_kind": "argon2id" }));
    assert_eq!(users.json(), json!({ "items": [alice, eve], "cursor": null, "total": 2 }));
    assert_eq!(api.control.users.lock().unwrap().last().unwrap().1, "other");
    assert_eq!(api.ask("DELETE", "/api/v1/users/e%20v%2Fe").status, 204);

    assert_eq!(api.put("PUT", "rules", &json!({ "text": "allow" })).status, 204);
    assert_eq!(api.get("rules"), json!({ "file": "/etc/acl", "format": "braidmq", "text": "allow" }));
    let question = json!({ "user": "alice", "client": "c", "action": "publish", "topic": "a" });
    let answer = api.put("POST", "rules/test", &question);
    assert_eq!(answer.json(), json!({ "allowed": true, "line": 1, "rule": "allow" }));

    let alarm = json!({ "filter": "alarm/#", "priority": 200 });
    assert_eq!(api.get("priorities"), json!({ "items": [alarm], "cursor": null, "total": 1 }));
    assert_eq!(api.get("config"), json!({ "limits": { "connections": 5 } }));
    assert_eq!(api.ask("POST", "/api/v1/reload").json(), json!({ "reloaded": ["users"] }));
    assert!(api.ask("POST", "/api/v1/reload").refusal(422).contains("/etc/users:3"));
    assert_eq!(api.control.reloads.load(Ordering::Relaxed), 2);
}
