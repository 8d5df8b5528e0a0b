//! 0-RTT: what it saves, and what happens when the server does not take it.

use std::time::Duration;

use braid_client::{Builder, ConnectionEvent, OptionsError, Publication, QoS, Reconnect};
use braid_transport::quic::QuicOptions;
use braid_transport::sim::Host;
use tokio::join;
use tokio::time::Instant;

use super::server::{Listening, network, quic_with};

const ROUND_TRIP: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_secs(10);

fn early() -> (Listening, Builder, Host) {
    let (listening, builder, device) = quic_with(QuicOptions::server());
    device.change(|link| link.latency = ROUND_TRIP / 2);
    let reconnect = Reconnect::Backoff { initial: PAUSE, maximum: PAUSE };
    (listening, builder.zero_rtt(true).reconnect(reconnect).session_expiry(Duration::from_secs(3600)), device)
}

/// Waits for CONNACK; returns when the pause before it was over.
async fn reconnected(events: &mut braid_client::Events) -> Duration {
    let mut start = Instant::now();
    loop {
        match events.recv().await.unwrap() {
            ConnectionEvent::Connected { .. } => return start.elapsed(),
            ConnectionEvent::Disconnected { retry_in, .. } => start = Instant::now() + retry_in.unwrap(),
            _ => {}
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_replaced_is_there_after_one_round_trip() {
    let (mut listening, builder, _) = early();
    let start = Instant::now();
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, _messages) = parts.unwrap();
    assert!(start.elapsed() >= 2 * ROUND_TRIP, "the first one has no ticket");
    let mut events = client.events();
    events.recv().await;
    // The ticket comes with the handshake.
    peer.run(ROUND_TRIP).await;
    let session = peer.cut();
    let accepting = async {
        let (mut peer, _) = listening.accept_with(Some(session)).await;
        peer.run(ROUND_TRIP).await;
        peer
    };
    let (time, mut peer) = join!(reconnected(&mut events), accepting);
    // A millisecond each way, and one for the timer.
    assert!((ROUND_TRIP..ROUND_TRIP + Duration::from_millis(10)).contains(&time), "{time:?}");
    let publication = Publication::to("t", "m").unwrap().qos(QoS::AtLeastOnce);
    let waiting = client.enqueue(publication).await.unwrap();
    assert_eq!(peer.take().await.1, "m");
    join!(waiting, peer.run(ROUND_TRIP)).0.unwrap();
}

/// [BQ-62]
#[tokio::test(start_paused = true)]
async fn a_server_that_takes_no_early_data_is_dialled_again_at_once() {
    let (mut listening, builder, _) = early();
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, _messages) = parts.unwrap();
    let mut events = client.events();
    events.recv().await;
    peer.run(ROUND_TRIP).await;
    client.try_publish(Publication::to("t", "lost").unwrap().qos(QoS::AtLeastOnce)).unwrap();
    peer.publish().await;
    let session = peer.cut();
    listening.forget_tickets();
    let accepting = async {
        // The first one is the refused attempt: no CONNECT of it is ever seen.
        let mut refused = listening.incoming_unless_gone().await;
        if let Some(refused) = &mut refused {
            assert!(refused.event().await.is_none(), "nothing of it may count");
        }
        let (mut peer, _) = listening.accept_with(Some(session)).await;
        peer.run(ROUND_TRIP).await;
        peer
    };
    let (time, mut peer) = join!(reconnected(&mut events), accepting);
    assert!(time < 4 * ROUND_TRIP, "without another pause, not after {time:?}");
    assert_eq!(peer.take().await.1, "lost", "the session went on");
}

#[tokio::test(start_paused = true)]
async fn what_only_quic_has_is_refused_elsewhere() {
    let (_listening, builder) = network();
    let error = builder.clone().zero_rtt(true).start().unwrap_err().to_string();
    let expected = OptionsError::NeedsQuic { option: "0-RTT" }.to_string();
    assert_eq!(error, expected);
    assert!(builder.link_rate(1000).start().unwrap_err().to_string().contains("quic://host"));
}
