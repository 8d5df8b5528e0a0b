//! Consumer that reads a shard of the log in bursts.
//!
//! A request is answered with all messages that there are, or with the next one. After a burst the next request waits
//! for a moment, so that messages which arrive meanwhile share one: where many arrive, waking up for each would cost
//! more than reading them, here and at the server. A message that follows none comes at once.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use async_nats::jetstream::stream::{Info, Stream};
use async_nats::{Client, Message, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use serde_json::json;
use thiserror::Error;
use tokio::time::{Instant, sleep_until, timeout};

use crate::connect::OVERHEAD;
use crate::publish::next_message;

/// Messages of one burst.
const BURST: usize = 256;

/// Longest time that the server waits for a message.
const EXPIRES: Duration = Duration::from_secs(1);

/// Time without an answer after which the server or its consumer is gone.
const SILENCE: Duration = Duration::from_secs(2);

/// Time after which the server removes a consumer without requests.
const INACTIVE: Duration = Duration::from_secs(10);

/// Most tries to have the consumer at the server of the connection: the servers choose one by chance, as a rule of
/// three.
const PLACEMENTS: u32 = 32;

/// Waits without a message after which the leader is asked whether there is none.
const WAITS: u32 = 5;

/// Status of the last message of an answer: all that there were, none in time, and more than one answer may have.
const NO_MORE: u16 = 404;
const NONE_IN_TIME: u16 = 408;
const NO_ROOM: u16 = 409;

/// Consumer of a shard.
pub(crate) struct LogTail {
    client: Client,
    answers: Subscriber,
    stream: Stream<()>,
    subject: String,
    /// Subjects of requests and answers, and a request.
    to: String,
    answers_at: String,
    request: Bytes,
    /// Number of the last message that the consumer has sent, and its sequence number.
    last: u64,
    position: u64,
    /// Waits without a message, one after the other.
    waits: u32,
    /// The consumer is gone, or has left out a message.
    is_over: bool,
    /// Server that has the consumer, where the servers are a cluster.
    server: Option<String>,
    spacing: Duration,
    /// Earliest time of the next request.
    next: Instant,
}

/// Part of an answer.
enum Answer {
    Message(Read),
    /// The last part, with its status.
    End(u16),
}

/// Message of the log.
pub(crate) struct Read {
    pub(crate) sequence: u64,
    pub(crate) message: Message,
}

/// Part of a stream that a consumer reads.
pub(crate) struct Part {
    /// State of the stream as it was a moment ago.
    pub(crate) stream: Info,
    /// Subject with wildcards.
    pub(crate) subject: String,
    /// First sequence number.
    pub(crate) from: u64,
}

/// Consumer at a replica that does not get what the leader has.
#[derive(Debug, Error)]
#[error("a replica of the log is behind")]
pub(crate) struct Behind;

impl LogTail {
    /// Makes a consumer whose bursts begin `spacing` after each other. The servers answer at the subject `answers_at`.
    /// `is_near`: at the server of the connection, if that has a replica which is not behind.
    ///
    /// # Errors
    /// The servers do not make it.
    pub(crate) async fn open(
        client: Client,
        stream: &Stream<()>,
        part: Part,
        answers_at: String,
        (spacing, is_near): (Duration, bool),
    ) -> Result<Self, async_nats::Error> {
        let Part { stream: info, subject, from } = part;
        let config = pull::Config {
            filter_subject: subject.clone(),
            deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: from },
            ack_policy: AckPolicy::None,
            inactive_threshold: INACTIVE,
            num_replicas: 1,
            memory_storage: true,
            ..pull::Config::default()
        };
        let is_near = is_near && is_current(&info, &client.server_info().server_name);
        let (consumer, server) = create(&client, stream, config, is_near).await?;
        let answers = client.subscribe(answers_at.clone()).await?;
        // A message alone fits, if the servers take it still.
        let max_bytes = client.max_payload() + OVERHEAD;
        Ok(Self {
            client,
            answers,
            stream: stream.clone(),
            subject,
            to: format!("$JS.API.CONSUMER.MSG.NEXT.{}.{consumer}", info.config.name),
            answers_at,
            request: request(BURST, Some(max_bytes))?,
            last: 0,
            position: from.saturating_sub(1),
            waits: 0,
            is_over: false,
            server,
            spacing,
            next: Instant::now(),
        })
    }

    /// Tests whether the consumer is at another server although that of the connection has a replica which is not
    /// behind now. It had none when the consumer was made, or the connection is to another server since.
    ///
    /// # Errors
    /// The servers do not answer.
    pub(crate) async fn is_misplaced(&self) -> Result<bool, async_nats::Error> {
        let own = self.client.server_info().server_name;
        let is_elsewhere = self.server.as_ref().is_some_and(|server| *server != own);
        Ok(is_elsewhere && is_current(&self.stream.get_info().await?, &own))
    }

    /// The next messages in their order, or none after some time.
    ///
    /// # Errors
    /// The consumer is gone, a message is missing, or the replica is [behind](Behind).
    pub(crate) async fn burst(&mut self) -> Result<Vec<Read>, async_nats::Error> {
        if self.is_over {
            return Err("the consumer is gone".into());
        }
        sleep_until(self.next).await;
        self.ask(self.request.clone()).await?;
        let (mut burst, mut is_single) = (Vec::new(), false);
        loop {
            match self.answer().await {
                Ok(Answer::Message(read)) => {
                    burst.push(read);
                    // No status follows it.
                    if is_single {
                        break;
                    }
                }
                Ok(Answer::End(NONE_IN_TIME)) if burst.is_empty() => {
                    self.next = Instant::now();
                    self.compare().await?;
                    break;
                }
                // The servers took larger ones before.
                Ok(Answer::End(NO_ROOM)) if burst.is_empty() => {
                    is_single = true;
                    self.ask(request(1, None)?).await?;
                }
                Ok(Answer::End(status)) => {
                    let spacing = if status == NO_ROOM { Duration::ZERO } else { self.spacing };
                    self.next = Instant::now() + spacing;
                    break;
                }
                Err(error) if burst.is_empty() => return Err(error),
                Err(error) => {
                    tracing::debug!(%error, "a part of the log was read");
                    self.is_over = true;
                    break;
                }
            }
        }
        if !burst.is_empty() {
            self.waits = 0;
        }
        Ok(burst)
    }

    async fn ask(&self, request: Bytes) -> Result<(), async_nats::Error> {
        let (to, answers_at) = (self.to.clone(), self.answers_at.clone());
        Ok(self.client.publish_with_reply(to, answers_at, request).await?)
    }

    async fn answer(&mut self) -> Result<Answer, async_nats::Error> {
        let message = timeout(SILENCE, self.answers.next()).await?;
        let message = message.ok_or("the connection is closed")?;
        match message.status.map(|status| status.as_u16()) {
            None => self.read(message).map(Answer::Message),
            Some(status @ (NO_MORE | NONE_IN_TIME | NO_ROOM)) => Ok(Answer::End(status)),
            Some(status) => Err(format!("{status}: {}", message.description.unwrap_or_default()).into()),
        }
    }

    /// Asks the leader now and then whether there is really no message.
    async fn compare(&mut self) -> Result<(), async_nats::Error> {
        self.waits += 1;
        if self.waits.is_multiple_of(WAITS)
            && let Ok(Some(_)) = next_message(&self.stream, &self.subject, self.position + 1).await
        {
            return Err(Behind.into());
        }
        Ok(())
    }

    fn read(&mut self, message: Message) -> Result<Read, async_nats::Error> {
        let reply = message.reply.as_deref().unwrap_or_default();
        let (sequence, number) = numbers(reply).ok_or("a message has no sequence number")?;
        if number != self.last + 1 {
            return Err(format!("message {number} of the consumer follows {}", self.last).into());
        }
        (self.last, self.position) = (number, sequence);
        Ok(Read { sequence, message })
    }
}

