//! Who has something for the owner of a link: a wake-up costs a look at those that rang, not at all.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Wake, Waker};

use braid_proto::stream::StreamKey;
use futures_util::task::AtomicWaker;

/// Why a bell rings. None of them says more than that it is worth a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ring {
    /// The connection: arrivals, the handshake, credit for new streams.
    Connection,
    /// Bytes, FIN or RESET_STREAM.
    Readable(StreamKey),
    /// Room for a write that found none.
    Writable(StreamKey),
    /// STOP_SENDING.
    Stopped(StreamKey),
    /// Nothing is unacknowledged any more. The number tells one watch from the next.
    Acknowledged(u32),
}

/// The bells of one link.
#[derive(Debug, Default)]
pub(super) struct Bells {
    rung: Mutex<Vec<Arc<Bell>>>,
    owner: AtomicWaker,
}

impl Bells {
    /// A new bell, as what the library takes.
    pub(super) fn bell(self: &Arc<Self>, ring: Ring) -> Waker {
        Waker::from(Arc::new(Bell { bells: Arc::downgrade(self), ring, rung: AtomicBool::new(false) }))
    }

    /// From now on this task is woken.
    pub(super) fn listen(&self, cx: &Context<'_>) {
        self.owner.register(cx.waker());
    }

    /// Moves what rang since the last time to the end of `rings`, each once.
    pub(super) fn take(&self, rings: &mut Vec<Ring>) {
        let mut rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        rings.extend(rung.drain(..).map(|bell| {
            // Before the look that the ring leads to: a ring during that look counts again.
            bell.rung.store(false, Ordering::Release);
            bell.ring
        }));
    }
}

/// The library keeps bells for as long as it likes, so they do not keep the link's memory.
#[derive(Debug)]
struct Bell {
    bells: Weak<Bells>,
    ring: Ring,
    /// It is on the list.
    rung: AtomicBool,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.rung.swap(true, Ordering::AcqRel) {
            return;
        }
        let Some(bells) = self.bells.upgrade() else { return };
        bells.rung.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(self));
        bells.owner.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bell_is_heard_once_however_often_it_rings() {
        let bells = Arc::new(Bells::default());
        let first = bells.bell(Ring::Readable(StreamKey::bidi(1)));
        let second = bells.bell(Ring::Writable(StreamKey::bidi(2)));
        for _ in 0..3 {
            first.wake_by_ref();
            second.wake_by_ref();
        }
        let mut rings = Vec::new();
        bells.take(&mut rings);
        assert_eq!(rings, [Ring::Readable(StreamKey::bidi(1)), Ring::Writable(StreamKey::bidi(2))]);
        second.wake_by_ref();
        rings.clear();
        bells.take(&mut rings);
        assert_eq!(rings, [Ring::Writable(StreamKey::bidi(2))], "it can ring again");
    }

    #[test]
    fn a_bell_that_was_not_answered_keeps_nothing_alive() {
        let bells = Arc::new(Bells::default());
        let bell = bells.bell(Ring::Connection);
        bell.wake_by_ref();
        let link = Arc::downgrade(&bells);
        drop(bells);
        assert!(link.upgrade().is_none());
        bell.wake();
    }
}
