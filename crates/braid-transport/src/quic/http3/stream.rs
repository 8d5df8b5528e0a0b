//! Streams of a connection for `h3`.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use h3::error::Code;
use h3::quic::{self, StreamErrorIncoming, StreamId, WriteBuf};
use noq_proto::VarInt;
use tokio::time::{Instant, Sleep, sleep};

use super::frame_limit::FrameLimit;
use super::shared::Handle;
use super::{lost, on_stream};
use crate::quic::io::Refused;

/// Type of DATA frames.
const DATA: u8 = 0x00;

/// Bytes of one read or write at most.
const CHUNK: usize = 64 << 10;

fn h3_id(id: noq_proto::StreamId) -> StreamId {
    match StreamId::try_from(u64::from(VarInt::from(id))) {
        Ok(id) => id,
        Err(error) => unreachable!("both libraries count streams to 2^62: {error}"),
    }
}

fn code(code: u64) -> VarInt {
    VarInt::from_u64(code).unwrap_or(VarInt::MAX)
}

/// Options of the sending half of streams that the peer opens.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendOptions {
    /// See [`Http3Connection::without_data_headers`](super::Http3Connection::without_data_headers).
    pub(super) data_headers: bool,
    /// See [`Http3Connection::with_stall_limit`](super::Http3Connection::with_stall_limit).
    pub(super) stall_limit: Option<Duration>,
}

impl Default for SendOptions {
    fn default() -> Self {
        Self { data_headers: true, stall_limit: None }
    }
}

/// Wait for a peer that takes no more bytes.
struct Stall {
    timer: Pin<Box<Sleep>>,
    /// Bytes were written since the timer was set.
    has_moved: bool,
}

/// Sending half of a stream.
pub struct Http3Send<B> {
    handle: Handle,
    id: noq_proto::StreamId,
    writing: Option<WriteBuf<B>>,
    /// Bytes that were taken from it, and are written first.
    chunk: Bytes,
    options: SendOptions,
    stall: Option<Stall>,
    /// Set: the end of the stream waits for the peer's acknowledgement.
    acknowledged_ends: Arc<AtomicBool>,
    is_finished: bool,
}

impl<B> Http3Send<B> {
    pub(super) fn new(id: noq_proto::StreamId, handle: &Handle, acknowledged_ends: &Arc<AtomicBool>) -> Self {
        Self {
            handle: handle.clone(),
            id,
            writing: None,
            chunk: Bytes::new(),
            options: SendOptions::default(),
            stall: None,
            acknowledged_ends: Arc::clone(acknowledged_ends),
            is_finished: false,
        }
    }

    /// Ready when the peer has taken no byte for the limit.
    fn poll_stalled(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(limit) = self.options.stall_limit else { return Poll::Pending };
        let set = || Stall { timer: Box::pin(sleep(limit)), has_moved: false };
        let stall = self.stall.get_or_insert_with(set);
        if std::mem::take(&mut stall.has_moved) {
            stall.timer.as_mut().reset(Instant::now() + limit);
        }
        stall.timer.as_mut().poll(cx)
    }

    /// Writes from the begin of `chunk`, and removes what was written.
    fn poll_write(&self, cx: &Context<'_>, chunk: &mut Bytes) -> Poll<Result<usize, StreamErrorIncoming>> {
        Poll::Ready(match ready!(self.handle.poll_write(self.id, chunk, cx)) {
            Ok(written) => Ok(written),
            Err(Refused::Stopped(code)) => {
                Err(StreamErrorIncoming::StreamTerminated { error_code: code.into_inner() })
            }
            Err(Refused::Lost(error)) => Err(on_stream(lost(&error))),
            Err(Refused::Closed) => {
                Err(StreamErrorIncoming::Unknown(io::Error::from(io::ErrorKind::NotConnected).into()))
            }
        })
    }
}

impl<B> Drop for Http3Send<B> {
    /// Ends a stream that was not reset, and whose end was not asked for.
    fn drop(&mut self) {
        self.handle.forget_sending(self.id);
        if !self.is_finished {
            let _ = self.handle.finish(self.id);
        }
    }
}

impl<B: Buf> quic::SendStream<B> for Http3Send<B> {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        loop {
            while !self.chunk.is_empty() {
                let mut chunk = std::mem::take(&mut self.chunk);
                let written = self.poll_write(cx, &mut chunk);
                self.chunk = chunk;
                if written.is_pending() {
                    ready!(self.poll_stalled(cx));
                    let error_code = Code::H3_REQUEST_CANCELLED.value();
                    <Self as quic::SendStream<B>>::reset(self, error_code);
                    return Poll::Ready(Err(StreamErrorIncoming::StreamTerminated { error_code }));
                }
                ready!(written)?;
                self.stall.iter_mut().for_each(|stall| stall.has_moved = true);
            }
            let Some(writing) = self.writing.as_mut().filter(|writing| writing.has_remaining()) else {
                break;
            };
            // Header and payload of a frame are one write.
            self.chunk = writing.copy_to_bytes(writing.remaining().min(CHUNK));
        }
        self.writing = None;
        Poll::Ready(Ok(()))
    }

    fn send_data<T: Into<WriteBuf<B>>>(&mut self, data: T) -> Result<(), StreamErrorIncoming> {
        if self.writing.is_some() {
            let reason = "a write began before the last one was complete".to_owned();
            return Err(on_stream(quic::ConnectionErrorIncoming::InternalError(reason)));
        }
        let mut writing = data.into();
        // The header of a frame is a chunk of its own.
        if !self.options.data_headers && writing.chunk().first() == Some(&DATA) {
            writing.advance(writing.chunk().len());
        }
        self.writing = Some(writing);
        Ok(())
    }

    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        if !std::mem::replace(&mut self.is_finished, true) {
            self.handle.finish(self.id).map_err(|error| on_stream(lost(&error)))?;
        }
        // A peer that stops the stream, or is gone, is told by other calls.
        let waits = self.acknowledged_ends.load(Ordering::Relaxed);
        if waits { self.handle.poll_end(self.id, cx).map(Ok) } else { Poll::Ready(Ok(())) }
    }

    fn reset(&mut self, reset_code: u64) {
        self.is_finished = true;
        self.handle.reset(self.id, code(reset_code));
    }

    fn send_id(&self) -> StreamId {
        h3_id(self.id)
    }
}

