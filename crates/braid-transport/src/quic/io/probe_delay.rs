//! Delay of path MTU probes until a connection carries data. Pure.
//!
//! The library sends a probe of the full size of an Ethernet whenever it is asked for packets and has nothing else to
//! send, and has no setting for this. A connection that is idle, or carries some small messages, gains nothing by it:
//! two probes are a third of all bytes of a handshake. So until it carries data, the library is not asked where it has
//! nothing to send for certain:
//!
//! - after a batch that has left room in its last datagram,
//! - when nothing has come but acknowledgements,
//! - when it has set its timer for a delayed acknowledgement of what has come.
//!
//! If it has something all the same, that waits for this timer at most. Where it is not certain, the library is asked,
//! and may build a probe: the first two do not leave. To the library they are lost probes, for which no congestion
//! controller is blamed; it has three for each size.

use std::time::{Duration, Instant};

use noq_proto::{ConnectionStats, FrameStats};

/// Bytes of streams and datagrams from which on a connection carries data: then larger packets save one of fourteen.
const DATA: usize = 16 << 10;

/// Room in the last datagram of a batch that any frame but DATAGRAM would have found.
const ROOM: usize = 256;

/// Probes that do not leave.
const WITHHELD: u8 = 2;

/// The `max_ack_delay` that the library tells its peers.
const ACK_DELAY: Duration = Duration::from_millis(25);

/// Counts of a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Frames that were sent, other than ACK.
    sent: u64,
    /// Frames of the peer that are to be acknowledged.
    received: u64,
    /// Frames of the peer that are answered at once: the path has changed, or may.
    asked: u64,
    lost: u64,
}

impl Counts {
    /// `lost`: packets that were lost, but probes.
    fn of(stats: &ConnectionStats, lost: u64) -> Self {
        let (tx, rx) = (&stats.frame_tx, &stats.frame_rx);
        Self {
            sent: elicited(tx),
            received: elicited(rx),
            asked: rx.path_challenge + rx.path_response + rx.immediate_ack + rx.ack_frequency,
            lost,
        }
    }
}

/// Number of frames that are to be acknowledged.
fn elicited(frames: &FrameStats) -> u64 {
    frames.stream
        + frames.datagram
        + frames.crypto
        + frames.ping
        + frames.max_data
        + frames.max_stream_data
        + frames.max_streams_bidi
        + frames.max_streams_uni
        + frames.data_blocked
        + frames.stream_data_blocked
        + frames.streams_blocked_bidi
        + frames.streams_blocked_uni
        + frames.stop_sending
        + frames.reset_stream
        + frames.new_token
        + frames.new_connection_id
        + frames.retire_connection_id
        + u64::from(frames.handshake_done)
}

/// Batch of the library.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    /// Bytes that its last datagram has left, of the path MTU.
    pub(super) room: usize,
    /// Its first packet is one of the handshake.
    pub(super) is_handshake: bool,
}

/// Delay of the probes of one connection.
#[derive(Debug)]
pub(super) struct ProbeDelay {
    /// Bytes that were written.
    written: usize,
    /// Something may be in the library that was not sent.
    is_pending: bool,
    /// The library has to be asked.
    is_due: bool,
    /// Something has come since the last batch that is to be acknowledged.
    is_unacknowledged: bool,
    /// Counts at the end of the last turn.
    counts: Counts,
    /// Packets that were lost, and probes among them.
    lost: (u64, u64),
    withheld: u8,
}

impl Default for ProbeDelay {
    fn default() -> Self {
        Self {
            written: 0,
            is_pending: true,
            is_due: true,
            is_unacknowledged: false,
            counts: Counts::default(),
            lost: (0, 0),
            withheld: 0,
        }
    }
}

impl ProbeDelay {
    /// True once the connection carries data: there is no delay any more.
    pub(super) fn is_over(&self) -> bool {
        self.written >= DATA
    }

    /// Ends the delay.
    pub(super) fn end(&mut self) {
        self.written = DATA;
    }

    /// Tests whether the library has to be asked for packets.
    pub(super) fn is_due(&self) -> bool {
        self.is_due
    }

