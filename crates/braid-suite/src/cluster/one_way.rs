//! Single messages at a low rate, and their latency from a publisher to a subscriber, whatever the protocol.

use std::time::Duration;

use braid_measure::Latencies;
use bytes::{Bytes, BytesMut};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

/// Bytes of a payload.
pub(super) const SIZE: usize = 200;
/// Time between two single messages.
const PAUSE: Duration = Duration::from_millis(5);
/// Time after which a single message is lost.
const LOST: Duration = Duration::from_millis(500);
/// Most messages until the first one arrives, while subscriptions become known at other nodes.
const MOST_UNKNOWN: u64 = 40;

/// Single messages at a low rate.
pub(super) struct OneWay {
    pub(super) messages: u64,
}

impl OneWay {
    /// Sends messages one by one, each when the one before has arrived and its time has come.
    ///
    /// # Errors
    /// `send` fails, the connection of the receiver ends, or no message arrives.
    pub(super) async fn run(
        &self,
        mut send: impl AsyncFnMut(Bytes) -> Result<(), String>,
        mut receive: impl AsyncFnMut() -> Option<Bytes>,
    ) -> Result<Latencies, String> {
        let mut latencies = Latencies::with_resolution(Duration::from_nanos(1));
        let mut pause = interval(PAUSE);
        pause.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut number, mut unknown, mut last) = (0, 0, self.messages);
        while number < last {
            pause.tick().await;
            let began = Instant::now();
            send(numbered(number)).await?;
            let arrived = timeout(LOST, async {
                loop {
                    match receive().await {
                        None => return Err("the connection of the receiver ended".to_owned()),
                        Some(payload) if payload == numbered(number) => return Ok(()),
                        // A message that counted as lost.
                        Some(_) => {}
                    }
                }
            });
            match arrived.await {
                Ok(result) => {
                    result?;
                    latencies.record(began.elapsed());
                }
                Err(_) if latencies.arrived() > 0 => latencies.record_missing(1),
                // Until the first message, the other node may not know of the subscription.
                Err(_) if unknown == MOST_UNKNOWN => {
                    return Err("no message arrives at the other node".to_owned());
                }
                Err(_) => (unknown, last) = (unknown + 1, last + 1),
            }
            number += 1;
        }
        Ok(latencies)
    }
}

/// Payload that begins with a number.
pub(super) fn numbered(number: u64) -> Bytes {
    let mut payload = BytesMut::from(&number.to_be_bytes()[..]);
    payload.resize(SIZE, b'x');
    payload.freeze()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::VecDeque;

    use bytes::Bytes;

    use super::{OneWay, numbered};

    /// Runs against a link that loses messages, and delivers message 3 twice.
    async fn through(is_lost: fn(u64) -> bool) -> Result<(u64, u64), String> {
        let link = RefCell::new(VecDeque::new());
        let mut sent = 0;
        let send = async |payload: Bytes| {
            assert_eq!(payload, numbered(sent));
            let copies = if is_lost(sent) { 0 } else { 1 + usize::from(sent == 3) };
            link.borrow_mut().extend(vec![payload; copies]);
            sent += 1;
            Ok(())
        };
        let receive = async || {
            let arrived = link.borrow_mut().pop_front();
            if arrived.is_some() { arrived } else { std::future::pending().await }
        };
        let latencies = OneWay { messages: 10 }.run(send, receive).await?;
        Ok((latencies.arrived(), latencies.due()))
    }

    #[tokio::test(start_paused = true)]
    async fn lost_messages_are_missing_once_one_has_arrived() {
        assert_eq!(through(|_| false).await, Ok((10, 10)));
        assert_eq!(through(|number| number < 5).await, Ok((10, 10)), "the subscription was unknown");
        assert_eq!(through(|number| number == 7).await, Ok((9, 10)));
        assert!(through(|_| true).await.is_err());
    }
}
