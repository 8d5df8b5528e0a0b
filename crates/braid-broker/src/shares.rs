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
    /// When something of it was last sent.
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

    /// When something was last sent on a stream that more waits for; `None` if nothing waits for it.
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
