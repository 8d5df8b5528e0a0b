//! Send scheduler: the queues of requests by lane, and the stream of each lane.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Instant;

use braid_proto::stream::{Lane, LaneQueue, LogicalStream, Priority, StreamKey};
use braid_proto::topic::TopicName;

use crate::send_queue::{Control, Request, Room};

/// Maximum number of large messages in transit, unless the next one has a higher priority than all of them.
const OWN_STREAMS: usize = 4;
/// Number of resets by the server from which on a lane stays on the control stream for the rest of the connection.
const RESET_LIMIT: u8 = 5;

/// Identity of a lane. Messages of one lane keep their order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum LaneKey {
    /// Messages of one logical stream, which lasts as long as the connection.
    Stream(LogicalStream),
    /// Large messages of one topic, each on a stream of its own, one after the other.
    Own(TopicName, Priority),
}

/// Stream of a lane on the present connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaneStream {
    /// No request needed a stream so far.
    Unopened,
    /// A request waits for a stream to be opened.
    Wanted {
        /// Highest priority of the waiting requests.
        priority: Priority,
        /// Start of the time without stream credit from the server (RFC 9000, 4.6).
        refused: Option<Instant>,
    },
    /// The lane shares the control stream.
    OnControl,
    /// Data stream of the lane.
    Open(StreamKey),
    /// Data stream that takes no more requests: the lane waits for its end.
    Ending(StreamKey),
}

/// One lane: length of its queue, its stream, and the number of resets by the server.
#[derive(Debug)]
pub(crate) struct LaneEntry {
    /// `None`: free for another lane.
    key: Option<LaneKey>,
    queued: usize,
    stream: LaneStream,
    reset_count: u8,
}

impl LaneEntry {
    /// Whether each stream of this lane carries one message only.
    pub(crate) fn is_own(&self) -> bool {
        matches!(self.key, Some(LaneKey::Own(..)))
    }

    fn is_wanting(&self) -> bool {
        matches!(self.stream, LaneStream::Wanted { .. })
    }

    fn is_control(&self) -> bool {
        matches!(self.key, Some(LaneKey::Stream(LogicalStream::Control)))
    }

    /// Stream for the next request of this priority. `None`: the request has to wait, and the lane is noted to want a
    /// stream.
    pub(crate) fn stream_for(&mut self, priority: Priority) -> Option<StreamKey> {
        match &mut self.stream {
            LaneStream::Unopened => self.stream = LaneStream::Wanted { priority, refused: None },
            LaneStream::Wanted { priority: wanted, .. } => *wanted = priority.max(*wanted),
            LaneStream::Open(_) | LaneStream::OnControl | LaneStream::Ending(_) => {}
        }
        self.stream()
    }

    /// Stream that the lane has now.
    pub(crate) fn stream(&self) -> Option<StreamKey> {
        match self.stream {
            LaneStream::Open(key) => Some(key),
            LaneStream::OnControl => Some(StreamKey::CONTROL),
            LaneStream::Unopened | LaneStream::Wanted { .. } | LaneStream::Ending(_) => None,
        }
    }

    /// Priority of a lane of large messages.
    fn own_priority(&self) -> Option<Priority> {
        if let Some(LaneKey::Own(_, priority)) = &self.key { Some(*priority) } else { None }
    }
}

#[derive(Debug)]
struct QueuedRequest {
    lane: usize,
    request: Request,
    /// Room in the [`SendQueue`](crate::send_queue::SendQueue), freed with this entry.
    _room: Option<Room>,
}

/// Priority queue of requests over lanes. Lanes are named by their index.
#[derive(Debug, Default)]
pub(crate) struct LaneScheduler {
    /// Queue of `braid-proto`, in which the stream of a lane is the index of its entry.
    queue: LaneQueue<QueuedRequest>,
    lanes: Vec<LaneEntry>,
    by_key: HashMap<LaneKey, usize>,
    /// Every lane that wants a stream, and some that no longer do; pruned by [`next_to_open`](Self::next_to_open).
    wanting: Vec<usize>,
    /// Whether the link has data streams.
    is_multi: bool,
}

impl LaneScheduler {
    // -- Queue -------------------------------------------------------------------------------------

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Adds a request at the back of its lane.
    pub(crate) fn push_back(&mut self, stream: LogicalStream, request: Request, room: Option<Room>) {
        let (lane, order) = self.lane_of(stream, &request);
        self.queue.push_back(order, QueuedRequest { lane, request, _room: room });
    }

    /// Adds a request at the front of its lane.
    pub(crate) fn push_front(&mut self, stream: LogicalStream, request: Request) {
        let (lane, order) = self.lane_of(stream, &request);
        self.queue.push_front(order, QueuedRequest { lane, request, _room: None });
    }

