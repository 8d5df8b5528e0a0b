//! Clients that leave without a word, and their Wills.

use std::time::Duration;

use braid_proto::packet::{QoS, Will};

use crate::ledger::Use;
use crate::line::{Line, topic_name};
use crate::payload::payload;

/// It leaves within this time of a load.
const SOON: Duration = Duration::from_millis(300);
/// A delay that never passes.
pub(crate) const NEVER: u32 = 86_000;

/// A client with a Will.
pub(crate) struct Testator {
    line: Line,
    /// Seconds.
    delay: u32,
}

impl Testator {
    pub(crate) fn new(line: Line, delay: u32) -> Self {
        Self { line, delay }
    }

    pub(crate) async fn run(mut self) {
        // Nobody may get what never comes: it is no topic of the books.
        let topic = format!("w/{}/{}", self.line.way.scheme, self.delay);
        let is_due = self.delay < NEVER;
        if is_due {
            self.line.house.ledger().add_topic(&topic, Use::Will);
        }
        loop {
            let number = self.line.house.ledger().next(&topic);
            self.line.set_will(self.will(&topic, number));
            self.line.house.ledger().begin(&topic);
            if !self.live().await {
                // It may have come as far as the broker, or not.
                self.line.house.ledger().doubted(&topic, number);
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
            self.line.house.ledger().acknowledged(&topic, number);
            if is_due {
                self.line.house.ledger().counts.wills += 1;
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

    /// Connects and leaves without a word, or the broker does. False: it did not connect.
    async fn live(&mut self) -> bool {
        self.line.expect_broker().await;
        let Some(mut connection) = self.line.attempt().await else { return false };
        let house = std::rc::Rc::clone(&self.line.house);
        let leaves = async {
            house.loading().await;
            house.pause(SOON).await;
        };
        tokio::pin!(leaves);
        loop {
            tokio::select! {
                happened = self.line.next(&mut connection) => if happened.is_none() { break },
                () = &mut leaves => break,
            }
        }
        self.line.close(connection);
        true
    }

    /// Waits until everybody who is there has it: who comes back before that has no Will any more.
    async fn published(&self, topic: &str) {
        let house = &self.line.house;
        loop {
            let changed = house.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if !house.books().is_missed(topic) {
                return;
            }
            changed.await;
        }
    }
}
