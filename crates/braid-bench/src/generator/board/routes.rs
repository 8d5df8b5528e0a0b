use std::collections::HashMap;

/// Topics with counters of their own; a subscriber of everything counts the others together.
const MOST: usize = 256;

/// Name of the topics beyond [`MOST`].
const OTHERS: &str = "(other topics)";

/// Topic and stream with counters of their own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::generator) struct RouteKey {
    pub(in crate::generator) topic: String,
    /// Number that the user gave the stream.
    pub(in crate::generator) stream: u64,
    pub(in crate::generator) priority: Option<u16>,
}

/// Index of a [`RouteKey`] in every tally.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::generator) struct RouteId(pub(super) usize);

/// Routes in the order of their first use.
#[derive(Debug, Default)]
pub(super) struct Routes {
    ids: HashMap<RouteKey, RouteId>,
    keys: Vec<RouteKey>,
}

impl Routes {
    pub(super) fn id(&mut self, mut key: RouteKey) -> RouteId {
        if let Some(&id) = self.ids.get(&key) {
            return id;
        }
        if self.keys.len() >= MOST {
            OTHERS.clone_into(&mut key.topic);
            if let Some(&id) = self.ids.get(&key) {
                return id;
            }
        }
        let id = RouteId(self.keys.len());
        self.keys.push(key.clone());
        self.ids.insert(key, id);
        id
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (RouteId, &RouteKey)> {
        self.keys.iter().enumerate().map(|(at, key)| (RouteId(at), key))
    }
}
