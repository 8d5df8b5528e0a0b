//! What waits to be sent, lane by lane, and the stream of each lane.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Instant;

use braid_proto::stream::{Lane, LaneQueue, LogicalStream, Priority, StreamKey};
use braid_proto::topic::TopicName;

use crate::queue::Room;
use crate::request::{Control, Request};

/// Large messages that are on their way at once, so that each gets somewhere; what is more urgent than all of them
/// does not wait.
const OWN_STREAMS: usize = 4;
/// A lane whose stream ended so often on one connection stays on the control stream.
const DEATHS: u8 = 5;

/// A lane. Its messages keep their order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Name {
    /// The messages of one stream that lives as long as the connection.
    Stream(LogicalStream),
    /// The large messages of one topic: one stream after the other.
    Own(TopicName, Priority),
}

/// Where a lane is on the present connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing has needed a stream yet.
    Unopened,
    /// Something waits for a stream.
    Wanted {
        priority: Priority,
        /// Since when the server gives no credit for it.
        refused: Option<Instant>,
    },
    /// It has no stream of its own.
    OnControl,
    Open(StreamKey),
    /// Nothing more goes on this stream: what comes next waits for its end.
    Ending(StreamKey),
}

#[derive(Debug)]
pub(crate) struct Slot {
    /// `None`: free for another lane.
    name: Option<Name>,
    waiting: usize,
    pub(crate) state: State,
    deaths: u8,
}

impl Slot {
    /// Whether a stream of this lane carries one message.
    pub(crate) fn is_own(&self) -> bool {
        matches!(self.name, Some(Name::Own(..)))
    }

    fn is_wanting(&self) -> bool {
        matches!(self.state, State::Wanted { .. })
    }

    fn is_control(&self) -> bool {
        matches!(self.name, Some(Name::Stream(LogicalStream::Control)))
    }

    /// Where its next message goes. `None`: that has to wait, and the slot notes what for.
    pub(crate) fn stream_for(&mut self, priority: Priority) -> Option<StreamKey> {
        match &mut self.state {
            State::Open(key) => return Some(*key),
            State::OnControl => return Some(StreamKey::CONTROL),
            State::Unopened => self.state = State::Wanted { priority, refused: None },
            State::Wanted { priority: wanted, .. } => *wanted = priority.max(*wanted),
            State::Ending(_) => {}
        }
        None
    }

    /// Of a lane of large messages.
    fn priority(&self) -> Option<Priority> {
        if let Some(Name::Own(_, priority)) = &self.name { Some(*priority) } else { None }
    }
}

#[derive(Debug)]
struct Waiting {
    slot: usize,
    request: Request,
    /// Given back when the request is taken.
    _room: Option<Room>,
}

#[derive(Debug, Default)]
pub(crate) struct Lanes {
    /// In it a lane's stream is the number of its slot.
    waiting: LaneQueue<Waiting>,
    slots: Vec<Slot>,
    by_name: HashMap<Name, usize>,
    /// The slots that want a stream, and some that have wanted one since it was looked at last.
    wanting: Vec<usize>,
    /// The link has data streams.
    is_multi: bool,
}

impl Lanes {
    // -- What waits --------------------------------------------------------------------------------

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds a request behind those of its lane.
    pub(crate) fn push_back(&mut self, stream: LogicalStream, request: Request, room: Option<Room>) {
        let (slot, lane) = self.lane(stream, &request);
        self.waiting.push_back(lane, Waiting { slot, request, _room: room });
    }

    /// Adds a request before those of its lane.
    pub(crate) fn push_front(&mut self, stream: LogicalStream, request: Request) {
        let (slot, lane) = self.lane(stream, &request);
        self.waiting.push_front(lane, Waiting { slot, request, _room: None });
    }

    fn lane(&mut self, stream: LogicalStream, request: &Request) -> (usize, Lane) {
        let (name, priority) = match request {
            Request::Publish { delivery, .. } | Request::Resend { delivery, .. } => match stream {
                LogicalStream::Own => {
                    (Name::Own(delivery.message.topic.clone(), delivery.priority), delivery.priority)
                }
                stream => (Name::Stream(stream), delivery.priority),
            },
            Request::Control(_) => (Name::Stream(stream), Priority::HIGHEST),
        };
        let slot = self.slot_of(name);
        self.slots[slot].waiting += 1;
        (slot, lane(slot, priority))
    }

