//! Publishes a reading every second, across reconnects.
//!
//! `cargo run -p braid-client --example publish -- mqtt://localhost 5`: five readings and out.

use std::time::Duration;

use braid_client::{Client, Error, Publication, QoS};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().unwrap_or_else(|| "mqtt://localhost".to_owned());
    let count = arguments.next().and_then(|count| count.parse().ok()).unwrap_or(u32::MAX);

    let will = Publication::to("sensors/7/state", "lost")?.retain(true);
    // `start` needs no server yet: messages wait in the queue.
    let (client, messages) =
        Client::builder(&url).client_id("thermometer-7").will(will, Duration::ZERO).start()?;
    // There are no subscriptions.
    drop(messages);

    let mut events = client.events();
    tokio::spawn(async move {
        while let Some(event) = events.recv().await {
            eprintln!("{event:?}");
        }
    });

    for reading in 1..=count {
        let publication = Publication::to("sensors/7/temperature", format!("{}", 20 + reading % 5))?
            .qos(QoS::AtLeastOnce)
            // Old readings are useless.
            .expires_after(Duration::from_secs(60));
        // Resolves with the acknowledgement, across reconnects if need be.
        match client.publish(publication).await {
            Ok(reason) => println!("reading {reading}: {reason}"),
            Err(Error::Expired) => println!("reading {reading} was too old when the server came back"),
            Err(error) => return Err(error),
        }
        if reading < count {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
    client.disconnect().await
}
