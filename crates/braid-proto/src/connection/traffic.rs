//! Traffic of a stream since it began, for reports.

use std::time::Instant;

use super::stream::Outbox;
use crate::types::StreamKey;

/// Counts of one stream, kept at places that have it at hand.
#[derive(Debug, Default)]
pub(crate) struct StreamTraffic {
    received: u64,
    publishes_received: u64,
    publishes_sent: u64,
    /// The last PUBLISH in the outbox: its end on the stream, and the time at which it was appended.
    last: Option<Mark>,
    /// A PUBLISH that was appended when all up to the mark before had been taken.
    oldest: Option<Mark>,
}

/// End of a PUBLISH on its stream, and a lower bound of the time for which the bytes up to it have waited.
#[derive(Clone, Copy, Debug)]
struct Mark {
    end: u64,
    since: Instant,
}

impl StreamTraffic {
    pub(crate) fn note_received(&mut self, bytes: usize) {
        self.received += bytes as u64;
    }

    pub(crate) fn note_publish_received(&mut self) {
        self.publishes_received += 1;
    }

    /// A PUBLISH is the last packet in `outbox`.
    pub(crate) fn note_publish_sent(&mut self, outbox: &Outbox, now: Instant) {
        self.publishes_sent += 1;
        let (taken, end) = (outbox.taken(), outbox.end());
        if self.oldest.is_none_or(|oldest| oldest.end <= taken) {
            let unwritten = self.last.filter(|last| last.end > taken);
            self.oldest = Some(Mark { end, since: unwritten.map_or(now, |last| last.since) });
        }
        self.last = Some(Mark { end, since: now });
    }

    /// Time since which a PUBLISH has waited in the outbox, or a later one while the transport takes some of many;
    /// `None` when all were taken.
    fn waiting_since(&self, outbox: &Outbox) -> Option<Instant> {
        let waits = |mark: &Mark| mark.end > outbox.taken();
        let last = self.last.filter(|_| !outbox.is_empty()).filter(waits)?;
        Some(self.oldest.filter(waits).unwrap_or(last).since)
    }
}

/// State of a stream, for operators. Bytes are those of the stream: without the headers of transports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamReport {
    /// Stream.
    pub stream: StreamKey,
    /// The server ends it, or has ended it, and the client has not yet.
    pub is_ending: bool,
    /// Bytes received; on the control stream without those of CONNECT.
    pub bytes_received: u64,
    /// Bytes that the transport took.
    pub bytes_sent: u64,
    /// PUBLISH packets received, repeated ones included.
    pub publishes_received: u64,
    /// PUBLISH packets in the bytes sent and in the outbox, repeated ones included.
    pub publishes_sent: u64,
    /// Bytes in the outbox, which the transport has not taken.
    pub unwritten: usize,
    /// Acknowledgements of requests that are not in the outbox yet.
    pub pending_acks: usize,
    /// Time since which a PUBLISH has waited in the outbox, at the latest; `None` when there is none.
    pub waiting_since: Option<Instant>,
}

impl StreamReport {
    pub(crate) fn new(
        stream: StreamKey,
        is_ending: bool,
        pending_acks: usize,
        outbox: &Outbox,
        traffic: &StreamTraffic,
    ) -> Self {
        Self {
            stream,
            is_ending,
            bytes_received: traffic.received,
            bytes_sent: outbox.taken(),
            publishes_received: traffic.publishes_received,
            publishes_sent: traffic.publishes_sent,
            unwritten: outbox.len(),
            pending_acks,
            waiting_since: traffic.waiting_since(outbox),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Buf;

    use super::*;

    /// Appends messages of ten bytes at these seconds, lets the transport take bytes, and asks since when one waits.
    #[test]
    fn the_oldest_message_in_the_outbox_is_known_until_a_part_of_many_is_taken() {
        let start = Instant::now();
        let at = |secs| start + Duration::from_secs(secs);
        let (mut traffic, mut outbox) = (StreamTraffic::default(), Outbox::default());
        let mut step = |appended: &[u64], taken: usize| {
            for secs in appended {
                outbox.open().extend_from_slice(&[0; 10]);
                traffic.note_publish_sent(&outbox, at(*secs));
            }
            outbox.advance(taken);
            traffic.waiting_since(&outbox).map(|since| (since - start).as_secs())
        };
        assert_eq!(step(&[], 0), None);
        assert_eq!(step(&[1], 10), None);
        assert_eq!(step(&[5, 6, 7], 0), Some(5), "nothing is taken");
        assert_eq!(step(&[8], 9), Some(5), "one byte of the first is left");
        // The second has waited since 6; the last is the latest that it can be.
        assert_eq!(step(&[], 1), Some(8));
        assert_eq!(step(&[20, 30], 0), Some(8), "the bound stays while nothing moves");
        assert_eq!(step(&[], 50), None, "all are taken");
        outbox.open().extend_from_slice(&[0; 10]);
        assert_eq!(traffic.waiting_since(&outbox), None, "an acknowledgement is no message");
    }
}
