//! Consumers of shared groups, as maintenance sees them: they hold the log for what their members have not completed,
//! and are removed when no session has their subscription.

use std::collections::HashMap;

use async_nats::jetstream::consumer::Info;
use async_nats::jetstream::stream::Stream;
use futures_util::TryStreamExt;

use crate::shared::GROUP;

/// Looks without a reader after which a group is removed: one without messages in flight, and one with some, which no
/// member acknowledges any more.
const UNUSED: u32 = 2;
const ABANDONED: u32 = 20;

/// Groups without a reader when they were looked at.
#[derive(Default)]
pub(crate) struct Groups {
    /// Looks by the index of their shard and their name.
    unused: HashMap<(usize, String), Unused>,
}

/// Looks at a group without a reader.
struct Unused {
    looks: u32,
    progress: GroupProgress,
}

/// Progress of a group. Members for which many messages wait have each request answered at once, so that none waits
/// when the group is looked at: that they read shows in these numbers alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct GroupProgress {
    /// Number of deliveries, repeated ones included.
    delivered: u64,
    /// Number of the delivery up to which all are acknowledged.
    acknowledged: u64,
    /// Messages that are delivered and not acknowledged.
    in_flight: usize,
}

impl GroupProgress {
    const fn of(info: &Info) -> Self {
        Self {
            delivered: info.delivered.consumer_sequence,
            acknowledged: info.ack_floor.consumer_sequence,
            in_flight: info.num_ack_pending,
        }
    }
}

impl Groups {
    /// Position in a shard up to which its groups have completed all; `None`: there are no groups. Removes those that
    /// are without a reader for some time: `is_wanted` tells whether some session has a subscription with this
    /// name. `settled`: a position up to which each server knows the log.
    pub(crate) async fn look(
        &mut self,
        index: usize,
        stream: &Stream<()>,
        is_wanted: impl Fn(&str) -> bool,
        settled: u64,
    ) -> Result<Option<u64>, async_nats::Error> {
        // Consumers are asked one by one: a list of all leaves out those that do not answer.
        let names: Vec<String> = stream.consumer_names().try_collect().await?;
        let mut floor: Option<u64> = None;
        for name in names.into_iter().filter(|name| name.starts_with(GROUP)) {
            let info = stream.consumer_info(&name).await?;
            let is_used = is_wanted(&name) || info.num_waiting > 0;
            let group = (index, name);
            if self.note(&group, is_used, GroupProgress::of(&info)) {
                tracing::debug!(group = group.1, "the consumer of a shared group is removed");
                stream.delete_consumer(&group.1).await?;
                self.unused.remove(&group);
                continue;
            }
            let completed = completed(&info, settled);
            floor = Some(floor.map_or(completed, |floor| floor.min(completed)));
        }
        Ok(floor)
    }

    /// Notes a look at a group: true if it has been without a reader for so long that it is removed.
    fn note(&mut self, group: &(usize, String), is_used: bool, progress: GroupProgress) -> bool {
        if is_used {
            self.unused.remove(group);
            return false;
        }
        let unused = self.unused.entry(group.clone()).or_insert(Unused { looks: 0, progress });
        if unused.progress != progress {
            *unused = Unused { looks: 0, progress };
        }
        unused.looks += 1;
        unused.looks >= if progress.in_flight == 0 { UNUSED } else { ABANDONED }
    }
}

/// Position up to which a group has completed all. Where nothing waits, that is `settled`: what came since may not be
/// known to the server that answered.
fn completed(info: &Info, settled: u64) -> u64 {
    let acknowledged = info.ack_floor.stream_sequence;
    if info.num_pending == 0 && info.num_ack_pending == 0 { acknowledged.max(settled) } else { acknowledged }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_makes_progress_is_used() {
        let (mut groups, group) = (Groups::default(), (0, "g".to_owned()));
        let at = |delivered, acknowledged| GroupProgress { delivered, acknowledged, in_flight: 64 };
        for look in 0..10 * u64::from(ABANDONED) {
            assert!(!groups.note(&group, false, at(64 + 1000 * look, 1000 * look)), "look {look}");
        }
        for look in 0..10 * u64::from(ABANDONED) {
            assert!(
                !groups.note(&group, false, at(300_000, look)),
                "its member only acknowledges, look {look}"
            );
        }
        // One that stands still is removed, and a reader that waits begins anew.
        let mut looks = |is_used| groups.note(&group, is_used, at(300_000, 1));
        assert!((1..ABANDONED).all(|_| !looks(false)) && !looks(true));
        assert!((1..ABANDONED).all(|_| !looks(false)) && looks(false));
    }

    #[test]
    fn a_group_without_messages_in_flight_is_removed_soon() {
        let (mut groups, group) = (Groups::default(), (0, "g".to_owned()));
        let progress = GroupProgress { delivered: 9, acknowledged: 9, in_flight: 0 };
        assert!(!groups.note(&group, false, progress) && groups.note(&group, false, progress));
    }
}