    fn slot_of(&mut self, name: Name) -> usize {
        if let Some(slot) = self.by_name.get(&name) {
            return *slot;
        }
        let state = State::Unopened;
        let new = Slot { name: Some(name.clone()), waiting: 0, state, deaths: 0 };
        let slot = match self.slots.iter().position(|slot| slot.name.is_none()) {
            Some(free) => {
                self.slots[free] = new;
                free
            }
            None => {
                self.slots.push(new);
                self.slots.len() - 1
            }
        };
        self.reset(slot);
        self.by_name.insert(name, slot);
        slot
    }

    /// Takes the next request that `accepts` takes: the most urgent first, equal lanes in turns.
    pub(crate) fn pop(
        &mut self,
        mut accepts: impl FnMut(&mut Slot, Priority, &Request) -> bool,
    ) -> Option<(usize, Request)> {
        let Self { waiting, slots, wanting, .. } = self;
        let next = waiting.pop(|lane, next| {
            let slot = &mut slots[next.slot];
            let was_wanting = slot.is_wanting();
            let is_taken = accepts(slot, lane.priority, &next.request);
            if slot.is_wanting() && !was_wanting {
                wanting.push(next.slot);
            }
            is_taken
        })?;
        slots[next.slot].waiting -= 1;
        Some((next.slot, next.request))
    }

    /// Drops what was to be sent again: the next connection finds it in the session.
    pub(crate) fn drop_resends(&mut self) {
        self.drop_if(|request| matches!(request, Request::Resend { .. }));
    }

    /// Drops what was to bring subscriptions back: it is found anew.
    pub(crate) fn drop_restoring(&mut self) {
        self.drop_if(|request| matches!(request, Request::Control(Control::Resubscribe(_))));
    }

    fn drop_if(&mut self, is_unwanted: impl Fn(&Request) -> bool) {
        let slots = &mut self.slots;
        self.waiting.retain(|waiting| {
            let is_unwanted = is_unwanted(&waiting.request);
            slots[waiting.slot].waiting -= usize::from(is_unwanted);
            !is_unwanted
        });
    }

    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Request> + use<> {
        self.waiting.drain().map(|waiting| waiting.request)
    }

    // -- Streams -----------------------------------------------------------------------------------

    /// A connection begins: nothing has a stream.
    pub(crate) fn begin(&mut self, is_multi: bool) {
        self.is_multi = is_multi;
        self.wanting.clear();
        for slot in 0..self.slots.len() {
            self.slots[slot].deaths = 0;
            self.reset(slot);
            self.forget_if_idle(slot, true);
        }
    }

    /// The link turns out to have no other stream than the control stream.
    pub(crate) fn give_up_streams(&mut self) {
        self.begin(false);
    }

    fn reset(&mut self, slot: usize) {
        let slot = &mut self.slots[slot];
        let has_stream = self.is_multi && !slot.is_control() && slot.deaths < DEATHS;
        slot.state = if has_stream { State::Unopened } else { State::OnControl };
    }

    fn forget_if_idle(&mut self, slot: usize, even_if_lasting: bool) {
        let at = &mut self.slots[slot];
        let is_idle = at.waiting == 0 && matches!(at.state, State::Unopened | State::OnControl);
        if is_idle
            && (even_if_lasting || at.is_own())
            && let Some(name) = at.name.take()
        {
            self.by_name.remove(&name);
        }
    }

    pub(crate) fn slot_mut(&mut self, slot: usize) -> &mut Slot {
        &mut self.slots[slot]
    }

    /// After a request of this lane was sent: a topic whose large messages need no stream is forgotten.
    pub(crate) fn settle(&mut self, slot: usize) {
        self.forget_if_idle(slot, false);
    }

    /// The lanes that a server without credit keeps waiting, whether they are of large messages, and since when.
    pub(crate) fn refused(&self) -> impl Iterator<Item = (usize, bool, Instant)> {
        self.wanting.iter().filter_map(|at| match self.slots[*at].state {
            State::Wanted { refused: Some(since), .. } => Some((*at, self.slots[*at].is_own(), since)),
            _ => None,
        })
    }

    /// Whether each stream of this lane carries one message.
    pub(crate) fn is_own(&self, slot: usize) -> bool {
        self.slots[slot].is_own()
    }

