//! Consumer that reads a shard of the log in bursts.
//!
//! A request is answered with all messages that there are, or with the next one. After a burst the next request waits for a
//! moment, so that messages which arrive meanwhile share one: where many arrive, waking up for each would cost more than
//! reading them, here and at the server. A message that follows none comes at once.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use async_nats::jetstream::stream::Stream;
use async_nats::{Client, Message, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use serde_json::json;
use tokio::time::{Instant, sleep_until, timeout};

use crate::connect::OVERHEAD;

/// Messages of one burst.
const BURST: usize = 256;

/// Longest time that the server waits for a message.
const EXPIRES: Duration = Duration::from_secs(1);

/// Time without an answer after which the server or its consumer is gone.
const SILENCE: Duration = Duration::from_secs(2);

/// Time after which the server removes a consumer without requests.
const INACTIVE: Duration = Duration::from_secs(10);

/// Longest time to have the consumer at the server of the connection: the servers choose one by chance, as a rule of three.
const PLACING: Duration = Duration::from_secs(1);

/// Status of the last message of an answer: all that there were, none in time, and more than one answer may have.
const NO_MORE: u16 = 404;
const NONE_IN_TIME: u16 = 408;
const NO_ROOM: u16 = 409;

/// Consumer of a shard.
pub(crate) struct LogTail {
    client: Client,
    answers: Subscriber,
    /// Subjects of requests and answers, and a request.
    to: String,
    answers_at: String,
    request: Bytes,
    /// Number of the last message that the consumer has sent.
    last: u64,
    spacing: Duration,
    /// Earliest time of the next request.
    next: Instant,
}

/// Message of the log.
pub(crate) struct Read {
    pub(crate) sequence: u64,
    pub(crate) message: Message,
}

/// Part of a stream that a consumer reads.
pub(crate) struct Part {
    /// Name of the stream.
    pub(crate) stream: String,
    /// Subject with wildcards.
    pub(crate) subject: String,
    /// First sequence number.
    pub(crate) from: u64,
}

impl LogTail {
    /// Makes a consumer whose bursts begin `spacing` after each other. The servers answer at the subject `answers_at`.
    ///
    /// # Errors
    /// The servers do not make it.
    pub(crate) async fn open(
        client: Client,
        stream: &Stream<()>,
        part: Part,
        answers_at: String,
        spacing: Duration,
    ) -> Result<Self, async_nats::Error> {
        let config = pull::Config {
            filter_subject: part.subject,
            deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: part.from },
            ack_policy: AckPolicy::None,
            inactive_threshold: INACTIVE,
            num_replicas: 1,
            memory_storage: true,
            ..pull::Config::default()
        };
        let name = create(&client, stream, config).await?;
        let answers = client.subscribe(answers_at.clone()).await?;
        let to = format!("$JS.API.CONSUMER.MSG.NEXT.{}.{name}", part.stream);
        // A message alone fits.
        let max_bytes = client.max_payload() + OVERHEAD;
        let request = json!({
            "batch": BURST, "max_bytes": max_bytes, "expires": EXPIRES.as_nanos(), "no_wait": true,
        });
        let request = serde_json::to_vec(&request)?.into();
        Ok(Self { client, answers, to, answers_at, request, last: 0, spacing, next: Instant::now() })
    }

    /// The next messages in their order, or none after some time.
    ///
    /// # Errors
    /// The consumer is gone, or a message is missing.
    pub(crate) async fn burst(&mut self) -> Result<Vec<Read>, async_nats::Error> {
        sleep_until(self.next).await;
        let (to, answers_at) = (self.to.clone(), self.answers_at.clone());
        self.client.publish_with_reply(to, answers_at, self.request.clone()).await?;
        let mut burst = Vec::new();
        loop {
            let message = timeout(SILENCE, self.answers.next()).await?;
            let message = message.ok_or("the connection is closed")?;
            if let Some(status) = message.status {
                match status.as_u16() {
                    NO_MORE | NONE_IN_TIME => self.next = Instant::now() + self.spacing,
                    NO_ROOM if !burst.is_empty() => self.next = Instant::now(),
                    _ => return Err(format!("{status}: {}", message.description.unwrap_or_default()).into()),
                }
                return Ok(burst);
            }
            burst.push(self.read(message)?);
        }
    }

    fn read(&mut self, message: Message) -> Result<Read, async_nats::Error> {
        let reply = message.reply.as_deref().unwrap_or_default();
        let (sequence, number) = numbers(reply).ok_or("a message has no sequence number")?;
        if number != self.last + 1 {
            return Err(format!("message {number} of the consumer follows {}", self.last).into());
        }
        self.last = number;
        Ok(Read { sequence, message })
    }
}

/// Makes a consumer, at the server of the connection if that has a replica of the stream: so messages take no way between
/// servers, and the end of another server stops nothing. Returns its name.
async fn create(
    client: &Client,
    stream: &Stream<()>,
    config: pull::Config,
) -> Result<String, async_nats::Error> {
    let own = client.server_info().server_name;
    let replicas = stream.get_info().await?.cluster.unwrap_or_default();
    let mut names = replicas.leader.iter().chain(replicas.replicas.iter().map(|peer| &peer.name));
    let give_up = Instant::now() + if names.any(|name| *name == own) { PLACING } else { Duration::ZERO };
    loop {
        let consumer = stream.create_consumer(config.clone()).await?;
        let info = consumer.cached_info();
        let at = info.cluster.as_ref().and_then(|cluster| cluster.leader.as_ref());
        if at.is_none_or(|at| *at == own) || Instant::now() >= give_up {
            return Ok(info.name.clone());
        }
        stream.delete_consumer(&info.name).await?;
    }
}

/// Sequence number of a message in its stream, and its number among those of its consumer, by the subject of its
/// acknowledgement (ADR-15 of NATS): with 11 tokens and more it has two before the name of the stream.
fn numbers(reply: &str) -> Option<(u64, u64)> {
    let tokens = reply.strip_prefix("$JS.ACK.")?;
    let before = if tokens.split('.').count() < 9 { 3 } else { 5 };
    let mut tokens = tokens.split('.').skip(before);
    Some((tokens.next()?.parse().ok()?, tokens.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_message_are_read() {
        for reply in [
            "$JS.ACK.events.durable.3.100.7.1795726725000000000.42",
            "$JS.ACK._.szMpdrwD.events.durable.3.100.7.1795726725000000000.42",
            "$JS.ACK.hub.szMpdrwD.events.durable.3.100.7.1795726725000000000.42.token",
        ] {
            assert_eq!(numbers(reply), Some((100, 7)), "{reply}");
        }
        for reply in ["", "_INBOX.1", "$JS.ACK.events.durable.3.100", "$JS.ACK.events.durable.3.x.7.1.42"] {
            assert_eq!(numbers(reply), None, "{reply}");
        }
    }
}
