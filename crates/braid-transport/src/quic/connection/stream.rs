//! One stream of a link: its two halves and their wakers.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use braid_proto::stream::{Priority, StreamKey};
use noq::{ConnectionError, ReadError, RecvStream, SendStream, Stopped, VarInt, WriteError};
use tokio::io::{AsyncRead, ReadBuf};

use super::events::{Event, EventWakers};
use crate::quic::codes::{self, code};

/// Above every data stream.
const CONTROL_PRIORITY: i32 = 1 << 16;

pub(super) struct Stream {
    /// `None` once nothing more will be sent, or for a half that does not exist.
    pub(super) send: Option<SendStream>,
    /// `None` once nothing more will be received, or for a half that does not exist.
    pub(super) recv: Option<RecvStream>,
    priority: i32,
    /// The library has that priority; it starts with 0 for every stream.
    is_priority_set: bool,
    /// Bytes written.
    pub(super) written: u64,
    /// Only the FIN is left to send.
    pub(super) is_finishing: bool,
    /// The stream is in the read queue.
    pub(super) is_queued: bool,
    readable: Waker,
    writable: Waker,
    /// Watch for STOP_SENDING and its waker. Boxed and made only where it is wanted: it is most of an idle stream's
    /// memory.
    stopped: Option<(Pin<Box<Stopped>>, Waker)>,
}

/// Result of a read.
pub(super) enum Inbound {
    Bytes,
    Finished,
    Reset(u64),
    Lost(CloseReason),
}

