//! QUIC connection that several tasks share, for `h3`: one drives it, and those of the requests read and write.

use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use noq_proto::{ConnectionError, Dir, FinishError, StreamId, TransportError, TransportErrorCode, VarInt};
use rustc_hash::FxHashMap;

use crate::quic::io::{Connection, Event, Refused};

/// Handle of a shared connection. When the last one is dropped, the connection is closed.
#[derive(Clone)]
pub(super) struct Handle(Arc<CloseOnDrop>);

struct CloseOnDrop(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// The task that drives the connection.
    task: AtomicWaker,
}

struct State {
    connection: Box<Connection>,
    wakers: Wakers,
    /// The task that drives has panicked, or ended with its runtime.
    has_failed: bool,
}

/// Wakers of the tasks that wait.
#[derive(Default)]
struct Wakers {
    readers: FxHashMap<StreamId, Waker>,
    writers: FxHashMap<StreamId, Waker>,
    /// Those that wait for the acknowledgement of a stream.
    ends: FxHashMap<StreamId, Waker>,
    /// Bidirectional, unidirectional.
    accepting: [Option<Waker>; 2],
    opening: [Vec<Waker>; 2],
}

impl Wakers {
    /// Takes those that an event concerns.
    fn take(&mut self, event: Event, woken: &mut Vec<Waker>) {
        match event {
            Event::Readable(id) => woken.extend(self.readers.remove(&id)),
            Event::Writable(id) => woken.extend(self.writers.remove(&id)),
            Event::Stopped(id, _) => {
                woken.extend(self.writers.remove(&id));
                woken.extend(self.ends.remove(&id));
            }
            Event::Finished(id) => woken.extend(self.ends.remove(&id)),
            Event::Opened(dir) => woken.extend(self.accepting[usize::from(dir == Dir::Uni)].take()),
            Event::Available(dir) => woken.append(&mut self.opening[usize::from(dir == Dir::Uni)]),
            Event::Lost => self.take_all(woken),
            Event::Connected | Event::Confirmed | Event::Datagram | Event::Path(_) => {}
        }
    }

    fn take_all(&mut self, woken: &mut Vec<Waker>) {
        let Self { readers, writers, ends, accepting, opening } = std::mem::take(self);
        woken.extend(readers.into_values().chain(writers.into_values()).chain(ends.into_values()));
        woken.extend(accepting.into_iter().flatten().chain(opening.into_iter().flatten()));
    }
}

/// Wakes all that wait for a connection whose task has ended.
struct FailureGuard(Arc<Shared>);

impl Drop for FailureGuard {
    fn drop(&mut self) {
        let mut woken = Vec::new();
        {
            // A library that has panicked is used no more.
            let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
            if !state.connection.is_drained() {
                state.has_failed = true;
                state.connection.lose(FAILED);
            }
            state.wakers.take_all(&mut woken);
        }
        woken.into_iter().for_each(Waker::wake);
    }
}

impl Shared {
    /// Drives the connection. Ready when nothing is left of it.
    fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.task.register(cx.waker());
        let mut woken = Vec::new();
        let is_drained = {
            let Ok(mut state) = self.state.lock() else {
                // A call of another task has panicked.
                return Poll::Ready(());
            };
            let State { connection, wakers, .. } = &mut *state;
            connection.receive_all(cx, |event| wakers.take(event, &mut woken));
            connection.transmit(cx);
            connection.is_drained()
        };
        woken.into_iter().for_each(Waker::wake);
        if is_drained { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        if let Ok(mut state) = self.0.state.lock()
            && state.connection.error().is_none()
        {
            state.connection.close(VarInt::from_u32(0));
        }
        self.0.task.wake();
    }
}

const FAILED: &str = "the QUIC stack failed; this connection is lost";

/// Error of a call on a connection that a panic has ended.
fn failed() -> ConnectionError {
    ConnectionError::TransportError(TransportError::new(
        TransportErrorCode::INTERNAL_ERROR,
        FAILED.to_owned(),
    ))
}

