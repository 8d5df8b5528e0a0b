//! Events as they happen.

use braid_client::Subscribe;
use serde_json::{Value, json};

use super::support::{Setup, TestApi};

#[test]
fn events_of_clients_arrive() {
    let api = TestApi::start();
    let mut all = api.events("events");
    let mut few = api.events("events?kinds=subscribed,expired");
    let (client, _messages) = api.quic("client");
    api.runtime.block_on(async {
        client.subscribe(Subscribe::to("a/#").unwrap()).await.unwrap();
        client.unsubscribe(["a/#"]).await.unwrap();
        client.disconnect().await.unwrap();
    });
    let (kind, data) = all.next().unwrap();
    assert_eq!(
        (kind.as_str(), &data["client_id"], &data["transport"]),
        ("connected", &json!("client"), &json!("quic"))
    );
    assert!(
        data["at"].as_f64().unwrap() > 1.6e9 && data["address"].as_str().unwrap().starts_with("127.0.0.1:")
    );
    assert!(data.get("mountpoint").is_none() && data.get("cause").is_none());
    for (expected, filters) in [("subscribed", json!(["a/#"])), ("unsubscribed", json!(["a/#"]))] {
        let (kind, data) = all.next().unwrap();
        assert_eq!((kind.as_str(), &data["filters"]), (expected, &filters));
    }
    let (kind, data) = all.next().unwrap();
    assert_eq!(kind, "disconnected");
    assert!(data["cause"].as_str().unwrap().contains("the peer disconnected"), "{data}");
    // Without Session Expiry Interval the session ends with its connection, and never expires.
    assert_eq!(few.next().unwrap().0, "subscribed");
}

#[test]
fn refusals_and_bans_arrive() {
    let api = TestApi::start();
    let mut events = api.events("events?kinds=banned,disconnected");
    let (_client, _messages) = api.tcp("mallory");
    let ban = json!({ "client": "mallory", "secs": 100, "reason": "test" });
    let answer = api.put("POST", "bans", &ban);
    let told = answer.json();
    assert_eq!(
        (answer.status, &told["client"], &told["user"], &told["flapping"]),
        (201, &json!("mallory"), &json!(null), &json!(false))
    );
    let listed = api.get("bans");
    assert_eq!((&listed["total"], &listed["items"][0]["reason"]), (&json!(1), &json!("test")));
    let left = listed["items"][0]["expires_at"].as_f64().unwrap() - told["expires_at"].as_f64().unwrap();
    assert!(left.abs() < 5.0, "{left}");
    let mut kinds = [events.next().unwrap(), events.next().unwrap()];
    kinds.sort_by(|one, other| one.0.cmp(&other.0));
    assert_eq!([&*kinds[0].0, &*kinds[1].0], ["banned", "disconnected"]);
    assert_eq!(kinds[0].1["client_id"], "mallory");
    assert!(kinds[0].1["action"] == "banned" && !kinds[0].1["cause"].as_str().unwrap().is_empty());
    assert_eq!(api.ask("DELETE", "/api/v1/bans?client=mallory").status, 204);
    assert_eq!(api.get("bans")["items"], json!([]));
}

#[test]
fn bans_of_each_kind_are_paged() {
    let api = TestApi::start();
    for ban in [
        json!({ "addresses": "192.0.2.0/24" }),
        json!({ "addresses": "2001:db8::1" }),
        json!({ "user": "eve" }),
        json!({ "client": "c", "mountpoint": "t1/" }),
    ] {
        assert_eq!(api.put("POST", "bans", &ban).status, 201, "{ban}");
    }
    let first = api.get("bans?limit=3");
    assert_eq!(first["total"], 4);
    let cursor = first["cursor"].as_str().unwrap();
    let second = api.get(&format!("bans?limit=3&cursor={cursor}"));
    let items: Vec<_> = [&first, &second].iter().flat_map(|page| page["items"].as_array().unwrap()).collect();
    let of = |name: &str| -> Vec<_> { items.iter().filter_map(|item| item[name].as_str()).collect() };
    assert_eq!(of("addresses"), ["192.0.2.0/24", "2001:db8::1/128"]);
    assert_eq!((of("user"), of("client"), of("mountpoint")), (vec!["eve"], vec!["c"], vec!["t1/"]));
    assert!(items.iter().all(|item| item["expires_at"].is_null()));
    for query in ["addresses=192.0.2.0/24", "addresses=2001:db8::1", "user=eve", "client=c&mountpoint=t1/"] {
        assert_eq!(api.ask("DELETE", &format!("/api/v1/bans?{query}")).status, 204, "{query}");
    }
    assert_eq!(api.get("bans")["total"], 0);
}

#[test]
fn pages_of_bans_skip_and_repeat_none_while_others_come_and_go() {
    let api = TestApi::start();
    let ban = |user: &str| {
        assert_eq!(api.put("POST", "bans", &json!({ "user": user })).status, 201);
    };
    let lift = |user: &str| {
        assert_eq!(api.ask("DELETE", &format!("/api/v1/bans?user={user}")).status, 204);
    };
    let page = |cursor: &Value| {
        let page = api.get(&format!("bans?limit=2&cursor={}", cursor.as_str().unwrap()));
        let users: Vec<_> = page["items"].as_array().unwrap().iter().map(|ban| ban["user"].clone()).collect();
        (users, page["cursor"].clone())
    };
    ["b", "c", "d", "e"].into_iter().for_each(ban);
    let cursor = api.get("bans?limit=2")["cursor"].clone();
    lift("b");
    lift("c");
    let behind = page(&cursor);
    assert_eq!((behind.0, behind.1), (vec![json!("d"), json!("e")], Value::Null));
    ["a", "c"].into_iter().for_each(ban);
    assert_eq!(page(&cursor).0, [json!("d"), json!("e")]);
    ban("f");
    let (users, next) = page(&cursor);
    assert_eq!((users, page(&next)), (vec![json!("d"), json!("e")], (vec![json!("f")], Value::Null)));
}

#[test]
fn event_streams_are_limited() {
    let api = TestApi::with(Setup { event_streams: 2, ..Setup::default() });
    let (_client, _messages) = api.tcp("client");
    let _streams = [api.events("events"), api.events("clients/client/streams/live")];
    let answer = api.ask("GET", "/api/v1/events");
    assert!(answer.refusal(429).contains("http.api.event_streams permits"));
    assert!(!answer.header("retry-after").is_empty());

    let api = TestApi::start();
    let streams: Vec<_> = (0..3).map(|_| api.events("events")).collect();
    let answer = api.ask("GET", "/api/v1/events");
    assert!(answer.refusal(429).contains("http.api.event_streams_per_client permits"));
    drop(streams);
}
