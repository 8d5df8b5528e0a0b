use std::cell::{Cell, RefCell, RefMut};
use std::sync::Arc;
use std::time::Duration;

use braid_transport::ClientTls;
use tokio::time::Instant;

use super::alt_svc::AltSvcCache;
use super::load::{Extent, HttpLoad, Protocol};
use super::progress::Progress;
use super::request::RepeatedBytes;
use super::summary::Counts;
use super::tally::Tally;

/// Most bytes of one read.
const READ_AT_ONCE: usize = 64 * 1024;

/// State that the clients of a thread share.
pub(super) struct Worker {
    load: Arc<HttpLoad>,
    /// Number of the thread, from 0.
    index: u32,
    alt_svc: Option<Arc<AltSvcCache>>,
    begun: Instant,
    /// The request in the bytes of HTTP/1.1.
    http1: RepeatedBytes,
    /// False during the warm-up.
    is_counting: Cell<bool>,
    tally: RefCell<Tally>,
    progress: Progress,
    /// Buffer of a read; it is parsed at once.
    buffer: RefCell<Box<[u8]>>,
}

impl Worker {
    pub(super) fn new(
        load: Arc<HttpLoad>,
        alt_svc: Option<Arc<AltSvcCache>>,
        index: u32,
        progress: Progress,
    ) -> Self {
        let http1 = load.request.http1();
        let is_counting = match load.extent {
            Extent::Requests(_) => true,
            Extent::Duration { warm_up, .. } => warm_up.is_zero(),
        };
        Self {
            load,
            index,
            alt_svc,
            begun: Instant::now(),
            http1,
            is_counting: Cell::new(is_counting),
            tally: RefCell::default(),
            progress,
            buffer: RefCell::new(vec![0; READ_AT_ONCE].into()),
        }
    }

    pub(super) fn load(&self) -> &HttpLoad {
        &self.load
    }

    /// Alternatives of the origin, and TLS for them, if `Alt-Svc` is obeyed.
    pub(super) fn alt_svc(&self) -> Option<(&AltSvcCache, &ClientTls)> {
        Some((self.alt_svc.as_deref()?, self.load.alternative.as_ref()?))
    }

    pub(super) fn http1(&self) -> &RepeatedBytes {
        &self.http1
    }

    pub(super) fn index(&self) -> u32 {
        self.index
    }

    /// Time since the thread began.
    pub(super) fn since_begin(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.begun)
    }

    /// Ends the warm-up.
    pub(super) fn begin_counting(&self) {
        self.is_counting.set(true);
    }

    pub(super) fn is_counting(&self) -> bool {
        self.is_counting.get()
    }

    /// The counts; not to be held while another method is called.
    pub(super) fn tally(&self) -> RefMut<'_, Tally> {
        self.tally.borrow_mut()
    }

    /// The counts at the end.
    pub(super) fn take_tally(&self) -> Tally {
        self.tally.take()
    }

    /// A connection has this version.
    pub(super) fn agreed(&self, protocol: Protocol) {
        self.tally().protocol = Some(protocol);
    }

    /// The buffer of a read; not to be held across polls.
    pub(super) fn buffer(&self) -> RefMut<'_, Box<[u8]>> {
        self.buffer.borrow_mut()
    }

    /// Publishes the counts.
    pub(super) fn progress(&self, counts: &Counts) {
        self.progress.set(self.index, counts.done);
    }
}
