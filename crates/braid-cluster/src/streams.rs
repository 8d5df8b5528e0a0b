//! Streams of a cluster: made by the first node, and checked by each.

use std::time::Duration;

use async_nats::jetstream::context::{CreateStreamErrorKind, GetStreamErrorKind};
use async_nats::jetstream::stream::Config;
use async_nats::jetstream::{self, Context};
use tokio::time::{Instant, sleep};

use crate::error::ClusterError;
use crate::layout::{FORMAT, FORMAT_KEY, Layout, SHARDS_KEY};

/// Time for the servers to choose leaders.
const PATIENCE: Duration = Duration::from_secs(20);

/// Time between two tries.
const AGAIN: Duration = Duration::from_millis(200);

/// Makes the streams that are missing, and checks the others.
///
/// # Errors
/// JetStream does not answer, a stream is not ours or has other settings, or one cannot be made.
pub async fn ensure(jetstream: &Context, layout: &Layout) -> Result<(), ClusterError> {
    let give_up = Instant::now() + PATIENCE;
    for wanted in layout.streams() {
        let found = patiently(give_up, || create(jetstream, &wanted)).await?;
        check(&found, &wanted)?;
    }
    Ok(())
}

/// Result of one try.
pub(crate) enum Tried<T> {
    Done(Result<T, ClusterError>),
    /// No leader has answered yet, or servers do not know each other yet.
    Again(ClusterError),
}

/// Tries a call until it is done, or until `give_up`.
pub(crate) async fn patiently<T, F: Future<Output = Tried<T>>>(
    give_up: Instant,
    mut call: impl FnMut() -> F,
) -> Result<T, ClusterError> {
    loop {
        match call().await {
            Tried::Done(result) => return result,
            Tried::Again(error) if Instant::now() >= give_up => return Err(error),
            Tried::Again(_) => sleep(AGAIN).await,
        }
    }
}

/// The settings of the stream, which is made if there is none.
async fn create(jetstream: &Context, wanted: &Config) -> Tried<Config> {
    match jetstream.get_stream(&wanted.name).await {
        Ok(stream) => return Tried::Done(Ok(stream.cached_info().config.clone())),
        Err(error) => match error.kind() {
            GetStreamErrorKind::JetStream(ref problem) if problem.error_code().0 == NOT_FOUND => {}
            GetStreamErrorKind::JetStream(problem) if !is_temporary(problem.code()) => {
                return Tried::Done(Err(refused(wanted, problem.to_string())));
            }
            kind => return Tried::Again(no_answer(&kind)),
        },
    }
    match jetstream.create_stream(wanted).await {
        Ok(stream) => Tried::Done(Ok(stream.cached_info().config.clone())),
        Err(error) => match error.kind() {
            CreateStreamErrorKind::JetStream(problem) if is_of_start(&problem) => {
                Tried::Again(refused(wanted, problem.to_string()))
            }
            CreateStreamErrorKind::JetStream(problem) if !is_temporary(problem.code()) => {
                Tried::Done(Err(refused(wanted, problem.to_string())))
            }
            // Another node may have made it.
            kind => Tried::Again(no_answer(&kind)),
        },
    }
}

/// Code of JetStream for a stream that does not exist.
pub(crate) const NOT_FOUND: u64 = 10059;

/// Code of JetStream for a stream without servers that take it.
const NO_PEERS: u64 = 10005;

/// Tests for a state of the servers that passes: no leader, or too few peers yet.
fn is_temporary(status: usize) -> bool {
    status == 503
}

/// Tests for servers that have just started and count each other as offline.
fn is_of_start(problem: &jetstream::Error) -> bool {
    problem.error_code().0 == NO_PEERS && problem.to_string().contains("peer offline")
}

fn no_answer(kind: &dyn std::fmt::Display) -> ClusterError {
    ClusterError::NoJetStream { within: PATIENCE, reason: kind.to_string() }
}

fn refused(wanted: &Config, reason: String) -> ClusterError {
    ClusterError::Stream { stream: wanted.name.clone(), reason }
}

