//! Waiting until the peer has acknowledged all that was written, without finishing a stream.
//!
//! The library tells this only of finished streams, one by one. But a write that finds no room in the send
//! window is woken when there is some, and a window of one byte has room when nothing is
//! unacknowledged. The write itself is never repeated: an empty one that is taken sends an empty
//! frame.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;
use noq::{Connection, SendStream};

/// Resolves when nothing written on any stream of `connection` is unacknowledged, when the peer has
/// stopped `send`, or when the connection is lost. Nothing can be written on it afterwards.
pub(super) async fn all_acknowledged(send: &mut SendStream, connection: &Connection) {
    let bell = Arc::new(Bell::default());
    connection.set_send_window(0);
    let waker = Waker::from(Arc::clone(&bell));
    if Pin::new(&mut *send).poll_write(&mut Context::from_waker(&waker), &[]).is_ready() {
        // Lost, or stopped by the peer: no room would not be an answer at once.
        return;
    }
    connection.set_send_window(1);
    poll_fn(|cx| bell.poll_rung(cx)).await;
}

/// A waker that remembers that it was woken; a task may be polled for other reasons.
#[derive(Default)]
struct Bell {
    rung: AtomicBool,
    listener: AtomicWaker,
}

impl Bell {
    fn poll_rung(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.listener.register(cx.waker());
        if self.rung.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.rung.store(true, Ordering::Release);
        self.listener.wake();
    }
}
