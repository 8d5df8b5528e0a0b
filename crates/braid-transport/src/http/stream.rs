//! TCP socket that two owners share: one moves bytes, the other measures.

use std::io::{self, IoSlice, Read};
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

/// Bytes of one read at most: they have to be zeroed before.
const READ_SIZE: usize = 16 << 10;

/// Byte stream of a shared socket. One task reads and one writes.
pub(super) struct SharedTcp(pub(super) Arc<TcpStream>);

impl AsyncRead for SharedTcp {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.poll_read_ready(cx))?;
            let room = buffer.remaining().min(READ_SIZE);
            let unfilled = buffer.initialize_unfilled_to(room);
            let mut read = 0;
            let outcome = self.0.try_io(Interest::READABLE, || {
                read = (&*SockRef::from(&*self.0)).read(unfilled)?;
                // A short read has emptied the socket: the next one waits for an event, without a system call that
                // would say the same.
                if (1..room).contains(&read) { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
            });
            match outcome {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && read == 0 => {}
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Poll::Ready(Err(error)),
                _ => {
                    buffer.advance(read);
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

impl SharedTcp {
    fn poll_with(
        &self,
        cx: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(cx))?;
            match write(&self.0) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }
}

impl AsyncWrite for SharedTcp {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_with(cx, |socket| socket.try_write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_with(cx, |socket| socket.try_write_vectored(slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match SockRef::from(&*self.0).shutdown(Shutdown::Write) {
            // The peer was faster.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Poll::Ready(Ok(())),
            result => Poll::Ready(result),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;

    /// A reader that waits for an event that never comes would wait forever.
    #[tokio::test]
    async fn short_and_full_reads_lose_no_event() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut server = SharedTcp(Arc::new(listener.accept().await.unwrap().0));
        let test = async {
            for size in [1, 100, READ_SIZE - 1, READ_SIZE, READ_SIZE + 1, 5 * READ_SIZE, 1] {
                client.write_all(&vec![7; size]).await.unwrap();
                let mut received = Vec::with_capacity(20 * READ_SIZE);
                while received.len() < size {
                    assert_ne!(server.read_buf(&mut received).await.unwrap(), 0);
                }
                assert_eq!(received, vec![7; size]);
                server.write_all(&[8]).await.unwrap();
                assert_eq!(client.read_u8().await.unwrap(), 8);
            }
            client.write_all(b"last").await.unwrap();
            drop(client);
            let mut rest = Vec::with_capacity(100);
            server.read_to_end(&mut rest).await.unwrap();
            assert_eq!(rest, b"last");
        };
        timeout(Duration::from_secs(20), test).await.expect("no event is lost");
    }
}
