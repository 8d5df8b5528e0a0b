//! How urgent a stream is to the transport.

use std::time::{Duration, Instant};

use braid_proto::stream::Priority;

/// What acknowledgements need on a stream whose deliveries are less urgent: bulk of other streams must not starve
/// those who publish on this one, and bulk of this one must not rise above everything with them.
const ACKNOWLEDGEMENTS: Priority = Priority::DEFAULT;

/// What was written so long ago is taken to be sent. Nobody tells.
const SENT_AFTER: Duration = Duration::from_secs(1);

/// The priority that a stream has in the transport: that of the most urgent of what is on its way there. It rises at
/// once. It falls when something less urgent comes, and not while what needed it may still wait behind a bad link.
/// [BQ-50]
#[derive(Debug)]
pub(super) struct Rank {
    priority: Priority,
    /// Where on the stream that ends which needed it last, and when that was written or, until then, came.
    end: u64,
    at: Instant,
    /// It has carried acknowledgements only.
    is_fresh: bool,
    /// What the receiver lets come on a stream beyond what it has read, bytes. What was written so many bytes ago it
    /// has read: else there would have been no room behind it.
    window: u64,
    /// Bytes that the transport has taken.
    written: u64,
    /// Where that ends which was looked at.
    seen: u64,
}

impl Rank {
    /// Until deliveries say how urgent they are a stream carries acknowledgements, which come first.
    pub(super) fn new(window: u64, now: Instant) -> Self {
        Self { priority: Priority::HIGHEST, end: 0, at: now, is_fresh: true, window, written: 0, seen: 0 }
    }

    pub(super) fn priority(&self) -> Priority {
        self.priority
    }

    /// A delivery is in the outbox, from `before` to `after` bytes in it.
    pub(super) fn note_delivery(&mut self, priority: Priority, before: usize, after: usize, now: Instant) {
        self.note_outbox(before, now);
        self.seen = self.written + after as u64;
        if std::mem::take(&mut self.is_fresh) {
            let needed = if self.is_sent(now) { Priority::new(0) } else { ACKNOWLEDGEMENTS };
            self.priority = needed.max(priority);
            if priority < needed {
                return;
            }
        }
        self.need(priority, now);
    }

    /// A delivery waits until what is in the outbox, so many bytes, has gone: that is as urgent as the delivery.
    pub(super) fn note_waiting(&mut self, priority: Priority, unwritten: usize, now: Instant) {
        self.note_outbox(unwritten, now);
        if priority > self.priority {
            self.need(priority, now);
        }
    }

    /// So many bytes are in the outbox. What is new among them and is no delivery is an acknowledgement.
    pub(super) fn note_outbox(&mut self, unwritten: usize, now: Instant) {
        let end = self.written + unwritten as u64;
        if end <= self.seen {
            return;
        }
        self.seen = end;
        let needed = if self.is_fresh { self.priority } else { ACKNOWLEDGEMENTS };
        if needed >= self.priority {
            self.need(needed, now);
        }
    }

    /// The transport has taken so many bytes.
    pub(super) fn note_written(&mut self, bytes: usize, now: Instant) {
        let was_unwritten = self.written < self.end;
        self.written += bytes as u64;
        if was_unwritten && self.written >= self.end {
            self.at = now;
        }
    }

    /// Something that ends where was looked last needs this priority.
    fn need(&mut self, priority: Priority, now: Instant) {
        if priority >= self.priority || self.is_sent(now) {
            (self.priority, self.end, self.at) = (priority, self.seen, now);
        }
    }

