//! Clients, their streams, and subscriptions.

use braid_client::{Priority, Publication, QoS, Subscribe};
use serde_json::{Value, json};

use super::support::TestApi;

fn ids(page: &Value) -> Vec<&str> {
    page["items"].as_array().unwrap().iter().map(|item| item["client_id"].as_str().unwrap()).collect()
}

#[test]
fn clients_are_listed_by_pages_and_conditions() {
    let api = TestApi::start();
    let mut clients: Vec<_> = (0..5).map(|number| api.tcp(&format!("tcp-{number}"))).collect();
    clients.push(api.quic("quic-0"));
    let (gone, _) = api.tcp("gone");
    api.runtime.block_on(gone.subscribe(Subscribe::to("for/gone").unwrap().qos(QoS::AtLeastOnce))).unwrap();
    let mut events = api.events("events?kinds=disconnected");
    api.runtime.block_on(gone.disconnect()).unwrap();
    assert_eq!(events.next().unwrap().1["client_id"], "gone");

    let first = api.get("clients?limit=3");
    assert_eq!((ids(&first), &first["total"]), (vec!["tcp-0", "tcp-1", "tcp-2"], &json!(7)));
    let cursor = first["cursor"].as_str().unwrap();
    let second = api.get(&format!("clients?limit=3&cursor={cursor}"));
    assert_eq!((ids(&second), &second["total"]), (vec!["tcp-3", "tcp-4", "quic-0"], &json!(7)));
    let cursor = second["cursor"].as_str().unwrap();
    let third = api.get(&format!("clients?limit=3&cursor={cursor}"));
    assert_eq!((ids(&third), &third["cursor"]), (vec!["gone"], &Value::Null));

    for (query, expected, total) in [
        ("prefix=tcp-&limit=2", &["tcp-0", "tcp-1"][..], 5),
        ("transport=quic", &["quic-0"], 1),
        ("transport=tcp&limit=1", &["tcp-0"], 5),
        ("connected=false", &["gone"], 1),
        ("address=127.0.0.0/8&limit=1", &["tcp-0"], 6),
        ("address=127.0.0.1&prefix=q", &["quic-0"], 1),
        ("address=192.0.2.1", &[], 0),
        ("user=alice", &[], 0),
    ] {
        let page = api.get(&format!("clients?{query}"));
        assert_eq!((ids(&page), &page["total"]), (expected.to_vec(), &json!(total)), "{query}");
    }
    for (query, total) in [("sort=queued", 7), ("sort=queued&prefix=tcp-", 5), ("sort=queued&limit=7", 7)] {
        let page = api.get(&format!("clients?{query}"));
        assert_eq!((&page["total"], &page["cursor"]), (&json!(total), &Value::Null), "{query}");
    }
    // A message waits for the client that is disconnected.
    let body = json!({ "topic": "for/gone", "payload": "x", "qos": 1 });
    assert_eq!(api.put("POST", "publish", &body).json()["matched"], 1);
    let first = api.get("clients?sort=queued&limit=1");
    assert_eq!((ids(&first), &first["total"]), (vec!["gone"], &json!(7)));

    let client = &api.get("clients?prefix=gone")["items"][0];
    assert_eq!(
        (&client["connected"], &client["transport"], &client["streams"]),
        (&json!(false), &Value::Null, &json!(0))
    );
    assert!(client["disconnected_at"].as_f64().unwrap() > 1.6e9 && client["connected_at"].is_null());
    assert_eq!(client["expiry_secs"], 600);
}

