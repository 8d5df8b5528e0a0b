//! Messages: with too many properties, retained, never released, urgent, and pings.

use std::io;
use std::rc::Rc;

use braid_client::{Client, Priority, Publication, QoS, Reconnect, Subscribe};
use braid_transport::Transport;
use bytes::Bytes;
use tokio::io::AsyncWriteExt;

use crate::attacker::Attacker;
use crate::packets::{self, Connect, PINGREQ, Publish, subscribe};
use crate::stream::{RawClient, connect_unread};

/// User Properties of one packet.
const PROPERTIES: usize = 65_535;
/// Publishers and subscribers of messages with many properties.
pub(crate) const PROPERTY_CLIENTS: usize = 4;
/// Clients with QoS 2 messages, each with all Packet Identifiers.
pub(crate) const QOS2_CLIENTS: usize = 20;
/// Packets of one write.
const BATCH: u16 = 64;

/// 65,535 User Properties in CONNECT, SUBSCRIBE and PUBLISH. The subscribers do not read.
pub(crate) async fn user_properties(attacker: Rc<Attacker>) {
    let properties = Rc::new(packets::user_properties(PROPERTIES));
    let flood = move |attacker: Rc<Attacker>, at: usize| {
        let properties = Rc::clone(&properties);
        async move {
            let id = format!("properties-{at}");
            match at % 3 {
                0 => {
                    let mut connect = Connect::new(&id);
                    connect.properties.clone_from(&properties);
                    attacker.count(1);
                    connect_unread(&attacker, &connect.encode()).await.map(drop)
                }
                1 => {
                    let mut client = connect_unread(&attacker, &Connect::new(&id).encode()).await?;
                    client.write_all(&subscribe(1, &properties, ["properties/#"], 1)).await?;
                    client.write_all(&subscribe(2, &[], ["properties/#"], 1)).await?;
                    std::future::pending().await
                }
                _ => {
                    let mut client = RawClient::connect(&attacker, &Connect::new(&id).encode()).await?;
                    let topic = format!("properties/{at}");
                    let publish = Publish { properties: Some(&properties), ..Publish::new(&topic, b"") };
                    let publish = publish.encode();
                    loop {
                        client.send(&publish).await?;
                        attacker.count(1);
                    }
                }
            }
        }
    };
    attacker.workers(3 * PROPERTY_CLIENTS, flood).await;
}

/// Retained messages for distinct topics at full speed.
pub(crate) async fn retained(attacker: Rc<Attacker>) {
    let flood = |attacker: Rc<Attacker>, at: usize| async move {
        let id = format!("retained-{at}");
        let mut client = RawClient::connect(&attacker, &Connect::new(&id).encode()).await?;
        for number in 0u64.. {
            let mut batch = Vec::new();
            for message in 0..u64::from(BATCH) {
                let topic = format!("retained/{at}/{}", number * u64::from(BATCH) + message);
                let publish = Publish { retain: true, ..Publish::new(&topic, &[0x52; 100]) };
                batch.extend_from_slice(&publish.encode());
            }
            client.send(&batch).await?;
            attacker.count(BATCH.into());
        }
        Ok(())
    };
    attacker.workers(4, flood).await;
}

/// QoS 2 messages with all Packet Identifiers, without a PUBREL; half of the clients have a durable session.
pub(crate) async fn unreleased(attacker: Rc<Attacker>) {
    let flood = |attacker: Rc<Attacker>, at: usize| async move {
        let id = format!("qos2-{at}");
        // MQTT 3.1.1 knows no Receive Maximum.
        let is_clean = at.is_multiple_of(2);
        let connect = Connect { version: 4, is_clean, ..Connect::new(&id) };
        let mut client = RawClient::connect(&attacker, &connect.encode()).await?;
        for first in (1..=u16::MAX - BATCH).step_by(BATCH.into()) {
            let mut batch = Vec::new();
            for packet_id in first..first + BATCH {
                let publish =
                    Publish { qos: 2, packet_id, properties: None, ..Publish::new("qos2", &[0x32; 100]) };
                batch.extend_from_slice(&publish.encode());
            }
            client.send(&batch).await?;
            attacker.count(BATCH.into());
        }
        client.closed().await
    };
    attacker.workers(QOS2_CLIENTS, flood).await;
}

/// PINGREQ at full speed; half of the clients do not read the answers.
pub(crate) async fn pings(attacker: Rc<Attacker>) {
    let flood = |attacker: Rc<Attacker>, at: usize| async move {
        let (connect, pings) = (Connect::new(&format!("ping-{at}")).encode(), PINGREQ.repeat(1_000));
        if at.is_multiple_of(2) {
            let mut client = RawClient::connect(&attacker, &connect).await?;
            loop {
                client.send(&pings).await?;
                attacker.count(1_000);
            }
        }
        let mut client = connect_unread(&attacker, &connect).await?;
        loop {
            client.write_all(&pings).await?;
            attacker.count(1_000);
        }
    };
    attacker.workers(16, flood).await;
}

/// Bulk data with the highest priority on both sides: messages of 1 MiB at full speed on many streams, and messages
/// of 100 MB.
pub(crate) async fn urgent(attacker: Rc<Attacker>) {
    let flood = |attacker: Rc<Attacker>, at: usize| async move {
        let size = if at == 0 { 100_000_000 } else { 1 << 20 };
        bulk(&attacker, at, size).await.map_err(io::Error::other)
    };
    attacker.workers(4, flood).await;
}

/// Publishes bulk to a subscriber of its own.
async fn bulk(attacker: &Attacker, at: usize, size: usize) -> Result<(), braid_client::Error> {
    let highest = Priority::new(u16::MAX);
    let client = |name: &str| {
        Client::builder(&attacker.target.url(Transport::Quic))
            .client_id(&format!("urgent-{name}-{at}"))
            .tls(attacker.target.tls_options())
            .reconnect(Reconnect::Never)
            .default_priority(highest)
    };
    let (subscriber, mut messages) = client("subscriber").connect().await?;
    let topic = format!("bulk/{at}");
    subscriber.subscribe(Subscribe::to(&topic)?.qos(QoS::AtLeastOnce).priority(highest).stream(1)).await?;
    let (publisher, _answers) = client("publisher").connect().await?;
    let payload = Bytes::from(vec![0xB5; size]);
    let publish = async {
        for stream in (1..=16).cycle() {
            let bulk = Publication::to(&topic, payload.clone())?.qos(QoS::AtLeastOnce).stream(stream);
            drop(publisher.enqueue(bulk.priority(highest)).await?);
        }
        Ok(())
    };
    let receive = async {
        while messages.recv().await.is_some() {
            attacker.count(size as u64 >> 20);
        }
        Ok(())
    };
    tokio::select! {
        ended = publish => ended,
        ended = receive => ended,
    }
}
