//! Clients that end without DISCONNECT, and their Wills.

use std::time::Duration;

use braid_proto::packet::{QoS, Will};

use super::ledger::TopicKind;
use super::persistent_client::PersistentClient;
use crate::payload::payload;
use crate::topic::topic_name;

/// Latest time within a load at which the connection ends.
const SOON: Duration = Duration::from_millis(300);
/// Will Delay Interval that never passes, seconds.
pub(crate) const NEVER: u32 = 86_000;

/// A client with a Will.
pub(crate) struct WillClient {
    client: PersistentClient,
    /// Will Delay Interval, seconds.
    delay: u32,
}

impl WillClient {
    pub(crate) fn new(client: PersistentClient, delay: u32) -> Self {
        Self { client, delay }
    }

    pub(crate) async fn run(mut self) {
        // A Will that is never due is not in the ledger, so that its delivery is a fault.
        let topic = format!("w/{}/{}", self.client.endpoint.transport.scheme(), self.delay);
        let is_due = self.delay < NEVER;
        if is_due {
            self.client.testbed.ledger().add_topic(&topic, TopicKind::Will);
        }
        loop {
            let number = self.client.testbed.ledger().next(&topic);
            self.client.set_will(self.will(&topic, number));
            self.client.testbed.ledger().begin(&topic);
            if !self.live().await {
                // The broker may have got the Will, or not.
                self.client.testbed.ledger().mark_uncertain(&topic, number);
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
            self.client.testbed.ledger().acknowledged(&topic, number);
            if is_due {
                self.client.testbed.ledger().counts.wills += 1;
                self.published(&topic).await;
            }
        }
    }

    fn will(&self, topic: &str, number: u64) -> Will {
        Will {
            topic: topic_name(topic),
            payload: payload(topic, number),
            qos: QoS::ExactlyOnce,
            retain: false,
            delay: self.delay,
            properties: None,
        }
    }

    /// Connects and ends without DISCONNECT, by itself or with the broker. False: no connection.
    async fn live(&mut self) -> bool {
        self.client.expect_broker().await;
        let Some(mut connection) = self.client.attempt().await else { return false };
        let testbed = std::rc::Rc::clone(&self.client.testbed);
        let leaves = async {
            testbed.loading().await;
            testbed.pause(SOON).await;
        };
        tokio::pin!(leaves);
        loop {
            tokio::select! {
                received = self.client.next(&mut connection) => if received.is_none() { break },
                () = &mut leaves => break,
            }
        }
        self.client.close(connection);
        true
    }

    /// Waits until every connected subscriber has the Will: an earlier reconnect would cancel it.
    async fn published(&self, topic: &str) {
        let testbed = &self.client.testbed;
        loop {
            let changed = testbed.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if !testbed.read_ledger().is_missed(topic) {
                return;
            }
            changed.await;
        }
    }
}
