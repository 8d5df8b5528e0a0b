//! Encoding of requests and responses.

/// Bytes of a request.
pub const REQUEST_LEN: usize = 240;
/// Bytes of a response before its body.
pub const RESPONSE_HEAD_LEN: usize = 20;
/// Largest object: 1 GiB.
pub const LARGEST_OBJECT: u64 = 1 << 30;

const REQUEST_MAGIC: [u8; 4] = *b"BXQ1";
const RESPONSE_MAGIC: [u8; 4] = *b"BXR1";
const PADDING: u8 = b' ';

/// A request for an object, or the head of the response to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Unique number in its run.
    pub id: u64,
    /// Bytes of the object.
    pub size: u64,
}

/// Violation of this protocol by the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Wrong magic number of a request or response.
    #[error("the peer does not speak this protocol: {0:?} is not how it begins")]
    Magic([u8; 4]),
    /// The object is too large.
    #[error("an object of {0} bytes is more than the {LARGEST_OBJECT} that there may be")]
    TooLarge(u64),
}

impl Request {
    pub(super) fn encode(self) -> [u8; REQUEST_LEN] {
        let mut bytes = [PADDING; REQUEST_LEN];
        bytes[..RESPONSE_HEAD_LEN].copy_from_slice(&self.head(REQUEST_MAGIC));
        bytes
    }

    /// Head of the response.
    pub(super) fn encode_response(self) -> [u8; RESPONSE_HEAD_LEN] {
        self.head(RESPONSE_MAGIC)
    }

    fn head(self, magic: [u8; 4]) -> [u8; RESPONSE_HEAD_LEN] {
        let mut head = [0; RESPONSE_HEAD_LEN];
        head[..4].copy_from_slice(&magic);
        head[4..12].copy_from_slice(&self.id.to_be_bytes());
        head[12..].copy_from_slice(&self.size.to_be_bytes());
        head
    }

    fn decode(head: &[u8], expected: [u8; 4]) -> Result<Self, WireError> {
        let (magic, rest) = head.split_first_chunk().unwrap_or((&[0; 4], &[]));
        if *magic != expected {
            return Err(WireError::Magic(*magic));
        }
        let (id, rest) = rest.split_first_chunk().unwrap_or((&[0; 8], &[]));
        let size = u64::from_be_bytes(*rest.first_chunk().unwrap_or(&[0; 8]));
        if size > LARGEST_OBJECT {
            return Err(WireError::TooLarge(size));
        }
        Ok(Self { id: u64::from_be_bytes(*id), size })
    }
}

/// Buffer that collects a fixed number of bytes from the pieces in which they arrive.
struct Gathered<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Gathered<N> {
    const EMPTY: Self = Self { bytes: [0; N], len: 0 };

    /// Takes missing bytes from the front of `from`; returns all of them once they are complete.
    fn take(&mut self, from: &mut &[u8]) -> Option<[u8; N]> {
        let (taken, rest) = from.split_at(from.len().min(N - self.len));
        self.bytes[self.len..][..taken.len()].copy_from_slice(taken);
        self.len += taken.len();
        *from = rest;
        if self.len < N {
            return None;
        }
        self.len = 0;
        Some(self.bytes)
    }
}

/// Parser of the requests on a stream.
pub(super) struct RequestReader(Gathered<REQUEST_LEN>);

impl RequestReader {
    pub(super) const fn new() -> Self {
        Self(Gathered::EMPTY)
    }

    /// Next request that ends in `bytes`, whose read part is removed.
    pub(super) fn next(&mut self, bytes: &mut &[u8]) -> Result<Option<Request>, WireError> {
        self.0.take(bytes).map(|request| Request::decode(&request, REQUEST_MAGIC)).transpose()
    }
}

/// Next part of the responses on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Head of a response.
    Head(Request),
    /// Number of bytes of its body.
    Body(usize),
    /// End of the response.
    End,
}

/// Parser of the responses on a stream; bodies are counted, not kept.
pub(super) struct ResponseReader {
    head: Gathered<RESPONSE_HEAD_LEN>,
    /// Missing bytes of the body.
    missing: Option<u64>,
}

impl ResponseReader {
    pub(super) const fn new() -> Self {
        Self { head: Gathered::EMPTY, missing: None }
    }

    /// Next part in `bytes`, whose read part is removed.
    pub(super) fn next(&mut self, bytes: &mut &[u8]) -> Result<Option<Part>, WireError> {
        let Some(missing) = self.missing else {
            let Some(head) = self.head.take(bytes) else { return Ok(None) };
            let head = Request::decode(&head, RESPONSE_MAGIC)?;
            self.missing = Some(head.size);
            return Ok(Some(Part::Head(head)));
        };
        if missing == 0 {
            self.missing = None;
            return Ok(Some(Part::End));
        }
        let len = usize::try_from(missing).map_or(bytes.len(), |missing| missing.min(bytes.len()));
        if len == 0 {
            return Ok(None);
        }
        *bytes = &bytes[len..];
        self.missing = Some(missing - len as u64);
        Ok(Some(Part::Body(len)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_found_however_their_bytes_are_cut() {
        let sent = [Request { id: 1, size: 0 }, Request { id: u64::MAX, size: LARGEST_OBJECT }];
        let bytes = sent.map(Request::encode).concat();
        for cut in [1, 7, REQUEST_LEN, 2 * REQUEST_LEN] {
            let (mut reader, mut found) = (RequestReader::new(), Vec::new());
            for mut piece in bytes.chunks(cut) {
                while let Some(request) = reader.next(&mut piece).unwrap() {
                    found.push(request);
                }
            }
            assert_eq!(found, sent, "pieces of {cut}");
        }
    }

    #[test]
    fn responses_are_counted_however_their_bytes_are_cut() {
        let sent = [Request { id: 5, size: 3 }, Request { id: 6, size: 0 }, Request { id: 7, size: 50 }];
        let mut bytes = Vec::new();
        for response in sent {
            bytes.extend(response.encode_response());
            bytes.resize(bytes.len() + usize::try_from(response.size).unwrap(), b'x');
        }
        for cut in [1, 7, bytes.len()] {
            let (mut reader, mut found, mut size) = (ResponseReader::new(), Vec::new(), 0);
            for mut piece in bytes.chunks(cut) {
                while let Some(part) = reader.next(&mut piece).unwrap() {
                    match part {
                        Part::Head(head) => (found, size) = ([found, vec![head]].concat(), 0),
                        Part::Body(len) => size += len as u64,
                        Part::End => assert_eq!(size, found[found.len() - 1].size),
                    }
                }
            }
            assert_eq!((found, size), (sent.to_vec(), 50), "pieces of {cut}");
        }
    }

    #[test]
    fn other_protocols_and_too_large_objects_are_refused() {
        let mut http: &[u8] = &b"GET / HTTP/1.1\r\n".repeat(20);
        assert_eq!(RequestReader::new().next(&mut http), Err(WireError::Magic(*b"GET ")));
        let response = Request { id: 1, size: 1 }.encode_response();
        assert_eq!(Request::decode(&response, REQUEST_MAGIC), Err(WireError::Magic(RESPONSE_MAGIC)));
        let huge = Request { id: 1, size: LARGEST_OBJECT + 1 }.encode();
        assert_eq!(RequestReader::new().next(&mut &huge[..]), Err(WireError::TooLarge(LARGEST_OBJECT + 1)));
    }
}
