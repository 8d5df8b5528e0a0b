//! Slowing publishers down to the pace of those who receive.

use std::sync::Arc;
use std::task::Context;
use std::time::Instant;

use braid_proto::connection::Token;
use braid_proto::stream::StreamKey;

use super::{Driver, now};
use crate::queue::backpressure::RoomRegistration;
use crate::session_entry::SessionEntry;

/// Acknowledgements that may go, as far as the store is concerned.
pub(super) struct Due {
    /// The last of them.
    token: Token,
    /// A stream that they are for, and all others in the order of their keys.
    stream: StreamKey,
    others: Vec<StreamKey>,
    /// Receivers of what they acknowledge that cannot keep up.
    waits: Waits,
}

/// At most one for each stream, in the order of their keys: messages of many streams come mixed, and each is looked up.
#[derive(Default)]
struct Waits(Vec<Wait>);

/// A receiver that what came on a stream is too much for.
struct Wait {
    stream: StreamKey,
    receiver: Arc<SessionEntry>,
    /// When it is given up.
    until: Instant,
    /// Wakes this connection when the receiver has room.
    registration: Option<RoomRegistration>,
}

/// What waits for receivers that cannot keep up.
///
/// Without this a publisher of QoS 1 runs ahead of a subscriber until the mailbox is full, and what was
/// acknowledged is dropped. With it the publisher's own window slows it down: nobody is read less, QoS 0 is not
/// concerned, and a receiver that sends nothing for a while has nobody wait for it.
///
/// The acknowledgements of a connection stand in one row [MQTT-4.6.0-2], and those of a stream must not wait for those
/// of another [BQ-55]. So the row waits only as long as it is of streams that wait anyway. When there is one of another
/// stream in it, all of it goes, and the flow control of the stream takes the place of the publisher's window: it is
/// not read until its receiver has room, or is given up.
#[derive(Default)]
pub(super) struct Held {
    /// The last acknowledgement in the row, while it is held back.
    row: Option<Token>,
    waits: Waits,
}

impl Due {
    /// Adds the next acknowledgement.
    pub(super) fn add(due: &mut Option<Self>, token: Token) {
        let stream = token.stream();
        match due {
            None => *due = Some(Self { token, stream, others: Vec::new(), waits: Waits::default() }),
            Some(due) => {
                if stream != due.token.stream() {
                    due.note(stream);
                }
                due.token = due.token.max(token);
            }
        }
    }

    fn note(&mut self, stream: StreamKey) {
        if stream != self.stream
            && let Err(place) = self.others.binary_search(&stream)
        {
            self.others.insert(place, stream);
        }
    }

    fn streams(&self) -> impl Iterator<Item = StreamKey> {
        self.others.iter().copied().chain([self.stream])
    }

    /// What came on `stream` is too much for `receiver`.
    pub(super) fn wait(&mut self, stream: StreamKey, receiver: &Arc<SessionEntry>, until: Instant) {
        if let Err(place) = self.waits.find(stream) {
            self.waits
                .0
                .insert(place, Wait { stream, receiver: receiver.clone(), until, registration: None });
        }
    }

    /// The two become one.
    pub(super) fn join(&mut self, later: Self) {
        self.token = self.token.max(later.token);
        later.streams().for_each(|stream| self.note(stream));
        self.waits.join(later.waits);
    }
}

impl Waits {
    fn find(&self, stream: StreamKey) -> Result<usize, usize> {
        self.0.binary_search_by_key(&stream, |wait| wait.stream)
    }

    fn contains(&self, stream: StreamKey) -> bool {
        self.find(stream).is_ok()
    }

    /// Adds those of streams that have none.
    fn join(&mut self, later: Self) {
        for wait in later.0 {
            if let Err(place) = self.find(wait.stream) {
                self.0.insert(place, wait);
            }
        }
    }
}

impl Held {
    /// Takes in what is due; returns up to where acknowledgements go now.
    fn hold(&mut self, mut due: Due) -> Option<Token> {
        let token = self.row.map_or(due.token, |row| row.max(due.token));
        self.waits.join(std::mem::take(&mut due.waits));
        if due.streams().all(|stream| self.waits.contains(stream)) {
            self.row = Some(token);
            return None;
        }
        self.row = None;
        Some(token)
    }

    /// Ends the waits that are `over`; the same.
    fn end(&mut self, mut over: impl FnMut(&mut Wait) -> bool) -> Option<Token> {
        let before = self.waits.0.len();
        self.waits.0.retain_mut(|wait| !over(wait));
        // One that waits on is not to keep the others.
        if self.waits.0.len() < before { self.row.take() } else { None }
    }
}

impl Driver {
    /// Lets acknowledgements go, or holds them for receivers that cannot keep up.
    pub(super) fn hold(&mut self, due: Due) {
        let goes = match &mut self.held {
            None if due.waits.0.is_empty() => Some(due.token),
            held => held.get_or_insert_default().hold(due),
        };
        if let Some(token) = goes {
            self.server.handle_persisted(token);
        }
    }

    /// Lets held acknowledgements go when there is room again, or when they waited long enough.
    pub(super) fn poll_held(&mut self, context: &Context<'_>) {
        let Some(held) = &mut self.held else { return };
        let (limits, now) = (self.core.queues.policy.limits, now());
        let over = |wait: &mut Wait| {
            wait.receiver.queue.poll_room(&mut wait.registration, limits, context) || wait.until <= now
        };
        let goes = held.end(over);
        if held.waits.0.is_empty() {
            self.held = None;
        }
        if let Some(token) = goes {
            self.server.handle_persisted(token);
        }
    }

    /// When [`Driver::poll_held`] gives up waiting for a receiver.
    pub(super) fn held_until(&self) -> Option<Instant> {
        self.held.as_ref()?.waits.0.iter().map(|wait| wait.until).min()
    }
}

/// Whether a stream is not read because its receivers cannot keep up, and its acknowledgements went all the same.
pub(super) fn is_paused(held: Option<&Held>, stream: StreamKey) -> bool {
    held.is_some_and(|held| held.row.is_none() && held.waits.contains(stream))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use braid_proto::packet::ClientId;

    use super::*;
    use crate::session_entry::{ConnectionId, SessionKey};

    fn wait(stream: u32, until: Instant) -> Wait {
        let receiver = SessionEntry::new(SessionKey(1), ClientId::from("receiver"), ConnectionId(1));
        Wait { stream: StreamKey::bidi(stream), receiver: Arc::new(receiver), until, registration: None }
    }

    /// Messages of many streams come mixed: the first receiver that a stream waits for is the one it waits for.
    #[test]
    fn a_stream_waits_once_however_its_messages_are_mixed_with_others() {
        let start = Instant::now();
        let mut waits = Waits::default();
        for round in 0..3 {
            for at in 0..200 {
                let stream = at * 77 % 200;
                waits.join(Waits(vec![wait(stream, start + Duration::from_secs(round))]));
            }
        }
        assert_eq!(waits.0.len(), 200);
        assert!((0..200).all(|stream| waits.contains(StreamKey::bidi(stream))));
        assert!(!waits.contains(StreamKey::bidi(200)));
        assert!(waits.0.iter().all(|wait| wait.until == start));
    }
}
