//! Paths on several interfaces, and what the application is told of them.

use std::time::Duration;

use braid_client::{Client, ConnectionEvent, Events, LocalPath, PathChange, PathMode, Publication};
use braid_transport::quic::{Multipath, QuicOptions};
use tokio::join;

use super::server::{network, quic_with};

/// The next change of a path.
async fn change(events: &mut Events) -> (String, PathChange) {
    loop {
        if let ConnectionEvent::Path { path, change } = events.recv().await.unwrap() {
            return (path.to_string(), change);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn messages_go_on_on_the_other_interface() {
    let (mut listening, builder, device) = quic_with(QuicOptions::server());
    let cellular = device.network().host("cellular");
    let builder = builder.simulated_interfaces(&[cellular], PathMode::Standby);
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, _messages) = parts.unwrap();
    let mut events = client.events();
    peer.run(Duration::from_secs(1)).await;
    assert_eq!(change(&mut events).await, ("cellular".to_owned(), PathChange::Opened));
    device.change(|link| link.cut = true);
    client.publish(Publication::to("t", "1").unwrap()).await.unwrap();
    assert_eq!(peer.take().await.1, "1");
    assert_eq!(change(&mut events).await, ("device".to_owned(), PathChange::Silent));
    // An application that asks later is told of the connection, not of the path.
    assert!(matches!(client.events().recv().await, Some(ConnectionEvent::Connected { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_server_without_the_extension_is_told_of() {
    let options = QuicOptions { multipath: Multipath::default(), ..QuicOptions::server() };
    let (mut listening, builder, device) = quic_with(options);
    let cellular = device.network().host("cellular");
    let builder = builder.simulated_interfaces(&[cellular], PathMode::Both);
    let (client, _messages) = builder.start().unwrap();
    let mut events = client.events();
    let mut peer = listening.accept().await;
    peer.run(Duration::from_secs(1)).await;
    assert_eq!(change(&mut events).await, ("cellular".to_owned(), PathChange::Unsupported));
}

#[tokio::test(start_paused = true)]
async fn paths_that_cannot_be_are_refused() {
    let error = |url: &str, paths: &[&str]| {
        let paths = paths.iter().map(|path| LocalPath::parse(path));
        Client::builder(url).paths(paths, PathMode::Standby).start().unwrap_err().to_string()
    };
    assert!(error("quic://h", &["lo"]).starts_with("\"lo\" is the only path: give two or more"));
    assert!(error("quic://h", &["127.0.0.1", "127.0.0.1"]).contains("is given twice"));
    assert!(error("mqtts://h", &["127.0.0.1", "127.0.0.2"]).contains("quic://host"));
    assert!(error("auto://h", &["127.0.0.1", "127.0.0.2"]).contains("quic://host"));
    assert!(error("quic://h", &["127.0.0.1", "198.51.100.7"]).starts_with("path 198.51.100.7: "));
    let (_listening, builder) = network();
    let paths = ["127.0.0.1", "127.0.0.2"].map(LocalPath::parse);
    assert!(builder.paths(paths, PathMode::Both).start().unwrap_err().to_string().contains("needs QUIC"));
}
