//! QUIC connections of the attacker, which reads and discards what the broker sends.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::Duration;

use braid_proto::stream::StreamKey;
use braid_transport::{ClientTls, ConnectOptions, Dir, Link, Read, Transport, connect_timed};
use tokio::io::ReadBuf;
use tokio::time::timeout;

use crate::attacker::Attacker;
use crate::stream::is_accepted;
use crate::target::HOST;

/// Time limit of an answer of the broker.
const ANSWER: Duration = Duration::from_secs(5);
/// Bytes of the control stream of which the first are kept.
const HEAD: usize = 8;

/// A QUIC connection.
pub(crate) struct QuicClient {
    link: Link,
    /// First bytes on the control stream.
    head: Vec<u8>,
}

impl QuicClient {
    /// Connects to `address`, which may be that of a relay; with early data if `tls` has a session to resume and
    /// `is_early` is true.
    ///
    /// # Errors
    /// No connection.
    pub(crate) async fn dial(address: SocketAddr, tls: &ClientTls, is_early: bool) -> io::Result<Self> {
        let mut options = ConnectOptions::default();
        options.quic.zero_rtt = is_early;
        Self::dial_with(address, tls, &options).await
    }

    /// Connects with options.
    ///
    /// # Errors
    /// No connection.
    pub(crate) async fn dial_with(
        address: SocketAddr,
        tls: &ClientTls,
        options: &ConnectOptions,
    ) -> io::Result<Self> {
        let (host, port) = (HOST.to_owned(), address.port());
        let target = braid_transport::Target { transport: Transport::Quic, host, port, path: String::new() };
        let connected = connect_timed(&target, &[address], tls, options).await;
        let (link, _) = connected.map_err(io::Error::other)?;
        Ok(Self { link, head: Vec::new() })
    }

    /// Connects to the broker and waits until it accepts the CONNECT.
    ///
    /// # Errors
    /// No connection, or a refusal.
    pub(crate) async fn connect(attacker: &Attacker, connect_packet: &[u8]) -> io::Result<Self> {
        let address = attacker.target.address(Transport::Quic);
        let mut client = Self::dial(address, &attacker.tls, false).await?;
        client.write(StreamKey::CONTROL, connect_packet).await?;
        client.accepted().await?;
        Ok(client)
    }

    /// True while bytes that are written are early data.
    pub(crate) fn is_early(&self) -> bool {
        self.link.is_early()
    }

    /// Waits for CONNACK.
    ///
    /// # Errors
    /// A refusal, or no answer in time.
    pub(crate) async fn accepted(&mut self) -> io::Result<()> {
        let is_accepted = is_accepted(self.answer(4).await?);
        if is_accepted { Ok(()) } else { Err(io::ErrorKind::ConnectionRefused.into()) }
    }

    /// Waits for the first bytes on the control stream, at least `length` of them and at most [`HEAD`].
    ///
    /// # Errors
    /// No answer in time.
    pub(crate) async fn answer(&mut self, length: usize) -> io::Result<&[u8]> {
        let head = poll_fn(|cx| {
            let read = self.poll_discard(cx);
            if self.head.len() >= length { Poll::Ready(Ok(())) } else { read }
        });
        timeout(ANSWER, head).await??;
        Ok(&self.head)
    }

    /// Writes all bytes.
    ///
    /// # Errors
    /// The connection or the stream has ended.
    pub(crate) async fn write(&mut self, stream: StreamKey, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let written = poll_fn(|cx| self.poll_write(cx, stream, bytes)).await?;
            bytes = &bytes[written..];
        }
        Ok(())
    }

    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        stream: StreamKey,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Err(error)) = self.poll_discard(cx) {
            return Poll::Ready(Err(error));
        }
        let written = self.link.poll_write(cx, stream, &[IoSlice::new(bytes)]);
        let _ = self.link.poll_flush(cx)?;
        written
    }

    /// Opens a data stream.
    ///
    /// # Errors
    /// The connection has ended.
    pub(crate) async fn open(&mut self, dir: Dir) -> io::Result<StreamKey> {
        poll_fn(|cx| {
            if let Poll::Ready(Err(error)) = self.poll_discard(cx) {
                return Poll::Ready(Err(error));
            }
            self.link.poll_open(cx, dir)
        })
        .await
    }

    /// Resets a data stream.
    pub(crate) fn abort(&mut self, stream: StreamKey, code: u64) {
        self.link.abort(stream, code);
    }

    /// Ends the sending half of a data stream.
    pub(crate) fn finish(&mut self, stream: StreamKey) {
        self.link.finish(stream);
    }

    /// Moves to another local port.
    ///
    /// # Errors
    /// There is no free port.
    pub(crate) fn rebind(&mut self) -> io::Result<()> {
        self.link.rebind(None)
    }

    /// Reads for some time.
    ///
    /// # Errors
    /// The connection has ended.
    pub(crate) async fn linger(&mut self, time: Duration) -> io::Result<()> {
        timeout(time, poll_fn(|cx| self.poll_discard(cx))).await.unwrap_or(Ok(()))
    }

    /// Reads and discards; ready at the end only.
    fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut bytes = [0; 4096];
        loop {
            let mut buffer = ReadBuf::new(&mut bytes);
            let Poll::Ready(read) = self.link.poll_read(cx, &mut buffer, &mut |_| true) else {
                let _ = self.link.poll_flush(cx)?;
                return Poll::Pending;
            };
            match read? {
                Read::Bytes(StreamKey::CONTROL) if self.head.len() < HEAD => {
                    self.head.extend_from_slice(buffer.filled());
                }
                Read::Closed => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
                _ => {}
            }
        }
    }
}
