//! Content of a large file, which threads that may block read in parts, one ahead of the response.

use std::fs::File;
use std::io;
use std::sync::Arc;

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream::try_unfold;
use http_body_util::StreamBody;
use hyper::body::Frame;
use rustix::buffer::spare_capacity;
use rustix::io::pread;
use tokio::task::{JoinHandle, spawn_blocking};

/// Bytes of a part. A response that is not read holds two of them, and on HTTP/2 one more: with larger ones, a thousand
/// unread ones held a gigabyte.
const PART: usize = 64 << 10;

/// Bytes of a file that are not sent yet.
struct Content {
    file: Arc<File>,
    from: u64,
    to: u64,
    reading: Option<JoinHandle<io::Result<Bytes>>>,
    /// Part that was sent, whose memory is used again.
    last: Option<Bytes>,
}

/// The bytes `from..to` of a file. A file that became shorter breaks the response off.
pub(super) fn body(file: Arc<File>, from: u64, to: u64) -> Body {
    let content = Content { file, from, to, reading: None, last: None };
    Body::new(StreamBody::new(try_unfold(content, Content::next)))
}

impl Content {
    async fn next(mut self) -> io::Result<Option<(Frame<Bytes>, Self)>> {
        if self.reading.is_none() {
            self.begin();
        }
        let Some(reading) = self.reading.take() else { return Ok(None) };
        let part = reading.await.map_err(io::Error::other)??;
        self.begin();
        self.last = Some(part.clone());
        Ok(Some((Frame::data(part), self)))
    }

    /// Begins to read the next part, if there is one.
    fn begin(&mut self) {
        let left = usize::try_from(self.to - self.from).unwrap_or(usize::MAX);
        let (from, size) = (self.from, PART.min(left));
        if size == 0 {
            return;
        }
        // Not while the connection still has to send it.
        let sent = self.last.take().and_then(|last| last.try_into_mut().ok());
        let memory = sent.map_or_else(Vec::new, |mut sent| {
            // Nothing of it is copied.
            sent.clear();
            Vec::from(sent)
        });
        let file = Arc::clone(&self.file);
        self.reading = Some(spawn_blocking(move || read(&file, memory, from, size)));
        self.from += size as u64;
    }
}

/// Reads `size` bytes from a position into memory, which is not zeroed before.
fn read(file: &File, mut memory: Vec<u8>, from: u64, size: usize) -> io::Result<Bytes> {
    memory.reserve_exact(size);
    while memory.len() < size {
        let at = from + memory.len() as u64;
        match pread(file, spare_capacity(&mut memory), at) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    // There may have been more room.
    memory.truncate(size);
    Ok(memory.into())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use http_body_util::BodyExt;

    use super::*;

    fn file(bytes: &[u8]) -> Arc<File> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        Arc::new(file)
    }

    #[tokio::test]
    async fn all_bytes_of_a_range_come_in_order() {
        let bytes: Vec<_> = (0..1_000_003_u32).map(|index| (index % 251) as u8).collect();
        let file = file(&bytes);
        for (from, to) in [
            (0, bytes.len()),
            (0, PART),
            (0, PART + 1),
            (1, 3 * PART + 1),
            (5, 5),
            (12_345, 800_000),
            (999_999, bytes.len()),
        ] {
            let body = body(Arc::clone(&file), from as u64, to as u64);
            assert!(body.collect().await.unwrap().to_bytes() == bytes[from..to], "{from} {to}");
        }
    }

    #[tokio::test]
    async fn the_memory_of_parts_is_used_again() {
        let mut body = body(file(&vec![7; 7 * PART]), 0, 7 * PART as u64);
        let mut parts = Vec::new();
        while let Some(frame) = body.frame().await {
            let part = frame.unwrap().into_data().unwrap();
            parts.push((part.len(), part.as_ptr() as usize));
        }
        assert!(parts.len() == 7 && parts.iter().all(|(size, _)| *size == PART), "{parts:?}");
        let places: std::collections::BTreeSet<_> = parts.iter().map(|(_, place)| *place).collect();
        assert_eq!(places.len(), 2, "{parts:?}");
    }

    #[tokio::test]
    async fn a_file_that_became_shorter_breaks_off() {
        let file = file(&[7; 100_000]);
        assert!(body(file, 0, 100_001).collect().await.is_err());
    }
}
