//! Delay of answers to a peer that loses most of its packets at a slow policer. Pure.
//!
//! A sender repeats at once what an acknowledgement tells it is lost, and the repetition meets the bucket that the
//! acknowledged packet has just emptied; with two or three packets for each that passes, it may lose one message many
//! times. An answer that comes when the next packet may pass breaks the phase
//! ([decision 28](../../../../../docs/decisions/0028-answers-wait-for-a-slow-policer.md) has the figures).
//! RFC 9000, 13.2.1 asks for an acknowledgement without delay after a gap, which finds losses of a congested link
//! sooner; here the peer is losing packets because it finds losses. The delay is within `max_ack_delay`, and part of
//! the Ack Delay field.

use std::time::{Duration, Instant};

use noq_proto::ConnectionStats;

/// Time from one datagram to the next above which a path is slow: 150 packets a second.
const SLOW: Duration = Duration::from_micros(6_667);

/// Longest delay: with a tick of the timer below the `max_ack_delay` of 25 ms that the library tells its peers.
const LONGEST: Duration = Duration::from_millis(22);

/// Share of the time between two datagrams, in tenths: the answer is under way when the next packet may pass.
const SHARE: u32 = 6;

/// Silence after which all is forgotten, and time after a message to the peer in which answers do not wait: it may be
/// in the same packets.
const SILENCE: Duration = Duration::from_secs(1);

/// Datagrams behind a gap, of the last 16 that came alone, from which on answers are delayed, and below which not.
const MANY: u32 = 12;
const FEW: u32 = 8;

/// Datagrams without one that shows whether there is a gap, after which all is forgotten.
const UNKNOWN: usize = 32;

/// Bytes of streams that may be acknowledgements of MQTT alone. A message of so few waits as well.
const ANSWERS: usize = 32;

/// Counts of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Frames {
    /// ACK frames that were sent.
    acknowledgements: u64,
    /// Other frames that were sent, with which an ACK frame leaves early.
    pub(super) others: u64,
    /// ACK frames of the peer.
    pub(super) answers: u64,
    /// Frames of the peer that are to be acknowledged.
    received: u64,
    /// Frames of the peer that are answered at once.
    asked: u64,
    /// Responses of the peer from a new address.
    moved: u64,
    /// Frames of the peer that say when to acknowledge.
    told: u64,
}

impl From<&ConnectionStats> for Frames {
    fn from(stats: &ConnectionStats) -> Self {
        let (sent, received) = (&stats.frame_tx, &stats.frame_rx);
        Self {
            acknowledgements: sent.acks + sent.path_acks,
            others: sent.stream
                + sent.datagram
                + sent.crypto
                + sent.max_data
                + sent.max_stream_data
                + sent.max_streams_bidi
                + sent.max_streams_uni
                + sent.data_blocked
                + sent.stream_data_blocked
                + sent.streams_blocked_bidi
                + sent.streams_blocked_uni
                + sent.stop_sending
                + sent.reset_stream
                + sent.ping
                + sent.immediate_ack
                + sent.ack_frequency
                + sent.new_token
                + sent.new_connection_id
                + sent.retire_connection_id
                + sent.path_new_connection_id
                + sent.path_retire_connection_id
                + u64::from(sent.handshake_done)
                + sent.path_challenge
                + sent.path_response,
            answers: received.acks + received.path_acks,
            received: received.stream
                + received.datagram
                + received.crypto
                + received.max_data
                + received.max_stream_data
                + received.max_streams_bidi
                + received.max_streams_uni
                + received.data_blocked
                + received.stream_data_blocked
                + received.stop_sending
                + received.reset_stream
                + received.ping
                + received.new_connection_id
                + received.retire_connection_id
                + received.path_new_connection_id
                + received.path_retire_connection_id,
            asked: received.immediate_ack + received.path_challenge,
            moved: received.path_response,
            told: received.ack_frequency,
        }
    }
}

/// Delay of the answers of one connection.
#[derive(Debug, Default)]
pub(super) struct AnswerDelay {
    /// Time of the last datagram.
    last: Option<Instant>,
    /// Mean time from one datagram to the next.
    interval: Duration,
    /// Datagrams since something was sent.
    unanswered: usize,
    /// Something is not acknowledged yet.
    is_pending: bool,
    /// Counts when something was sent last, while the path is slow.
    frames: Option<Frames>,
    /// Whether each of the last 16 datagrams that came alone was behind a gap; the lowest bit is the last one.
    gaps: u16,
    /// Datagrams since the last of them.
    unknown: usize,
    is_active: bool,
    /// End of the delay.
    until: Option<Instant>,
    /// Bytes of streams since something was sent.
    written: usize,
    /// Time of the last datagram after a message was written.
    message: Option<Instant>,
}

