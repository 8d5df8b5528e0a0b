//! Writing and reading on the control stream of a link.

use std::future::poll_fn;
use std::io::{self, IoSlice};

use braid_proto::stream::StreamKey;
use braid_transport::{Close, Read};
use tokio::io::ReadBuf;

use crate::driven::Link;

/// The peer's next action, and its byte; one at a time.
pub(crate) async fn next(link: &mut Link) -> io::Result<(Read, Option<u8>)> {
    let mut byte = [0];
    let mut buffer = ReadBuf::new(&mut byte);
    let read = poll_fn(|cx| link.poll_read(cx, &mut buffer, &mut |_| true)).await?;
    Ok((read, buffer.filled().first().copied()))
}

/// The next byte of the control stream.
pub(crate) async fn read(link: &mut Link) -> io::Result<u8> {
    loop {
        match next(link).await? {
            (Read::Bytes(StreamKey::CONTROL), Some(byte)) => return Ok(byte),
            (Read::Closed, _) => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ => {}
        }
    }
}

/// All of `bytes`, on the control stream.
pub(crate) async fn write(link: &mut Link, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let slices = [IoSlice::new(bytes)];
        let written = poll_fn(|cx| link.poll_write(cx, StreamKey::CONTROL, &slices)).await?;
        bytes = &bytes[written..];
    }
    poll_fn(|cx| link.poll_flush(cx)).await
}

/// Closes the link.
pub(crate) async fn close(link: &mut Link) -> io::Result<()> {
    poll_fn(|cx| link.poll_close(cx, Close { code: 0, stop: None })).await
}
