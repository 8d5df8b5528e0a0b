//! A request and its response (MQTT 5, 4.10): one client asks, another one answers.
//!
//! `cargo run -p braid-client --example request_response -- mqtt://localhost`

use std::time::Duration;

use braid_client::{Client, Error, Messages, Publication, QoS, Subscribe, TopicName};
use tokio::time::timeout;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "mqtt://localhost".to_owned());

    let (responder, requests) = Client::builder(&url).client_id("clock").connect().await?;
    responder.subscribe(Subscribe::to("clock/time")?).await?;
    tokio::spawn(respond(responder, requests));

    let (client, mut responses) = Client::builder(&url).client_id("asker").connect().await?;
    let response_topic = TopicName::parse("clock/time/asker")?;
    client.subscribe(Subscribe::to(response_topic.as_str())?).await?;
    let request = Publication::to("clock/time", "what time is it?")?
        .qos(QoS::AtLeastOnce)
        .response_topic(response_topic)
        .correlation_data("1");
    client.publish(request).await?;

    match timeout(Duration::from_secs(5), responses.recv()).await {
        Ok(Some(response)) => println!("{}", String::from_utf8_lossy(&response.payload)),
        Ok(None) => println!("the connection is closed"),
        Err(_) => println!("no response within the timeout: does the server speak MQTT 5?"),
    }
    client.disconnect().await
}

async fn respond(client: Client, mut requests: Messages) -> Result<(), Error> {
    while let Some(request) = requests.recv().await {
        let Some(properties) = &request.properties else { continue };
        let Some(topic) = properties.response_topic.clone() else { continue };
        let mut response = Publication::new(topic, "time for tea").qos(QoS::AtLeastOnce);
        if let Some(correlation_data) = properties.correlation_data.clone() {
            response = response.correlation_data(correlation_data);
        }
        // Not `publish`: the task that takes messages must not wait for an acknowledgement behind them.
        client.enqueue(response).await?;
    }
    Ok(())
}
