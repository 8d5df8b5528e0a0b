//! Order and the guarantees of QoS 1 and 2 under random cuts of links, ends of streams and packet loss.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use braid_client::{Builder, Message, Priority, Publication, QoS, ReasonCode, Reconnect, StreamPolicy};
use braid_proto::connection::Event;
use braid_proto::session::Session;
use braid_transport::quic::QuicOptions;
use tokio::join;
use tokio::time::timeout;

use super::server::{Listening, network, quic, quic_with};

const SEEDS: u64 = 40;
const MESSAGES: usize = 30;

fn resuming(builder: Builder) -> Builder {
    let pause = Duration::from_millis(10);
    let reconnect = Reconnect::Backoff { initial: pause, maximum: pause };
    builder.session_expiry(Duration::from_secs(3600)).reconnect(reconnect).maximum_inflight(5)
}

/// Number of arrivals of each payload.
type Counts = Mutex<HashMap<String, usize>>;

/// Serves one session over as many links as it takes, and counts what arrives.
async fn serve(mut listening: Listening, mut random: fastrand::Rng, counts: Arc<Counts>) {
    let mut session: Option<Session> = None;
    loop {
        let (mut peer, _) = listening.accept_with(session.take()).await;
        loop {
            let Some((stream, event)) = peer.event_on().await else { return };
            if !stream.is_control() && random.u8(..16) == 0 {
                peer.abort(stream, ReasonCode::ServerBusy);
            }
            let token = match event {
                Event::Publish(message, token) => {
                    count(&counts, &message);
                    token
                }
                Event::Release(token) => Some(token),
                _ => None,
            };
            // Cut before or after the acknowledgement has left.
            let is_cut = random.u8(..8) == 0;
            if let (Some(token), true) = (token, !is_cut || random.bool()) {
                peer.persisted(token).await;
            }
            if is_cut {
                // Messages of the same read have arrived too.
                for event in peer.pending() {
                    if let Event::Publish(message, _) = event {
                        count(&counts, &message);
                    }
                }
                session = Some(peer.cut());
                break;
            }
        }
    }
}

fn count(counts: &Counts, message: &Message) {
    *counts.lock().unwrap().entry(String::from_utf8_lossy(&message.payload).into_owned()).or_default() += 1;
}

#[tokio::test(start_paused = true)]
async fn published_messages_arrive_exactly_once_with_qos_2_and_at_least_once_with_qos_1() {
    for (seed, (listening, builder)) in (0..SEEDS).flat_map(|seed| [(seed, network()), (seed, quic())]) {
        let counts = Arc::<Counts>::default();
        let serving = tokio::spawn(serve(listening, fastrand::Rng::with_seed(seed), Arc::clone(&counts)));
        let builder = builder.stream_policy(StreamPolicy::default().own_stream_above(2000));
        let (client, _messages) = resuming(builder).start().unwrap();
        let mut waiting = Vec::new();
        let lanes = [0, 1, 2];
        for number in 0..MESSAGES {
            let qos = if number % 2 == 0 { QoS::ExactlyOnce } else { QoS::AtLeastOnce };
            let is_large = number % 5 < 2;
            let payload = format!("{qos} {number}{}", "x".repeat(if is_large { 3000 } else { 0 }));
            let mut publication = Publication::to("t", payload).unwrap().qos(qos);
            if !is_large {
                publication = publication.stream(lanes[number % 3]);
            }
            waiting.push(client.enqueue(publication).await.unwrap());
        }
        for acknowledgement in waiting {
            let result = timeout(Duration::from_secs(600), acknowledgement).await;
            assert_eq!(result.expect("an acknowledgement").unwrap(), ReasonCode::Success, "seed {seed}");
        }
        serving.abort();
        let counts = counts.lock().unwrap().clone();
        assert_eq!(counts.len(), MESSAGES, "seed {seed}: {counts:?}");
        for (message, count) in counts {
            assert!(count == 1 || message.starts_with('1'), "seed {seed}: {message} arrived {count} times");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn received_messages_of_qos_2_are_taken_exactly_once() {
    for seed in 0..SEEDS {
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut listening, builder) = network();
        let (_client, mut messages) = resuming(builder).start().unwrap();
        let taking = tokio::spawn(async move {
            let mut taken = Vec::new();
            while taken.len() < MESSAGES
                && let Some(message) = messages.recv().await
            {
                taken.push(String::from_utf8_lossy(&message.payload).into_owned());
            }
            (taken, messages)
        });
        let mut session = None;
        let mut sent = 0;
        while sent < MESSAGES {
            let (mut peer, _) = listening.accept_with(session.take()).await;
            while sent < MESSAGES && peer.session().outbound.len() < 10 {
                peer.deliver("t", &sent.to_string(), QoS::ExactlyOnce).await;
                sent += 1;
                // Lets the client run for a part of its work, seldom for all of it.
                let moment = Duration::from_millis(random.u64(0..3));
                let _ = timeout(moment, peer.event()).await;
                if random.u8(..4) == 0 {
                    break;
                }
            }
            session = Some(peer.cut());
        }
        let (_peer, _) = listening.accept_with(session).await;
        let (taken, _messages) = taking.await.unwrap();
        let wanted: Vec<String> = (0..MESSAGES).map(|number| number.to_string()).collect();
        assert_eq!(taken, wanted, "seed {seed}");
    }
}

/// The order of each topic, its small messages and its large ones apart.
#[tokio::test(start_paused = true)]
async fn topics_keep_their_order_over_lossy_streams() {
    for seed in 0..SEEDS / 4 {
        let mut random = fastrand::Rng::with_seed(seed);
        let policies = [StreamPolicy::default(), StreamPolicy::topics(3), StreamPolicy::control()];
        for policy in policies {
            let (mut listening, builder, device) = quic_with(QuicOptions::server());
            let builder = builder.stream_policy(policy.own_stream_above(3000)).send_queue(1000);
            let (mut peer, parts) = join!(listening.accept(), builder.connect());
            let (client, _messages) = parts.unwrap();
            device.change(|link| {
                link.latency = Duration::from_millis(20);
                link.jitter = Duration::from_millis(20);
                link.loss = 0.05;
            });
            let mut wanted: HashMap<(String, bool), Vec<String>> = HashMap::new();
            for number in 0..200 {
                let topic = random.u8(0..6);
                let qos = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce][usize::from(topic % 3)];
                let is_large = random.u8(..4) == 0;
                let padding = if is_large { 4000 } else { random.usize(..2000) };
                let payload = format!("{number:016}{}", "x".repeat(padding));
                let topic = topic.to_string();
                wanted.entry((topic.clone(), is_large)).or_default().push(payload[..16].to_owned());
                // One priority for each topic: another would be another lane.
                let priority = Priority::new(u16::from(topic.as_bytes()[0] % 2));
                let publication = Publication::to(&topic, payload).unwrap().qos(qos);
                client.try_publish(publication.priority(priority)).unwrap();
            }
            let mut arrived: HashMap<(String, bool), Vec<String>> = HashMap::new();
            for _ in 0..200 {
                let (_, message, token) = peer.publish_on().await;
                let name = String::from_utf8_lossy(&message.payload[..16]).into_owned();
                let class = (message.topic.as_str().to_owned(), message.payload.len() > 3000);
                arrived.entry(class).or_default().push(name);
                if let Some(token) = token {
                    peer.persisted(token).await;
                }
            }
            assert_eq!(arrived, wanted, "seed {seed} with {policy:?}");
        }
    }
}
