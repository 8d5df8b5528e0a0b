//! Reads of messages of the log by their subjects.

use std::time::Duration;

use async_nats::jetstream::stream::{RawMessageErrorKind, Stream};
use async_nats::{Client, HeaderMap, Subscriber};
use braid_store::StoreError;
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::time::timeout;

use crate::layout::Layout;

/// Messages and bytes of one answer.
const BATCH: usize = 256;
const BATCH_BYTES: usize = 1 << 20;

/// Time for an answer of the servers.
const ANSWER: Duration = Duration::from_secs(2);

/// Tries to read.
const TRIES: u32 = 10;

/// Headers of answers.
const SUBJECT: &str = "Nats-Subject";
const SEQUENCE: &str = "Nats-Sequence";

/// Message as an answer has it.
pub(crate) struct Found {
    pub(crate) sequence: u64,
    pub(crate) subject: String,
    pub(crate) headers: HeaderMap,
    pub(crate) payload: Bytes,
}

/// Streams of the log, to be read by subjects.
#[derive(Clone)]
pub(crate) struct LogSource {
    pub(crate) client: Client,
    pub(crate) layout: Layout,
    /// Streams of the shards, by index.
    pub(crate) streams: Vec<Stream<()>>,
}

impl LogSource {
    /// Some messages of a subject with wildcards from a sequence number on; true: there are no others. Any server may
    /// answer with a part; the leader says whether it was all.
    pub(crate) async fn read_matching(
        &self,
        index: usize,
        subject: &str,
        from: u64,
    ) -> Result<(Vec<Found>, bool), StoreError> {
        let stream = &self.streams[index];
        let mut reason = String::new();
        for _ in 0..TRIES {
            let name = self.layout.messages_stream(self.layout.shard_at(index));
            match self.read_batch(&name, subject, from).await {
                Ok(found) if !found.is_empty() => return Ok((found, false)),
                Ok(_) => {}
                Err(error) => tracing::debug!(%error, "no server answers with messages"),
            }
            let next = stream.raw_message_builder().sequence(from).next_by_subject(subject).send().await;
            match next {
                Ok(found) => {
                    let (sequence, subject) = (found.sequence, found.subject.to_string());
                    let found = Found { sequence, subject, headers: found.headers, payload: found.payload };
                    return Ok((vec![found], false));
                }
                Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => {
                    return Ok((Vec::new(), true));
                }
                Err(error) => reason = error.to_string(),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Err(StoreError::Unavailable { reason: reason.into() })
    }

    async fn read_batch(
        &self,
        stream: &str,
        subject: &str,
        from: u64,
    ) -> Result<Vec<Found>, async_nats::Error> {
        let to = self.layout.answers(fastrand::u64(..));
        let mut answers = self.client.subscribe(to.clone()).await?;
        let request = serde_json::json!({
            "seq": from, "next_by_subj": subject, "batch": BATCH, "max_bytes": BATCH_BYTES,
        });
        let api = format!("$JS.API.DIRECT.GET.{stream}");
        self.client.publish_with_reply(api, to, serde_json::to_vec(&request)?.into()).await?;
        timeout(ANSWER, collect(&mut answers)).await?
    }
}

async fn collect(answers: &mut Subscriber) -> Result<Vec<Found>, async_nats::Error> {
    let mut found = Vec::new();
    while let Some(answer) = answers.next().await {
        // 204: the end; 404: nothing; 503: no server answers.
        if answer.status.is_some() {
            break;
        }
        let headers = answer.headers.unwrap_or_default();
        let text = |name| headers.get(name).map(|value| value.as_str().to_owned());
        let (Some(subject), Some(sequence)) = (text(SUBJECT), text(SEQUENCE)) else { break };
        found.push(Found { sequence: sequence.parse()?, subject, payload: answer.payload, headers });
    }
    Ok(found)
}
