//! States that the gate of a connection reports.

use std::fs;
use std::time::Duration;

use braid_transport::quic::{GateLevel, GateState, PathClass, QuicOptions};
use braid_transport::sim::{Conditions, Direction, Network, Policer, Shaper};

use crate::driven::Link;
use crate::ends::write;
use crate::policing::sink;
use crate::support::Pki;

/// The link after so many bytes have arrived, and the lines of its log.
async fn after(conditions: Conditions, length: usize) -> (Link, Vec<String>) {
    let (pki, network) = (Pki::new(), Network::new(7));
    let (server, all) = sink(&network, &pki, length);
    let device = network.host("device");
    device.change(|link| link.latency = conditions.latency);
    device.change_one(Direction::Up, |link| *link = conditions);
    let folder = tempfile::tempdir().expect("a directory");
    let log = folder.path().join("gate");
    let quic = QuicOptions { gate_log: Some(log.clone()), ..QuicOptions::client() };
    let mut link = Link::from(device.connector(server, pki.client(), quic).connect().await.expect("connect"));
    write(&mut link, &vec![7; length]).await.expect("write");
    all.await.expect("all of it");
    let text = fs::read_to_string(log).expect("a log");
    (link, text.lines().map(str::to_owned).collect())
}

fn state(link: &Link) -> GateState {
    link.gate_state().expect("a gate")
}

#[tokio::test(start_paused = true)]
async fn behind_a_policer_it_tells_of_tokens() {
    let policer = Some(Policer { rate: 29.0, burst: 5 });
    let conditions = Conditions { policer, ..Conditions::delayed(Duration::from_millis(20)) };
    let (link, log) = after(conditions, 300_000).await;
    let state = state(&link);
    assert_eq!(state.class, PathClass::Policed);
    assert!(state.packets_per_second.is_some_and(|rate| (25.0..31.0).contains(&rate)), "{state:?}");
    let bytes = state.bytes_per_second.expect("a rate") / state.packets_per_second.expect("a rate");
    assert!((1200.0..1500.0).contains(&bytes), "{state:?}");
    assert!(
        matches!(state.level, Some(GateLevel::Tokens { left, reserve: 2.0 }) if left <= 5.0),
        "{state:?}"
    );
    assert!(state.packets > 200, "{state:?}");
    // Seven seconds, five times a second.
    assert!(log.len() > 30, "{log:?}");
    let is_of = |line: &str, class: &str| line.contains(&format!("\"class\":\"{class}\""));
    assert!(log.first().is_some_and(|line| is_of(line, "start")), "{log:?}");
    let policed = log.iter().filter(|line| is_of(line, "policed") && line.contains("\"tokens\":"));
    assert!(policed.count() > 25, "{log:?}");
}

#[tokio::test(start_paused = true)]
async fn before_a_queue_it_tells_of_waiting() {
    let shaper = Some(Shaper { rate: 29.0, queue: 50 });
    let conditions = Conditions { shaper, ..Conditions::delayed(Duration::from_millis(20)) };
    let (link, log) = after(conditions, 300_000).await;
    let state = state(&link);
    assert_eq!(state.class, PathClass::Queued);
    assert!(matches!(state.level, Some(GateLevel::Queue { aim, .. }) if !aim.is_zero()), "{state:?}");
    assert!(log.iter().any(|line| line.contains("\"wait_ms\":")), "{log:?}");
}

/// From one port to another in the middle of it, and whatever was kept for the next token stays behind.
#[tokio::test(start_paused = true)]
async fn the_gate_knows_the_policer_after_a_migration() {
    const PART: usize = 60_000;
    let (pki, network) = (Pki::new(), Network::new(7));
    let (server, all) = sink(&network, &pki, 6 * PART);
    let device = network.host("device");
    let policer = Some(Policer { rate: 29.0, burst: 5 });
    device.change(|link| link.latency = Duration::from_millis(20));
    device.change_one(Direction::Up, |link| link.policer = policer);
    let connector = device.connector(server, pki.client(), QuicOptions::client());
    let mut link = Link::from(connector.connect().await.expect("connect"));
    for part in 0..6 {
        write(&mut link, &[part; PART]).await.expect("write");
        if part < 3 {
            link.rebind(None).expect("rebind");
        }
    }
    all.await.expect("all of it");
    assert_eq!(state(&link).class, PathClass::Policed);
}

#[tokio::test(start_paused = true)]
async fn without_a_gate_it_says_nothing() {
    let (pki, network) = (Pki::new(), Network::new(7));
    let (server, _all) = sink(&network, &pki, 1);
    let quic = QuicOptions { gate: false, ..QuicOptions::client() };
    let device = network.host("device");
    let link = Link::from(device.connector(server, pki.client(), quic).connect().await.expect("connect"));
    assert_eq!(link.gate_state(), None);
}
