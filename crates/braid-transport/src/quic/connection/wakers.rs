//! Who has something for the owner of a link: a wake-up costs a look at those that rang, not at all.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Wake, Waker};

use braid_proto::stream::StreamKey;
use futures_util::task::AtomicWaker;

/// Why a bell rings. None of them says more than that it is worth a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
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
pub(super) struct Wakers {
    woken: Mutex<Vec<Arc<EventWaker>>>,
    owner: AtomicWaker,
}

impl Wakers {
    /// A new bell, as what the library takes.
    pub(super) fn waker(self: &Arc<Self>, event: Event) -> Waker {
        Waker::from(Arc::new(EventWaker {
            wakers: Arc::downgrade(self),
            event,
            woken: AtomicBool::new(false),
        }))
    }

    /// From now on this task is woken.
    pub(super) fn listen(&self, cx: &Context<'_>) {
        self.owner.register(cx.waker());
    }

    /// Moves what rang since the last time to the end of `rings`, each once.
    pub(super) fn take(&self, events: &mut Vec<Event>) {
        let mut woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
        events.extend(woken.drain(..).map(|waker| {
            // Before the look that the ring leads to: a ring during that look counts again.
            waker.woken.store(false, Ordering::Release);
            waker.event
        }));
    }
}

/// The library keeps bells for as long as it likes, so they do not keep the link's memory.
#[derive(Debug)]
struct EventWaker {
    wakers: Weak<Wakers>,
    event: Event,
    /// It is on the list.
    woken: AtomicBool,
}

impl Wake for EventWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.woken.swap(true, Ordering::AcqRel) {
            return;
        }
        let Some(wakers) = self.wakers.upgrade() else { return };
        wakers.woken.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(self));
        wakers.owner.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bell_is_heard_once_however_often_it_rings() {
        let wakers = Arc::new(Wakers::default());
        let first = wakers.waker(Event::Readable(StreamKey::bidi(1)));
        let second = wakers.waker(Event::Writable(StreamKey::bidi(2)));
        for _ in 0..3 {
            first.wake_by_ref();
            second.wake_by_ref();
        }
        let mut events = Vec::new();
        wakers.take(&mut events);
        assert_eq!(events, [Event::Readable(StreamKey::bidi(1)), Event::Writable(StreamKey::bidi(2))]);
        second.wake_by_ref();
        events.clear();
        wakers.take(&mut events);
        assert_eq!(events, [Event::Writable(StreamKey::bidi(2))], "it can event again");
    }

    #[test]
    fn a_bell_that_was_not_answered_keeps_nothing_alive() {
        let wakers = Arc::new(Wakers::default());
        let waker = wakers.waker(Event::Connection);
        waker.wake_by_ref();
        let link = Arc::downgrade(&wakers);
        drop(wakers);
        assert!(link.upgrade().is_none());
        waker.wake();
    }
}