impl<B: Buf> quic::SendStreamUnframed<B> for Http3Send<B> {
    fn poll_send<D: Buf>(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &mut D,
    ) -> Poll<Result<usize, StreamErrorIncoming>> {
        let mut chunk = Bytes::copy_from_slice(bytes.chunk());
        let written = ready!(self.poll_write(cx, &mut chunk))?;
        bytes.advance(written);
        Poll::Ready(Ok(written))
    }
}

impl<B> fmt::Debug for Http3Send<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http3Send").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Receiving half of a stream.
pub struct Http3Recv {
    handle: Handle,
    id: noq_proto::StreamId,
    filter: FrameLimit,
    /// End of the stream, once it was read; an error is a code.
    end: Option<Result<(), u64>>,
}

impl Http3Recv {
    pub(super) fn new(id: noq_proto::StreamId, filter: FrameLimit, handle: &Handle) -> Self {
        Self { handle: handle.clone(), id, filter, end: None }
    }
}

impl quic::RecvStream for Http3Recv {
    type Buf = Bytes;

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        loop {
            match self.end {
                None => {}
                Some(Ok(())) => return Poll::Ready(Ok(None)),
                Some(Err(error_code)) => {
                    return Poll::Ready(Err(StreamErrorIncoming::StreamTerminated { error_code }));
                }
            }
            let read = ready!(self.handle.poll_read(self.id, CHUNK, cx));
            let bytes = match read.map_err(|error| on_stream(lost(&error)))? {
                Ok(Some(chunk)) => self.filter.filter(chunk),
                // [RFC 9114, 7.1] `h3` 0.0.8 would take the end for that of the body, and panic at the next frame.
                Ok(None) if self.filter.is_in_payload() => {
                    let error_code = Code::H3_FRAME_ERROR.value();
                    self.handle.close(code(error_code));
                    self.end = Some(Err(error_code));
                    continue;
                }
                Ok(None) => {
                    self.end = Some(Ok(()));
                    self.filter.finish()
                }
                Err(code) => {
                    self.end = Some(Err(code.into_inner()));
                    continue;
                }
            };
            if !bytes.is_empty() {
                return Poll::Ready(Ok(Some(bytes)));
            }
        }
    }

    fn stop_sending(&mut self, error_code: u64) {
        self.handle.stop(self.id, code(error_code));
    }

    fn recv_id(&self) -> StreamId {
        h3_id(self.id)
    }
}

impl Drop for Http3Recv {
    /// Asks the peer for no more: a response may be complete before its request. [RFC 9114, 4.1]
    fn drop(&mut self) {
        if self.end.is_none() {
            quic::RecvStream::stop_sending(self, Code::H3_NO_ERROR.value());
        }
    }
}

impl fmt::Debug for Http3Recv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http3Recv").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Both halves of a stream.
#[derive(Debug)]
pub struct Http3Bidi<B> {
    send: Http3Send<B>,
    recv: Http3Recv,
}

impl<B> Http3Bidi<B> {
    pub(super) fn new(id: noq_proto::StreamId, handle: &Handle, acknowledged_ends: &Arc<AtomicBool>) -> Self {
        let recv = Http3Recv::new(id, FrameLimit::bidi(), handle);
        Self { send: Http3Send::new(id, handle, acknowledged_ends), recv }
    }

    pub(super) fn with_options(mut self, options: SendOptions) -> Self {
        self.send.options = options;
        self
    }
}

impl<B: Buf> quic::BidiStream<B> for Http3Bidi<B> {
    type SendStream = Http3Send<B>;
    type RecvStream = Http3Recv;

    fn split(self) -> (Self::SendStream, Self::RecvStream) {
        (self.send, self.recv)
    }
}

impl<B: Buf> quic::SendStream<B> for Http3Bidi<B> {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        self.send.poll_ready(cx)
    }

    fn send_data<T: Into<WriteBuf<B>>>(&mut self, data: T) -> Result<(), StreamErrorIncoming> {
        self.send.send_data(data)
    }

    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        self.send.poll_finish(cx)
    }

    fn reset(&mut self, reset_code: u64) {
        self.send.reset(reset_code);
    }

    fn send_id(&self) -> StreamId {
        self.send.send_id()
    }
}

impl<B: Buf> quic::SendStreamUnframed<B> for Http3Bidi<B> {
    fn poll_send<D: Buf>(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &mut D,
    ) -> Poll<Result<usize, StreamErrorIncoming>> {
        self.send.poll_send(cx, bytes)
    }
}

impl<B: Buf> quic::RecvStream for Http3Bidi<B> {
    type Buf = Bytes;

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        self.recv.poll_data(cx)
    }

    fn stop_sending(&mut self, error_code: u64) {
        self.recv.stop_sending(error_code);
    }

    fn recv_id(&self) -> StreamId {
        self.recv.recv_id()
    }
}