    /// Whether what needed the present priority is on its way by now.
    fn is_sent(&self, now: Instant) -> bool {
        let is_old = now.saturating_duration_since(self.at) >= SENT_AFTER;
        self.end == 0 || self.written >= self.end && (is_old || self.written - self.end >= self.window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALARM: Priority = Priority::new(200);
    const BULK: Priority = Priority::new(8);
    const WINDOW: u64 = 2 << 20;

    fn write_all(rank: &mut Rank, now: Instant) {
        let bytes = usize::try_from(rank.seen - rank.written).expect("small");
        rank.note_written(bytes, now);
    }

    /// [BQ-50]: bulk that comes behind an alarm does not take the stream's place from it, also when the outbox is empty.
    #[test]
    fn a_stream_keeps_its_place_while_an_alarm_may_be_unsent() {
        let start = Instant::now();
        let mut rank = Rank::new(WINDOW, start);
        rank.note_delivery(ALARM, 0, 100, start);
        assert_eq!(rank.priority(), ALARM);
        // However long it waits for the transport, and a while from then on.
        let mut now = start + 10 * SENT_AFTER;
        rank.note_delivery(BULK, 100, 300, now);
        assert_eq!(rank.priority(), ALARM);
        write_all(&mut rank, now);
        now += SENT_AFTER / 2;
        rank.note_delivery(BULK, 0, 100, now);
        assert_eq!(rank.priority(), ALARM, "written is not sent");
        write_all(&mut rank, now);
        rank.note_delivery(BULK, 0, 100, now + SENT_AFTER / 2);
        assert_eq!(rank.priority(), BULK);
    }

    #[test]
    fn a_stream_gives_its_place_back_once_much_has_followed_the_alarm() {
        let now = Instant::now();
        let mut rank = Rank::new(WINDOW, now);
        rank.note_delivery(ALARM, 0, 100, now);
        write_all(&mut rank, now);
        for _ in 0..32 {
            rank.note_delivery(BULK, 0, 64 * 1024, now);
            assert_eq!(rank.priority(), ALARM, "{} bytes may all be unsent", rank.written);
            write_all(&mut rank, now);
        }
        rank.note_delivery(BULK, 0, 100, now);
        assert_eq!(rank.priority(), BULK);
        rank.note_delivery(ALARM, 100, 200, now);
        assert_eq!(rank.priority(), ALARM, "it rises at once");
    }

    /// [BQ-50]: acknowledgements on a stream of bulk are not behind the bulk of others, nor does their stream's bulk
    /// rise above alarms with them.
    #[test]
    fn acknowledgements_on_a_stream_of_bulk_have_the_usual_priority() {
        let mut now = Instant::now();
        let mut rank = Rank::new(WINDOW, now);
        rank.note_outbox(4, now);
        assert_eq!(rank.priority(), Priority::HIGHEST, "there is nothing else");
        write_all(&mut rank, now);
        rank.note_delivery(BULK, 0, 1000, now);
        assert_eq!(rank.priority(), Priority::DEFAULT, "SUBACK may be unsent");
        write_all(&mut rank, now);
        now += SENT_AFTER;
        rank.note_delivery(BULK, 0, 1000, now);
        assert_eq!(rank.priority(), BULK);
        // A PUBACK between two deliveries, and one behind them.
        rank.note_delivery(BULK, 1004, 2000, now);
        assert_eq!(rank.priority(), Priority::DEFAULT);
        write_all(&mut rank, now);
        now += SENT_AFTER;
        rank.note_delivery(BULK, 0, 1000, now);
        assert_eq!(rank.priority(), BULK);
        rank.note_outbox(1004, now);
        assert_eq!(rank.priority(), Priority::DEFAULT);
        rank.note_delivery(ALARM, 1004, 1100, now);
        rank.note_outbox(1104, now);
        assert_eq!(rank.priority(), ALARM, "they lower nothing");
    }

    /// [BQ-50]: bulk that an alarm has to wait for is as urgent as the alarm.
    #[test]
    fn what_is_in_the_way_of_an_alarm_rises_with_it() {
        let now = Instant::now();
        let mut rank = Rank::new(WINDOW, now);
        rank.note_delivery(BULK, 0, 1000, now);
        rank.note_waiting(BULK, 1000, now);
        assert_eq!(rank.priority(), BULK);
        rank.note_waiting(ALARM, 1000, now);
        assert_eq!(rank.priority(), ALARM);
        rank.note_waiting(BULK, 1000, now);
        rank.note_delivery(BULK, 1000, 2000, now + 10 * SENT_AFTER);
        assert_eq!(rank.priority(), ALARM, "it is still in the way");
    }

    #[test]
    fn a_stream_of_bulk_that_nothing_was_said_on_is_one_at_once() {
        let now = Instant::now();
        let mut rank = Rank::new(WINDOW, now);
        rank.note_delivery(BULK, 0, 1000, now);
        assert_eq!(rank.priority(), BULK);
    }
}
