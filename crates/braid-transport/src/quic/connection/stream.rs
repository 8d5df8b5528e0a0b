//! One stream of a link: its two halves, and what each waits for.

use std::future::Future;
use std::io::IoSlice;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use braid_proto::stream::{Priority, StreamKey};
use noq::{ReadError, RecvStream, SendStream, Stopped, VarInt, WriteError};
use tokio::io::{AsyncRead, ReadBuf};

use super::close_reason::CloseReason;
use super::wakers::{Event, Wakers};

/// Above every data stream.
const CONTROL_PRIORITY: i32 = 1 << 16;

pub(super) struct Stream {
    /// `None` once nothing more will be sent, or nothing ever was to be.
    pub(super) send: Option<SendStream>,
    /// `None` once nothing more will be received, or nothing ever was to be.
    pub(super) recv: Option<RecvStream>,
    priority: i32,
    /// The library has that priority; it starts with 0 for every stream.
    priority_is_set: bool,
    /// Bytes: a FIN must wait for them.
    pub(super) written: u64,
    /// Only the FIN is left to send.
    pub(super) is_finishing: bool,
    /// It is on the list of streams to read.
    pub(super) is_queued: bool,
    readable: Waker,
    writable: Waker,
    stop: Option<StopWatch>,
}

struct StopWatch {
    /// Boxed and made only where it is wanted: most memory of an idle stream is here.
    stopped: Pin<Box<Stopped>>,
    waker: Waker,
}

/// What a read brought.
pub(super) enum Inbound {
    Bytes,
    Finished,
    Reset(u64),
    Lost(CloseReason),
}

/// Why a write brought nothing.
pub(super) enum Refusal {
    /// The stream has ended.
    Ended,
    /// STOP_SENDING, with its code.
    Stopped(VarInt),
    Lost(CloseReason),
}

impl Stream {
    pub(super) fn new(
        key: StreamKey,
        send: Option<SendStream>,
        recv: Option<RecvStream>,
        wakers: &Arc<Wakers>,
    ) -> Self {
        let priority = if key.is_control() { CONTROL_PRIORITY } else { i32::from(Priority::DEFAULT.value()) };
        Self {
            send,
            recv,
            priority,
            priority_is_set: false,
            written: 0,
            is_finishing: false,
            is_queued: false,
            readable: wakers.waker(Event::Readable(key)),
            writable: wakers.waker(Event::Writable(key)),
            stop: None,
        }
    }

    /// Both halves are done with.
    pub(super) fn is_over(&self) -> bool {
        self.send.is_none() && self.recv.is_none()
    }

    /// Bytes are taken from the application.
    pub(super) fn is_writable(&self) -> bool {
        self.send.is_some() && !self.is_finishing
    }

    pub(super) fn priority(&self) -> i32 {
        self.priority
    }

    /// At once, also if nothing more is taken now: the library looks at it each time some of the
    /// stream is in a packet. Before the first write it waits for that, since the library would make
    /// room for a stream that may never be written.
    pub(super) fn set_priority(&mut self, priority: Priority) {
        let priority = i32::from(priority.value());
        self.priority_is_set &= self.priority == priority;
        self.priority = priority;
        if self.written > 0 {
            self.apply_priority();
        }
    }

    fn apply_priority(&mut self) {
        if let Some(send) = self.send.as_ref().filter(|_| !self.priority_is_set) {
            self.priority_is_set = true;
            // An error means that the stream has ended, and the next write says so.
            let _ = send.set_priority(self.priority);
        }
    }

    pub(super) fn poll_read(&mut self, buffer: &mut ReadBuf<'_>) -> Poll<Inbound> {
        let Some(recv) = self.recv.as_mut() else { return Poll::Pending };
        let before = buffer.filled().len();
        let mut cx = Context::from_waker(&self.readable);
        let inbound = match Pin::new(&mut *recv).poll_read(&mut cx, buffer) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Ok(())) if buffer.filled().len() > before => return Poll::Ready(Inbound::Bytes),
            Poll::Ready(Ok(())) => Inbound::Finished,
            Poll::Ready(Err(error)) => match error.downcast::<ReadError>() {
                Ok(ReadError::Reset(code)) => Inbound::Reset(code.into_inner()),
                Ok(error) => Inbound::Lost(CloseReason::from(error)),
                Err(error) => Inbound::Lost(CloseReason::Other(error.to_string().into())),
            },
        };
        self.recv = None;
        Poll::Ready(inbound)
    }

    /// Writes as much of `slices` as is taken now, at most `most` bytes. Pending: its bell rings.
    pub(super) fn poll_write(&mut self, slices: &[IoSlice<'_>], most: usize) -> Poll<Result<usize, Refusal>> {
        self.apply_priority();
        let Some(send) = self.send.as_mut() else { return Poll::Ready(Err(Refusal::Ended)) };
        let mut cx = Context::from_waker(&self.writable);
        let mut total = 0;
        for slice in slices.iter().filter(|slice| !slice.is_empty()) {
            if total == most {
                break;
            }
            let slice = &slice[..slice.len().min(most - total)];
            match Pin::new(&mut *send).poll_write(&mut cx, slice) {
                Poll::Ready(Ok(written)) => {
                    total += written;
                    if written < slice.len() {
                        break;
                    }
                }
                // What was taken so far counts; the error comes back with the next write.
                Poll::Pending | Poll::Ready(Err(_)) if total > 0 => break,
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(Refusal::from(error))),
            }
        }
        self.written += u64::try_from(total).unwrap_or(u64::MAX);
        Poll::Ready(Ok(total))
    }

    /// From now on STOP_SENDING is noticed without a write.
    pub(super) fn watch_stop(&mut self, key: StreamKey, wakers: &Arc<Wakers>) {
        if let Some(send) = self.send.as_ref() {
            let stopped = Box::pin(send.stopped());
            self.stop = Some(StopWatch { stopped, waker: wakers.waker(Event::Stopped(key)) });
        }
    }

    /// The library keeps a word for the stream until it is stopped, or finished and acknowledged.
    pub(super) fn is_watched(&self) -> bool {
        self.stop.is_some() && self.send.is_some()
    }

    /// The code of STOP_SENDING.
    pub(super) fn poll_stopped(&mut self) -> Poll<VarInt> {
        let Some(StopWatch { stopped, waker }) = self.stop.as_mut() else { return Poll::Pending };
        match stopped.as_mut().poll(&mut Context::from_waker(waker)) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(outcome) => {
                self.stop = None;
                match outcome {
                    Ok(Some(code)) => Poll::Ready(code),
                    // Finished, or lost with the connection.
                    Ok(None) | Err(_) => Poll::Pending,
                }
            }
        }
    }

    /// RESET_STREAM, if the half is open.
    pub(super) fn reset(&mut self, code: VarInt) {
        self.stop = None;
        if let Some(mut send) = self.send.take() {
            let _ = send.reset(code);
        }
    }

    /// STOP_SENDING, if the half is open.
    pub(super) fn stop(&mut self, code: VarInt) {
        if let Some(mut recv) = self.recv.take() {
            let _ = recv.stop(code);
        }
    }

    /// FIN, now.
    pub(super) fn finish(&mut self) {
        self.stop = None;
        if let Some(mut send) = self.send.take() {
            let _ = send.finish();
        }
    }
}

impl From<WriteError> for Refusal {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Stopped(code) => Self::Stopped(code),
            WriteError::ClosedStream => Self::Ended,
            WriteError::ConnectionLost(error) => Self::Lost(CloseReason::Connection(error)),
            WriteError::ZeroRttRejected => Self::Lost(CloseReason::EarlyRefused),
        }
    }
}
