//! Who waits for a link.

use std::sync::Arc;
use std::task::{Wake, Waker};

use futures_util::task::AtomicWaker;

/// The tasks that read and write a link; often they are one.
#[derive(Debug, Default)]
pub(crate) struct Wakers {
    pub(crate) reader: AtomicWaker,
    pub(crate) writer: AtomicWaker,
}

impl Wakers {
    /// The registry and the waker that wakes everybody in it.
    pub(crate) fn new() -> (Arc<Self>, Waker) {
        let wakers = Arc::new(Self::default());
        let both = Waker::from(Arc::clone(&wakers));
        (wakers, both)
    }
}

impl Wake for Wakers {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.reader.wake();
        self.writer.wake();
    }
}
