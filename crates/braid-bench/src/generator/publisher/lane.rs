use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use braid_proto::message::SharedMessage;
use braid_proto::stream::{Priority, StreamKey};
use tokio::time::Instant;

use super::schedule::TopicSchedule;
use super::source::Source;
use crate::connection::Connection;
use crate::emqtt::Counter;
use crate::generator::statistics::{RouteId, Shard};

/// A topic of a client.
#[derive(Debug)]
pub(super) struct Topic {
    pub(super) source: Source,
    pub(super) route: RouteId,
    /// Stream on QUIC, and its priority.
    pub(super) stream: u32,
    pub(super) priority: Option<u16>,
    pub(super) first: Duration,
    pub(super) interval: Duration,
    pub(super) schedule: TopicSchedule,
    /// Messages so far, for `cnt64`.
    pub(super) counter: u64,
    /// Next message, if it is encoded and could not leave yet.
    pub(super) made: Option<Made>,
}

/// A message to send.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) message: SharedMessage,
    pub(super) due: Instant,
}

/// Topics that share a stream, in the order of their due times. One that cannot leave makes the others
/// of its stream wait, and no others.
#[derive(Debug)]
pub(super) struct Lane {
    /// Number that the user gave the stream; 0 is the control stream.
    pub(super) number: u32,
    pub(super) priority: Priority,
    /// `None` while it is not open.
    pub(super) key: Option<StreamKey>,
    /// True if no due message waits in it: the next one waits for its time alone.
    pub(super) is_clear: bool,
    order: BinaryHeap<Reverse<(Instant, usize)>>,
    /// Messages of QoS 0 that the link has not taken, in the order of sending.
    unwritten: VecDeque<Unwritten>,
}

/// Equal messages of QoS 0 and of one topic, one after the other on a stream.
#[derive(Debug)]
struct Unwritten {
    route: RouteId,
    messages: u64,
    /// Bytes of each payload.
    bytes: u64,
    /// Position of the end of the first one.
    first_end: u64,
    /// Distance between the ends of two; unknown (0) of a single one, and of messages in datagrams.
    step: u64,
}

impl Lane {
    /// Lanes of these topics on a connection, the highest priority first: one for each stream, or one for
    /// all on a link with one stream.
    pub(super) fn of(topics: &[Topic], is_multi: bool) -> Vec<Self> {
        let mut lanes: Vec<Self> = Vec::new();
        for (at, topic) in topics.iter().enumerate() {
            let number = if is_multi { topic.stream } else { 0 };
            let place = lanes.iter().position(|lane| lane.number == number).unwrap_or_else(|| {
                let key = (number == 0).then_some(StreamKey::CONTROL);
                let (order, unwritten) = (BinaryHeap::new(), VecDeque::new());
                let priority = Priority::new(0);
                lanes.push(Self { number, priority, key, is_clear: false, order, unwritten });
                lanes.len() - 1
            });
            let lane = &mut lanes[place];
            // The highest of several priorities for one stream counts.
            lane.priority = lane.priority.max(topic.priority.map_or(Priority::DEFAULT, Priority::new));
            lane.order.push(Reverse((topic.schedule.next(), at)));
        }
        // The control stream has the highest priority.
        lanes.sort_by_key(|lane| Reverse((lane.number == 0, lane.priority)));
        lanes
    }

    /// Topic with the earliest due time, and that time.
    pub(super) fn first(&self) -> Option<(Instant, usize)> {
        self.order.peek().map(|Reverse(first)| *first)
    }

    /// Sets the due time of the first topic's next message.
    pub(super) fn put_back(&mut self, next: Instant) {
        if let Some(mut first) = self.order.peek_mut() {
            first.0.0 = next;
        }
    }

    /// Records a message of QoS 0 in the outbox.
    pub(super) fn sent(&mut self, route: RouteId, bytes: u64, end: u64) {
        match self.unwritten.back_mut() {
            Some(last) if last.route == route && last.bytes == bytes && last.goes_on_at(end) => {
                last.step = end - last.end();
                last.messages += 1;
            }
            _ => {
                self.unwritten.push_back(Unwritten { route, messages: 1, bytes, first_end: end, step: 0 });
            }
        }
    }

    /// Counts the messages that the link has taken.
    pub(super) fn count_written(&mut self, connection: &mut Connection, shard: &mut Shard, second: usize) {
        let (Some(key), false) = (self.key, self.unwritten.is_empty()) else { return };
        let (_, written) = connection.progress(key);
        while let Some(first) = self.unwritten.front_mut() {
            let messages = first.release(written);
            shard.route(first.route).acknowledged(second, messages, messages * first.bytes);
            shard.count(Counter::Pub, messages);
            if first.messages > 0 {
                break;
            }
            self.unwritten.pop_front();
        }
    }

    pub(super) fn has_unwritten(&self) -> bool {
        !self.unwritten.is_empty()
    }

    /// Counts the unwritten messages of an ended stream as lost.
    pub(super) fn lose(&mut self, shard: &mut Shard) {
        self.unwritten.drain(..).for_each(|unwritten| shard.lose(unwritten.route, unwritten.messages));
    }
}

impl Unwritten {
    /// Position of the end of the last one.
    fn end(&self) -> u64 {
        self.first_end + self.messages.saturating_sub(1) * self.step
    }

    /// True if a message that ends there is at the common distance from the last one.
    fn goes_on_at(&self, end: u64) -> bool {
        self.messages == 1 || self.end() + self.step == end
    }

    /// Removes the messages that are written; returns their number.
    fn release(&mut self, written: u64) -> u64 {
        let Some(beyond) = written.checked_sub(self.first_end) else { return 0 };
        let whole = beyond.checked_div(self.step).map_or(u64::MAX, |steps| steps.saturating_add(1));
        let released = whole.min(self.messages);
        self.messages -= released;
        self.first_end += released * self.step;
        released
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::statistics::RouteKey;
    use crate::generator::{Clock, RunStatistics};

    #[test]
    fn of_equal_messages_only_whole_ones_are_released() {
        let key = RouteKey { topic: "a".to_owned(), stream: 0, priority: None };
        let route = RunStatistics::new(Clock::now()).route(key);
        let mut unwritten = Unwritten { route, messages: 10, bytes: 7, first_end: 110, step: 10 };
        assert_eq!(
            (unwritten.end(), unwritten.goes_on_at(210), unwritten.goes_on_at(211)),
            (200, true, false)
        );
        for (written, released) in
            [(109, 0), (110, 1), (129, 1), (139, 1), (160, 3), (199, 3), (900, 1), (900, 0)]
        {
            assert_eq!(unwritten.release(written), released, "{written} written");
        }
    }
}
