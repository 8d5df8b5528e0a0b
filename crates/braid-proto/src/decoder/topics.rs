use crate::error::Violation;
use crate::topic::{TopicError, TopicName};

/// How many Topic Names a connection remembers.
const SLOTS: usize = 8;

/// Longer names are not remembered: a stranger's names must not cost half a megabyte per connection.
const NAME_MAX: usize = 256;

/// The Topic Names seen last on a connection.
///
/// Publishers repeat themselves. A name found here costs a comparison instead of a check of every rule and an
/// allocation, and its shared allocation lets the dispatcher recognise it at a glance.
#[derive(Clone, Debug, Default)]
pub(crate) struct TopicCache {
    /// Empty until the first PUBLISH: an idle connection pays nothing.
    names: Vec<TopicName>,
}

impl TopicCache {
    /// The Topic Name that these bytes of a packet are.
    pub(crate) fn parse(&mut self, bytes: &[u8]) -> Result<TopicName, Violation> {
        let slot = bytes.len().wrapping_add(usize::from(*bytes.last().unwrap_or(&0))) % SLOTS;
        if let Some(name) = self.names.get(slot)
            && name.as_str().as_bytes() == bytes
        {
            return Ok(name.clone());
        }
        let text = std::str::from_utf8(bytes).map_err(|_| Violation::Utf8)?; // [MQTT-3.3.2-1]
        let name = TopicName::parse(text).map_err(|error| match error {
            TopicError::Null => Violation::Utf8Null, // [MQTT-1.5.4-2]
            other => Violation::TopicName(other),
        })?;
        if bytes.len() > NAME_MAX {
            return Ok(name);
        }
        // The slots before the first that is used share its name: they cost no allocation.
        if slot < self.names.len() {
            self.names[slot] = name.clone();
        } else if self.names.len() < SLOTS {
            self.names.resize(slot + 1, name.clone());
        }
        Ok(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_seen_before_is_shared_and_a_long_one_is_not_kept() {
        let mut topics = TopicCache::default();
        let first = topics.parse(b"a/b").unwrap();
        assert!(topics.parse(b"a/b").unwrap().same_allocation(&first));
        let long = vec![b'x'; NAME_MAX + 1];
        let name = topics.parse(&long).unwrap();
        assert!(!topics.parse(&long).unwrap().same_allocation(&name));
        assert_eq!(topics.parse(&[0xFF]), Err(Violation::Utf8));
    }
}