    /// Whether nothing waits in this lane.
    pub(crate) fn has_nothing(&self, slot: usize) -> bool {
        self.slots[slot].waiting == 0
    }

    /// The stream that this lane was planned on.
    pub(crate) fn logical(&self, slot: usize) -> LogicalStream {
        match self.slots[slot].name {
            Some(Name::Stream(stream)) => stream,
            Some(Name::Own(..)) => LogicalStream::Own,
            None => LogicalStream::Control,
        }
    }

    /// The lane that gets the next stream: the most urgent of those that want one.
    pub(crate) fn next_to_open(&mut self) -> Option<usize> {
        let Self { wanting, slots, .. } = self;
        wanting.retain(|at| slots[*at].is_wanting());
        let wanted = |at: &usize| match self.slots[*at].state {
            State::Wanted { priority, .. } if self.may_open(&self.slots[*at]) => {
                Some((priority, Reverse(*at)))
            }
            _ => None,
        };
        self.wanting.iter().filter_map(wanted).max().map(|(_, Reverse(at))| at)
    }

    fn may_open(&self, slot: &Slot) -> bool {
        let Some(priority) = slot.priority() else { return true };
        let is_under_way = |other: &&Slot| matches!(other.state, State::Open(_) | State::Ending(_));
        let others: Vec<Priority> =
            self.slots.iter().filter(is_under_way).filter_map(Slot::priority).collect();
        others.len() < OWN_STREAMS || others.iter().all(|other| *other < priority)
    }

    /// The stream of a lane has ended. Those that live long are opened anew when something needs them, up to a
    /// limit.
    pub(crate) fn stream_ended(&mut self, slot: usize, by_peer: bool) {
        self.slots[slot].deaths = self.slots[slot].deaths.saturating_add(u8::from(by_peer));
        self.reset(slot);
        self.forget_if_idle(slot, false);
    }
}

fn lane(slot: usize, priority: Priority) -> Lane {
    let number = u32::try_from(slot).unwrap_or(StreamKey::COUNT_MAX - 1);
    Lane { stream: StreamKey::bidi(number), priority }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use braid_proto::message::{Delivery, Message};
    use braid_proto::packet::QoS;

    use super::*;

    /// A large message waits on a topic of its own.
    fn large(lanes: &mut Lanes, topic: &str, priority: u16) {
        let topic = TopicName::parse(topic).unwrap();
        let message = Arc::new(Message::new(topic, "large".into(), QoS::AtMostOnce, false));
        let delivery = Delivery { priority: Priority::new(priority), ..Delivery::of(message) };
        let stream = LogicalStream::Own;
        lanes.push_back(stream, Request::Publish { delivery, stream, waiter: None }, None);
    }

    /// Notes what everything that waits waits for.
    fn want(lanes: &mut Lanes) {
        let taken = lanes.pop(|slot, priority, _| {
            slot.stream_for(priority);
            false
        });
        assert!(taken.is_none());
    }

    /// Opens what may be opened: the slots in their order.
    fn open(lanes: &mut Lanes) -> Vec<usize> {
        let mut opened = Vec::new();
        while let Some(slot) = lanes.next_to_open() {
            lanes.slot_mut(slot).state = State::Open(StreamKey::bidi(1));
            opened.push(slot);
        }
        opened
    }

    #[test]
    fn few_large_messages_are_on_their_way_at_once_and_an_urgent_one_does_not_wait_for_them() {
        let mut lanes = Lanes::default();
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
        lanes.slot_mut(0).state = State::Ending(StreamKey::bidi(1));
        assert!(open(&mut lanes).is_empty(), "it is not over yet");
        lanes.stream_ended(0, false);
        lanes.stream_ended(1, false);
        assert_eq!(open(&mut lanes), [7], "the most urgent first");
    }

    #[test]
    fn lanes_that_nobody_uses_are_forgotten() {
        let mut lanes = Lanes::default();
        lanes.begin(false);
        for number in 0..100 {
            large(&mut lanes, &number.to_string(), 5);
            let (slot, _) = lanes.pop(|slot, priority, _| slot.stream_for(priority).is_some()).unwrap();
            lanes.settle(slot);
        }
        assert_eq!((lanes.slots.len(), lanes.by_name.len()), (1, 0));
    }
}
