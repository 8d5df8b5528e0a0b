//! A link that goes on while a test does something else.

use std::fmt;
use std::future::{pending, poll_fn};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use braid_proto::stream::{Priority, StreamKey};
use braid_transport::quic::{DatagramCounts, GateState, LoadCounts, PathReport};
use braid_transport::{Close, Dir, Peer, Read};
use bytes::Bytes;
use tokio::io::ReadBuf;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// The methods of [`braid_transport::Link`], and a task that flushes it as a driver would.
pub(crate) struct Link {
    shared: Arc<Shared>,
    task: AbortHandle,
}

struct Shared {
    /// `None` once the link is dropped.
    link: Mutex<Option<braid_transport::Link>>,
    /// Notified when the test has used the link.
    used: Notify,
    /// Wakers of the tasks of the test that wait for the link.
    waiting: Mutex<Vec<Waker>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Option<braid_transport::Link>> {
        self.link.lock().expect("not poisoned")
    }

    async fn drive(&self) {
        loop {
            let flush = poll_fn(|cx| {
                if let Some(link) = self.lock().as_mut().filter(|link| link.is_multi()) {
                    // The first one ends the turn of the test.
                    let _ = link.poll_flush(cx);
                    let _ = link.poll_flush(cx);
                }
                // The link wakes the task that polled it last.
                self.waiting.lock().expect("not poisoned").drain(..).for_each(Waker::wake);
                Poll::<()>::Pending
            });
            tokio::select! {
                biased;
                () = self.used.notified() => {}
                () = flush => {}
            }
        }
    }
}

impl From<braid_transport::Link> for Link {
    fn from(link: braid_transport::Link) -> Self {
        let shared =
            Arc::new(Shared { link: Mutex::new(Some(link)), used: Notify::new(), waiting: Mutex::default() });
        let driven = Arc::clone(&shared);
        let task = tokio::spawn(async move {
            driven.drive().await;
            pending::<()>().await;
        });
        Self { shared, task: task.abort_handle() }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Link")
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
        if let Ok(mut link) = self.shared.link.lock() {
            *link = None;
        }
    }
}

impl Link {
    /// The link, which is not driven any more.
    pub(crate) fn into_inner(self) -> braid_transport::Link {
        self.shared.lock().take().expect("not dropped")
    }

    fn note(&self, cx: &Context<'_>, is_pending: bool) {
        if is_pending && !cx.waker().will_wake(Waker::noop()) {
            self.shared.waiting.lock().expect("not poisoned").push(cx.waker().clone());
        } else {
            self.shared.used.notify_one();
        }
    }

    fn with<T>(&self, call: impl FnOnce(&mut braid_transport::Link) -> T) -> T {
        let outcome = call(self.shared.lock().as_mut().expect("not dropped"));
        self.shared.used.notify_one();
        outcome
    }

    pub(crate) fn peer(&self) -> Peer {
        self.with(|link| link.peer().clone())
    }

    pub(crate) fn is_early(&self) -> bool {
        self.with(|link| link.is_early())
    }

    pub(crate) fn gate_state(&self) -> Option<GateState> {
        self.with(|link| link.gate_state())
    }

    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
        wants: &mut dyn FnMut(StreamKey) -> bool,
    ) -> Poll<io::Result<Read>> {
        let mut link = self.shared.lock();
        let link = link.as_mut().expect("not dropped");
        let read = link.poll_read(cx, buffer, wants);
        if link.is_multi() {
            let _ = link.poll_flush(cx);
            self.note(cx, read.is_pending());
        }
        read
    }

    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        stream: StreamKey,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut link = self.shared.lock();
        let link = link.as_mut().expect("not dropped");
        let written = link.poll_write(cx, stream, slices);
        if link.is_multi() {
            // Without a task several writes are one turn.
            if !cx.waker().will_wake(Waker::noop()) {
                let _ = link.poll_flush(cx);
            }
            self.note(cx, written.is_pending());
        }
        written
    }

    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with(|link| link.poll_flush(cx))
    }

    pub(crate) fn poll_open(&mut self, cx: &mut Context<'_>, dir: Dir) -> Poll<io::Result<StreamKey>> {
        let opened = self.shared.lock().as_mut().expect("not dropped").poll_open(cx, dir);
        self.note(cx, opened.is_pending());
        opened
    }

    pub(crate) fn poll_close(&mut self, cx: &mut Context<'_>, close: Close) -> Poll<io::Result<()>> {
        self.shared.lock().as_mut().expect("not dropped").poll_close(cx, close)
    }

    pub(crate) fn close_by(&mut self, deadline: std::time::Instant) {
        self.with(|link| link.close_by(deadline));
    }

    pub(crate) fn set_priority(&mut self, stream: StreamKey, priority: Priority) {
        self.with(|link| link.set_priority(stream, priority));
    }

    pub(crate) fn finish(&mut self, stream: StreamKey) {
        self.with(|link| link.finish(stream));
    }

    pub(crate) fn abort(&mut self, stream: StreamKey, code: u64) {
        self.with(|link| link.abort(stream, code));
    }

    pub(crate) fn datagram_size(&mut self) -> Option<usize> {
        self.with(braid_transport::Link::datagram_size)
    }

    pub(crate) fn send_datagram(&mut self, priority: Priority, datagram: impl Into<Bytes>) {
        self.with(|link| link.send_datagram(priority, datagram.into()));
    }

    pub(crate) fn unsent_datagrams(&mut self) -> usize {
        self.with(braid_transport::Link::unsent_datagrams)
    }

    pub(crate) fn load_counts(&mut self) -> LoadCounts {
        self.with(braid_transport::Link::load_counts).expect("QUIC")
    }

    pub(crate) fn datagram_counts(&mut self) -> DatagramCounts {
        self.with(braid_transport::Link::datagram_counts).expect("QUIC")
    }

    pub(crate) fn set_trusted(&mut self) {
        self.with(braid_transport::Link::set_trusted);
    }

    pub(crate) fn paths(&mut self) -> Vec<PathReport> {
        self.with(braid_transport::Link::paths)
    }

    pub(crate) fn rebind(&mut self, address: Option<SocketAddr>) -> io::Result<()> {
        self.with(|link| link.rebind(address))
    }
}