    fn lane_of(&mut self, stream: LogicalStream, request: &Request) -> (usize, Lane) {
        let (key, priority) = match request {
            Request::Publish { delivery, .. } | Request::Resend { delivery, .. } => match stream {
                LogicalStream::Own => {
                    (LaneKey::Own(delivery.message.topic.clone(), delivery.priority), delivery.priority)
                }
                stream => (LaneKey::Stream(stream), delivery.priority),
            },
            Request::Control(_) => (LaneKey::Stream(stream), Priority::HIGHEST),
        };
        let lane = self.entry(key);
        self.lanes[lane].queued += 1;
        let number = u32::try_from(lane).unwrap_or(StreamKey::COUNT_MAX - 1);
        (lane, Lane { stream: StreamKey::bidi(number), priority })
    }

    fn entry(&mut self, key: LaneKey) -> usize {
        if let Some(lane) = self.by_key.get(&key) {
            return *lane;
        }
        let new =
            LaneEntry { key: Some(key.clone()), queued: 0, stream: LaneStream::Unopened, reset_count: 0 };
        let lane = match self.lanes.iter().position(|lane| lane.key.is_none()) {
            Some(free) => {
                self.lanes[free] = new;
                free
            }
            None => {
                self.lanes.push(new);
                self.lanes.len() - 1
            }
        };
        self.reset_stream(lane);
        self.by_key.insert(key, lane);
        lane
    }

    /// Takes the next request that `accepts` admits: highest priority first, lanes of one priority in turn.
    pub(crate) fn pop(
        &mut self,
        mut accepts: impl FnMut(&mut LaneEntry, Priority, &Request) -> bool,
    ) -> Option<(usize, Request)> {
        let Self { queue, lanes, wanting, .. } = self;
        let next = queue.pop(|order, next| {
            let lane = &mut lanes[next.lane];
            let was_wanting = lane.is_wanting();
            let is_taken = accepts(lane, order.priority, &next.request);
            if lane.is_wanting() && !was_wanting {
                wanting.push(next.lane);
            }
            is_taken
        })?;
        lanes[next.lane].queued -= 1;
        Some((next.lane, next.request))
    }

    /// Drops all retransmissions: the next connection takes them from the session.
    pub(crate) fn drop_resends(&mut self) {
        self.drop_if(|request| matches!(request, Request::Resend { .. }));
    }

    /// Drops all requests that restore subscriptions: they are made anew from what is subscribed.
    pub(crate) fn drop_resubscribes(&mut self) {
        self.drop_if(|request| matches!(request, Request::Control(Control::Resubscribe(_))));
    }

    fn drop_if(&mut self, is_unwanted: impl Fn(&Request) -> bool) {
        let lanes = &mut self.lanes;
        self.queue.retain(|queued| {
            let is_unwanted = is_unwanted(&queued.request);
            lanes[queued.lane].queued -= usize::from(is_unwanted);
            !is_unwanted
        });
    }

    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Request> + use<> {
        self.queue.drain().map(|queued| queued.request)
    }

    // -- Streams -----------------------------------------------------------------------------------

    /// Begins a connection, on which no lane has a stream. Without `is_multi` all lanes share the control stream;
    /// called again when the server turns out to take no data streams.
    pub(crate) fn begin(&mut self, is_multi: bool) {
        self.is_multi = is_multi;
        self.wanting.clear();
        for lane in 0..self.lanes.len() {
            self.lanes[lane].reset_count = 0;
            self.reset_stream(lane);
            self.remove_if_idle(lane, true);
        }
    }

    fn reset_stream(&mut self, lane: usize) {
        let lane = &mut self.lanes[lane];
        let has_stream = self.is_multi && !lane.is_control() && lane.reset_count < RESET_LIMIT;
        lane.stream = if has_stream { LaneStream::Unopened } else { LaneStream::OnControl };
    }

    fn remove_if_idle(&mut self, lane: usize, even_if_lasting: bool) {
        let at = &mut self.lanes[lane];
        let is_idle = at.queued == 0 && matches!(at.stream, LaneStream::Unopened | LaneStream::OnControl);
        if is_idle
            && (even_if_lasting || at.is_own())
            && let Some(key) = at.key.take()
        {
            self.by_key.remove(&key);
        }
    }

    pub(crate) fn lane_mut(&mut self, lane: usize) -> &mut LaneEntry {
        &mut self.lanes[lane]
    }

    /// Sets the stream of a lane.
    pub(crate) fn set_stream(&mut self, lane: usize, stream: LaneStream) {
        self.lanes[lane].stream = stream;
    }

    /// Notes that the server gives no credit for the stream of a lane.
    pub(crate) fn handle_refused(&mut self, lane: usize, now: Instant) {
        if let LaneStream::Wanted { refused, .. } = &mut self.lanes[lane].stream {
            refused.get_or_insert(now);
        }
    }

    /// Removes a lane of large messages that is no longer used, after a request of it was sent.
    pub(crate) fn remove_if_unused(&mut self, lane: usize) {
        self.remove_if_idle(lane, false);
    }

    /// Lanes without stream credit: index, whether the lane is of large messages, start of the wait.
    pub(crate) fn refused(&self) -> impl Iterator<Item = (usize, bool, Instant)> {
        self.wanting.iter().filter_map(|at| match self.lanes[*at].stream {
            LaneStream::Wanted { refused: Some(since), .. } => Some((*at, self.lanes[*at].is_own(), since)),
            _ => None,
        })
    }

