use hashbrown::HashMap;

use crate::error::Violation;
use crate::topic::TopicName;

/// The bytes that the property Topic Alias takes.
const ALIAS_LEN: usize = 3;

/// The Topic Aliases that the peer defines (MQTT 5, 3.3.2.3.4).
#[derive(Debug, Default)]
pub(crate) struct InboundAliases {
    /// What we announced as Topic Alias Maximum.
    maximum: u16,
    /// The name of alias `n` at `n - 1`.
    names: Vec<Option<TopicName>>,
}

impl InboundAliases {
    pub(crate) fn new(maximum: u16) -> Self {
        Self { maximum, names: Vec::new() }
    }

    /// The topic that an alias stands for.
    pub(crate) fn find(&self, alias: u16) -> Option<&TopicName> {
        self.names.get(usize::from(alias.checked_sub(1)?))?.as_ref()
    }

    /// The topic of a PUBLISH, which defines or uses an alias or has none.
    pub(crate) fn resolve(
        &mut self,
        topic: Option<TopicName>,
        alias: Option<u16>,
    ) -> Result<TopicName, Violation> {
        let Some(alias) = alias else { return topic.ok_or(Violation::NoTopic) };
        if alias == 0 || alias > self.maximum {
            return Err(Violation::TopicAlias(alias)); // [MQTT-3.3.2-8], [MQTT-3.3.2-9]
        }
        let slot = usize::from(alias) - 1;
        match topic {
            Some(name) => {
                if self.names.len() <= slot {
                    self.names.resize(slot + 1, None);
                }
                self.names[slot] = Some(name.clone());
                Ok(name) // [MQTT-3.3.2-10], [MQTT-3.3.2-12]
            }
            None => self.names.get(slot).cloned().flatten().ok_or(Violation::NoTopic),
        }
    }
}

/// The Topic Aliases that we define for the peer, on this connection. [MQTT-3.3.2-7]
///
/// Names get an alias in the order of their first use until all are given away; one that is given stays.
#[derive(Debug, Default)]
pub(crate) struct OutboundAliases {
    /// The lesser of what the peer accepts and what we spend memory on. [MQTT-3.1.2-26], [MQTT-3.2.2-17]
    maximum: u16,
    aliases: HashMap<TopicName, u16>,
}

impl OutboundAliases {
    pub(crate) fn new(maximum: u16) -> Self {
        Self { maximum, aliases: HashMap::new() }
    }

    /// The alias for a PUBLISH with this topic and whether the name must go with it.
    pub(crate) fn assign(&mut self, topic: &TopicName) -> Option<(u16, bool)> {
        // A shorter name is no longer than its alias. [MQTT-3.1.2-27], [MQTT-3.2.2-18]
        if self.maximum == 0 || topic.as_str().len() <= ALIAS_LEN {
            return None;
        }
        if let Some(alias) = self.aliases.get(topic) {
            return Some((*alias, false));
        }
        let next = u16::try_from(self.aliases.len()).unwrap_or(u16::MAX);
        if next >= self.maximum {
            return None; // [MQTT-3.3.2-9], [MQTT-3.3.2-11]
        }
        self.aliases.insert(topic.clone(), next + 1);
        Some((next + 1, true))
    }

    /// Takes back an alias whose defining PUBLISH was not sent.
    pub(crate) fn revoke(&mut self, topic: &TopicName) {
        self.aliases.remove(topic); // Numbers stay dense: what was not sent was the last one given.
    }
}
