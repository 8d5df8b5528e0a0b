//! Prints the messages of a topic filter.
//!
//! `cargo run -p braid-client --example subscribe -- mqtt://localhost 'sensors/#' 5`: five messages and out.

use std::io::{self, Write};

use braid_client::{Client, Error, QoS, Subscribe};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().unwrap_or_else(|| "mqtt://localhost".to_owned());
    let filter = arguments.next().unwrap_or_else(|| "#".to_owned());
    let count = arguments.next().and_then(|count| count.parse().ok()).unwrap_or(usize::MAX);

    let (client, mut messages) = Client::builder(&url).connect().await?;
    let codes = client.subscribe(Subscribe::to(&filter)?.qos(QoS::AtLeastOnce)).await?;
    eprintln!("subscribed to {filter}: {}", codes[0]);

    let mut seen = 0;
    while seen < count
        && let Some(message) = messages.recv().await
    {
        let mut out = io::stdout().lock();
        // Payloads are bytes and are written unchanged.
        let written = write!(out, "{} ", message.topic)
            .and_then(|()| out.write_all(&message.payload))
            .and_then(|()| writeln!(out));
        if written.is_err() {
            break; // The reader of the output has closed it.
        }
        seen += 1;
    }
    client.disconnect().await
}
