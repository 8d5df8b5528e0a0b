//! Drain of a connection: waits until the peer has acknowledged all written bytes, without finishing a stream.
//!
//! The library reports this for finished streams only. But a write that finds no room in the send window is woken when
//! there is some, and a window of one byte has room once nothing is unacknowledged. The write is never repeated: an
//! empty one that succeeds sends an empty frame.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;
use noq::{Connection, SendStream};

/// Resolves when no byte written on any stream of `connection` is unacknowledged, when the peer has stopped `send`, or
/// when the connection is lost. No stream can be written afterwards.
pub(super) async fn all_acknowledged(send: &mut SendStream, connection: &Connection) {
    let woken = Arc::new(WokenFlag::default());
    connection.set_send_window(0);
    let waker = Waker::from(Arc::clone(&woken));
    if Pin::new(&mut *send).poll_write(&mut Context::from_waker(&waker), &[]).is_ready() {
        // Lost, or stopped by the peer: a window of no bytes never has room.
        return;
    }
    connection.set_send_window(1);
    poll_fn(|cx| woken.poll(cx)).await;
}

/// Waker with a flag: a task may be polled for other reasons.
#[derive(Default)]
struct WokenFlag {
    is_woken: AtomicBool,
    task: AtomicWaker,
}

impl WokenFlag {
    fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.task.register(cx.waker());
        if self.is_woken.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Wake for WokenFlag {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.task.wake();
    }
}
