//! Publishing, retained messages, topics, and bad input.

use braid_broker::LimitsConfig;
use braid_client::{Publication, Subscribe};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::support::{Setup, TestApi};

const OK: StatusCode = StatusCode::OK;

#[test]
fn a_message_reaches_subscribers_with_its_properties() {
    let api = TestApi::start();
    let (client, mut messages) = api.tcp("client");
    api.runtime.block_on(client.subscribe(Subscribe::to("a/#").unwrap())).unwrap();
    let body = json!({ "topic": "a/b", "payload": "AAH/", "encoding": "base64", "qos": 1, "properties": {
        "content_type": "text", "response_topic": "r", "correlation_data": "AQ==", "message_expiry_secs": 60,
        "user_properties": [["k", "1"], ["k", "2"]] } });
    let answer = api.put("POST", "publish", &body);
    assert_eq!((answer.status, answer.json()), (200, json!({ "matched": 1 })), "{}", answer.body);
    let message = api.runtime.block_on(messages.recv()).unwrap().message;
    assert_eq!((message.topic.as_str(), &message.payload[..]), ("a/b", &[0, 1, 255][..]));
    let properties = message.properties.as_ref().unwrap();
    assert_eq!((properties.content_type.as_deref(), properties.message_expiry), (Some("text"), Some(60)));
    assert_eq!(properties.response_topic.as_ref().unwrap().as_str(), "r");
    assert_eq!(properties.correlation_data.as_deref(), Some(&[1][..]));
    assert_eq!(properties.user.iter().collect::<Vec<_>>(), [("k", "1"), ("k", "2")]);
    let answer = api.put("POST", "publish", &json!({ "topic": "nowhere", "payload": "x" }));
    assert_eq!(answer.json(), json!({ "matched": 0 }));
}

#[test]
fn a_message_without_room_to_be_retained_is_delivered_and_the_refusal_says_so() {
    let limits = LimitsConfig { retained_messages: 1, ..LimitsConfig::default() };
    let api = TestApi::with(Setup { limits, ..Setup::default() });
    let (client, mut messages) = api.tcp("client");
    api.runtime.block_on(client.subscribe(Subscribe::to("#").unwrap())).unwrap();
    let message = |topic: &str| json!({ "topic": topic, "payload": "x", "qos": 1, "retain": true });
    assert_eq!(api.put("POST", "publish", &message("a")).status, 200);
    let told = api.put("POST", "publish", &message("b")).refusal(507);
    let expected = "the message was delivered (to 1 sessions), but it is not retained: limits.";
    assert!(told.starts_with(expected), "{told}");
    let received = api.runtime.block_on(async { [messages.recv().await, messages.recv().await] });
    let topics = received.map(|message| message.unwrap().message.topic.as_str().to_owned());
    assert_eq!(topics, ["a", "b"]);
    api.ask("GET", "/api/v1/retained/b").refusal(404);
}

