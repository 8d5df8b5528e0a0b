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
    /// Number of looks by the index of their shard and their name.
    unused: HashMap<(usize, String), u32>,
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
            if is_used {
                self.unused.remove(&group);
            } else {
                let looks = self.unused.entry(group.clone()).or_default();
                *looks += 1;
                let limit = if info.num_ack_pending == 0 { UNUSED } else { ABANDONED };
                if *looks >= limit {
                    tracing::debug!(group = group.1, "the consumer of a shared group is removed");
                    stream.delete_consumer(&group.1).await?;
                    self.unused.remove(&group);
                    continue;
                }
            }
            let completed = completed(&info, settled);
            floor = Some(floor.map_or(completed, |floor| floor.min(completed)));
        }
        Ok(floor)
    }
}

/// Position up to which a group has completed all. Where nothing waits, that is `settled`: what came since may not be
/// known to the server that answered.
fn completed(info: &Info, settled: u64) -> u64 {
    let acknowledged = info.ack_floor.stream_sequence;
    if info.num_pending == 0 && info.num_ack_pending == 0 { acknowledged.max(settled) } else { acknowledged }
}