#[test]
fn a_client_is_shown_with_its_will_and_subscriptions() {
    let api = TestApi::start();
    let will = Publication::to("gone", "bye").unwrap().qos(QoS::AtLeastOnce).retain(true);
    let builder = braid_client::Client::builder(&format!("mqtt://{}", api.tcp)).client_id("a b/ü");
    let connecting = builder.will(will, std::time::Duration::from_secs(5)).connect();
    let (client, _messages) = api.runtime.block_on(connecting).unwrap();
    let subscribe =
        Subscribe::to("x/+").unwrap().qos(QoS::ExactlyOnce).no_local(true).id(7.try_into().unwrap());
    api.runtime.block_on(client.subscribe(subscribe)).unwrap();
    let shown = api.get("clients/a%20b%2F%C3%BC");
    assert_eq!(shown["client_id"], "a b/ü");
    assert_eq!(
        shown["will"],
        json!({ "topic": "gone", "size_bytes": 3, "qos": 1, "retain": true, "delay_secs": 5 })
    );
    let expected = json!([{ "filter": "x/+", "qos": 2, "no_local": true, "retain_as_published": false,
        "retain_handling": 0, "identifier": 7, "priority": null }]);
    assert_eq!((&shown["filters"], &shown["subscriptions"]), (&expected, &json!(1)));
    assert_eq!(
        (&shown["version"], &shown["transport"], &shown["streams"]),
        (&json!("5.0"), &json!("tcp"), &json!(1))
    );
    let listed = api.get("subscriptions?client=a%20b%2F%C3%BC");
    assert_eq!((&listed["items"][0]["filter"], &listed["total"]), (&json!("x/+"), &json!(1)));
}

#[test]
fn streams_have_traffic_priority_and_what_waits() {
    let api = TestApi::start();
    let (publisher, _) = api.tcp("publisher");
    let (client, mut messages) = api.quic("client");
    api.runtime.block_on(async {
        let bulk = Subscribe::to("bulk").unwrap().qos(QoS::AtLeastOnce).stream(1).priority(Priority::new(8));
        client.subscribe(bulk).await.unwrap();
        client
            .subscribe(Subscribe::to("alarm").unwrap().stream(2).priority(Priority::new(200)))
            .await
            .unwrap();
        publisher
            .publish(Publication::to("bulk", vec![0; 5000]).unwrap().qos(QoS::AtLeastOnce))
            .await
            .unwrap();
        assert_eq!(messages.recv().await.unwrap().message.payload.len(), 5000);
    });
    let shown = api.get("clients/client/streams");
    assert_eq!(shown["client_id"], "client");
    let streams = shown["streams"].as_array().unwrap();
    assert_eq!((&streams[0]["stream"], &streams[0]["kind"]), (&json!(0), &json!("control")));
    let busy = streams.iter().find(|one| one["bytes_out"].as_u64() > Some(5000)).unwrap();
    assert_eq!(
        (&busy["kind"], &busy["messages_out"], &busy["backlog_messages"]),
        (&json!("data"), &json!(1), &json!(0))
    );
    assert_eq!(
        (&busy["waits_for"], &busy["behind"], &busy["oldest_ms"]),
        (&Value::Null, &Value::Null, &Value::Null)
    );
    assert_eq!(streams.len(), 3);
    assert!(
        shown["path"]["rtt_ms"].as_f64().unwrap() > 0.0 && shown["path"]["cwnd_bytes"].as_u64() > Some(0)
    );
    assert!(["off", "learning", "open", "holding"].contains(&shown["gate"]["state"].as_str().unwrap()));
    assert_eq!(api.get("clients/client")["streams"], 3);

    let plain = api.get("clients/publisher/streams");
    assert_eq!((&plain["path"], &plain["gate"]), (&Value::Null, &Value::Null));
    assert_eq!(plain["streams"].as_array().unwrap().len(), 1);
    api.ask("GET", "/api/v1/clients/absent/streams").refusal(404);
}