#[test]
fn retained_messages_are_listed_shown_and_deleted() {
    let api = TestApi::start();
    for (topic, payload, encoding) in
        [("a/b", "text", "plain"), ("a/c", "/w==", "base64"), ("d", "x", "plain")]
    {
        let body =
            json!({ "topic": topic, "payload": payload, "encoding": encoding, "retain": true, "qos": 1 });
        assert_eq!(api.put("POST", "publish", &body).status, 200);
    }
    let topics = |page: &Value| -> Vec<String> {
        page["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["topic"].as_str().unwrap().to_owned())
            .collect()
    };
    let first = api.get("retained?limit=2");
    assert_eq!((topics(&first), &first["total"]), (vec!["a/b".to_owned(), "a/c".to_owned()], &json!(3)));
    let cursor = first["cursor"].as_str().unwrap();
    assert_eq!(topics(&api.get(&format!("retained?limit=2&cursor={cursor}"))), ["d"]);
    assert_eq!(topics(&api.get("retained?filter=a%2F%2B")), ["a/b", "a/c"]);
    let shown = api.get("retained/a%2Fb");
    assert_eq!((&shown["payload"], &shown["payload_text"]), (&json!("dGV4dA=="), &json!("text")));
    assert_eq!(
        (&shown["qos"], &shown["size_bytes"], &shown["expires_secs"]),
        (&json!(1), &json!(4), &Value::Null)
    );
    assert!(shown["age_secs"].as_f64().unwrap() < 60.0);
    let shown = api.get("retained/a%2Fc");
    assert_eq!((&shown["payload"], &shown["payload_text"]), (&json!("/w=="), &Value::Null));

    let levels = api.get("topics");
    assert_eq!(levels["truncated"], false);
    let [a, d] = &levels["levels"].as_array().unwrap()[..] else { panic!("{levels}") };
    assert_eq!(
        (&a["name"], &a["messages"], &a["retained"], &a["children"], &a["last"]),
        (&json!("a"), &json!(0), &json!(2), &json!(2), &Value::Null)
    );
    assert_eq!((&d["topic"], &d["children"], &d["last"]["text"]), (&json!("d"), &json!(0), &json!("x")));
    let below = api.get("topics?prefix=a");
    let names: Vec<_> =
        below["levels"].as_array().unwrap().iter().map(|level| level["topic"].as_str().unwrap()).collect();
    assert_eq!(names, ["a/b", "a/c"]);
    assert_eq!(api.get("topics?prefix=a%2Fb")["levels"], json!([]));

    // The first level of this topic is empty.
    let slash = json!({ "topic": "/x/y", "payload": "z", "retain": true });
    assert_eq!(api.put("POST", "publish", &slash).status, 200);
    let topics_of = |path: &str| -> Vec<Value> {
        let found = api.get(path);
        found["levels"].as_array().unwrap().iter().map(|level| level["topic"].clone()).collect()
    };
    assert_eq!(topics_of("topics"), ["", "a", "d"]);
    assert_eq!(topics_of("topics?prefix="), ["/x"]);
    assert_eq!(topics_of("topics?prefix=%2Fx"), ["/x/y"]);
    assert_eq!(api.ask("DELETE", "/api/v1/retained/%2Fx%2Fy").status, 204);

    assert_eq!(api.ask("DELETE", "/api/v1/retained/a%2Fb").status, 204);
    api.ask("DELETE", "/api/v1/retained/a%2Fb").refusal(404);
    api.ask("GET", "/api/v1/retained/a%2Fb").refusal(404);
    let empty = json!({ "topic": "d", "payload": "", "retain": true });
    assert_eq!(api.put("POST", "publish", &empty).status, 200);
    assert_eq!(topics(&api.get("retained")), ["a/c"]);
}

/// Without a question for topics the broker records no message; from the first one on it does.
#[test]
fn topics_show_the_last_messages_since_the_first_question() {
    let api = TestApi::start();
    let publish = |topic: &str, payload: &str, encoding: &str, retain: bool| {
        let body =
            json!({ "topic": topic, "payload": payload, "encoding": encoding, "retain": retain, "qos": 1 });
        assert_eq!(api.put("POST", "publish", &body).status, 200);
    };
    publish("a/b", "before", "plain", false);
    publish("a/kept", "retained", "plain", true);
    publish("a/again", "retained", "plain", true);
    assert!(!api.handle.is_tapped(), "no client has asked");
    let first = api.get("topics");
    assert!(api.handle.is_tapped());
    let [a] = &first["levels"].as_array().unwrap()[..] else { panic!("{first}") };
    assert_eq!((&a["messages"], &a["retained"], &first["missed"]), (&json!(0), &json!(2), &json!(0)));

    let (client, _messages) = api.tcp("client");
    let mqtt = Publication::to("a/b", "21.5").unwrap().qos(braid_client::QoS::AtLeastOnce);
    api.runtime.block_on(client.publish(mqtt)).unwrap();
    let hidden = Publication::to("$other/x", "hidden").unwrap().qos(braid_client::QoS::AtLeastOnce);
    api.runtime.block_on(client.publish(hidden)).unwrap();
    publish("a/b/c", "/w==", "base64", false);
    publish("a/again", "later", "plain", false);
    publish("a/long", &"x".repeat(5000), "plain", false);
    publish("a", "own", "plain", false);
    publish("a/b", "last", "plain", false);
    let second = api.get("topics");
    // Two clocks are read for it.
    let moved = (second["since"].as_f64().unwrap() - first["since"].as_f64().unwrap()).abs();
    assert!(moved < 0.01, "{moved} s: it is the record of the first question");
    let [a] = &second["levels"].as_array().unwrap()[..] else { panic!("{second}") };
    assert_eq!(
        (&a["messages"], &a["retained"], &a["children"], &a["last"]["text"]),
        (&json!(6), &json!(2), &json!(4), &json!("own"))
    );
    let hidden = &api.get("topics?prefix=%24other")["levels"];
    assert_eq!(hidden[0]["last"]["text"], "hidden", "wildcards in the first level do not match it");
    let levels = api.get("topics?prefix=a")["levels"].clone();
    let found: Vec<_> = levels
        .as_array()
        .unwrap()
        .iter()
        .map(|level| {
            let last = &level["last"];
            let text = last["text"].as_str().map_or(0, str::len);
            let number = |value: &Value| value.as_u64().unwrap();
            (
                level["topic"].as_str().unwrap(),
                [&level["messages"], &level["retained"], &level["children"]].map(number),
                (number(&last["size_bytes"]), number(&last["qos"]), text),
            )
        })
        .collect();
    assert_eq!(
        found,
        [
            ("a/again", [1, 1, 0], (5, 1, 5)),
            ("a/b", [3, 0, 1], (4, 1, 4)),
            ("a/kept", [0, 1, 0], (8, 1, 8)),
            ("a/long", [1, 0, 0], (5000, 1, 4096)),
        ]
    );
    let binary = &api.get("topics?prefix=a%2Fb")["levels"][0];
    assert_eq!((&binary["topic"], &binary["last"]["size_bytes"]), (&json!("a/b/c"), &json!(1)));
    assert!(binary["last"]["text"].is_null() && binary["last"]["at"].as_f64() >= first["since"].as_f64());
    api.runtime.block_on(api.api.ended());
    assert!(!api.handle.is_tapped(), "the API lets go of the broker");
}

#[test]
fn recorded_topics_count_as_requests() {
    let api = TestApi::with(Setup { requests_per_sec: 1, ..Setup::default() });
    api.get("topics");
    let (client, _messages) = api.tcp("client");
    // One request costs as much as 2,000 topics.
    for number in 0..4999 {
        let message = Publication::to(&format!("a/{number}"), "x").unwrap();
        api.runtime.block_on(client.publish(message)).unwrap();
    }
    let last = Publication::to("a/last", "x").unwrap().qos(braid_client::QoS::AtLeastOnce);
    api.runtime.block_on(client.publish(last)).unwrap();
    let answered = (0..10).take_while(|_| api.ask("GET", "/api/v1/topics").status == 200).count();
    // Ten at once, one of which is taken, and one a second.
    assert!((2..6).contains(&answered), "{answered}");
}

/// Sends `GET` for a path over HTTP/2 without reading more of the body than the window of the client.
async fn ask_unread(send: &mut http2::SendRequest<Empty<Bytes>>, path: &str) -> Response<Incoming> {
    send.ready().await.unwrap();
    let uri = format!("http://localhost/api/v1/{path}");
    send.send_request(Request::get(uri).body(Empty::new()).unwrap()).await.unwrap()
}

#[test]
fn answers_that_are_not_read_are_limited() {
    let api = TestApi::start();
    let (client, _messages) = api.tcp("client");
    // 6 MiB of JSON as text, and 1.4 MiB as base64.
    let payload = vec![1; 1 << 20];
    let message = Publication::to("large", payload).unwrap().retain(true).qos(braid_client::QoS::AtLeastOnce);
    api.runtime.block_on(client.publish(message)).unwrap();
    api.runtime.block_on(async {
        let stream = TokioIo::new(TcpStream::connect(api.http).await.unwrap());
        let builder = http2::Builder::new(TokioExecutor::new());
        let (mut send, connection) = builder.handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let mut unread = Vec::new();
        for _ in 0..2 {
            unread.push(ask_unread(&mut send, "retained/large").await);
        }
        let refused = ask_unread(&mut send, "retained/large").await;
        assert_eq!((unread[0].status(), unread[1].status(), refused.status().as_u16()), (OK, OK, 503));
        assert_eq!(ask_unread(&mut send, "overview").await.status(), OK, "small answers are not counted");
        let read = unread.remove(0).into_body().collect().await.unwrap().to_bytes();
        assert!(read.len() > 7 << 20, "{}", read.len());
        assert_eq!(ask_unread(&mut send, "retained/large").await.status(), OK);
    });
}

#[test]
fn a_payload_of_an_mqtt_client_is_shown() {
    let api = TestApi::start();
    let (client, _messages) = api.tcp("client");
    let message = Publication::to("t", "21.5").unwrap().retain(true).qos(braid_client::QoS::AtLeastOnce);
    api.runtime.block_on(client.publish(message)).unwrap();
    assert_eq!(api.get("retained/t")["payload_text"], "21.5");
}

#[test]
fn bad_queries_and_paths_are_refused() {
    let api = TestApi::start();
    for (method, path, status, detail) in [
        ("GET", "overview?x=1", 400, "there is no parameter `x`"),
        ("GET", "clients?limt=1", 400, "there is no parameter `limt`"),
        ("GET", "clients?limit=0", 400, "limit: 0 is out of range"),
        ("GET", "clients?limit=1001", 400, "limit: 1001 is out of range"),
        ("GET", "clients?limit=-1", 400, "limit: write a whole number"),
        ("GET", "clients?limit=1&limit=2", 400, "the parameter `limit` is there twice"),
        ("GET", "clients?cursor=x", 400, "cursor:"),
        ("GET", "clients?cursor=WyJhIl0", 400, "cursor:"),
        ("GET", "bans?cursor=Mw", 400, "cursor:"),
        ("GET", "users?limit=0", 400, "limit: 0 is out of range"),
        ("GET", "priorities?cursor=x", 400, "cursor:"),
        ("GET", "listeners?limt=1", 400, "there is no parameter `limt`"),
        ("GET", "autoquic/networks?limit=1001", 400, "limit: 1001 is out of range"),
        ("GET", "clients?connected=yes", 400, "connected: write true or false"),
        ("GET", "clients?address=here", 400, "address: write an IP address"),
        ("GET", "clients?transport=sctp", 400, "transport: write tcp"),
        ("GET", "clients?sort=age", 400, "sort: write queued"),
        ("GET", "clients?sort=queued&cursor=WzEsbnVsbF0", 400, "cursor: the clients with most"),
        ("GET", "clients/%FF", 400, "percent-encoded UTF-8"),
        ("GET", "clients/absent", 404, "the client has no session"),
        ("GET", "clients/absent?session=true", 400, "there is no parameter `session`"),
        ("DELETE", "clients/absent", 404, "the client has no session"),
        ("DELETE", "clients/absent?session=1", 400, "session: write true or false"),
        ("GET", "clients/absent/streams/live?interval_ms=1", 400, "interval_ms: 1 is out of range"),
        ("GET", "clients/absent/streams/live", 404, "the client has no session"),
        ("GET", "subscriptions?filter=a%2F%23%2Fb", 400, "filter:"),
        ("GET", "subscriptions?topic=%2B", 400, "topic:"),
        ("GET", "subscriptions?mountpoint=x", 400, "mountpoint: name the client"),
        ("GET", "subscriptions?cursor=WzEsWyIiLDAsZmFsc2VdXQ", 400, "cursor: its filter"),
        ("GET", "retained?filter=", 400, "filter:"),
        ("GET", "retained/%2B", 400, "topic:"),
        ("GET", "retained/nothing", 404, "nothing is retained"),
        ("GET", "topics?prefix=%23", 400, "prefix:"),
        ("GET", "events?kinds=connected,nonsense", 400, "\"nonsense\" is none of connected"),
        ("DELETE", "bans", 400, "name one of client"),
        ("DELETE", "bans?user=a&addresses=10.0.0.1", 400, "name one of client"),
        ("DELETE", "bans?user=absent", 404, "there is no such ban"),
        ("DELETE", "users/absent", 404, "there is no such user"),
        ("DELETE", "users/alice", 409, "it is the only user"),
        ("POST", "reload?x=1", 400, "there is no parameter `x`"),
        ("GET", "nonsense", 404, "nothing at this path"),
        ("POST", "overview", 405, "no such method"),
        ("PATCH", "clients/a", 405, "no such method"),
    ] {
        let answer = api.ask(method, &format!("/api/v1/{path}"));
        let told = answer.refusal(status);
        assert!(told.contains(detail), "{method} {path}: {told}");
        if status == 405 {
            assert!(!answer.header("allow").is_empty(), "{method} {path}");
        }
    }
}

#[test]
fn bad_messages_are_refused() {
    let api = TestApi::start();
    let long = "x".repeat(65_536);
    for (method, path, body, status, detail) in [
        ("POST", "publish", json!({ "topic": "a" }), 400, "missing field `payload`"),
        (
            "POST",
            "publish",
            json!({ "topic": "a", "payload": "", "retian": true }),
            400,
            "unknown field `retian`",
        ),
        ("POST", "publish", json!({ "topic": "a/+", "payload": "" }), 400, "topic:"),
        (
            "POST",
            "publish",
            json!({ "topic": "$SYS/x", "payload": "" }),
            400,
            "topic: those that begin with $",
        ),
        ("POST", "publish", json!({ "topic": "", "payload": "" }), 400, "topic:"),
        (
            "POST",
            "publish",
            json!({ "topic": "a", "payload": "", "qos": 3 }),
            400,
            "qos: it may be 0, 1 or 2",
        ),
        ("POST", "publish", json!({ "topic": "a", "payload": "", "qos": 300 }), 400, "the body is not valid"),
        (
            "POST",
            "publish",
            json!({ "topic": "a", "payload": "?", "encoding": "base64" }),
            400,
            "payload: is no base64",
        ),
        (
            "POST",
            "publish",
            json!({ "topic": "a", "payload": "", "encoding": "hex" }),
            400,
            "unknown variant `hex`",
        ),
        (
            "POST",
            "publish",
            json!({ "topic": "a", "payload": "", "properties": { "x": 1 } }),
            400,
            "unknown field `x`",
        ),
        (
            "POST",
            "publish",
            json!({ "topic": "a", "payload": "", "properties": { "response_topic": "#" } }),
            400,
            "response_topic:",
        ),
        (
            "POST",
            "publish",
            json!({ "topic": "a", "payload": "", "properties": { "content_type": long } }),
            400,
            "content_type: a string of MQTT",
        ),
        (
            "POST",
            "publish",
            json!({ "topic": "a", "payload": "", "properties": { "user_properties": [["a\0", ""]] } }),
            400,
            "user_properties: a string of MQTT",
        ),
        (
            "POST",
            "publish",
            json!({ "topic": "a", "payload": "", "properties": { "user_properties": [["a", long]] } }),
            400,
            "user_properties: more than",
        ),
        (
            "POST",
            "publish",
            json!({ "topic": "a", "payload": "", "properties": { "user_properties": [["a"]] } }),
            400,
            "the body is not valid",
        ),
        (
            "POST",
            "publish",
            json!({ "topic": "a", "payload": "", "properties": { "correlation_data": "?" } }),
            400,
            "correlation_data: is no base64",
        ),
    ] {
        let told = api.put(method, path, &body).refusal(status);
        assert!(told.contains(detail), "{method} {path} {body:.100}: {told}");
    }
}

#[test]
fn bad_bodies_about_users_and_rules_are_refused() {
    let api = TestApi::start();
    let long = "x".repeat(65_536);
    for (method, path, body, status, detail) in [
        ("POST", "bans", json!({}), 400, "name one of client"),
        ("POST", "bans", json!({ "client": "a", "user": "b" }), 400, "name one of client"),
        ("POST", "bans", json!({ "user": "b", "mountpoint": "t/" }), 400, "name one of client"),
        ("POST", "bans", json!({ "addresses": "10.0.0.0/33" }), 400, "addresses: write an IP address"),
        ("POST", "bans", json!({ "user": "a", "secs": 0 }), 400, "secs: it may be 1 to"),
        ("POST", "bans", json!({ "user": "a", "secs": u64::MAX }), 400, "secs: it may be 1 to"),
        ("POST", "bans", json!({ "user": "a", "reason": long }), 400, "reason of a ban"),
        ("PUT", "users/eve", json!({ "password": "a", "admin": true }), 400, "unknown field `admin`"),
        ("PUT", "rules", json!({ "text": "wrong" }), 422, "/etc/acl:1: unknown word"),
        (
            "POST",
            "rules/test",
            json!({ "client": "c", "action": "eat", "topic": "a" }),
            400,
            "unknown variant `eat`",
        ),
    ] {
        let told = api.put(method, path, &body).refusal(status);
        assert!(told.contains(detail), "{method} {path} {body:.100}: {told}");
    }
}

#[test]
fn bodies_are_json_of_the_same_origin() {
    let api = TestApi::start();
    let body = "{\"topic\": \"a\", \"payload\": \"\"}";
    for (kind, body, status) in [
        ("text/plain", body, 415),
        ("application/json; charset=utf-8", body, 200),
        ("application/json", "{", 400),
        ("application/json", "", 400),
    ] {
        let headers = [("Content-Type", kind.to_owned())];
        assert_eq!(api.send("POST", "/api/v1/publish", Some(body), &headers).status, status, "{kind} {body}");
    }
    api.send("POST", "/api/v1/publish", Some(body), &[]).refusal(415);
    let foreign =
        [("Content-Type", "application/json".to_owned()), ("Origin", "http://evil.example".to_owned())];
    api.send("POST", "/api/v1/publish", Some(body), &foreign).refusal(403);
}
