//! Check of an import before anything is written.

use std::collections::{BTreeSet, HashSet};
use std::time::SystemTime;

use async_nats::HeaderMap;
use braid_proto::topic::TopicName;
use braid_store::{LazyMessage, Lsn, QueueEntry, RecoveredSession, StoreError, StoredMessage};

use super::{Import, ImportError, IsUrgent, LogState, blocking, shown};
use crate::layout::Layout;
use crate::message::LoggedMessage;
use crate::record::Record;
use crate::subject::{takes_client, takes_topic};

/// Bytes of headers of JetStream that a message gets.
const MORE_HEADERS: usize = 512;

/// Bytes that a stream takes for a message beside its subject, headers and payload.
const ROW: u64 = 64;

/// Record of a client in the cluster.
pub(super) enum Presence {
    /// The client has no session: sequence number of the record of one that has ended, or 0.
    None(u64),
    /// An earlier run of this import has written the session of the client, and no node has had it.
    Own,
    Other,
}

/// Messages that have to be appended.
#[derive(Clone, Default)]
pub(super) struct Needed {
    /// Those that queues refer to.
    pub(super) queued: HashSet<Lsn>,
    /// Those of them that are in flight: their exchange goes on although they expire.
    pub(super) inflight: HashSet<Lsn>,
    pub(super) retained: HashSet<Lsn>,
    /// Those that were needed, and have expired.
    pub(super) expired: HashSet<Lsn>,
}

impl Needed {
    fn of(sessions: &[RecoveredSession], retained: &BTreeSet<Lsn>) -> Self {
        let mut needed = Self { retained: retained.iter().copied().collect(), ..Self::default() };
        for (_, entry) in sessions.iter().flat_map(|session| &session.queue) {
            needed.queued.extend(entry.message());
            if let QueueEntry::Sent(_, delivery) = entry {
                needed.inflight.insert(delivery.message);
            }
        }
        needed
    }

    fn note_expired(&mut self, lsn: Lsn) {
        let is_queued = !self.inflight.contains(&lsn) && self.queued.remove(&lsn);
        if is_queued | self.retained.remove(&lsn) {
            self.expired.insert(lsn);
        }
    }
}

/// Form of a message of a queue, or of a retained one, in the log.
pub(super) fn logged(message: &StoredMessage, is_retained: bool) -> LoggedMessage {
    LoggedMessage {
        qos: message.qos(),
        publisher: String::new(),
        identity: message.publisher().filter(|_| is_retained).map(|publisher| (**publisher).to_owned()),
        is_withheld: true,
        expires_at: message.expires_at(),
        properties: message.properties().cloned().map(Box::new),
        payload: message.payload().clone(),
    }
}

fn header_bytes(headers: &HeaderMap) -> usize {
    let line = |name: &str, value: &str| name.len() + value.len() + 4;
    let lines = headers.iter().flat_map(|(name, values)| values.iter().map(move |value| (name, value)));
    lines.map(|(name, value)| line(name.as_ref(), value.as_str())).sum::<usize>() + "NATS/1.0\r\n\r\n".len()
}

