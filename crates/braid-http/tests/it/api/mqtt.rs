//! MQTT over WebSocket at the address of the front.

use braid_broker::LimitsConfig;
use braid_client::{Client, Publication, QoS, Subscribe};
use braid_http::Limits;
use serde_json::json;

use super::support::{Setup, TestApi};

const UPGRADE: [(&str, &str); 5] = [
    ("Connection", "close, Upgrade"),
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ("Sec-WebSocket-Protocol", "mqtt"),
];

#[test]
fn a_client_connects_through_the_front() {
    let api = TestApi::start();
    let connecting = Client::builder(&format!("ws://{}/mqtt", api.http)).client_id("page").connect();
    let (client, mut messages) = api.runtime.block_on(connecting).unwrap();
    api.runtime.block_on(async {
        client.subscribe(Subscribe::to("a").unwrap()).await.unwrap();
        let large = vec![7; 300_000];
        client.publish(Publication::to("a", large.clone()).unwrap().qos(QoS::AtLeastOnce)).await.unwrap();
        assert_eq!(messages.recv().await.unwrap().message.payload, large);
    });
    let shown = api.get("clients/page");
    assert_eq!((&shown["transport"], &shown["connected"]), (&json!("ws"), &json!(true)));
    assert!(shown["address"].as_str().unwrap().starts_with("127.0.0.1:"));
    assert_eq!(api.get("overview")["connections"]["ws"], 1);
    let mut events = api.events("events?kinds=disconnected");
    api.runtime.block_on(client.disconnect()).unwrap();
    assert_eq!(events.next().unwrap().1["client_id"], "page");
}

/// Limits of the broker hold for them instead.
#[test]
fn upgraded_connections_are_none_of_the_front() {
    let http = Limits { connections_per_address: 2, ..Limits::default() };
    let limits = LimitsConfig { connections: 5, ..LimitsConfig::default() };
    let api = TestApi::with(Setup { http, limits, ..Setup::default() });
    let url = format!("ws://{}/mqtt", api.http);
    let connect = |number: u32| {
        api.runtime.block_on(Client::builder(&url).client_id(&format!("page{number}")).connect())
    };
    let _clients: Vec<_> = (0..5).map(|number| connect(number).unwrap()).collect();
    assert!(connect(5).is_err(), "the broker has five");
    // Requests that are in flight count on.
    let streams: Vec<_> = (0..2).map(|_| api.events("events")).collect();
    assert_eq!(api.try_ask("GET", "/api/v1/overview"), None, "the front has two");
    drop(streams);
}

#[test]
fn other_upgrades_are_refused() {
    let api = TestApi::start();
    let with = |name: &'static str, value: Option<&str>| -> Vec<(&str, String)> {
        let kept = UPGRADE.iter().filter(|(other, _)| *other != name);
        let headers = kept.map(|(name, value)| (*name, (*value).to_owned()));
        headers.chain(value.map(|value| (name, value.to_owned()))).collect()
    };
    for (name, value, status) in [
        ("Origin", Some("http://evil.example"), 403),
        ("Upgrade", None, 400),
        ("Upgrade", Some("h2c"), 400),
        ("Sec-WebSocket-Version", Some("8"), 400),
        ("Sec-WebSocket-Key", None, 400),
        ("Sec-WebSocket-Protocol", None, 400),
        ("Sec-WebSocket-Protocol", Some("amqp"), 400),
    ] {
        let answer = api.send("GET", "/mqtt", None, &with(name, value));
        assert!(!answer.refusal(status).is_empty(), "{name} {value:?}");
    }
    api.ask("POST", "/mqtt").refusal(405);
}

/// A client that another program on this machine speaks for is none of this machine: it may not connect without a user.
#[test]
fn a_client_behind_a_proxy_is_not_local() {
    let api = TestApi::start();
    let connect = b"\x82\x8f\0\0\0\0\x10\x0d\0\x04MQTT\x05\x02\0\0\0\0\0".as_slice();
    for (forwarded, code) in [(None, 0), (Some("X-Forwarded-For"), 0x87), (Some("X-Real-IP"), 0x87)] {
        let mut headers: Vec<_> = UPGRADE.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        headers[0].1 = "Upgrade".to_owned();
        headers.extend(forwarded.map(|name| (name, "192.0.2.1".to_owned())));
        let connack = api.upgraded("/mqtt", &headers, connect);
        // A frame with a CONNACK: its fourth byte is the Reason Code.
        assert_eq!((connack[0], connack[2], connack[5]), (0x82, 0x20, code), "{forwarded:?} {connack:x?}");
    }
}