impl AnswerDelay {
    /// Datagrams have come, and the library has them. Its counts take some time to get.
    pub(super) fn handle_received(
        &mut self,
        datagrams: usize,
        now: Instant,
        frames: impl FnOnce() -> Frames,
    ) {
        let Ok(count @ 1..) = u32::try_from(datagrams) else { return };
        match self.last.replace(now).map(|last| now.saturating_duration_since(last)) {
            Some(passed) if passed < SILENCE => {
                let each = passed / count;
                self.interval = if self.interval.is_zero() { each } else { (self.interval * 15 + each) / 16 };
            }
            _ => *self = Self { last: self.last, written: self.written, ..Self::default() },
        }
        self.unanswered += datagrams;
        if self.written > ANSWERS {
            self.message = Some(now);
        }
        // The oldest packet that waits has to be acknowledged within 25 ms.
        let may_wait = self.is_active && self.is_slow() && !self.is_pending && self.until.is_none();
        if may_wait
            && self.message.is_none_or(|at| now - at > SILENCE)
            && self.frames.is_some_and(|before| before.asked == frames().asked)
        {
            self.until = Some(now + (self.interval * SHARE / 10).min(LONGEST));
        }
    }

    /// Bytes of a stream are to be sent.
    pub(super) fn handle_written(&mut self, bytes: usize) {
        self.written += bytes;
        if self.written > ANSWERS {
            self.until = None;
            self.message = self.last;
        }
    }

    /// Time until which nothing is sent.
    pub(super) fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Something was sent, if there was anything.
    pub(super) fn handle_sent(&mut self, frames: impl FnOnce() -> Frames) {
        let (was_pending, datagrams) = (self.is_pending, std::mem::take(&mut self.unanswered));
        let frames = self.is_slow().then(frames);
        (self.until, self.written) = (None, 0);
        let before = std::mem::replace(&mut self.frames, frames);
        let Some(after) = frames else {
            (self.gaps, self.is_active) = (0, false);
            return;
        };
        let Some(before) = before else { return };
        if after.moved > before.moved || after.told > 0 {
            *self = Self::default();
            return;
        }
        let is_acknowledged = after.acknowledgements > before.acknowledgements;
        let has_come = after.received > before.received;
        self.is_pending = (was_pending || has_come) && !is_acknowledged;
        self.unknown += datagrams;
        // A datagram that came alone, and behind no other that waits for its acknowledgement, is acknowledged at once
        // only behind a gap, with another frame, if the peer asks for it, or for a mark of congestion.
        if (datagrams, has_come, was_pending) == (1, true, false)
            && (after.others, after.asked) == (before.others, before.asked)
        {
            self.gaps = self.gaps << 1 | u16::from(is_acknowledged);
            self.unknown = 0;
        } else if self.unknown > UNKNOWN {
            self.gaps = 0;
        }
        self.is_active = self.gaps.count_ones() >= if self.is_active { FEW } else { MANY };
    }