impl Handle {
    /// Spawns the task that drives a connection.
    pub(super) fn spawn(connection: Box<Connection>) -> Self {
        let state = State { connection, wakers: Wakers::default(), has_failed: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), task: AtomicWaker::new() });
        let guard = FailureGuard(Arc::clone(&shared));
        tokio::spawn(async move { poll_fn(|cx| guard.0.poll(cx)).await });
        Self(Arc::new(CloseOnDrop(shared)))
    }

    pub(super) fn downgrade(&self) -> WeakHandle {
        WeakHandle(Arc::downgrade(&self.0))
    }

    fn with<T>(&self, call: impl FnOnce(&mut State) -> T) -> Result<T, ConnectionError> {
        match self.0.0.state.lock() {
            Ok(mut state) if !state.has_failed => Ok(call(&mut state)),
            _ => Err(failed()),
        }
    }

    /// Makes a call whose effect has to be sent.
    fn with_effect<T>(&self, call: impl FnOnce(&mut State) -> T) -> Result<T, ConnectionError> {
        let outcome = self.with(call);
        self.0.0.task.wake();
        outcome
    }

    pub(super) fn poll_accept(&self, dir: Dir, cx: &Context<'_>) -> Poll<Result<StreamId, ConnectionError>> {
        self.with(|state| match (state.connection.accept(dir), state.connection.error()) {
            (Some(id), _) => Poll::Ready(Ok(id)),
            (None, Some(error)) => Poll::Ready(Err(error.clone())),
            (None, None) => {
                state.wakers.accepting[usize::from(dir == Dir::Uni)] = Some(cx.waker().clone());
                Poll::Pending
            }
        })?
    }

    pub(super) fn poll_open(&self, dir: Dir, cx: &Context<'_>) -> Poll<Result<StreamId, ConnectionError>> {
        let opened = self.with(|state| match state.connection.error() {
            Some(error) => Poll::Ready(Err(error.clone())),
            None => match state.connection.open(dir) {
                Some(id) => Poll::Ready(Ok(id)),
                None => {
                    state.wakers.opening[usize::from(dir == Dir::Uni)].push(cx.waker().clone());
                    Poll::Pending
                }
            },
        })?;
        if opened.is_pending() {
            // The peer is told that it has to permit more.
            self.0.0.task.wake();
        }
        opened
    }

    /// Writes from the begin of `chunk`, and removes what was taken.
    pub(super) fn poll_write(
        &self,
        id: StreamId,
        chunk: &mut Bytes,
        cx: &Context<'_>,
    ) -> Poll<Result<usize, Refused>> {
        let written = self.with(|state| {
            let written = state.connection.write_chunk(id, chunk);
            if written.is_pending() {
                state.wakers.writers.insert(id, cx.waker().clone());
            }
            written
        });
        let written = written.unwrap_or_else(|error| Poll::Ready(Err(Refused::Lost(error))));
        if written.is_ready() {
            self.0.0.task.wake();
        }
        written
    }

    /// Reads the next chunk, at most `max` bytes; `None` at the end. The inner error is the code of a RESET_STREAM.
    pub(super) fn poll_read(
        &self,
        id: StreamId,
        max: usize,
        cx: &Context<'_>,
    ) -> Poll<Result<Result<Option<Bytes>, VarInt>, ConnectionError>> {
        let read =
            self.with(|state| match (state.connection.read_chunk(id, max), state.connection.error()) {
                (Poll::Ready(read), _) => Poll::Ready(Ok(read)),
                (Poll::Pending, Some(error)) => Poll::Ready(Err(error.clone())),
                (Poll::Pending, None) => {
                    state.wakers.readers.insert(id, cx.waker().clone());
                    Poll::Pending
                }
            })?;
        if read.is_ready() {
            // Credit for the peer.
            self.0.0.task.wake();
        }
        read
    }

    /// Ready when the peer has acknowledged or stopped a stream that was finished, or is gone.
    pub(super) fn poll_end(&self, id: StreamId, cx: &Context<'_>) -> Poll<()> {
        self.with(|state| {
            if state.connection.is_send_over(id) {
                return Poll::Ready(());
            }
            state.wakers.ends.insert(id, cx.waker().clone());
            Poll::Pending
        })
        .unwrap_or(Poll::Ready(()))
    }

    /// Ends the sending half of a stream with FIN. One that the peer has stopped, or that has ended, is reset or left.
    pub(super) fn finish(&self, id: StreamId) -> Result<(), ConnectionError> {
        self.with_effect(|state| {
            if let Err(FinishError::Stopped(code)) = state.connection.finish(id) {
                state.connection.reset(id, code);
            }
        })
    }

    pub(super) fn reset(&self, id: StreamId, code: VarInt) {
        let _ = self.with_effect(|state| state.connection.reset(id, code));
    }

    pub(super) fn stop(&self, id: StreamId, code: VarInt) {
        let _ = self.with_effect(|state| {
            state.connection.stop(id, code);
            state.wakers.readers.remove(&id);
        });
    }

    /// Forgets the tasks that wait for the sending half of a stream.
    pub(super) fn forget_sending(&self, id: StreamId) {
        let _ = self.with(|state| {
            state.wakers.writers.remove(&id);
            state.wakers.ends.remove(&id);
        });
    }

    pub(super) fn set_priority(&self, id: StreamId, priority: i32) {
        let _ = self.with(|state| state.connection.set_priority(id, priority));
    }

    pub(super) fn close(&self, code: VarInt) {
        let _ = self.with_effect(|state| state.connection.close(code));
    }
}

/// Handle that does not keep the connection open.
#[derive(Clone)]
pub(super) struct WeakHandle(Weak<CloseOnDrop>);

impl WeakHandle {
    /// As [`Handle::poll_end`]; ready too if the connection is closed.
    pub(super) fn poll_end(&self, id: StreamId, cx: &Context<'_>) -> Poll<()> {
        self.0.upgrade().map_or(Poll::Ready(()), |shared| Handle(shared).poll_end(id, cx))
    }

    /// Makes a call on the connection, if it is open; `call` returns nothing if it finds it closed, and whether packets
    /// have to be sent.
    pub(super) fn with<T>(&self, call: impl FnOnce(&mut Connection) -> Option<(T, bool)>) -> io::Result<T> {
        let closed = || io::Error::from(io::ErrorKind::NotConnected);
        let handle = Handle(self.0.upgrade().ok_or_else(closed)?);
        let called = handle.with(|state| call(&mut state.connection));
        let (value, has_effect) = called.ok().flatten().ok_or_else(closed)?;
        if has_effect {
            handle.0.0.task.wake();
        }
        Ok(value)
    }
}
