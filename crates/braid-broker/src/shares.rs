//! How what waits for a client is spread over its streams.

use std::time::Instant;

use braid_proto::stream::StreamKey;

use crate::load::Load;

/// What waits for each stream. Empty where everything is for the control stream, as it always is without data
/// streams: that is the hot path, and needs no account. [BQ-55]
#[derive(Debug, Default)]
pub(crate) struct Shares {
    /// In the order of the streams.
    rows: Vec<Share>,
    /// Since it was last copied.
    has_changed: bool,
}

#[derive(Clone, Copy, Debug)]
struct Share {
    stream: StreamKey,
    load: Load,
    /// When something of it was last sent, or it began to wait; `None` until somebody looked at the clock.
    progress_at: Option<Instant>,
}

impl Shares {
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        *self = Self { rows: Vec::new(), has_changed: true };
    }

    /// Makes `copy`, which nobody else changes, say the same.
    pub(crate) fn copy_to(&mut self, copy: &mut Self) {
        if std::mem::take(&mut self.has_changed) {
            copy.rows.clone_from(&self.rows);
        }
    }

    fn find(&self, stream: StreamKey) -> Result<usize, usize> {
        self.rows.binary_search_by_key(&stream, |share| share.stream)
    }

    pub(crate) fn load_of(&self, stream: StreamKey) -> Load {
        self.find(stream).map_or_else(|_| Load::default(), |at| self.rows[at].load)
    }

    /// When something was last sent on a stream that more waits for, or that began to wait; `None` if nothing waits
    /// for it.
    pub(crate) fn progress_of(&self, stream: StreamKey) -> Option<Option<Instant>> {
        self.find(stream).ok().map(|at| self.rows[at].progress_at)
    }

    pub(crate) fn add(&mut self, stream: StreamKey, load: Load) {
        if !stream.is_control() || !self.is_empty() {
            self.insert(stream, load);
        }
    }

    /// The same, for the control stream too.
    pub(crate) fn insert(&mut self, stream: StreamKey, load: Load) {
        self.has_changed = true;
        match self.find(stream) {
            Ok(at) => self.rows[at].load.add(load),
            Err(at) => self.rows.insert(at, Share { stream, load, progress_at: None }),
        }
    }

    pub(crate) fn remove(&mut self, stream: StreamKey, load: Load) {
        if let Ok(at) = self.find(stream) {
            self.has_changed = true;
            self.rows[at].load.subtract(load);
            if self.rows[at].load.messages == 0 {
                self.rows.remove(at);
            }
        }
    }

    /// The loads, the control stream last.
    pub(crate) fn loads(&self) -> impl Iterator<Item = (StreamKey, Load)> {
        self.rows.iter().rev().map(|share| (share.stream, share.load))
    }

    /// What is new begins to wait now: it is not stuck yet.
    pub(crate) fn note_begin(&mut self, now: Instant) {
        for share in self.rows.iter_mut().filter(|share| share.progress_at.is_none()) {
            share.progress_at = Some(now);
            self.has_changed = true;
        }
    }

    pub(crate) fn note_progress(&mut self, stream: StreamKey, now: Instant) {
        if let Ok(at) = self.find(stream) {
            self.rows[at].progress_at = Some(now);
            self.has_changed = true;
        }
    }

    /// What waited for a stream that has ended waits for the control stream.
    pub(crate) fn redirect(&mut self, ended: StreamKey) {
        if let Ok(at) = self.find(ended) {
            self.has_changed = true;
            let share = self.rows.remove(at);
            self.add(StreamKey::CONTROL, share.load);
        }
    }

    /// QoS 0 was dropped everywhere.
    pub(crate) fn drop_qos0(&mut self) {
        self.has_changed = true;
        for share in &mut self.rows {
            share.load = share.load.beside_qos0();
        }
        self.rows.retain(|share| share.load.messages > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(messages: usize, qos0: usize) -> Load {
        Load { messages, bytes: messages * 10, qos0, qos0_bytes: qos0 * 10, ..Load::default() }
    }

    #[test]
    fn the_control_stream_alone_needs_no_account() {
        let mut shares = Shares::default();
        shares.add(StreamKey::CONTROL, load(3, 0));
        assert!(shares.is_empty());
        shares.add(StreamKey::bidi(1), load(1, 0));
        shares.add(StreamKey::CONTROL, load(1, 0));
        // What came before the first data stream is not known, and does no harm.
        shares.remove(StreamKey::CONTROL, load(3, 0));
        assert_eq!(shares.load_of(StreamKey::CONTROL), Load::default());
        shares.remove(StreamKey::bidi(1), load(1, 0));
        assert!(shares.is_empty());
    }

    #[test]
    fn progress_counts_while_something_waits() {
        let (mut shares, now, stream) = (Shares::default(), Instant::now(), StreamKey::bidi(1));
        shares.note_progress(stream, now);
        assert_eq!(shares.progress_of(stream), None);
        shares.add(stream, load(2, 0));
        assert_eq!(shares.progress_of(stream), Some(None));
        shares.note_begin(now);
        assert_eq!(shares.progress_of(stream), Some(Some(now)));
        let later = now + std::time::Duration::from_secs(1);
        shares.note_begin(later);
        assert_eq!(shares.progress_of(stream), Some(Some(now)));
        shares.note_progress(stream, later);
        shares.remove(stream, load(1, 0));
        assert_eq!(shares.progress_of(stream), Some(Some(later)));
        shares.remove(stream, load(1, 0));
        shares.add(stream, load(1, 0));
        assert_eq!(shares.progress_of(stream), Some(None));
    }

    #[test]
    fn what_waits_moves_with_its_stream_and_qos_0_can_go() {
        let mut shares = Shares::default();
        shares.add(StreamKey::bidi(1), load(3, 1));
        shares.add(StreamKey::bidi(2), load(2, 2));
        shares.drop_qos0();
        assert_eq!(shares.load_of(StreamKey::bidi(1)), load(2, 0));
        assert_eq!(shares.progress_of(StreamKey::bidi(2)), None);
        shares.add(StreamKey::bidi(2), load(1, 0));
        shares.redirect(StreamKey::bidi(1));
        assert_eq!(shares.load_of(StreamKey::CONTROL), load(2, 0));
        assert_eq!(shares.load_of(StreamKey::bidi(1)), Load::default());
    }

    /// Whoever copies at every turn copies nothing while nothing changes.
    #[test]
    fn a_copy_is_made_of_what_has_changed() {
        let (mut shares, mut copy) = (Shares::default(), Shares::default());
        shares.insert(StreamKey::CONTROL, load(1, 0));
        shares.add(StreamKey::bidi(1), load(3, 1));
        shares.copy_to(&mut copy);
        assert_eq!(copy.load_of(StreamKey::bidi(1)), load(3, 1));
        assert_eq!(copy.loads().last(), Some((StreamKey::CONTROL, load(1, 0))));
        copy.clear();
        shares.copy_to(&mut copy);
        assert!(copy.is_empty(), "it is the same as before");
        for change in [
            |shares: &mut Shares| shares.add(StreamKey::bidi(1), load(1, 0)),
            |shares: &mut Shares| shares.remove(StreamKey::bidi(1), load(1, 0)),
            |shares: &mut Shares| shares.note_begin(Instant::now()),
            |shares: &mut Shares| shares.note_progress(StreamKey::bidi(1), Instant::now()),
            |shares: &mut Shares| shares.drop_qos0(),
            |shares: &mut Shares| shares.redirect(StreamKey::bidi(1)),
            |shares: &mut Shares| shares.clear(),
        ] {
            change(&mut shares);
            assert!(shares.has_changed);
            shares.copy_to(&mut copy);
            assert_eq!(copy.load_of(StreamKey::CONTROL), shares.load_of(StreamKey::CONTROL));
        }
    }
}
