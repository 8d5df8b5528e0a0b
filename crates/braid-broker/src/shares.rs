//! How what waits for a client is spread over its streams.

use std::time::Instant;

use braid_proto::stream::StreamKey;

use crate::mailbox::Load;

/// What waits for each stream. Empty where everything is for the control stream, as it always is without data
/// streams: that is the hot path, and needs no account. [BQ-55]
#[derive(Clone, Debug, Default)]
pub(crate) struct Shares(Vec<Share>);

#[derive(Clone, Copy, Debug)]
struct Share {
    stream: StreamKey,
    load: Load,
    /// When something of it was last sent, or it began to wait; `None` until somebody looked at the clock.
    progress_at: Option<Instant>,
}

impl Shares {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.0 = Vec::new();
    }

    fn find(&self, stream: StreamKey) -> Option<&Share> {
        self.0.iter().find(|share| share.stream == stream)
    }

    pub(crate) fn load_of(&self, stream: StreamKey) -> Load {
        self.find(stream).map_or_else(Load::default, |share| share.load)
    }

    /// When something was last sent on a stream that more waits for, or that began to wait; `None` if nothing waits
    /// for it.
    pub(crate) fn progress_of(&self, stream: StreamKey) -> Option<Option<Instant>> {
        self.find(stream).map(|share| share.progress_at)
    }

    pub(crate) fn add(&mut self, stream: StreamKey, load: Load) {
        let is_needed = !stream.is_control() || !self.is_empty();
        match self.0.iter_mut().find(|share| share.stream == stream) {
            Some(share) => share.load.add(load),
            None if !is_needed => {}
            None => self.0.push(Share { stream, load, progress_at: None }),
        }
    }

    pub(crate) fn remove(&mut self, stream: StreamKey, load: Load) {
        if let Some(at) = self.0.iter().position(|share| share.stream == stream) {
            self.0[at].load.subtract(load);
            if self.0[at].load.messages == 0 {
                self.0.swap_remove(at);
            }
        }
    }

    /// What is new begins to wait now: it is not stuck yet.
    pub(crate) fn note_begin(&mut self, now: Instant) {
        for share in &mut self.0 {
            share.progress_at.get_or_insert(now);
        }
    }

    pub(crate) fn note_progress(&mut self, stream: StreamKey, now: Instant) {
        if let Some(share) = self.0.iter_mut().find(|share| share.stream == stream) {
            share.progress_at = Some(now);
        }
    }

    /// What waited for a stream that has ended waits for the control stream.
    pub(crate) fn redirect(&mut self, ended: StreamKey) {
        if let Some(at) = self.0.iter().position(|share| share.stream == ended) {
            let share = self.0.swap_remove(at);
            self.add(StreamKey::CONTROL, share.load);
        }
    }

    /// QoS 0 was dropped everywhere.
    pub(crate) fn drop_qos0(&mut self) {
        for share in &mut self.0 {
            share.load = share.load.beside_qos0();
        }
        self.0.retain(|share| share.load.messages > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(messages: usize, qos0: usize) -> Load {
        Load { messages, bytes: messages * 10, qos0, qos0_bytes: qos0 * 10 }
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
}
