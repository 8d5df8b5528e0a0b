//! Writer of a shard of the log: appends in groups, each of them whole, one after the other.
//!
//! A group is sent again until the servers have it, before the next one is: so messages keep their order while leaders
//! change. While one is on its way, others join the next, as do those that follow its acknowledgements
//! ([`Gather`]).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::jetstream::stream::Stream;
use braid_proto::packet::ClientId;
use braid_store::{SessionId, StoreError};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::time::{Instant, sleep, timeout_at};

use crate::appending::Charge;
use crate::commit::CommitPart;
use crate::exchanges::{Author, ExchangeUpdate, Exchanges, Last};
use crate::gather::Gather;
use crate::layout::{Layout, Shard};
use crate::publish::{Outgoing, Tried, append, last_message};
use crate::record::Record;

/// Messages of one group, records of exchanges included: the servers take a thousand.
const GROUP_MESSAGES: usize = 900;

/// Messages of one [`Append`]. A client may send more of them at once.
pub(crate) const APPEND_MESSAGES: usize = 400;

/// Payloads and subjects of one group, bytes; a message that is larger is a group of its own.
const GROUP_BYTES: usize = 4 << 20;

/// Time for which messages wait for the servers: longer than an election of a leader takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Time for which a group is tried at least, if the servers have taken the one before: messages that waited for that
/// one wait for an election too.
const ELECTION: Duration = Duration::from_secs(10);

/// Time between two tries.
const AGAIN: Duration = Duration::from_millis(100);

/// Messages of one client that are appended together.
pub(crate) struct Append {
    /// Session of the publisher; `None`: the broker.
    pub(crate) session: Option<SessionId>,
    pub(crate) messages: Vec<Outgoing>,
    /// Change of the exchanges of QoS 2 of the session.
    pub(crate) exchanges: Option<(ClientId, ExchangeUpdate)>,
    pub(crate) part: CommitPart,
    pub(crate) charge: Charge,
    /// Time at which it was handed to the writer.
    pub(crate) arrived: Instant,
}

impl Append {
    /// Messages, the record of exchanges included.
    fn len(&self) -> usize {
        self.messages.len() + usize::from(self.exchanges.is_some())
    }
}

/// Command to a writer, in the order of the commands.
pub(crate) enum Command {
    Append(Append),
    /// The session is of this node, with these exchanges.
    Adopt(SessionId, Exchanges),
    /// The session is not of this node any more.
    Forget(SessionId),
}

/// Receiver of outcomes.
pub(crate) trait Outcomes: Send + Sync + 'static {
    /// A batch of the session is decided.
    fn note_appended(&self, session: SessionId);
    /// Another node has the session.
    fn note_lost(&self, session: SessionId);
    /// The servers do not answer: it is not known which messages of the session they have.
    fn note_unavailable(&self, session: SessionId);
}

/// Process of this node, as an owner of sessions.
pub(crate) struct Owner {
    pub(crate) node: String,
    pub(crate) run: Arc<str>,
    /// Stream of the records of sessions.
    pub(crate) sessions: Stream<()>,
}

impl Owner {
    /// Tests whether the record of a client's session, as the leader has it, names this process.
    async fn has(&self, layout: &Layout, client: &ClientId) -> Result<bool, String> {
        let found = last_message(&self.sessions, &layout.session(client)).await?;
        let record = found.and_then(|(payload, _)| Record::read(&payload));
        Ok(record.is_some_and(|record| record.is_of(&self.node, &self.run)))
    }
}

/// Batches that are appended together.
#[derive(Default)]
struct Group {
    appends: Vec<Append>,
    /// Messages, records of exchanges included.
    messages: usize,
    /// Bytes of payloads and subjects.
    bytes: usize,
}

impl Group {
    /// `is_failing`: the servers have not taken the group before. Only batches that came soon one after the other are
    /// together then, as fresh ones would be given up with the oldest.
    fn takes(&self, append: &Append, is_failing: bool) -> bool {
        let Some(oldest) = self.appends.first() else { return true };
        let age = append.arrived.saturating_duration_since(oldest.arrived);
        self.messages + append.len() <= GROUP_MESSAGES
            && self.bytes + append.charge.bytes() <= GROUP_BYTES
            && !(is_failing && age > ELECTION / 5)
    }