    /// Tests whether nothing is left to send.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_due && !self.is_pending
    }

    /// Counts of now. `lost_probes`: number of lost probes, which takes some time to get.
    pub(super) fn count(&mut self, stats: &ConnectionStats, lost_probes: impl FnOnce() -> u64) -> Counts {
        if stats.lost_packets > self.lost.0 {
            self.lost = (stats.lost_packets, lost_probes());
        }
        Counts::of(stats, self.lost.0 - self.lost.1)
    }

    /// Something was done that may make a packet.
    pub(super) fn handle_change(&mut self) {
        (self.is_pending, self.is_due) = (true, true);
    }

    pub(super) fn handle_written(&mut self, bytes: usize) {
        self.written = self.written.saturating_add(bytes);
        self.handle_change();
    }

    /// A timeout of the library has passed. `is_probe`: it was that of a probe that did not leave.
    pub(super) fn handle_timeout(&mut self, is_probe: bool) {
        self.is_due |= !is_probe || self.is_pending || self.is_unacknowledged;
    }

    /// Tests whether probes that did not leave may be on their way for the library.
    pub(super) fn has_withheld(&self) -> bool {
        self.withheld > 0 && !self.is_over()
    }

    /// Datagrams have come at `at`, and the library has them. `timeout`: its next one.
    pub(super) fn handle_received(&mut self, at: Instant, counts: Counts, timeout: Option<Instant>) {
        let before = std::mem::replace(&mut self.counts, counts);
        if counts.asked > before.asked {
            return self.end();
        }
        self.is_unacknowledged |= counts.received > before.received;
        let is_acknowledged_later = timeout == Some(at + ACK_DELAY);
        self.is_pending |= counts.lost > before.lost;
        self.is_due |= self.is_pending || (counts.received > before.received && !is_acknowledged_later);
    }

    /// The library has built a batch.
    pub(super) fn handle_sent(&mut self, sent: Sent, counts: Counts) {
        let before = std::mem::replace(&mut self.counts, counts);
        self.is_unacknowledged = false;
        if sent.is_handshake || sent.room < ROOM {
            return;
        }
        // An acknowledgement alone leaves even where nothing else may.
        self.is_pending &= counts.sent == before.sent;
        self.is_due = self.is_pending;
    }

    /// The library has nothing to send, or `is_limited`: it may not send it now.
    pub(super) fn handle_nothing(&mut self, is_limited: bool) {
        self.is_pending &= is_limited;
        self.is_due = false;
    }

    /// Decides about a probe: true if it does not leave.
    pub(super) fn withhold(&mut self) -> bool {
        let is_withheld = !self.is_over() && self.withheld < WITHHELD;
        self.withheld += u8::from(is_withheld);
        is_withheld
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Sent = Sent { room: 1000, is_handshake: false };

    /// A connection of which nothing is pending.
    fn idle() -> ProbeDelay {
        let mut delay = ProbeDelay::default();
        delay.handle_sent(SMALL, Counts { sent: 1, ..Counts::default() });
        assert!(!delay.is_due());
        delay
    }

    fn counts(sent: u64, received: u64) -> Counts {
        Counts { sent, received, ..Counts::default() }
    }

    #[test]
    fn what_was_written_is_sent_until_a_datagram_has_room() {
        let mut delay = idle();
        delay.handle_written(10);
        for (room, is_handshake) in [(0, false), (1000, true)] {
            delay.handle_sent(Sent { room, is_handshake }, counts(2, 0));
            assert!(delay.is_due());
        }
        delay.handle_sent(SMALL, counts(2, 0));
        assert!(delay.is_due(), "an acknowledgement alone");
        delay.handle_sent(SMALL, counts(3, 0));
        assert!(!delay.is_due());
    }

    #[test]
    fn acknowledgements_ask_for_nothing_unless_something_is_held_back_or_lost() {
        let at = Instant::now();
        let mut delay = idle();
        delay.handle_received(at, counts(1, 0), None);
        assert!(!delay.is_due());
        delay.handle_received(at, Counts { lost: 1, ..counts(1, 0) }, None);
        assert!(delay.is_due());
        let mut delay = idle();
        for is_limited in [true, false] {
            delay.handle_written(10);
            delay.handle_nothing(is_limited);
            assert_eq!((delay.is_due(), delay.is_idle()), (false, !is_limited));
            delay.handle_received(at, counts(1, 0), None);
            assert_eq!(delay.is_due(), is_limited, "a window may be open again");
        }
    }

    #[test]
    fn what_is_acknowledged_later_waits_for_the_timer() {
        let at = Instant::now();
        let mut delay = idle();
        delay.handle_received(at, counts(1, 1), Some(at + ACK_DELAY));
        assert!(!delay.is_due());
        delay.handle_timeout(true);
        assert!(delay.is_due(), "an acknowledgement may be due as well");
        delay.is_due = false;
        delay.handle_timeout(false);
        assert!(delay.is_due());
        delay.handle_sent(SMALL, counts(1, 1));
        assert!(!delay.is_due());
        delay.handle_timeout(true);
        assert!(!delay.is_due(), "the loss of a probe that did not leave");
        delay.handle_received(at, counts(1, 2), Some(at + ACK_DELAY / 2));
        assert!(delay.is_due(), "or at once");
    }

    #[test]
    fn data_and_new_paths_end_the_delay() {
        let mut delay = idle();
        assert_eq!([delay.withhold(), delay.withhold(), delay.withhold()], [true, true, false]);
        let mut delay = idle();
        delay.handle_written(DATA);
        assert!(delay.is_over() && !delay.withhold());
        let mut delay = idle();
        delay.handle_received(Instant::now(), Counts { asked: 1, ..counts(1, 0) }, None);
        assert!(delay.is_over());
    }
}
