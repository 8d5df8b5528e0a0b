//! Messages of QoS 0 of one topic as one message of NATS: where many wait, they cost little more than one.
//!
//! The payload begins with a line that names the process of the sender and counts its batches. Each message follows
//! with the lengths of its head and its payload, of 32 bits each, and these.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::message::LoggedMessage;

/// Bytes of a batch up to which further messages join it.
const BATCH_BYTES: usize = 32 << 10;

/// Longest first line.
const LINE_MAX: usize = 128;

/// Batch that is being written.
pub(crate) struct BatchWriter(BytesMut);

impl BatchWriter {
    /// The batch of a process with a number.
    pub(crate) fn new(origin: &str, number: u64, first: &LoggedMessage) -> Self {
        let mut batch = Self(format!("{origin} {number}\n").into_bytes().as_slice().into());
        batch.push(first);
        batch
    }

    /// Tests whether a message of the same topic can join.
    pub(crate) fn takes(&self, message: &LoggedMessage) -> bool {
        self.0.len() + message.payload.len() < BATCH_BYTES
    }

    pub(crate) fn push(&mut self, message: &LoggedMessage) {
        let head = message.head();
        for part in [head.as_bytes(), &message.payload] {
            // A packet of MQTT has less.
            self.0.put_u32(u32::try_from(part.len()).unwrap_or(u32::MAX));
        }
        self.0.put_slice(head.as_bytes());
        self.0.put_slice(&message.payload);
    }

    pub(crate) fn finish(self) -> Bytes {
        self.0.freeze()
    }
}

/// Batch that arrived.
#[derive(Debug)]
pub(crate) struct Batch {
    /// Process of the sender.
    pub(crate) origin: String,
    /// Number among its batches.
    pub(crate) number: u64,
    rest: Bytes,
}

impl Batch {
    /// The batch of a payload; `None`: it is of other software.
    pub(crate) fn read(mut payload: Bytes) -> Option<Self> {
        let end = payload.iter().take(LINE_MAX).position(|byte| *byte == b'\n')?;
        let line = payload.split_to(end);
        payload.advance(1);
        let (origin, number) = std::str::from_utf8(&line).ok()?.split_once(' ')?;
        Some(Self { origin: origin.to_owned(), number: number.parse().ok()?, rest: payload })
    }
}

impl Iterator for Batch {
    type Item = LoggedMessage;

    /// The next message. One that cannot be read ends the batch.
    fn next(&mut self) -> Option<LoggedMessage> {
        let mut len = || usize::try_from(self.rest.try_get_u32().ok()?).ok();
        let (head, payload) = (len()?, len()?);
        if self.rest.len() < head.checked_add(payload)? {
            self.rest.clear();
            return None;
        }
        let (head, payload) = (self.rest.split_to(head), self.rest.split_to(payload));
        LoggedMessage::of_head(&head, payload).ok()
    }
}

#[cfg(test)]
mod tests {
    use braid_proto::packet::QoS;

    use super::*;

    fn message(publisher: &str, payload: &'static str) -> LoggedMessage {
        LoggedMessage {
            qos: QoS::AtMostOnce,
            publisher: publisher.into(),
            identity: None,
            is_withheld: false,
            expires_at: None,
            properties: None,
            payload: payload.into(),
        }
    }

    #[test]
    fn a_batch_comes_back() {
        let messages = [message("a b\n", "x"), message("", ""), message("c", "\n")];
        let mut batch = BatchWriter::new("nrun", 17, &messages[0]);
        messages[1..].iter().for_each(|message| batch.push(message));
        let whole = batch.finish();
        let batch = Batch::read(whole.clone()).unwrap();
        assert_eq!((&*batch.origin, batch.number), ("nrun", 17));
        assert!(batch.eq(messages));
        // Cut or foreign ones lose messages, and nothing else.
        for len in 0..whole.len() {
            assert!(Batch::read(whole.slice(..len)).is_none_or(|batch| batch.count() < 3), "{len}");
        }
        let long: &[u8] = b"a 1\n\x7f\x7f\x7f\x7f\x7f\x7f\x7f\x7fx";
        for text in [b"" as &[u8], b"a", b"a 1", b"a\n", b"a b\n", b"\xff 1\n", long] {
            assert_eq!(Batch::read(Bytes::copy_from_slice(text)).map_or(0, Iterator::count), 0, "{text:?}");
        }
    }

    #[test]
    fn a_batch_is_bounded() {
        let (one, mut batches) = (message("c", "0123456789"), 1);
        let mut batch = BatchWriter::new("nrun", 1, &one);
        for _ in 0..10_000 {
            if batch.takes(&one) {
                batch.push(&one);
            } else {
                assert!(batch.finish().len() < BATCH_BYTES + 100);
                batch = BatchWriter::new("nrun", 2, &one);
                batches += 1;
            }
        }
        assert!((8..12).contains(&batches), "{batches}");
    }
}
