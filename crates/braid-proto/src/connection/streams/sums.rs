use std::collections::BTreeSet;

use super::DataStream;
use super::table::Table;
use crate::stream::StreamKey;

/// What holds for all data streams together, so that nobody has to ask each of them.
#[derive(Debug, Default)]
pub(super) struct Sums {
    /// Bytes to write, but for what became of the stream that is lent.
    unwritten: usize,
    /// The streams that have some, in ascending order: they come and go with every message, without allocation.
    to_write: Vec<StreamKey>,
    /// Whose outbox was lent last, and may hold more or less than was counted; the control stream: none.
    lent: StreamKey,
    /// Streams whose FIN may be due.
    finished: BTreeSet<StreamKey>,
    /// Streams on which something is sent and answered.
    pub(super) open: usize,
}

impl Sums {
    /// Somebody gets the outbox of a stream.
    pub(super) fn lend(&mut self, table: &mut Table, key: StreamKey) {
        if self.lent != key {
            self.settle(table);
            self.lent = key;
        }
    }

    /// Counts what became of the outbox that was lent.
    pub(super) fn settle(&mut self, table: &mut Table) {
        let key = std::mem::take(&mut self.lent);
        if key.is_control() {
            return;
        }
        let Some(data) = table.find_mut(key) else { return };
        let (before, now) = (data.counted, data.stream.outbox.len());
        data.counted = now;
        self.unwritten = self.unwritten - before + now;
        if (before > 0) != (now > 0) {
            self.note_to_write(key, now > 0);
        }
        self.note_finished(data);
    }

    fn note_to_write(&mut self, key: StreamKey, has_some: bool) {
        match self.to_write.binary_search(&key) {
            Err(at) if has_some => self.to_write.insert(at, key),
            Ok(at) if !has_some => drop(self.to_write.remove(at)),
            _ => {}
        }
    }

    /// Something that FIN waits for may be done.
    pub(super) fn note_finished(&mut self, data: &DataStream) {
        if data.is_done() {
            self.finished.insert(data.key);
        }
    }

    /// The first stream whose FIN is due.
    pub(super) fn pop_finished(&mut self, table: &mut Table) -> Option<StreamKey> {
        self.settle(table);
        while let Some(key) = self.finished.pop_first() {
            // More may have come; then it is noted again.
            if table.find(key).is_some_and(DataStream::is_done) {
                return Some(key);
            }
        }
        None
    }

    #[cfg(debug_assertions)]
    pub(super) fn notes_finished(&self, key: StreamKey) -> bool {
        self.lent == key || self.finished.contains(&key)
    }

    /// A stream is gone.
    pub(super) fn forget(&mut self, data: &DataStream) {
        self.unwritten -= data.counted;
        self.note_to_write(data.key, false);
        self.finished.remove(&data.key);
        if self.lent == data.key {
            self.lent = StreamKey::CONTROL;
        }
    }

    /// Bytes to write.
    pub(super) fn unwritten(&self, table: &Table) -> usize {
        let lent = if self.lent.is_control() { None } else { table.find(self.lent) };
        lent.map_or(self.unwritten, |data| self.unwritten - data.counted + data.stream.outbox.len())
    }