    /// Whether each stream of this lane carries one message only.
    pub(crate) fn is_own(&self, lane: usize) -> bool {
        self.lanes[lane].is_own()
    }

    /// Whether no request is queued in this lane.
    pub(crate) fn is_queue_empty(&self, lane: usize) -> bool {
        self.lanes[lane].queued == 0
    }

    /// Logical stream of a lane.
    pub(crate) fn logical(&self, lane: usize) -> LogicalStream {
        match self.lanes[lane].key {
            Some(LaneKey::Stream(stream)) => stream,
            Some(LaneKey::Own(..)) => LogicalStream::Own,
            None => LogicalStream::Control,
        }
    }

    /// Lane to open the next stream for: of those that want one, that with the highest priority.
    pub(crate) fn next_to_open(&mut self) -> Option<usize> {
        let Self { wanting, lanes, .. } = self;
        wanting.retain(|at| lanes[*at].is_wanting());
        let wanted = |at: &usize| match self.lanes[*at].stream {
            LaneStream::Wanted { priority, .. } if self.may_open(&self.lanes[*at]) => {
                Some((priority, Reverse(*at)))
            }
            _ => None,
        };
        self.wanting.iter().filter_map(wanted).max().map(|(_, Reverse(at))| at)
    }

    fn may_open(&self, lane: &LaneEntry) -> bool {
        let Some(priority) = lane.own_priority() else { return true };
        let is_open =
            |other: &&LaneEntry| matches!(other.stream, LaneStream::Open(_) | LaneStream::Ending(_));
        let mut others = self.lanes.iter().filter(is_open).filter_map(LaneEntry::own_priority);
        others.clone().count() < OWN_STREAMS || others.all(|other| other < priority)
    }

    /// Handles the end of a lane's stream. A lane of a logical stream opens another when it needs one, up to
    /// [`RESET_LIMIT`] resets by the server (`by_peer`).
    pub(crate) fn stream_ended(&mut self, lane: usize, by_peer: bool) {
        let at = &mut self.lanes[lane];
        at.reset_count = at.reset_count.saturating_add(u8::from(by_peer));
        self.reset_stream(lane);
        self.remove_if_idle(lane, false);
    }
}

#[cfg(test)]
mod tests {
    use braid_proto::message::{Delivery, Message, SharedMessage};
    use braid_proto::packet::QoS;

    use super::*;

    /// Queues a large message on a topic of its own.
    fn large(lanes: &mut LaneScheduler, topic: &str, priority: u16) {
        let topic = TopicName::parse(topic).unwrap();
        let message = SharedMessage::new(Message::new(topic, "large", QoS::AtMostOnce, false));
        let delivery = Delivery { priority: Priority::new(priority), ..Delivery::of(message) };
        let stream = LogicalStream::Own;
        lanes.push_back(
            stream,
            Request::Publish { delivery, stream, waiter: None, is_unreliable: false },
            None,
        );
    }

    /// Looks at every request, so that each lane notes that it wants a stream.
    fn want(lanes: &mut LaneScheduler) {
        let taken = lanes.pop(|lane, priority, _| {
            lane.stream_for(priority);
            false
        });
        assert!(taken.is_none());
    }

    /// Opens all streams that may be opened; the lanes in their order.
    fn open(lanes: &mut LaneScheduler) -> Vec<usize> {
        let mut opened = Vec::new();
        while let Some(lane) = lanes.next_to_open() {
            lanes.set_stream(lane, LaneStream::Open(StreamKey::bidi(1)));
            opened.push(lane);
        }
        opened
    }

    #[test]
    fn limits_large_messages_in_transit_unless_one_has_a_higher_priority() {
        let mut lanes = LaneScheduler::default();
        lanes.begin(true);
        for topic in ["a", "b", "c", "d", "e", "f"] {
            large(&mut lanes, topic, 5);
        }
        want(&mut lanes);
        assert_eq!(open(&mut lanes), [0, 1, 2, 3]);
        large(&mut lanes, "urgent", 6);
        large(&mut lanes, "urgent too", 6);
        want(&mut lanes);
        assert_eq!(open(&mut lanes), [6]);
        lanes.set_stream(0, LaneStream::Ending(StreamKey::bidi(1)));
        assert!(open(&mut lanes).is_empty(), "the stream has not ended yet");
        lanes.stream_ended(0, false);
        lanes.stream_ended(1, false);
        assert_eq!(open(&mut lanes), [7], "highest priority first");
    }

    #[test]
    fn removes_unused_lanes_of_large_messages() {
        let mut lanes = LaneScheduler::default();
        lanes.begin(false);
        for number in 0..100 {
            large(&mut lanes, &number.to_string(), 5);
            let (lane, _) = lanes.pop(|lane, priority, _| lane.stream_for(priority).is_some()).unwrap();
            lanes.remove_if_unused(lane);
        }
        assert_eq!((lanes.lanes.len(), lanes.by_key.len()), (1, 0));
    }
}
