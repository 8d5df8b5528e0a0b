use std::collections::VecDeque;

use crate::packet::{Ack, Suback, Unsuback};

/// Names a request whose acknowledgement waits until its effect is durable. Tokens of a connection ascend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub(crate) u64);

/// An acknowledgement that waits.
#[derive(Debug)]
pub(crate) enum Waiting {
    Ack(Ack),
    Suback(Box<Suback>),
    Unsuback(Box<Unsuback>),
}

/// Durable before visible: an acknowledgement enters here, and it leaves only after its token came back.
///
/// That is this type's whole purpose: no order of await points in a shell can send an acknowledgement early.
/// They leave in the order of the requests. [MQTT-4.6.0-2], [MQTT-4.6.0-3], [MQTT-4.6.0-4]
#[derive(Debug, Default)]
pub(crate) struct WaitingAcks {
    /// The token of the front entry.
    front: u64,
    /// Each with whether it has an effect which must be durable first.
    entries: VecDeque<(bool, Waiting)>,
    /// Tokens below this are durable.
    durable: u64,
}

impl WaitingAcks {
    /// Adds the acknowledgement of a request which has an effect.
    pub(crate) fn push(&mut self, waiting: Waiting) -> Token {
        self.entries.push_back((true, waiting));
        Token(self.front + self.entries.len() as u64 - 1)
    }

    /// Adds an acknowledgement which only waits for its turn, such as that of a duplicate.
    pub(crate) fn push_without_effect(&mut self, waiting: Waiting) {
        self.entries.push_back((false, waiting));
    }

    /// The entry of a token, as long as it waits.
    pub(crate) fn get_mut(&mut self, token: Token) -> Option<&mut Waiting> {
        let index = token.0.checked_sub(self.front)?;
        self.entries.get_mut(usize::try_from(index).ok()?).map(|(_, waiting)| waiting)
    }

    /// The effect under `token` need not become durable: its acknowledgement only waits for its turn.
    pub(crate) fn waive(&mut self, token: Token) {
        let index = token.0.checked_sub(self.front).and_then(|index| usize::try_from(index).ok());
        if let Some((has_effect, _)) = index.and_then(|index| self.entries.get_mut(index)) {
            *has_effect = false;
        }
    }

    /// Everything up to and including `token` is durable.
    pub(crate) fn set_durable(&mut self, token: Token) {
        debug_assert!(token.0 < self.front + self.entries.len() as u64, "a token that was never given");
        self.durable = self.durable.max(token.0 + 1);
    }

    /// The next acknowledgement that may be sent.
    pub(crate) fn pop_durable(&mut self) -> Option<Waiting> {
        let (has_effect, _) = self.entries.front()?;
        if *has_effect && self.front >= self.durable {
            return None;
        }
        let (_, waiting) = self.entries.pop_front()?;
        self.front += 1;
        if self.entries.is_empty() && self.entries.capacity() > 64 {
            self.entries = VecDeque::new(); // Ten thousand idle connections must not keep a burst's memory.
        }
        Some(waiting)
    }

    /// Acknowledgements that wait.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}