/// Request for messages.
fn request(batch: usize, max_bytes: Option<usize>) -> Result<Bytes, async_nats::Error> {
    let mut request = json!({ "batch": batch, "expires": EXPIRES.as_nanos(), "no_wait": true });
    if let Some(max_bytes) = max_bytes {
        request["max_bytes"] = max_bytes.into();
    }
    Ok(serde_json::to_vec(&request)?.into())
}

/// Tests whether a server has a replica of a stream that is not behind.
fn is_current(stream: &Info, server: &str) -> bool {
    stream.cluster.as_ref().is_some_and(|cluster| {
        cluster.leader.as_deref() == Some(server)
            || cluster.replicas.iter().any(|peer| peer.name == server && peer.current && !peer.offline)
    })
}

/// Makes a consumer. `is_near`: at the server of the connection, so that messages take no way between servers, and the
/// end of another server stops nothing. Returns its name, and the server that has it.
async fn create(
    client: &Client,
    stream: &Stream<()>,
    config: pull::Config,
    is_near: bool,
) -> Result<(String, Option<String>), async_nats::Error> {
    let own = client.server_info().server_name;
    let mut placements = if is_near { PLACEMENTS } else { 1 };
    loop {
        let consumer = stream.create_consumer(config.clone()).await?;
        let info = consumer.cached_info();
        let server = info.cluster.as_ref().and_then(|cluster| cluster.leader.clone());
        placements -= 1;
        if placements == 0 || server.as_ref().is_none_or(|server| *server == own) {
            return Ok((info.name.clone(), server));
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
            "$JS.ACK.domain.szMpdrwD.events.durable.3.100.7.1795726725000000000.42.token",
        ] {
            assert_eq!(numbers(reply), Some((100, 7)), "{reply}");
        }
        for reply in ["", "test.a.1", "$JS.ACK.events.durable.3.100", "$JS.ACK.events.durable.3.x.7.1.42"] {
            assert_eq!(numbers(reply), None, "{reply}");
        }
    }
}
