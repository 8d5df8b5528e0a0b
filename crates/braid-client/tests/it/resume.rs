//! Large messages that continue on the next connection.

use std::sync::Arc;
use std::time::Duration;

use braid_client::{Client, Error, Publication, QoS, Reconnect};
use braid_proto::connection::Event;
use braid_proto::decoder::{Spool, SpoolError, SpooledPacket};
use braid_proto::packet::RESUME_PROPERTY;
use braid_proto::reason::ReasonCode;
use braid_transport::quic::QuicOptions;
use braid_transport::sim::{Direction, Host, Shaper};
use bytes::Bytes;
use tokio::join;
use tokio::task::JoinHandle;

use super::server::{Listening, Peer, quic_with};

type Publisher = JoinHandle<Result<ReasonCode, Error>>;

const SIZE: usize = 2_000_000;

/// Spool in memory.
#[derive(Debug)]
struct MemorySpool;

#[derive(Debug)]
struct Packet(Vec<u8>);

impl Spool for MemorySpool {
    fn threshold(&self) -> usize {
        256 * 1024
    }

    fn begin(&self) -> Result<Box<dyn SpooledPacket>, SpoolError> {
        Ok(Box::new(Packet(Vec::new())))
    }

    fn used(&self) -> u64 {
        0
    }

    fn refused(&self) -> u64 {
        0
    }
}

impl SpooledPacket for Packet {
    fn append(&mut self, bytes: &[u8]) -> Result<(), SpoolError> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Bytes, SpoolError> {
        Ok(self.0.into())
    }
}

fn payload() -> Vec<u8> {
    (0..SIZE).map(|at| (at ^ (at / 251)).to_le_bytes()[0]).collect()
}

fn up(device: &Host) -> usize {
    usize::try_from(device.counters(Direction::Up).bytes).unwrap()
}

/// A client whose large message is cut after five seconds, in which about a third of it arrives. Returns the next
/// connection with the session, what CONNECT says about messages, and the publisher.
async fn cut_once(resumes: bool, qos: QoS) -> (Peer, Vec<String>, Host, Listening, Publisher) {
    let (mut listening, builder, device) = quic_with(QuicOptions::server());
    listening.options.spool = Some(Arc::new(MemorySpool));
    device.change_one(Direction::Up, |link| link.shaper = Some(Shaper { rate: 100.0, queue: 30 }));
    let second = Duration::from_secs(1);
    let builder = builder
        .session_expiry(Duration::from_secs(3600))
        .resume_large(resumes)
        .reconnect(Reconnect::Backoff { initial: second, maximum: second });
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, messages) = parts.unwrap();
    let publication = Publication::to("large", payload()).unwrap().qos(qos);
    let publisher = tokio::spawn(async move {
        let result = Client::publish(&client, publication).await;
        drop(messages);
        result
    });
    peer.run(Duration::from_secs(5)).await;
    let session = peer.cut();
    let (after, connect) = listening.accept_with(Some(session)).await;
    let user = connect.properties.user.iter().filter(|(name, _)| *name == RESUME_PROPERTY);
    let said = user.map(|(_, value)| value.to_owned()).collect();
    (after, said, device, listening, publisher)
}

/// Takes the message, and answers until the client has its result.
async fn complete(mut peer: Peer, publisher: Publisher) -> Vec<Event> {
    let mut others = Vec::new();
    let serving = async {
        let mut arrived = 0;
        while let Some(event) = peer.event().await {
            match event {
                Event::Publish(message, token) => {
                    assert!(message.payload == payload(), "{} bytes", message.payload.len());
                    arrived += 1;
                    assert_eq!(arrived, 1, "twice");
                    peer.persisted(token.unwrap()).await;
                }
                Event::Release(token) => peer.persisted(token).await,
                other => others.push(other),
            }
        }
    };
    tokio::select! {
        result = publisher => assert!(matches!(result.unwrap(), Ok(ReasonCode::Success))),
        () = serving => panic!("the client left"),
    }
    others
}

/// [BQ-95], [BQ-98]
#[tokio::test(start_paused = true)]
async fn a_large_message_goes_on_where_it_was_cut() {
    for (resumes, qos) in [(true, QoS::AtLeastOnce), (true, QoS::ExactlyOnce), (false, QoS::AtLeastOnce)] {
        let (peer, said, device, _listening, publisher) = cut_once(resumes, qos).await;
        assert_eq!(said, if resumes { vec!["1"] } else { vec![] });
        complete(peer, publisher).await;
        let sent = up(&device);
        assert_eq!(sent < SIZE * 12 / 10, resumes, "{sent} bytes");
    }
}

/// [BQ-99]
#[tokio::test(start_paused = true)]
async fn a_rest_that_is_refused_is_followed_by_the_whole() {
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let (mut peer, _, device, _listening, publisher) = cut_once(true, qos).await;
        peer.drop_parts();
        let events = complete(peer, publisher).await;
        let refused = events.iter().filter(|event| matches!(event, Event::OffsetRefused(..))).count();
        assert_eq!(refused, 1, "{events:?}");
        assert!(up(&device) > SIZE * 18 / 10, "{} bytes", up(&device));
    }
}