impl Import<'_> {
    /// Looks for the session of a client.
    pub(super) async fn presence(&self, session: &RecoveredSession) -> Result<Presence, ImportError> {
        let client_id = &session.record.client_id;
        if !takes_client(client_id) {
            return Err(ImportError::TooLong { what: format!("the client {}", shown(client_id.as_str())) });
        }
        let subject = self.layout.session(client_id);
        let found = self.last_message(&self.streams.sessions, &subject, "the look for a session").await?;
        Ok(match found {
            None => Presence::None(0),
            Some((payload, sequence)) => match Record::read(&payload) {
                // The record of one that has ended, which the servers remove soon.
                None if serde_json::from_slice::<Record>(&payload).is_ok() => Presence::None(sequence),
                Some(record) if record.owner.is_none() && record.run == self.mark() => Presence::Own,
                _ => Presence::Other,
            },
        })
    }

    /// Mark of records that this import has written.
    pub(super) fn mark(&self) -> String {
        format!("import {}", self.options.mark)
    }

    /// Checks everything that will be written.
    pub(super) async fn check(
        &self,
        sessions: &[RecoveredSession],
        retained: &BTreeSet<Lsn>,
        before: &LogState,
    ) -> Result<Needed, ImportError> {
        let most = self.client.max_payload();
        for session in sessions {
            let bytes = self.longest_record(session).len() + MORE_HEADERS;
            if bytes > most {
                let (client, queued) = (shown(session.record.client_id.as_str()), session.queue.len());
                let what = format!("the session of the client {client} with {queued} messages in its queue");
                return Err(ImportError::TooLarge { what, bytes, most });
            }
            if let Some(will) = session.will.as_deref().filter(|will| !takes_topic(&will.topic)) {
                return Err(ImportError::TooLong {
                    what: format!("the topic {}", shown(will.topic.as_str())),
                });
            }
        }
        let needed = Needed::of(sessions, retained);
        let (store, layout, is_urgent) =
            (self.store.clone(), self.layout.clone(), self.options.is_urgent.clone());
        let (checked, needed) = blocking(move || {
            let now = SystemTime::now();
            let bytes = vec![0; layout.parts()];
            let mut check = MessageCheck { layout, is_urgent, most, now, needed, bytes, problem: None };
            store.messages(&mut |lsn, message| check.note(lsn, &message))?;
            let MessageCheck { needed, bytes, problem, .. } = check;
            Ok::<_, StoreError>((problem.map_or(Ok(bytes), Err), needed))
        })
        .await?;
        for (index, (bytes, room)) in checked?.into_iter().zip(&before.room).enumerate() {
            if bytes > *room {
                let stream = self.layout.messages_stream(self.layout.shard_at(index));
                return Err(ImportError::NoRoom { stream, bytes, room: *room });
            }
        }
        Ok(needed)
    }
}

/// Check of each message.
struct MessageCheck {
    layout: Layout,
    is_urgent: IsUrgent,
    /// Limit of the servers for headers and payload, bytes.
    most: usize,
    now: SystemTime,
    needed: Needed,
    /// Bytes that the stream of each shard will take.
    bytes: Vec<u64>,
    problem: Option<ImportError>,
}

impl MessageCheck {
    fn note(&mut self, lsn: Lsn, message: &LazyMessage<'_>) {
        if self.problem.is_some() {
            return;
        }
        let head = message.head();
        if head.expires_at().is_some_and(|at| at <= self.now) {
            self.needed.note_expired(lsn);
        }
        for (needed, is_retained) in [(&self.needed.queued, false), (&self.needed.retained, true)] {
            if !needed.contains(&lsn) {
                continue;
            }
            match self.size(head, message.payload_len(), is_retained) {
                Ok((index, bytes)) => self.bytes[index] += bytes,
                Err(problem) => self.problem = Some(problem),
            }
        }
    }

    /// Place of the shard of a message, and its bytes there.
    fn size(
        &self,
        head: &StoredMessage,
        payload: usize,
        is_retained: bool,
    ) -> Result<(usize, u64), ImportError> {
        let topic: &TopicName = head.topic();
        if !takes_topic(topic) {
            return Err(ImportError::TooLong { what: format!("the topic {}", shown(topic.as_str())) });
        }
        // An unread message has no payload here; one that is in memory has it.
        let unread = payload.saturating_sub(head.payload().len());
        let (headers, written) = logged(head, is_retained).write();
        let bytes = header_bytes(&headers) + MORE_HEADERS + written.len() + unread;
        if bytes > self.most {
            let what = format!("a message of the topic {}", shown(topic.as_str()));
            return Err(ImportError::TooLarge { what, bytes, most: self.most });
        }
        let shard = self.layout.shard_of(topic, (self.is_urgent)(topic));
        let subject = self.layout.message(shard, is_retained, topic).len();
        Ok((self.layout.index_of(shard), (bytes + subject) as u64 + ROW))
    }
}
