use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use braid_proto::connection::{
    Cause, Client, ClientEvent, ClientOptions, Incoming, Sent, StreamAction, Token,
};
use braid_proto::message::Delivery;
use braid_proto::packet::{Connect, PacketId, QoS, SubscribeEntry, UserProperties};
use braid_proto::reason::ReasonCode;
use braid_proto::stream::{Priority, StreamKey};
use braid_proto::topic::TopicFilter;
use braid_transport::{Dir, Link, Read};
use bytes::Buf;
use tokio::io::ReadBuf;
use tokio::time::{Sleep, sleep_until};

use crate::failure::Failure;

/// One read takes this many bytes at most.
const READ_AT_ONCE: usize = 64 * 1024;
/// Reads of one round, before what they brought is handed out.
const READS: usize = 32;
/// Slices of one vectored write.
const SLICES: usize = 16;

thread_local! {
    /// One for all connections of a thread: a thousand idle ones need no buffers.
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_AT_ONCE].into());
}

/// A client's connection that does nothing by itself: no task, no queue, no reconnecting. Whoever polls it drives it,
/// so that a generator spends as little as can be on each message.
#[derive(Debug)]
pub struct Connection {
    link: Link,
    protocol: Client,
    timer: Pin<Box<Sleep>>,
    /// Used again by every write.
    to_write: Vec<StreamKey>,
}

/// What the application of a connection learns.
#[derive(Debug)]
pub enum Happening {
    /// A message; if it has a token, [`Connection::acknowledge`] wants it.
    Message(Incoming),
    /// The exchange of a published message is over.
    Published(PacketId, ReasonCode),
    /// An answer to [`Connection::subscribe`].
    Subscribed(ReasonCode),
}

impl Connection {
    /// Connects over `link`, on which nothing has been said.
    ///
    /// # Errors
    /// The server refuses, or the link fails.
    pub async fn establish(link: Link, connect: Connect) -> Result<Self, Failure> {
        let options = ClientOptions {
            maximum_inflight: u16::MAX,
            // Data streams have none, and nothing but streams is to differ. [BQ-18]
            outbound_topic_aliases: 0,
            ..ClientOptions::default()
        };
        let protocol = Client::new(Arc::new(options), connect, None, now());
        let timer = Box::pin(sleep_until(tokio::time::Instant::now()));
        let mut connection = Self { link, protocol, timer, to_write: Vec::new() };
        poll_fn(|cx| connection.poll_established(cx)).await?;
        Ok(connection)
    }

    fn poll_established(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        while !self.protocol.is_established() {
            ready!(self.poll_link(cx))?;
        }
        Poll::Ready(Ok(()))
    }

    // -- Commands ----------------------------------------------------------------------------------

    /// Opens a data stream; on a link that has none, the control stream stands for it.
    ///
    /// # Errors
    /// The link failed.
    pub async fn open(&mut self, priority: Priority) -> Result<StreamKey, Failure> {
        if !self.link.is_multi() {
            return Ok(StreamKey::CONTROL);
        }
        let stream = poll_fn(|cx| self.link.poll_open(cx, Dir::Bidi)).await?;
        self.link.set_priority(stream, priority);
        self.protocol.handle_stream_opened(stream);
        Ok(stream)
    }

    /// Asks for messages on a stream; [`Happening::Subscribed`] answers.
    ///
    /// # Errors
    /// The server does not take it, or the connection has ended.
    pub fn subscribe(&mut self, on: StreamKey, filter: TopicFilter, qos: QoS) -> Result<(), Failure> {
        let user = UserProperties::default();
        let asked = self.protocol.subscribe(on, vec![SubscribeEntry::new(filter, qos)], None, user, now());
        asked.map(drop).map_err(Failure::Unsendable)
    }

    /// Puts a message into the outbox of its stream, which the next poll writes. `false`: as many as the server takes
    /// are on their way, and nothing happened.
    ///
    /// # Errors
    /// The server does not take it, or the connection has ended.
    pub fn publish(&mut self, delivery: Delivery) -> Result<bool, Failure> {
        let len = delivery.message.payload.len();
        match self.protocol.publish(delivery, now()).map_err(Failure::Unsendable)? {
            Sent::Out(_) => Ok(true),
            Sent::TooLarge => Err(Failure::TooLarge(len)),
            Sent::Blocked(_) | Sent::Expired => match self.protocol.cause() {
                Some(cause) => Err(Failure::Ended(cause)),
                None => Ok(false),
            },
        }
    }