/// Compares the settings of a stream with those of this node.
fn check(found: &Config, wanted: &Config) -> Result<(), ClusterError> {
    let stream = || found.name.clone();
    match found.metadata.get(FORMAT_KEY) {
        None => return Err(ClusterError::ForeignStream { stream: stream() }),
        Some(format) if *format != FORMAT.to_string() => {
            return Err(ClusterError::Format { stream: stream(), format: format.clone(), own: FORMAT });
        }
        Some(_) => {}
    }
    let differs = |what: &str, found: String, wanted: String, remedy| {
        let (found, wanted) = (format!("{what} {found}"), wanted);
        Err(ClusterError::Settings { stream: stream(), found, wanted, remedy })
    };
    let shards = |config: &Config| config.metadata.get(SHARDS_KEY).cloned().unwrap_or_default();
    if shards(found) != shards(wanted) {
        let remedy = "set cluster.shards to that number; it is fixed once the streams are made";
        return differs("cluster.shards", shards(found), shards(wanted), remedy);
    }
    if found.num_replicas != wanted.num_replicas {
        let remedy =
            "set cluster.replicas to that number, or change the stream with `nats stream edit --replicas`";
        return differs("replicas", found.num_replicas.to_string(), wanted.num_replicas.to_string(), remedy);
    }
    if found.max_bytes != wanted.max_bytes {
        let remedy =
            "set cluster.log_bytes to that number, or change the stream with `nats stream edit --max-bytes`";
        return differs("max_bytes", found.max_bytes.to_string(), wanted.max_bytes.to_string(), remedy);
    }
    // Settings that the cluster relies on, and no key sets.
    let fixed = |config: &Config| {
        let Config {
            retention,
            storage,
            discard,
            max_messages,
            max_messages_per_subject,
            max_age,
            no_ack,
            deny_delete,
            deny_purge,
            sealed,
            allow_direct,
            allow_message_ttl,
            allow_atomic_publish,
            subjects,
            ..
        } = config;
        format!(
            "retention {retention:?}, storage {storage:?}, discard {discard:?}, max_msgs {max_messages}, \
             max_msgs_per_subject {max_messages_per_subject}, max_age {max_age:?}, no_ack {no_ack}, deny_delete {deny_delete}, \
             deny_purge {deny_purge}, sealed {sealed}, allow_direct {allow_direct}, allow_msg_ttl {allow_message_ttl}, \
             allow_atomic {allow_atomic_publish}, subjects {subjects:?}"
        )
    };
    let (has, wants) = (fixed(found), fixed(wanted));
    if has != wants {
        let pairs = has.split(", ").zip(wants.split(", "));
        let (has, wants) = pairs.into_iter().find(|(has, wants)| has != wants).unwrap_or((&has, &wants));
        let remedy = "change the stream back with `nats stream edit`";
        return differs("", has.to_owned(), wants.to_owned(), remedy);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Dimensions;

    fn layout() -> Layout {
        Layout::new("test".parse().unwrap(), Dimensions { shards: 2, replicas: 3, log_bytes: 1 << 30 })
    }

    #[test]
    fn streams_with_other_settings_are_refused() {
        let wanted = layout().streams().remove(0);
        assert!(check(&wanted, &wanted).is_ok());
        type Change = fn(&mut Config);
        let cases: [(Change, &str); 7] = [
            (|stream| stream.metadata.clear(), "is not of BraidMQ: choose another cluster.name"),
            (
                |stream| drop(stream.metadata.insert(FORMAT_KEY.into(), "2".into())),
                "has format 2, and this version reads 1",
            ),
            (
                |stream| drop(stream.metadata.insert(SHARDS_KEY.into(), "8".into())),
                "has cluster.shards 8, and this node wants 2",
            ),
            (|stream| stream.num_replicas = 1, "has replicas 1, and this node wants 3"),
            (|stream| stream.max_bytes = 5, "has max_bytes 5, and this node wants 1073741824"),
            (|stream| stream.max_age = Duration::from_secs(1), "max_age 1s, and this node wants max_age 0ns"),
            (|stream| stream.deny_purge = true, "deny_purge true, and this node wants deny_purge false"),
        ];
        for (change, expected) in cases {
            let mut found = wanted.clone();
            change(&mut found);
            let error = check(&found, &wanted).unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains("test-m-0"), "{error}");
        }
    }
}
