//! Messages of an import on their way into the log.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::SystemTime;

use braid_store::{LazyMessage, Lsn, StoreError, StoredMessage};
use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{Receiver, channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep};

use super::check::{Needed, logged};
use super::{AGAIN, AT_ONCE, Import, ImportError, ImportStage, LogState, blocking, shown, unavailable};
use crate::log_writer::PATIENCE;
use crate::publish::{Outgoing, Tried, send};

/// Payloads in memory, bytes. A larger message is alone.
const IN_MEMORY: u32 = 16 << 20;

/// Messages of queues that the log has.
pub(super) struct Appended {
    /// Numbers of the log, by those of the store.
    pub(super) numbers: HashMap<Lsn, Lsn>,
    /// The lowest sequence number in each shard of one that does not expire.
    pub(super) lowest: Vec<u64>,
}

/// Message that was read.
struct ReadMessage {
    lsn: Lsn,
    message: StoredMessage,
    /// Its part of the memory.
    permit: OwnedSemaphorePermit,
}

/// Reads messages of a store on a thread of its own, as fast as they are taken.
struct MessageSource {
    messages: Receiver<ReadMessage>,
    reader: tokio::task::JoinHandle<Result<(), StoreError>>,
}

impl MessageSource {
    fn start(import: &Import<'_>, wanted: HashSet<Lsn>) -> Self {
        let (sender, messages) = channel(AT_ONCE);
        let memory = Arc::new(Semaphore::new(IN_MEMORY as usize));
        let (store, runtime) = (import.store.clone(), Handle::current());
        let read = move || {
            let mut outcome = Ok(());
            let pass_on = |lsn: Lsn, message: LazyMessage<'_>| -> Result<(), StoreError> {
                let bytes = u32::try_from(message.payload_len()).unwrap_or(u32::MAX).clamp(512, IN_MEMORY);
                let permit = runtime.block_on(memory.clone().acquire_many_owned(bytes));
                let permit = permit.map_err(|_| StoreError::Closed)?;
                let message = message.read()?;
                // The receiver has met an error of its own.
                sender.blocking_send(ReadMessage { lsn, message, permit }).map_err(|_| StoreError::Closed)
            };
            store.messages(&mut |lsn, message| {
                if outcome.is_ok() && wanted.contains(&lsn) {
                    outcome = pass_on(lsn, message);
                }
            })?;
            outcome
        };
        Self { messages, reader: tokio::spawn(blocking(read)) }
    }

    async fn end(self) -> Result<(), ImportError> {
        drop(self.messages);
        match self.reader.await {
            Ok(outcome) => Ok(outcome?),
            Err(error) => Err(StoreError::Failed { reason: error.to_string().into() }.into()),
        }
    }
}