    fn push(&mut self, append: Append) {
        self.messages += append.len();
        self.bytes += append.charge.bytes();
        self.appends.push(append);
    }
}

/// Messages of commands that wait.
fn count(commands: &[Command]) -> usize {
    let of = |command: &Command| if let Command::Append(append) = command { append.len() } else { 0 };
    commands.iter().map(of).sum()
}

/// Takes the batches out that have waited for too long, and the later ones of their sessions, which keep their order.
fn take_expired(group: &mut Vec<Append>, now: Instant) -> Vec<Append> {
    let mut sessions = HashSet::new();
    let mut is_expired = |append: &mut Append| {
        let is_late = now.saturating_duration_since(append.arrived) >= PATIENCE;
        sessions.extend(append.session.filter(|_| is_late));
        is_late || append.session.is_some_and(|session| sessions.contains(&session))
    };
    group.extract_if(.., |append| is_expired(append)).collect()
}

/// Time at which a group is given up: by its oldest batch, as each would wait for those before it otherwise.
/// `is_failing`: the servers have not taken the group before.
fn give_up_at(group: &[Append], now: Instant, is_failing: bool) -> Instant {
    let oldest = group.iter().map(|append| append.arrived).min().unwrap_or(now);
    (oldest + PATIENCE).max(if is_failing { now } else { now + ELECTION })
}

/// Writer of a shard.
pub(crate) struct LogWriter {
    pub(crate) jetstream: Context,
    pub(crate) stream: Stream<()>,
    pub(crate) layout: Layout,
    pub(crate) shard: Shard,
    owner: Owner,
    pub(crate) outcomes: Arc<dyn Outcomes>,
    next_group: u64,
    exchanges: HashMap<SessionId, Exchanges>,
    /// Sessions whose exchanges are not known any more.
    failed: HashSet<SessionId>,
    /// The servers have not taken the last group.
    is_failing: bool,
}

impl LogWriter {
    pub(crate) fn new(
        jetstream: Context,
        stream: Stream<()>,
        layout: Layout,
        shard: Shard,
        owner: Owner,
        outcomes: Arc<dyn Outcomes>,
    ) -> Self {
        let (exchanges, failed) = (HashMap::new(), HashSet::new());
        let (next_group, is_failing) = (1, false);
        Self { jetstream, stream, layout, shard, owner, outcomes, next_group, exchanges, failed, is_failing }
    }

    /// Carries out commands until their senders are gone.
    pub(crate) async fn run(mut self, mut commands: UnboundedReceiver<Command>) {
        let (mut waiting, mut gather) = (Vec::new(), Gather::default());
        while !waiting.is_empty() || commands.recv_many(&mut waiting, GROUP_MESSAGES).await > 0 {
            // Urgent messages wait for no others.
            while self.shard != Shard::Urgent
                && let Some(until) = gather.waits_until(count(&waiting), Instant::now())
            {
                let received = timeout_at(until, commands.recv_many(&mut waiting, GROUP_MESSAGES)).await;
                if received == Ok(0) {
                    break;
                }
            }
            let mut group = Group::default();
            for command in waiting.drain(..) {
                match command {
                    Command::Append(append) => {
                        if !group.takes(&append, self.is_failing) {
                            self.append(std::mem::take(&mut group).appends).await;
                        }
                        group.push(append);
                    }
                    Command::Adopt(session, exchanges) => drop(self.exchanges.insert(session, exchanges)),
                    Command::Forget(session) => {
                        self.append(std::mem::take(&mut group).appends).await;
                        self.exchanges.remove(&session);
                        self.failed.remove(&session);
                    }
                }
            }
            let (began, messages) = (Instant::now(), group.messages);
            self.append(group.appends).await;
            while waiting.len() < GROUP_MESSAGES
                && let Ok(command) = commands.try_recv()
            {
                waiting.push(command);
            }
            gather.note_stored(messages, count(&waiting), began.elapsed(), Instant::now());
        }
    }

