//! Topics of a connection with a mountpoint, on their way in.

use crate::packet::{BorrowedPublish, Subscribe, Unsubscribe, Will};
use crate::types::{Mountpoint, TopicError, TopicName, Violation};

/// Maximum number of Topic Names in the cache.
const CACHE_SIZE: usize = 8;

/// Maximum bytes of a Topic Name in the cache.
const NAME_MAX: usize = 256;

/// Mountpoint of a client, and a direct-mapped cache of its last Topic Names.
///
/// As in the decoder, a hit saves an allocation, and the dispatcher recognises the shared allocation by its address.
#[derive(Debug)]
pub(crate) struct Mounting {
    mountpoint: Mountpoint,
    /// Names of the client and of the server. Empty until the first PUBLISH.
    names: Vec<(TopicName, TopicName)>,
}

impl Mounting {
    pub(crate) fn new(mountpoint: Mountpoint) -> Self {
        Self { mountpoint, names: Vec::new() }
    }

    pub(crate) fn mountpoint(&self) -> &Mountpoint {
        &self.mountpoint
    }

    /// Topic of the server for the topic of a PUBLISH. Its Response Topic is replaced.
    pub(crate) fn mount_publish(
        &mut self,
        topic: &TopicName,
        publish: &mut BorrowedPublish<'_>,
    ) -> Result<TopicName, Violation> {
        if let Some(properties) = &mut publish.properties {
            let response = &mut properties.response_topic;
            mount_response(&self.mountpoint, response).map_err(Violation::TopicName)?;
        }
        self.name(topic).map_err(Violation::TopicName)
    }

    fn name(&mut self, own: &TopicName) -> Result<TopicName, TopicError> {
        let bytes = own.as_str().as_bytes();
        let index = bytes.len().wrapping_add(usize::from(*bytes.last().unwrap_or(&0))) % CACHE_SIZE;
        if let Some((cached, name)) = self.names.get(index)
            && (cached.same_allocation(own) || cached == own)
        {
            return Ok(name.clone());
        }
        let name = self.mountpoint.mount_name(own)?;
        if bytes.len() <= NAME_MAX {
            let entry = (own.clone(), name.clone());
            if index < self.names.len() {
                self.names[index] = entry;
            } else {
                self.names.resize(index + 1, entry);
            }
        }
        Ok(name)
    }

    /// Replaces the filters by those of the server; each that is too long or too deep becomes its error.
    pub(crate) fn mount_subscribe(&self, subscribe: &mut Subscribe) {
        for entry in &mut subscribe.entries {
            entry.filter = entry
                .filter
                .as_ref()
                .map_err(|error| *error)
                .and_then(|own| self.mountpoint.mount_filter(own));
        }
    }

    /// As [`Mounting::mount_subscribe`].
    pub(crate) fn mount_unsubscribe(&self, unsubscribe: &mut Unsubscribe) {
        for filter in &mut unsubscribe.filters {
            *filter =
                filter.as_ref().map_err(|error| *error).and_then(|own| self.mountpoint.mount_filter(own));
        }
    }
}

/// Replaces the topics of a Will by those of the server.
pub(crate) fn mount_will(mountpoint: &Mountpoint, will: &mut Will) -> Result<(), TopicError> {
    will.topic = mountpoint.mount_name(&will.topic)?;
    let properties = will.properties.as_mut();
    properties.map_or(Ok(()), |properties| mount_response(mountpoint, &mut properties.response_topic))
}

fn mount_response(mountpoint: &Mountpoint, response: &mut Option<TopicName>) -> Result<(), TopicError> {
    if let Some(topic) = response {
        *topic = mountpoint.mount_name(topic)?;
    }
    Ok(())
}