impl Import<'_> {
    /// Appends the messages of queues: their numbers in the log.
    pub(super) async fn append_queued(
        &self,
        needed: &Needed,
        before: &LogState,
    ) -> Result<Appended, ImportError> {
        let all = needed.queued.len() as u64;
        let mut source = MessageSource::start(self, needed.queued.clone());
        let numbers = HashMap::with_capacity(needed.queued.len());
        let mut appended = Appended { numbers, lowest: vec![u64::MAX; self.layout.parts()] };
        let from = stream::poll_fn(|cx| source.messages.poll_recv(cx));
        let mut appends = from.map(|read| self.append_one(read, needed, before)).buffer_unordered(AT_ONCE);
        while let Some((lsn, (index, sequence), lasts)) = appends.try_next().await? {
            appended.numbers.insert(lsn, self.layout.lsn(index, sequence));
            if lasts {
                appended.lowest[index] = appended.lowest[index].min(sequence);
            }
            self.tell(appended.numbers.len() as u64, |done| ImportStage::Messages(done, all));
        }
        drop(appends);
        source.end().await?;
        Ok(appended)
    }

    /// Appends a message: its number in the store, its position, and whether it stays for as long as it is needed.
    async fn append_one(
        &self,
        read: ReadMessage,
        needed: &Needed,
        before: &LogState,
    ) -> Result<(Lsn, (usize, u64), bool), ImportError> {
        let ReadMessage { lsn, message, permit } = read;
        let index = self.index_of(&message);
        let ttl = message.expires_at().filter(|_| !needed.inflight.contains(&lsn));
        let mut id = format!("{}.{lsn}", self.mark());
        loop {
            let outgoing = self.outgoing(&message, index, false, ttl).with_id(id);
            match self.store_message(&message, &outgoing).await? {
                // The servers know it from an earlier run, and it was removed since.
                Some(sequence) if sequence < before.first[index] => {
                    id = format!("{}.{lsn}.{:x}", self.mark(), fastrand::u64(..));
                }
                Some(sequence) => {
                    drop(permit);
                    return Ok((lsn, (index, sequence), ttl.is_none()));
                }
                None => return Err(unavailable("a message", "it has been refused without a condition")),
            }
        }
    }

    /// Appends retained messages of topics that have none: number of them, and of the topics that had one.
    pub(super) async fn append_retained(&self, needed: &Needed) -> Result<(u64, u64), ImportError> {
        let all = needed.retained.len() as u64;
        let mut source = MessageSource::start(self, needed.retained.clone());
        let from = stream::poll_fn(|cx| source.messages.poll_recv(cx));
        let mut appends = from.map(|read| self.retain_one(read)).buffer_unordered(AT_ONCE);
        let (mut retained, mut kept) = (0, 0);
        while let Some(is_new) = appends.try_next().await? {
            *(if is_new { &mut retained } else { &mut kept }) += 1;
            self.tell(retained + kept, |done| ImportStage::Retained(done, all));
        }
        drop(appends);
        source.end().await?;
        Ok((retained, kept))
    }

    /// Appends a retained message. False: its topic has one.
    async fn retain_one(&self, read: ReadMessage) -> Result<bool, ImportError> {
        let ReadMessage { lsn, message, permit: _permit } = read;
        let subject = self.layout.retained(message.topic());
        let what = "the look for a retained message";
        if self.last_message(&self.streams.retained, &subject, what).await?.is_some() {
            return Ok(false);
        }
        let outgoing = self.outgoing(&message, self.index_of(&message), true, message.expires_at());
        // One that the servers have not copied yet, or a broker has removed, is later than that of the import.
        let outgoing = outgoing.expecting(0).with_id(format!("{}.r{lsn}", self.mark()));
        Ok(self.store_message(&message, &outgoing).await?.is_some())
    }

    fn index_of(&self, message: &StoredMessage) -> usize {
        let topic = message.topic();
        self.layout.index_of(self.layout.shard_of(topic, (self.options.is_urgent)(topic)))
    }

    fn outgoing(
        &self,
        message: &StoredMessage,
        index: usize,
        is_retained: bool,
        expires_at: Option<SystemTime>,
    ) -> Outgoing {
        let (headers, payload) = logged(message, is_retained).write();
        let subject = self.layout.message(self.layout.shard_at(index), is_retained, message.topic());
        let outgoing = Outgoing { subject, headers, payload };
        match expires_at {
            Some(at) => outgoing.expiring(at, SystemTime::now()),
            None => outgoing,
        }
    }

    /// Sequence number of a message that is appended; `None`: its condition does not hold.
    async fn store_message(
        &self,
        message: &StoredMessage,
        outgoing: &Outgoing,
    ) -> Result<Option<u64>, ImportError> {
        let what = || format!("a message of the topic {}", shown(message.topic().as_str()));
        self.store(outgoing, what).await
    }

    /// Appends a message, however often the servers have to be asked.
    pub(super) async fn store(
        &self,
        outgoing: &Outgoing,
        what: impl Fn() -> String,
    ) -> Result<Option<u64>, ImportError> {
        let give_up = Instant::now() + PATIENCE;
        loop {
            let reason = match send(&self.client, outgoing.clone()).await {
                Tried::Stored(Some(sequence)) => return Ok(Some(sequence)),
                Tried::Stored(None) => "no sequence number".to_owned(),
                Tried::Refused => return Ok(None),
                Tried::Unknown(reason) => reason,
            };
            if Instant::now() >= give_up {
                return Err(ImportError::Unavailable { what: what(), reason });
            }
            sleep(AGAIN).await;
        }
    }
}