    /// Appends a group, and tells its parts.
    async fn append(&mut self, mut group: Vec<Append>) {
        let mut reason = "the servers have not taken the messages before".to_owned();
        if self.is_failing {
            let given_up = take_expired(&mut group, Instant::now());
            self.give_up(given_up, &reason);
        }
        // One for all tries: a try that is refused may follow one without an answer that is still on its way.
        let id = self.next_id();
        let mut give_up = give_up_at(&group, Instant::now(), self.is_failing);
        while !group.is_empty() {
            let unread = self.read_exchanges(&mut group).await;
            let tried = match unread {
                Ok(()) => {
                    let (messages, records) = self.messages_of(&group);
                    let tried = append(&self.jetstream.client(), &id, &messages).await;
                    if let Tried::Stored(sequence) = tried {
                        self.note_stored(records, sequence, messages.len());
                        self.is_failing = false;
                        return self.complete(group, &Ok(()));
                    }
                    tried
                }
                Err(problem) => Tried::Unknown(problem),
            };
            match tried {
                // The record of exchanges of some session is another one: it is read again.
                Tried::Refused => {
                    give_up = Instant::now() + PATIENCE;
                    for append in &group {
                        if let (Some(session), Some(_)) = (append.session, &append.exchanges)
                            && let Some(exchanges) = self.exchanges.get_mut(&session)
                        {
                            exchanges.set_last(Last::Unsure);
                        }
                    }
                }
                Tried::Unknown(problem) => reason = problem,
                Tried::Stored(_) => {}
            }
            if Instant::now() >= give_up {
                self.is_failing = true;
                return self.give_up(group, &reason);
            }
            sleep(AGAIN).await;
        }
    }

    /// Ends batches of which it is not known whether the servers have them.
    fn give_up(&mut self, group: Vec<Append>, reason: &str) {
        if group.is_empty() {
            return;
        }
        tracing::warn!(reason, messages = group.len(), "NATS does not take messages");
        for append in &group {
            let Some(session) = append.session else { continue };
            if append.exchanges.is_some() {
                self.exchanges.remove(&session);
                self.failed.insert(session);
            }
            self.outcomes.note_unavailable(session);
        }
        self.complete(group, &Err(StoreError::Unavailable { reason: reason.into() }));
    }

    fn next_id(&mut self) -> String {
        let group = self.next_group;
        self.next_group += 1;
        format!("{}.{}.{group}", self.owner.run, self.layout.index_of(self.shard))
    }

    /// Messages of a group, then the records of exchanges of its sessions as they will be.
    fn messages_of(&self, group: &[Append]) -> (Vec<Outgoing>, Vec<(SessionId, Exchanges)>) {
        let mut records: BTreeMap<SessionId, Exchanges> = BTreeMap::new();
        let mut messages = Vec::with_capacity(group.len() + 1);
        for append in group {
            messages.extend_from_slice(&append.messages);
            if let (Some(session), Some((client, update))) = (append.session, &append.exchanges) {
                let subject = || self.layout.exchanges(self.shard, client);
                let known = || self.exchanges.get(&session).cloned();
                let of_client = || Exchanges::new(client.clone(), subject());
                let record = records.entry(session).or_insert_with(|| known().unwrap_or_else(of_client));
                record.apply(update);
            }
        }
        messages.extend(records.values().map(|record| record.outgoing(&self.owner.run)));
        (messages, records.into_iter().collect())
    }

    /// Takes note of records that are stored: the last `records` of `count` messages.
    fn note_stored(&mut self, records: Vec<(SessionId, Exchanges)>, last: Option<u64>, count: usize) {
        let first = last.map(|last| last + 1 - count as u64);
        let begin = (count - records.len()) as u64;
        for (number, (session, mut exchanges)) in (begin..).zip(records) {
            exchanges.set_last(first.map_or(Last::Unsure, |first| Last::Known(first + number)));
            self.exchanges.insert(session, exchanges);
        }
    }

