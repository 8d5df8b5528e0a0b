use std::time::Duration;

use braid_client::{Client, Error, Messages, QoS, Received, Subscribe, TopicFilter};
use bytes::Buf;
use tokio::time::Instant;

use super::{BULK_TOPIC, CONVERGENCE, Lanes, Load, Outcome, URGENT, URGENT_TOPIC};
use crate::failure::Failure;
use braid_measure::Latencies;

/// Receives both kinds of messages.
pub(super) struct Subscriber {
    /// Held: without it the connection would end.
    _client: Client,
    messages: Messages,
    latencies: Latencies,
    early: Latencies,
    bulk_messages: u64,
}

impl Subscriber {
    pub(super) async fn begin((client, messages): (Client, Messages), load: &Load) -> Result<Self, Failure> {
        let to = |topic: &'static str| {
            let filter = TopicFilter::parse(topic).map_err(|_| Failure::Stray(topic.into()))?;
            Ok::<_, Failure>(Subscribe::new([filter]))
        };
        let mut urgent = to(URGENT_TOPIC)?.qos(QoS::AtMostOnce);
        let mut bulk = to(BULK_TOPIC)?.qos(QoS::AtLeastOnce);
        if load.lanes != Lanes::Single {
            (urgent, bulk) = (urgent.stream(1), bulk.stream(2));
        }
        if load.lanes == Lanes::Priorities {
            urgent = urgent.priority(URGENT);
        }
        for subscribe in [urgent, bulk] {
            client.subscribe(subscribe).await?;
        }
        let (latencies, early) = (Latencies::default(), Latencies::default());
        Ok(Self { _client: client, messages, latencies, early, bulk_messages: 0 })
    }

    /// Receives until it is dropped.
    pub(super) async fn run(&mut self, load: &Load, start: Instant) -> Failure {
        while let Some(received) = self.messages.recv().await {
            if let Err(failure) = self.take(&received, load, start) {
                return failure;
            }
        }
        Error::Closed.into()
    }

    fn take(&mut self, received: &Received, load: &Load, start: Instant) -> Result<(), Failure> {
        let message = &received.message;
        match message.topic.as_str() {
            BULK_TOPIC => self.bulk_messages += 1,
            URGENT_TOPIC if message.payload.len() >= 8 => {
                let number = message.payload.clone().get_u64();
                let number = u32::try_from(number).map_err(|_| Failure::Stray(URGENT_TOPIC.into()))?;
                let due = load.due(number);
                let latencies = if due <= CONVERGENCE { &mut self.early } else { &mut self.latencies };
                latencies.record(start.elapsed().saturating_sub(due));
            }
            stray => return Err(Failure::Stray(stray.into())),
        }
        Ok(())
    }

    pub(super) fn outcome(mut self, load: &Load, elapsed: Duration) -> Outcome {
        let early = load.early_messages();
        for (latencies, due) in
            [(&mut self.early, early), (&mut self.latencies, load.urgent_messages - early)]
        {
            latencies.record_missing(u64::from(due).saturating_sub(latencies.arrived()));
        }
        let Self { latencies, early, bulk_messages, .. } = self;
        Outcome { latencies, early, bulk_messages, elapsed }
    }
}
