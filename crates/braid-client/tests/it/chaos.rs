//! Links that are cut at random: what is promised of QoS 1 and 2 holds all the same.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use braid_client::{Builder, Message, Publication, QoS, ReasonCode, Reconnect};
use braid_proto::connection::Event;
use braid_proto::session::Session;
use tokio::time::timeout;

use super::server::{Listening, network};

const SEEDS: u64 = 40;
const MESSAGES: usize = 30;

fn resuming(builder: Builder) -> Builder {
    let pause = Duration::from_millis(10);
    let reconnect = Reconnect::Backoff { initial: pause, maximum: pause };
    builder.session_expiry(Duration::from_secs(3600)).reconnect(reconnect).maximum_inflight(5)
}

/// How often each payload arrived.
type Counts = Mutex<HashMap<String, usize>>;

/// Serves one session over as many links as it takes, and counts what arrives.
async fn serve(mut listening: Listening, mut random: fastrand::Rng, counts: Arc<Counts>) {
    let mut session: Option<Session> = None;
    loop {
        let (mut peer, _) = listening.accept_with(session.take()).await;
        loop {
            let Some(event) = peer.event().await else { return };
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
                // What came in the same read has arrived too.
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
    for seed in 0..SEEDS {
        let (listening, builder) = network();
        let counts = Arc::<Counts>::default();
        let serving = tokio::spawn(serve(listening, fastrand::Rng::with_seed(seed), Arc::clone(&counts)));
        let (client, _messages) = resuming(builder).start().unwrap();
        let mut waiting = Vec::new();
        for number in 0..MESSAGES {
            let qos = if number % 2 == 0 { QoS::ExactlyOnce } else { QoS::AtLeastOnce };
            let publication = Publication::to("t", format!("{qos} {number}")).unwrap().qos(qos);
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
                // Lets the client do something, but seldom all.
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
