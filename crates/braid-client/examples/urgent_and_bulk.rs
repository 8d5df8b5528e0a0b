//! Sends a recording and alarms on one QUIC connection, and prints the latency of each alarm.
//!
//! `cargo run -p braid-client --example urgent_and_bulk -- quic://127.0.0.1 braidmq-data/cert.pem 50`: 50 MB of
//! recording, and an alarm every 100 ms while it is sent.

use std::time::{Duration, Instant};

use braid_client::{Client, ClientTlsOptions, Error, Priority, Publication, QoS};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().unwrap_or_else(|| "quic://127.0.0.1".to_owned());
    let ca_file = arguments.next().unwrap_or_else(|| "braidmq-data/cert.pem".to_owned());
    let megabytes: usize = arguments.next().and_then(|count| count.parse().ok()).unwrap_or(50);

    let tls = ClientTlsOptions { ca_files: vec![ca_file.into()], ..ClientTlsOptions::default() };
    let (client, messages) = Client::builder(&url).tls(tls).connect().await?;
    drop(messages);

    // Sent on a stream of its own; the future resolves with the acknowledgement.
    let recording = Publication::to("bulk/recording", vec![0; megabytes * 1_000_000])?
        .qos(QoS::AtLeastOnce)
        .priority(Priority::new(8));
    let mut recorded = std::pin::pin!(client.enqueue(recording).await?);

    let mut ticks = tokio::time::interval(Duration::from_millis(100));
    loop {
        tokio::select! {
            outcome = &mut recorded => {
                println!("recording: {}", outcome?);
                return client.disconnect().await;
            }
            _ = ticks.tick() => {
                let sent = Instant::now();
                let alarm = Publication::to("alarms/fire", "now")?.qos(QoS::AtLeastOnce).priority(Priority::new(200));
                let reason = client.publish(alarm).await?;
                println!("alarm: {reason} after {:?}", sent.elapsed());
            }
        }
    }
}