/// A client that takes one message at a time and acknowledges none: the others wait for it.
#[test]
fn messages_that_wait_for_an_acknowledgement_are_told_live() {
    let api = TestApi::start();
    let (publisher, _) = api.tcp("publisher");
    let builder = braid_client::Client::builder(&format!("mqtt://{}", api.tcp)).client_id("slow");
    let connecting = builder.receive_maximum(1).manual_acknowledgement(true).connect();
    let (slow, mut messages) = api.runtime.block_on(connecting).unwrap();
    api.runtime.block_on(async {
        slow.subscribe(Subscribe::to("a").unwrap().qos(QoS::AtLeastOnce)).await.unwrap();
        for _ in 0..4 {
            publisher.publish(Publication::to("a", "x").unwrap().qos(QoS::AtLeastOnce)).await.unwrap();
        }
    });
    let first = api.runtime.block_on(messages.recv()).unwrap();
    let mut live = api.events("clients/slow/streams/live?interval_ms=250");
    let (name, data) = live.next().unwrap();
    let stream = &data["streams"][0];
    assert_eq!((name.as_str(), &data["unacknowledged"]), ("streams", &json!(1)));
    assert_eq!((&stream["backlog_messages"], &stream["waits_for"]), (&json!(3), &json!("receive_maximum")));
    assert!(stream["oldest_ms"].is_number() && stream["backlog_bytes"].as_u64() > Some(0));
    assert_eq!(stream["lanes"][0]["messages"], 3);
    assert_eq!(api.get("clients/slow")["queued_messages"], 3);
    messages.acknowledge(&first);
    while live.next().unwrap().1["streams"][0]["backlog_messages"] != 2 {}
    api.runtime.block_on(slow.disconnect()).unwrap();
    while live.next().is_some() {}
    // The session may end a moment after its connection.
    let status = api.ask("GET", "/api/v1/clients/slow/streams/live").status;
    assert!([404, 409].contains(&status), "{status}");
}

#[test]
fn clients_are_disconnected_and_sessions_deleted() {
    let api = TestApi::start();
    let (client, _messages) = api.tcp("client");
    let mut events = api.events("events?kinds=connected,disconnected");
    assert_eq!(api.ask("DELETE", "/api/v1/clients/client").status, 204);
    let (kind, data) = events.next().unwrap();
    assert_eq!((kind.as_str(), &data["client_id"]), ("disconnected", &json!("client")));
    assert!(data["cause"].as_str().unwrap().contains("closed: "), "{data}");
    // The client of the test reconnects by itself.
    let (kind, data) = events.next().unwrap();
    assert_eq!((kind.as_str(), &data["transport"]), ("connected", &json!("tcp")));
    api.runtime.block_on(client.disconnect()).unwrap();
    assert_eq!(events.next().unwrap().0, "disconnected");
    assert!(api.ask("DELETE", "/api/v1/clients/client").refusal(409).contains("not connected"));
    assert_eq!(api.ask("DELETE", "/api/v1/clients/client?session=true").status, 204);
    api.ask("GET", "/api/v1/clients/client").refusal(404);
    api.ask("DELETE", "/api/v1/clients/client?session=true").refusal(404);
}

#[test]
fn subscriptions_are_listed_by_pages_and_conditions() {
    let api = TestApi::start();
    let (one, _messages) = api.tcp("one");
    let (two, _more) = api.tcp("two");
    api.runtime.block_on(async {
        for filter in ["a/#", "b", "c"] {
            one.subscribe(Subscribe::to(filter).unwrap()).await.unwrap();
        }
        two.subscribe(Subscribe::to("$share/g/a/+").unwrap()).await.unwrap();
    });
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = api.get(&format!("subscriptions?limit=3{cursor}"));
        assert_eq!(page["total"], 4);
        seen.extend(
            page["items"].as_array().unwrap().iter().map(|item| item["filter"].as_str().unwrap().to_owned()),
        );
        let Some(next) = page["cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(seen, ["a/#", "b", "c", "$share/g/a/+"]);
    for (query, expected) in [
        ("topic=a%2Fb", &["one", "two"][..]),
        ("topic=a%2Fb&share=g", &["two"]),
        ("filter=b", &["one"]),
        ("client=two", &["two"]),
        ("client=absent", &[]),
    ] {
        assert_eq!(ids(&api.get(&format!("subscriptions?{query}"))), expected, "{query}");
    }
}