    /// The streams that have something to write, in ascending order.
    pub(super) fn to_write(&self, table: &Table) -> impl Iterator<Item = StreamKey> {
        let lent = self.lent;
        let has_some =
            !lent.is_control() && table.find(lent).is_some_and(|data| !data.stream.outbox.is_empty());
        let before = self.to_write.partition_point(|key| *key < lent);
        let behind = before + usize::from(self.to_write.get(before) == Some(&lent));
        let (before, behind) = (&self.to_write[..before], &self.to_write[behind..]);
        before.iter().copied().chain(has_some.then_some(lent)).chain(behind.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bytes::Buf;
    use fastrand::Rng;

    use super::super::{StreamAction, StreamLimits, Streams};
    use super::*;
    use crate::packet::ProtocolVersion;
    use crate::reason::ReasonCode;

    /// What a stream that is known owes and has to write.
    #[derive(Default)]
    struct Naive {
        unwritten: usize,
        owed: usize,
        has_partial: bool,
        is_closed: bool,
        is_finished: bool,
    }

    fn streams() -> Streams {
        Streams::new(StreamLimits {
            version: ProtocolVersion::V5,
            maximum_packet_size: 1 << 20,
            topic_aliases: 0,
            partial_bytes: 1 << 18,
            is_client: false,
        })
    }

    fn operate(streams: &mut Streams, naive: &mut BTreeMap<StreamKey, Naive>, random: &mut Rng) {
        let key = StreamKey::bidi(random.u32(1..12));
        match random.u32(0..16) {
            0 => {
                streams.open(key);
                naive.entry(key).or_default();
            }
            1 => assert_eq!(streams.remove(key), naive.remove(&key).is_some()),
            2 => assert_eq!(streams.abort(key, ReasonCode::QuotaExceeded), naive.remove(&key).is_some()),
            3 => {
                streams.close(key);
                naive.get_mut(&key).into_iter().for_each(|own| own.is_closed = true);
            }
            4 => {
                let was_open = naive.get_mut(&key).is_some_and(|own| {
                    own.unwritten = 0;
                    own.is_closed = true;
                    !std::mem::replace(&mut own.is_finished, true)
                });
                assert_eq!(streams.mute(key), was_open);
            }
            5..8 => {
                let one_more = random.bool();
                streams.owe(key, one_more);
                if let Some(own) = naive.get_mut(&key) {
                    own.owed = if one_more { own.owed + 1 } else { own.owed.saturating_sub(1) };
                }
            }
            8 => {
                let mut input = &[0x30, 0x80, 0x80, 8][..];
                let mut rest = &vec![0; random.usize(0..100_000)][..];
                if naive.get(&key).is_some_and(|own| !own.has_partial) {
                    assert!(matches!(streams.decode(key, &mut input), Ok(None)));
                    assert!(matches!(streams.decode(key, &mut rest), Ok(None)));
                    naive.get_mut(&key).into_iter().for_each(|own| own.has_partial = true);
                }
            }
            _ => {
                let own = naive.get_mut(&key).filter(|own| !own.is_finished);
                let outbox = streams.outbox_mut(key);
                assert_eq!(outbox.is_some(), own.is_some());
                let Some((outbox, own)) = outbox.zip(own) else { return };
                if random.bool() {
                    outbox.open().extend_from_slice(&[0; 7]);
                } else {
                    outbox.advance(random.usize(0..=outbox.len()));
                }
                own.unwritten = outbox.len();
            }
        }
    }

    #[test]
    fn the_sums_are_what_a_look_at_every_stream_gives() {
        for seed in 0..200 {
            let mut random = Rng::with_seed(seed);
            let (mut streams, mut naive) = (streams(), BTreeMap::new());
            for _ in 0..300 {
                operate(&mut streams, &mut naive, &mut random);
                let unwritten: usize = naive.values().map(|own| own.unwritten).sum();
                assert_eq!(streams.unwritten(), unwritten, "seed {seed}");
                let to_write = naive.iter().filter(|(_, own)| own.unwritten > 0).map(|(key, _)| *key);
                assert!(streams.to_write().eq(to_write), "seed {seed}");
                let open = naive.values().filter(|own| !own.is_closed).count();
                assert_eq!(streams.has_others(StreamKey::CONTROL), open > 0, "seed {seed}");
                if random.u8(0..4) > 0 {
                    continue;
                }
                let is_due = |own: &Naive| own.is_closed && !own.is_finished && own.unwritten + own.owed == 0;
                let mut due = Vec::new();
                for (key, own) in naive.iter_mut().filter(|(_, own)| is_due(own)) {
                    own.is_finished = true;
                    due.push(StreamAction::Finish(*key));
                }
                let mut actions: Vec<_> = std::iter::from_fn(|| streams.poll_action()).collect();
                actions.retain(|action| matches!(action, StreamAction::Finish(_)));
                assert_eq!(actions, due, "seed {seed}");
            }
        }
    }
}