    fn is_slow(&self) -> bool {
        self.interval > SLOW
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Path {
        answers: AnswerDelay,
        now: Instant,
        frames: Frames,
    }

    impl Path {
        fn new() -> Self {
            Self { answers: AnswerDelay::default(), now: Instant::now(), frames: Frames::default() }
        }

        /// A datagram after `ms`; if it is behind a gap, it is acknowledged at once. The delay of the answer.
        fn receive(&mut self, ms: u64, is_behind_gap: bool) -> Duration {
            self.now += Duration::from_millis(ms);
            self.frames.received += 1;
            let frames = self.frames;
            self.answers.handle_received(1, self.now, || frames);
            let delay = self.answers.until().map_or(Duration::ZERO, |until| until - self.now);
            self.frames.acknowledgements += u64::from(is_behind_gap);
            self.send();
            delay
        }

        /// The timer of the library acknowledges the rest.
        fn acknowledge(&mut self) {
            self.frames.acknowledgements += 1;
            self.send();
        }

        fn send(&mut self) {
            let frames = self.frames;
            self.answers.handle_sent(|| frames);
        }

        fn delay_after(&mut self, datagrams: usize, ms: u64, is_behind_gap: bool) -> Duration {
            (0..datagrams).map(|_| self.receive(ms, is_behind_gap)).last().unwrap_or_default()
        }
    }

    #[test]
    fn answers_wait_while_most_datagrams_are_behind_gaps() {
        let mut path = Path::new();
        assert_eq!(path.delay_after(13, 35, true), Duration::ZERO);
        assert_eq!(path.delay_after(2, 35, true), Duration::from_millis(21));
        // Five of sixteen in order leave eleven, nine leave seven.
        for _ in 0..9 {
            path.receive(35, false);
            path.acknowledge();
        }
        assert_eq!(path.receive(35, false), Duration::ZERO);
    }

    #[test]
    fn delay_is_shorter_than_the_peer_expects() {
        let mut path = Path::new();
        assert_eq!(path.delay_after(20, 100, true), LONGEST);
    }

    #[test]
    fn datagrams_in_order_are_answered_at_once() {
        let mut path = Path::new();
        for _ in 0..50 {
            assert_eq!(path.receive(35, false), Duration::ZERO);
            path.acknowledge();
        }
    }

    #[test]
    fn fast_path_is_answered_at_once() {
        let mut path = Path::new();
        assert_eq!(path.delay_after(50, 6, true), Duration::ZERO);
        let delay = path.delay_after(50, 8, true);
        assert!((4_500..4_900).contains(&delay.as_micros()), "0.6 of 8 ms: {delay:?}");
    }

    #[test]
    fn acknowledgement_with_another_frame_tells_nothing() {
        let mut path = Path::new();
        for _ in 0..50 {
            path.frames.others += 1;
            assert_eq!(path.receive(35, true), Duration::ZERO);
        }
        for _ in 0..50 {
            path.frames.asked += 1;
            assert_eq!(path.receive(35, true), Duration::ZERO);
        }
    }

    #[test]
    fn second_datagram_that_waits_tells_nothing() {
        let mut path = Path::new();
        for index in 0..50 {
            assert_eq!(path.receive(35, index % 2 == 1), Duration::ZERO);
        }
    }

    #[test]
    fn messages_do_not_wait() {
        let mut path = Path::new();
        path.delay_after(20, 35, true);
        path.now += Duration::from_millis(35);
        path.answers.handle_received(1, path.now, Frames::default);
        assert!(path.answers.until().is_some());
        path.answers.handle_written(ANSWERS);
        assert!(path.answers.until().is_some());
        path.answers.handle_written(1);
        assert_eq!(path.answers.until(), None);
        path.send();
        // The rest of it, or a repetition, does not wait either.
        assert_eq!(path.delay_after(25, 35, true), Duration::ZERO);
        assert_eq!(path.delay_after(5, 35, true), Duration::from_millis(21));
        // Written before datagrams are taken in.
        path.answers.handle_written(100);
        assert_eq!(path.receive(35, true), Duration::ZERO);
    }

    #[test]
    fn questions_are_answered_at_once() {
        let mut path = Path::new();
        path.delay_after(20, 35, true);
        path.frames.asked += 1;
        assert_eq!(path.receive(35, true), Duration::ZERO);
        assert_eq!(path.receive(35, true), Duration::from_millis(21));
    }

    #[test]
    fn answer_that_is_pending_waits_no_longer() {
        let mut path = Path::new();
        path.delay_after(20, 35, true);
        assert_eq!(path.receive(35, false), Duration::from_millis(21));
        assert_eq!(path.receive(35, true), Duration::ZERO);
        assert_eq!(path.receive(35, true), Duration::from_millis(21));
    }

    #[test]
    fn path_is_forgotten_that_shows_nothing_more() {
        let mut path = Path::new();
        path.delay_after(20, 35, true);
        for _ in 0..=UNKNOWN {
            path.frames.others += 1;
            assert_eq!(path.receive(35, true), Duration::from_millis(21));
        }
        assert_eq!(path.receive(35, true), Duration::ZERO);
    }

    #[test]
    fn another_path_is_another_matter() {
        let mut path = Path::new();
        path.delay_after(20, 35, true);
        path.frames.moved += 1;
        path.receive(35, true);
        assert_eq!(path.delay_after(12, 35, true), Duration::ZERO);
    }

    #[test]
    fn peer_that_says_when_to_acknowledge_is_obeyed() {
        let mut path = Path::new();
        path.frames.told = 1;
        assert_eq!(path.delay_after(50, 35, true), Duration::ZERO);
    }

    #[test]
    fn silence_is_forgotten() {
        let mut path = Path::new();
        path.delay_after(20, 35, true);
        assert_eq!(path.receive(1_000, true), Duration::ZERO);
        assert_eq!(path.delay_after(12, 35, true), Duration::ZERO);
    }
}
