//! Conditional and atomic publishing to a stream, and its last messages.

use std::time::{Duration, SystemTime};

use async_nats::jetstream::stream::{LastRawMessageErrorKind, Stream};
use async_nats::{Client, HeaderMap, Request};
use bytes::Bytes;
use serde::Deserialize;

/// Time for an answer of the servers. Without one in this time a leader is missing.
const ANSWER: Duration = Duration::from_secs(2);

/// Time for which the log keeps a message that has expired. Each server removes it by its own clock, which may be
/// wrong; nodes deliver none that has expired.
const KEPT_EXPIRED: Duration = Duration::from_secs(24 * 3600);

/// Headers of the protocol of JetStream.
const MESSAGE_ID: &str = "Nats-Msg-Id";
const EXPECTED: &str = "Nats-Expected-Last-Subject-Sequence";
const TTL: &str = "Nats-TTL";
const BATCH_ID: &str = "Nats-Batch-Id";
const BATCH_SEQUENCE: &str = "Nats-Batch-Sequence";
const BATCH_COMMIT: &str = "Nats-Batch-Commit";

/// Codes of the errors of JetStream.
const WRONG_LAST_SEQUENCE: [u64; 2] = [10071, 10164];
const DUPLICATE_IN_BATCH: u64 = 10201;

/// Message to be appended to a stream.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    pub(crate) subject: String,
    pub(crate) headers: HeaderMap,
    pub(crate) payload: Bytes,
}

impl Outgoing {
    pub(crate) fn new(subject: String, payload: Bytes) -> Self {
        Self { subject, headers: HeaderMap::new(), payload }
    }

    /// Appends only if the last message of its subject has this sequence number; 0: if there is none.
    #[must_use]
    pub(crate) fn expecting(mut self, sequence: u64) -> Self {
        self.headers.insert(EXPECTED, sequence.to_string());
        self
    }

    /// Removed by the servers after this time.
    #[must_use]
    pub(crate) fn with_ttl(mut self, ttl: Duration) -> Self {
        self.headers.insert(TTL, format!("{}s", ttl.as_secs().max(1)));
        self
    }

    /// Removed by the servers some time after `at`, when the message expires.
    #[must_use]
    pub(crate) fn expiring(self, at: SystemTime, now: SystemTime) -> Self {
        self.with_ttl(at.duration_since(now).unwrap_or_default() + KEPT_EXPIRED)
    }

    /// Appended once for all tries with this identifier.
    #[must_use]
    pub(crate) fn with_id(mut self, id: String) -> Self {
        self.headers.insert(MESSAGE_ID, id);
        self
    }
}

/// Outcome of one try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Tried {
    /// Stored, with the sequence number of the last message; `None`: by an earlier try of an atomic group.
    Stored(Option<u64>),
    /// A condition does not hold. Nothing was stored.
    Refused,
    /// No answer, or an error that may pass: stored or not.
    Unknown(String),
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    error: Option<Problem>,
    #[serde(default)]
    seq: u64,
}

#[derive(Deserialize)]
struct Problem {
    #[serde(default)]
    err_code: u64,
    #[serde(default)]
    description: String,
}

/// Appends messages: all of them or none, with consecutive sequence numbers. `id` names the group in all its tries.
pub(crate) async fn append(client: &Client, id: &str, messages: &[Outgoing]) -> Tried {
    let Some((last, before)) = messages.split_last() else { return Tried::Stored(None) };
    let mut last = last.clone();
    if before.is_empty() {
        last.headers.insert(MESSAGE_ID, id);
        return send(client, last).await;
    }
    // The servers know a batch under its identifier while it is open: another try is another batch. Short, because it
    // is stored with each message and read by each node.
    let batch = format!("{:012x}", fastrand::u64(..1 << 48));
    for (number, message) in (1_u32..).zip(before) {
        let mut headers = message.headers.clone();
        headers.insert(BATCH_ID, &*batch);
        headers.insert(BATCH_SEQUENCE, number.to_string());
        if number == 1 {
            headers.insert(MESSAGE_ID, id);
        }
        let (subject, payload) = (message.subject.clone(), message.payload.clone());
        if let Err(error) = client.publish_with_headers(subject, headers, payload).await {
            return Tried::Unknown(error.to_string());
        }
    }
    last.headers.insert(BATCH_ID, &*batch);
    last.headers.insert(BATCH_SEQUENCE, messages.len().to_string());
    last.headers.insert(BATCH_COMMIT, "1");
    send(client, last).await
}

/// Appends one message.
pub(crate) async fn send(client: &Client, message: Outgoing) -> Tried {
    let Outgoing { subject, headers, payload } = message;
    let request = Request::new().headers(headers).payload(payload).timeout(Some(ANSWER));
    let answer = match client.send_request(subject, request).await {
        Ok(answer) => answer,
        Err(error) => return Tried::Unknown(error.to_string()),
    };
    match serde_json::from_slice::<Answer>(&answer.payload) {
        Ok(Answer { error: None, seq }) if seq > 0 => Tried::Stored(Some(seq)),
        Ok(Answer { error: Some(problem), .. }) => match problem.err_code {
            DUPLICATE_IN_BATCH => Tried::Stored(None),
            code if WRONG_LAST_SEQUENCE.contains(&code) => Tried::Refused,
            code => Tried::Unknown(format!("{} ({code})", problem.description)),
        },
        Ok(_) => Tried::Unknown("an answer without a sequence number".to_owned()),
        Err(error) => Tried::Unknown(error.to_string()),
    }
}

/// Last message of a subject with its sequence number, from the leader of the stream.
pub(crate) async fn last_message(stream: &Stream<()>, subject: &str) -> Result<Option<(Bytes, u64)>, String> {
    match stream.get_last_raw_message_by_subject(subject).await {
        Ok(found) => Ok(Some((found.payload, found.sequence))),
        Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// Sequence number of the next message of a subject with wildcards from one on, from the leader of the stream.
pub(crate) async fn next_message(
    stream: &Stream<()>,
    subject: &str,
    from: u64,
) -> Result<Option<u64>, String> {
    match stream.raw_message_builder().sequence(from).next_by_subject(subject).send().await {
        Ok(found) => Ok(Some(found.sequence)),
        Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}
