//! Publishing, subscribing and their answers.

use std::time::Duration;

use braid_client::{
    Error, MessageProperties, ProtocolVersion, Publication, QoS, ReasonCode, SendError, Subscribe,
};
use braid_proto::connection::Event;
use tokio::join;

use super::server::network;

fn publication(payload: &'static str, qos: QoS) -> Publication {
    Publication::to("t", payload).unwrap().qos(qos)
}

#[tokio::test(start_paused = true)]
async fn publish_resolves_with_the_acknowledgement_and_not_before() {
    let (mut listening, builder) = network();
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, _messages) = parts.unwrap();
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let mut publishing = Box::pin(client.publish(publication("m", qos)));
        let token = tokio::select! {
            biased;
            result = &mut publishing => panic!("no acknowledgement was sent: {result:?}"),
            (_, token) = peer.publish() => token.unwrap(),
        };
        peer.persisted(token).await;
        // QoS 2 needs the server for one step more.
        let result = tokio::select! {
            result = &mut publishing => result,
            Some(Event::Release(token)) = peer.event() => {
                peer.persisted(token).await;
                publishing.await
            }
        };
        assert_eq!(result.unwrap(), ReasonCode::Success);
    }
}

#[tokio::test(start_paused = true)]
async fn qos_0_resolves_when_it_is_written() {
    let (mut listening, builder) = network();
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, _messages) = parts.unwrap();
    assert_eq!(client.publish(publication("m", QoS::AtMostOnce)).await.unwrap(), ReasonCode::Success);
    assert_eq!(peer.publish().await.0.payload, "m");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_the_server_is_an_error_of_publish() {
    let (mut listening, builder) = network();
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, _messages) = parts.unwrap();
    let (result, ()) = join!(client.publish(publication("m", QoS::AtLeastOnce)), async {
        let token = peer.publish().await.1.unwrap();
        peer.refuse(token, ReasonCode::NotAuthorized).await;
    });
    assert!(matches!(result, Err(Error::PublishRefused(ReasonCode::NotAuthorized))), "{result:?}");
}

#[tokio::test(start_paused = true)]
async fn properties_travel_with_the_message() {
    let (mut listening, builder) = network();
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, _messages) = parts.unwrap();
    let publication = publication("m", QoS::AtMostOnce)
        .retain(true)
        .content_type("text/plain")
        .correlation_data("7")
        .expires_after(Duration::from_secs(30))
        .user_property("unit", "C");
    client.publish(publication).await.unwrap();
    let (message, _) = peer.publish().await;
    assert!(message.retain);
    let wanted = MessageProperties {
        content_type: Some("text/plain".into()),
        correlation_data: Some("7".into()),
        message_expiry: Some(30),
        user: [("unit", "C")].into(),
        ..MessageProperties::default()
    };
    assert_eq!(message.properties.as_deref(), Some(&wanted));
}

#[tokio::test(start_paused = true)]
async fn subscribe_resolves_with_one_code_per_filter() {
    let (mut listening, builder) = network();
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, _messages) = parts.unwrap();
    let filters = ["a", "b/#"].map(|filter| braid_client::TopicFilter::parse(filter).unwrap());
    let (codes, ()) = join!(client.subscribe(Subscribe::new(filters).qos(QoS::AtLeastOnce)), async {
        let subscribe = peer.subscribe().await;
        peer.suback(&subscribe, vec![ReasonCode::GrantedQos1, ReasonCode::NotAuthorized]).await;
    });
    assert_eq!(codes.unwrap(), [ReasonCode::GrantedQos1, ReasonCode::NotAuthorized]);
}

#[tokio::test(start_paused = true)]
async fn a_subscription_that_is_wholly_refused_is_an_error() {
    let (mut listening, builder) = network();
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, _messages) = parts.unwrap();
    let (result, ()) = join!(client.subscribe(Subscribe::to("a").unwrap()), async {
        let subscribe = peer.subscribe().await;
        peer.suback(&subscribe, vec![ReasonCode::NotAuthorized]).await;
    });
    assert!(matches!(result, Err(Error::SubscribeRefused { .. })), "{result:?}");
}

#[tokio::test(start_paused = true)]
async fn unsubscribe_resolves_with_codes_in_every_version() {
    for version in [ProtocolVersion::V311, ProtocolVersion::V5] {
        let (mut listening, builder) = network();
        let (mut peer, parts) = join!(listening.accept(), builder.version(version).connect());
        let (client, _messages) = parts.unwrap();
        let (codes, ()) = join!(client.unsubscribe(["a", "b"]), async {
            let (on, unsubscribe) = peer.unsubscribe_on().await;
            peer.unsuback(on, &unsubscribe, vec![ReasonCode::Success; 2]).await;
        });
        assert_eq!(codes.unwrap(), [ReasonCode::Success; 2], "{version}");
    }
}

#[tokio::test(start_paused = true)]
async fn requests_that_the_server_does_not_support_fail_unsent() {
    let (mut listening, builder) = network();
    let (_peer, parts) = join!(listening.accept(), builder.connect());
    let (client, _messages) = parts.unwrap();
    let result = client.subscribe(Subscribe::to("$share/g/a").unwrap().no_local(true)).await;
    assert!(matches!(result, Err(Error::Send(SendError::NoLocalOnShared))), "{result:?}");
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_makes_publish_wait_and_try_publish_fail() {
    let (_listening, builder) = network();
    let (client, _messages) = builder.send_queue(2).start().unwrap();
    // The server does not accept the connection: no request leaves the queue.
    client.try_publish(publication("1", QoS::AtLeastOnce)).unwrap();
    client.try_publish(publication("2", QoS::AtLeastOnce)).unwrap();
    let full = client.try_publish(publication("3", QoS::AtLeastOnce));
    assert!(matches!(full, Err(Error::QueueFull)), "{full:?}");
    tokio::select! {
        biased;
        result = client.enqueue(publication("3", QoS::AtLeastOnce)) => panic!("no room was made: {result:?}"),
        () = std::future::ready(()) => {}
    }
}

#[tokio::test(start_paused = true)]
async fn the_servers_receive_maximum_holds_messages_back_and_keeps_their_order() {
    let (mut listening, builder) = network();
    let (mut peer, parts) = join!(listening.accept(), builder.maximum_inflight(2).connect());
    let (client, _messages) = parts.unwrap();
    for payload in ["1", "2", "3", "4"] {
        client.try_publish(publication(payload, QoS::AtLeastOnce)).unwrap();
    }
    client.try_publish(publication("5", QoS::AtMostOnce)).unwrap();
    let mut tokens = Vec::new();
    for wanted in ["1", "2"] {
        let (message, token) = peer.publish().await;
        assert_eq!(message.payload, wanted);
        tokens.push(token.unwrap());
    }
    let more = tokio::time::timeout(Duration::from_secs(1), peer.publish()).await;
    assert!(more.is_err(), "the third must wait for an acknowledgement");
    peer.persisted(tokens[1]).await;
    for wanted in ["3", "4", "5"] {
        let (message, token) = peer.publish().await;
        assert_eq!(message.payload, wanted);
        if let Some(token) = token {
            peer.persisted(token).await;
        }
    }
}