    /// Reads records of exchanges whose last one is not known. Batches of sessions that another node has leave the
    /// group.
    async fn read_exchanges(&mut self, group: &mut Vec<Append>) -> Result<(), String> {
        let mut lost = HashSet::new();
        for append in group.iter() {
            let (Some(session), Some((client, _))) = (append.session, &append.exchanges) else { continue };
            if self.failed.contains(&session) {
                lost.insert(session);
                continue;
            }
            let new = || Exchanges::new(client.clone(), self.layout.exchanges(self.shard, client));
            let exchanges = self.exchanges.entry(session).or_insert_with(new);
            if matches!(exchanges.last(), Last::Known(_)) {
                continue;
            }
            let found = last_message(&self.stream, exchanges.subject()).await?;
            let is_own =
                match exchanges.author(found.as_ref().map(|(payload, _)| &payload[..]), &self.owner.run) {
                    Author::Own => true,
                    Author::Other => false,
                    // Read after the record of exchanges: a node that claims the session from now on writes that, and
                    // the servers refuse one of this node.
                    Author::Unknown => self.owner.has(&self.layout, client).await?,
                };
            if is_own {
                exchanges.set_last(Last::Known(found.map_or(0, |(_, sequence)| sequence)));
            } else {
                self.outcomes.note_lost(session);
                lost.insert(session);
            }
        }
        if !lost.is_empty() {
            let is_lost = |append: &Append| append.session.is_some_and(|session| lost.contains(&session));
            let (gone, left) = std::mem::take(group).into_iter().partition(|append| is_lost(append));
            *group = left;
            let gone: Vec<Append> = gone;
            for append in gone {
                let session = append.session.unwrap_or(SessionId::new(0));
                self.outcomes.note_appended(session);
                append.part.complete(&Err(StoreError::Fenced { session }));
            }
        }
        Ok(())
    }

    fn complete(&self, group: Vec<Append>, outcome: &Result<(), StoreError>) {
        for Append { session, part, .. } in group {
            session.into_iter().for_each(|session| self.outcomes.note_appended(session));
            part.complete(outcome);
        }
    }
}

/// Sender of commands.
pub(crate) type Commands = UnboundedSender<Command>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::appending::Appending;

    #[test]
    fn messages_that_wait_behind_a_group_that_fails_do_not_wait_again() {
        let now = Instant::now() + Duration::from_secs(100);
        let ago = |secs| now - Duration::from_secs(secs);
        let append = |(secs, session): (u64, u64)| {
            let session = (session > 0).then(|| SessionId::new(session));
            let (part, commit) = CommitPart::join(1);
            let charge = Appending::default().charge(0);
            let messages = Vec::new();
            (Append { session, messages, exchanges: None, part, charge, arrived: ago(secs) }, commit)
        };
        let batches = [(21, 1), (3, 0), (20, 0), (19, 2), (18, 1)];
        let (mut group, _commits): (Vec<_>, Vec<_>) = batches.map(append).into_iter().unzip();
        let expired = take_expired(&mut group, now);
        let ages =
            |group: &[Append]| group.iter().map(|one| (now - one.arrived).as_secs()).collect::<Vec<_>>();
        assert_eq!((ages(&expired), ages(&group)), (vec![21, 20, 18], vec![3, 19]));
        assert_eq!(give_up_at(&group, now, true), now + Duration::from_secs(1));
        // Servers that worked a moment ago elect a leader.
        assert_eq!(give_up_at(&group, now, false), now + ELECTION);
        assert_eq!(give_up_at(&group[..1], now, false), now + Duration::from_secs(17));
        assert_eq!(give_up_at(&expired, now, true), now);
        // Fresh ones are not given up with old ones.
        let [old, fresh, other] = [(19, 2), (3, 0), (18, 1)].map(|batch| append(batch).0);
        let mut group = Group::default();
        group.push(old);
        assert!(!group.takes(&fresh, true) && group.takes(&fresh, false) && group.takes(&other, true));
    }
}