    /// The application has taken this message and every one before it.
    pub fn acknowledge(&mut self, token: Token) {
        self.protocol.acknowledge(token, now());
    }

    // -- Polling -----------------------------------------------------------------------------------

    /// Writes what is to be written, and returns the next thing that happened.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn next(&mut self) -> Result<Happening, Failure> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// As [`Connection::next`].
    ///
    /// # Errors
    /// As [`Connection::next`].
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Happening, Failure>> {
        loop {
            while let Some(event) = self.protocol.poll_event() {
                match event {
                    ClientEvent::Message(message) => return Poll::Ready(Ok(Happening::Message(message))),
                    ClientEvent::Published(id, reason) => {
                        return Poll::Ready(Ok(Happening::Published(id, reason)));
                    }
                    ClientEvent::Subscribed(suback) => {
                        let reason = suback.codes.first().copied().unwrap_or(ReasonCode::UnspecifiedError);
                        return Poll::Ready(Ok(Happening::Subscribed(reason)));
                    }
                    _ => {}
                }
            }
            ready!(self.poll_link(cx))?;
        }
    }

    /// Moves bytes both ways. Ready when something may have happened.
    fn poll_link(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.poll_write(cx)?;
        if let Some(cause) = self.protocol.cause() {
            return Poll::Ready(Err(Failure::Ended(cause)));
        }
        let mut has_read = false;
        for _ in 0..READS {
            match self.read_once(cx) {
                Poll::Pending => break,
                Poll::Ready(read) => read?,
            }
            has_read = true;
        }
        if has_read || self.poll_timer(cx).is_ready() { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn read_once(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        SCRATCH.with_borrow_mut(|scratch| {
            let mut buffer = ReadBuf::new(scratch);
            let read = ready!(self.link.poll_read(cx, &mut buffer, &mut |_| true))?;
            let protocol = &mut self.protocol;
            match read {
                Read::Bytes(stream) => {
                    protocol.handle_bytes(stream, buffer.filled(), now());
                }
                Read::Finished(stream) => protocol.handle_stream_finished(stream, now()),
                Read::Reset(stream, _) | Read::Stopped(stream, _) => {
                    protocol.handle_stream_reset(stream, now())
                }
                Read::Opened(_) | Read::Confirmed | Read::Moved(_) => {}
                Read::Closed => {
                    protocol.handle_link_closed();
                    return Poll::Ready(Err(Failure::Ended(protocol.cause().unwrap_or(Cause::Lost))));
                }
            }
            Poll::Ready(Ok(()))
        })
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Result<(), Failure> {
        let mut streams = std::mem::take(&mut self.to_write);
        self.protocol.streams_to_write(&mut streams);
        let has_something = !streams.is_empty();
        for stream in streams.drain(..) {
            self.write_stream(stream, cx)?;
        }
        self.to_write = streams;
        while let Some(action) = self.protocol.poll_stream() {
            match action {
                StreamAction::Finish(stream) => self.link.finish(stream),
                StreamAction::Abort(stream, reason) => self.link.abort(stream, reason.value().into()),
            }
        }
        if has_something && let Poll::Ready(flushed) = self.link.poll_flush(cx) {
            flushed?;
        }
        Ok(())
    }

    fn write_stream(&mut self, stream: StreamKey, cx: &mut Context<'_>) -> Result<(), Failure> {
        while let Some(outbox) = self.protocol.outbox(stream)
            && outbox.has_remaining()
        {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = outbox.chunks_vectored(&mut slices);
            match self.link.poll_write(cx, stream, &slices[..count]) {
                Poll::Pending => break,
                Poll::Ready(Ok(taken)) if taken > 0 => outbox.advance(taken),
                Poll::Ready(Ok(_)) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                // The stream has ended, which a read is about to tell.
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::NotConnected => break,
                Poll::Ready(Err(error)) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(at) = self.protocol.poll_timeout() else { return Poll::Pending };
        let at = tokio::time::Instant::from_std(at);
        if self.timer.deadline() != at {
            self.timer.as_mut().reset(at);
        }
        ready!(Future::poll(self.timer.as_mut(), cx));
        self.protocol.handle_timeout(now());
        Poll::Ready(())
    }
}

/// tokio's clock, which tests can hold.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
