use std::collections::VecDeque;

use crate::packet::{Ack, PacketId, Suback, Unsuback};
use crate::stream::StreamKey;

/// Names a request whose acknowledgement waits until its effect is durable. Tokens of a connection ascend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token {
    /// Counts the acknowledgements of the connection; it alone orders tokens, and no two have the same.
    place: u64,
    stream: StreamKey,
    packet_id: PacketId,
}

impl Token {
    /// The stream of the request.
    pub const fn stream(self) -> StreamKey {
        self.stream
    }

    /// The identifier of the request.
    pub const fn packet_id(self) -> PacketId {
        self.packet_id
    }
}

/// An acknowledgement that waits.
#[derive(Debug)]
pub(crate) enum Waiting {
    Ack(Ack),
    /// The place of a SUBACK or UNSUBACK whose codes are not known yet: tokens ascend in the order of the
    /// requests, whenever they are answered.
    Unanswered(PacketId),
    Suback(Box<Suback>),
    Unsuback(Box<Unsuback>),
}

impl Waiting {
    const fn packet_id(&self) -> PacketId {
        match self {
            Self::Ack(ack) => ack.packet_id,
            Self::Unanswered(packet_id) => *packet_id,
            Self::Suback(suback) => suback.packet_id,
            Self::Unsuback(unsuback) => unsuback.packet_id,
        }
    }
}

/// A place in the order of the requests.
#[derive(Debug)]
struct Entry {
    /// Something must be durable first.
    has_effect: bool,
    /// Where the request came, and the acknowledgement goes. [BQ-14]
    stream: StreamKey,
    waiting: Waiting,
}

/// Durable before visible: an acknowledgement enters here, and it leaves only after its token came back.
///
/// That is this type's whole purpose: no order of await points in a shell can send an acknowledgement early.
/// They leave in the order of the requests. [MQTT-4.6.0-2], [MQTT-4.6.0-3], [MQTT-4.6.0-4]
#[derive(Debug, Default)]
pub(crate) struct WaitingAcks {
    /// The token of the front entry.
    front: u64,
    entries: VecDeque<Entry>,
    /// Tokens below this are durable.
    durable: u64,
    /// Tokens below this are answered.
    first_unanswered: u64,
}

impl WaitingAcks {
    /// Adds the acknowledgement of a request which has an effect.
    pub(crate) fn push(&mut self, stream: StreamKey, waiting: Waiting) -> Token {
        let packet_id = waiting.packet_id();
        self.entries.push_back(Entry { has_effect: true, stream, waiting });
        Token { place: self.front + self.entries.len() as u64 - 1, stream, packet_id }
    }

    /// Adds an acknowledgement which only waits for its turn, such as that of a duplicate.
    pub(crate) fn push_without_effect(&mut self, stream: StreamKey, waiting: Waiting) {
        self.entries.push_back(Entry { has_effect: false, stream, waiting });
    }

    fn entry(&mut self, token: Token) -> Option<&mut Entry> {
        let index = token.place.checked_sub(self.front)?;
        self.entries.get_mut(usize::try_from(index).ok()?)
    }

    /// The entry of a token, as long as it waits.
    pub(crate) fn get_mut(&mut self, token: Token) -> Option<&mut Waiting> {
        self.entry(token).map(|entry| &mut entry.waiting)
    }

    /// The effect under `token` need not become durable: its acknowledgement only waits for its turn.
    pub(crate) fn waive(&mut self, token: Token) {
        if let Some(entry) = self.entry(token) {
            entry.has_effect = false;
        }
    }

    /// Puts the answer in the place that waits for it: the oldest of this stream and identifier.
    pub(crate) fn answer(
        &mut self,
        stream: StreamKey,
        packet_id: PacketId,
        answer: Waiting,
    ) -> Option<Token> {
        // Requests are answered in their order, so that mostly the first place is the one.
        let start = self.first_unanswered.saturating_sub(self.front);
        let mut passed_over = None;
        for (index, entry) in (0_u64..).zip(&mut self.entries).skip(usize::try_from(start).ok()?) {
            let place = self.front + index;
            match &mut entry.waiting {
                waiting @ Waiting::Unanswered(_)
                    if entry.stream == stream && waiting.packet_id() == packet_id =>
                {
                    *waiting = answer;
                    self.first_unanswered = passed_over.unwrap_or(place + 1);
                    return Some(Token { place, stream, packet_id });
                }
                Waiting::Unanswered(_) => {
                    passed_over.get_or_insert(place);
                }
                _ => {}
            }
        }
        None
    }

