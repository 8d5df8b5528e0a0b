//! Events of clients.

use std::sync::Arc;

use braid_broker::view::BrokerEvent;
use braid_proto::connection::Cause;
use braid_proto::packet::QoS;
use braid_proto::reason::ReasonCode;
use tokio::sync::broadcast::Receiver;

use super::name;
use crate::support::{
    CONTROL, QuicBroker, TestBroker, UserNames, lasting, named, pass, quiet, settle, unsubscribe_packet,
};

fn drain(events: &mut Receiver<Arc<BrokerEvent>>) -> Vec<BrokerEvent> {
    std::iter::from_fn(|| events.try_recv().ok()).map(|event| (*event).clone()).collect()
}

#[tokio::test(start_paused = true)]
async fn the_life_of_a_client_is_told_in_order() {
    let broker = TestBroker::start_with_rule(quiet(), UserNames);
    let mut events = broker.handle.events();
    let mut client = broker.connect(named("ann", lasting("client"))).await;
    client.subscribe("a", QoS::AtLeastOnce).await;
    client.send(unsubscribe_packet(9, &["a"])).await;
    settle().await;
    client.vanish().await;
    let client = broker.connect(named("ann", lasting("client"))).await;
    client.disconnect().await;
    settle().await;
    pass(3601).await;
    let all = drain(&mut events);
    let names: Vec<_> = all.iter().map(BrokerEvent::name).collect();
    let life = ["connected", "subscribed", "unsubscribed", "disconnected", "connected", "disconnected"];
    assert_eq!(names, [&life[..], &["session_expired"]].concat());
    assert!(all.iter().all(|event| event.client() == Some(&name("client"))));
    let BrokerEvent::Connected { user, connection, .. } = &all[4] else { panic!("{:?}", all[4]) };
    assert_eq!((user.as_deref(), connection.session_present), (Some("ann"), true));
    let BrokerEvent::Subscribed { filters, .. } = &all[1] else { panic!("{:?}", all[1]) };
    assert_eq!((filters.len(), filters[0].0.as_str(), filters[0].1), (1, "a", QoS::AtLeastOnce));
    let causes = [&all[3], &all[5]].map(|event| match event {
        BrokerEvent::Disconnected { cause, .. } => *cause,
        other => panic!("{other:?}"),
    });
    assert_eq!(causes, [Cause::Lost, Cause::Disconnected(ReasonCode::Success)]);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_moves_is_told_of() {
    let broker = QuicBroker::start();
    let mut events = broker.memory.handle.events();
    let client = broker.v5("client").await;
    pass(1).await;
    let Some(BrokerEvent::Connected { connection, .. }) = drain(&mut events).pop() else {
        panic!("connected")
    };
    client.rebind();
    client.ping(CONTROL).await;
    pass(10).await;
    let all = drain(&mut events);
    let [BrokerEvent::Migrated { from, to, .. }] = &all[..] else { panic!("{all:?}") };
    assert_eq!(*from, connection.address);
    assert_ne!(Some(*to), connection.address);
}