/// Reason for which a write failed.
pub(super) enum WriteFailure {
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
        wakers: &Arc<EventWakers>,
    ) -> Self {
        Self {
            send,
            recv,
            priority: if key.is_control() { CONTROL_PRIORITY } else { i32::from(Priority::DEFAULT.value()) },
            is_priority_set: false,
            written: 0,
            is_finishing: false,
            is_queued: false,
            readable: wakers.waker(Event::Readable(key)),
            writable: wakers.waker(Event::Writable(key)),
            stopped: None,
        }
    }

    /// Both halves have ended.
    pub(super) fn is_over(&self) -> bool {
        self.send.is_none() && self.recv.is_none()
    }

    /// The application may write.
    pub(super) fn is_writable(&self) -> bool {
        self.send.is_some() && !self.is_finishing
    }

    pub(super) fn priority(&self) -> i32 {
        self.priority
    }

    /// Takes effect at once, also for bytes that were written before: the library looks at the priority each time some
    /// of the stream is in a packet. Before the first write it waits for that, since the library would allocate for a
    /// stream that may never be written.
    pub(super) fn set_priority(&mut self, priority: Priority) {
        let priority = i32::from(priority.value());
        self.is_priority_set &= self.priority == priority;
        self.priority = priority;
        if self.written > 0 {
            self.apply_priority();
        }
    }

    fn apply_priority(&mut self) {
        if let Some(send) = self.send.as_ref().filter(|_| !self.is_priority_set) {
            self.is_priority_set = true;
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
                Ok(ReadError::ConnectionLost(error)) => Inbound::Lost(CloseReason::Connection(error)),
                Ok(ReadError::ZeroRttRejected) => Inbound::Lost(CloseReason::EarlyDataRejected),
                Ok(error) => Inbound::Lost(CloseReason::Other(error.to_string().into())),
                Err(error) => Inbound::Lost(CloseReason::Other(error.to_string().into())),
            },
        };
        self.recv = None;
        Poll::Ready(inbound)
    }

    /// Writes as much of `slices` as is taken now, at most `max` bytes. While pending, its waker is registered.
    pub(super) fn poll_write(
        &mut self,
        slices: &[IoSlice<'_>],
        max: usize,
    ) -> Poll<Result<usize, WriteFailure>> {
        self.apply_priority();
        let Some(send) = self.send.as_mut() else { return Poll::Ready(Err(WriteFailure::Ended)) };
        let mut cx = Context::from_waker(&self.writable);
        let mut total = 0;
        for slice in slices.iter().filter(|slice| !slice.is_empty()) {
            if total == max {
                break;
            }
            let slice = &slice[..slice.len().min(max - total)];
            match Pin::new(&mut *send).poll_write(&mut cx, slice) {
                Poll::Ready(Ok(written)) => {
                    total += written;
                    if written < slice.len() {
                        break;
                    }
                }
                // Bytes taken so far count; the error comes back with the next write.
                Poll::Pending | Poll::Ready(Err(_)) if total > 0 => break,
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => {
                    return Poll::Ready(Err(match error {
                        WriteError::Stopped(code) => WriteFailure::Stopped(code),
                        WriteError::ClosedStream => WriteFailure::Ended,
                        WriteError::ConnectionLost(error) => {
                            WriteFailure::Lost(CloseReason::Connection(error))
                        }
                        WriteError::ZeroRttRejected => WriteFailure::Lost(CloseReason::EarlyDataRejected),
                    }));
                }
            }
        }
        self.written += total as u64;
        Poll::Ready(Ok(total))
    }

    /// Reports STOP_SENDING without a write from now on.
    pub(super) fn watch_stop(&mut self, key: StreamKey, wakers: &Arc<EventWakers>) {
        if let Some(send) = self.send.as_ref() {
            self.stopped = Some((Box::pin(send.stopped()), wakers.waker(Event::Stopped(key))));
        }
    }

    /// The library keeps memory for the stream until it is stopped, or finished and acknowledged.
    pub(super) fn is_watched(&self) -> bool {
        self.stopped.is_some() && self.send.is_some()
    }

    /// The code of STOP_SENDING.
    pub(super) fn poll_stopped(&mut self) -> Poll<VarInt> {
        let Some((stopped, waker)) = self.stopped.as_mut() else { return Poll::Pending };
        let Poll::Ready(outcome) = stopped.as_mut().poll(&mut Context::from_waker(waker)) else {
            return Poll::Pending;
        };
        self.stopped = None;
        // Otherwise it is finished, or lost with the connection.
        if let Ok(Some(code)) = outcome { Poll::Ready(code) } else { Poll::Pending }
    }

    /// Sends RESET_STREAM, if the half is open.
    pub(super) fn reset(&mut self, code: VarInt) {
        self.stopped = None;
        if let Some(mut send) = self.send.take() {
            let _ = send.reset(code);
        }
    }

    /// Sends STOP_SENDING, if the half is open.
    pub(super) fn stop(&mut self, code: VarInt) {
        if let Some(mut recv) = self.recv.take() {
            let _ = recv.stop(code);
        }
    }

    /// Sends FIN now.
    pub(super) fn finish(&mut self) {
        self.stopped = None;
        if let Some(mut send) = self.send.take() {
            let _ = send.finish();
        }
    }
}

/// Reason for which a link has ended.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum CloseReason {
    #[error("the QUIC connection is lost: {0}")]
    Connection(ConnectionError),
    #[error("the server rejected the early data")]
    EarlyDataRejected,
    #[error("the peer reset the control stream with code {0:#x}")]
    ControlReset(u64),
    #[error("the peer stopped the control stream with code {0:#x}")]
    ControlStopped(u64),
    #[error("{0}")]
    Other(Box<str>),
}

impl CloseReason {
    /// Many clients close the connection without finishing the control stream first: that is its end as well.
    pub(super) fn is_in_order(&self) -> bool {
        matches!(self, Self::Connection(ConnectionError::ApplicationClosed(close))
            if close.error_code == code(codes::CLOSE_NORMAL))
    }
}

impl From<CloseReason> for io::Error {
    fn from(reason: CloseReason) -> Self {
        let kind = match &reason {
            CloseReason::Connection(ConnectionError::TimedOut) => io::ErrorKind::TimedOut,
            CloseReason::Connection(ConnectionError::LocallyClosed) => io::ErrorKind::ConnectionAborted,
            // Callers recognise it by this cause.
            CloseReason::EarlyDataRejected => return ReadError::ZeroRttRejected.into(),
            _ => io::ErrorKind::ConnectionReset,
        };
        Self::new(kind, reason)
    }
}