    /// Everything up to and including `token` is durable.
    pub(crate) fn set_durable(&mut self, token: Token) {
        debug_assert!(token.place < self.front + self.entries.len() as u64, "a token that was never given");
        self.durable = self.durable.max(token.place + 1);
    }

    /// The next acknowledgement that may be sent, and where.
    pub(crate) fn pop_durable(&mut self) -> Option<(StreamKey, Waiting)> {
        let Entry { has_effect, waiting, .. } = self.entries.front()?;
        if *has_effect && self.front >= self.durable || matches!(waiting, Waiting::Unanswered(_)) {
            return None;
        }
        let Entry { stream, waiting, .. } = self.entries.pop_front()?;
        self.front += 1;
        if self.entries.is_empty() && self.entries.capacity() > 64 {
            self.entries = VecDeque::new(); // Ten thousand idle connections must not keep a burst's memory.
        }
        Some((stream, waiting))
    }

    /// Acknowledgements that wait.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::AckKind;
    use crate::reason::ReasonCode;

    const CONTROL: StreamKey = StreamKey::CONTROL;

    fn puback(id: PacketId) -> Waiting {
        Waiting::Ack(Ack::new(AckKind::Puback, id, ReasonCode::Success))
    }

    /// [MQTT-4.6.0-2]
    #[test]
    fn what_is_not_answered_holds_back_what_is_durable_behind_it() {
        let (first, second) = (PacketId::FIRST, PacketId::FIRST.next());
        let mut waiting = WaitingAcks::default();
        waiting.push(CONTROL, Waiting::Unanswered(first));
        waiting.push_without_effect(CONTROL, puback(first));
        let last = waiting.push(CONTROL, puback(second));
        waiting.set_durable(last);
        assert!(waiting.pop_durable().is_none());
        assert_eq!(waiting.answer(CONTROL, second, puback(second)), None);
        assert!(waiting.answer(CONTROL, first, puback(first)).is_some());
        assert_eq!(std::iter::from_fn(|| waiting.pop_durable()).count(), 3);
    }

    #[test]
    fn requests_may_be_answered_in_any_order() {
        let ids: Vec<_> = (1..=6).filter_map(PacketId::new).collect();
        let mut waiting = WaitingAcks::default();
        let tokens: Vec<_> = ids.iter().map(|id| waiting.push(CONTROL, Waiting::Unanswered(*id))).collect();
        for index in [2, 0, 1, 5, 3, 4] {
            assert_eq!(waiting.answer(CONTROL, ids[index], puback(ids[index])), Some(tokens[index]));
            assert_eq!(waiting.answer(CONTROL, ids[index], puback(ids[index])), None);
        }
        waiting.set_durable(tokens[5]);
        assert_eq!(std::iter::from_fn(|| waiting.pop_durable()).count(), 6);
    }

    /// [BQ-14], [BQ-20]
    #[test]
    fn the_same_identifier_on_two_streams_is_two_requests() {
        let mut waiting = WaitingAcks::default();
        let id = PacketId::FIRST;
        let streams = [StreamKey::bidi(1), StreamKey::bidi(2)];
        let tokens = streams.map(|stream| waiting.push(stream, Waiting::Unanswered(id)));
        assert_eq!(waiting.answer(streams[1], id, puback(id)), Some(tokens[1]));
        assert_eq!(waiting.answer(streams[1], id, puback(id)), None);
        assert_eq!(waiting.answer(streams[0], id, puback(id)), Some(tokens[0]));
        waiting.set_durable(tokens[1]);
        let popped: Vec<_> = std::iter::from_fn(|| waiting.pop_durable()).map(|(stream, _)| stream).collect();
        assert_eq!(popped, streams);
    }

    #[test]
    fn tokens_go_on_where_the_last_burst_ended() {
        let mut waiting = WaitingAcks::default();
        for burst in 0..3 {
            let tokens: Vec<_> = (0..100).map(|_| waiting.push(CONTROL, puback(PacketId::FIRST))).collect();
            assert_eq!(tokens[0].place, burst * 100);
            waiting.set_durable(tokens[49]);
            assert_eq!(std::iter::from_fn(|| waiting.pop_durable()).count(), 50);
            assert!(waiting.get_mut(tokens[49]).is_none() && waiting.get_mut(tokens[50]).is_some());
            waiting.set_durable(tokens[99]);
            assert_eq!(std::iter::from_fn(|| waiting.pop_durable()).count(), 50);
        }
        assert_eq!(waiting.entries.capacity(), 0, "an idle connection keeps the memory of a burst");
    }
}
