//! `braidmq cluster import`.

use std::io::{self, Read};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use braid_broker::PriorityRule;
use braid_cluster::ClusterOptions;
use braid_cluster::hash::{BASIS, fnv_1a};
use braid_cluster::import::{ImportError, ImportOptions, Imported, IsUrgent, import};
use braid_proto::stream::Priority;
use braid_proto::topic::TopicName;
use braid_store::{EmbeddedStore, Existing, OfflineStore, OpenError};

use super::Location;
use super::progress::{Step, with_progress};
use crate::output;
use crate::printable::printable;
use crate::progress::ProgressLine;
use crate::store::failure::Failure;
use crate::store::import::open;
use crate::store::progress::options_with;
use crate::store::thousands;

/// Import the export of a single broker's store: its sessions with their queues, and its retained messages
///
/// Reads what `braidmq store export` has written. All of it is checked before anything is written. Stop all brokers of
/// the cluster first; clients go on at any of them afterwards. An import that broke off is run again, and goes on.
///
/// The export is unpacked in the folder for temporary files, TMPDIR, which needs as much room.
#[derive(clap::Args, Debug)]
#[command(after_help = HELP)]
pub(super) struct Args {
    #[command(flatten)]
    location: Location,
    /// Leave out sessions of clients that have one in the cluster already, instead of importing nothing
    #[arg(long)]
    skip_existing: bool,
    /// Read from this file [default: standard input]
    file: Option<PathBuf>,
}

const HELP: &str = "\
Examples:
  braidmq store export --data-dir old | braidmq cluster import --config /etc/braidmq/braidmq.toml
  braidmq cluster import --nats nats://127.0.0.1:4222 --set cluster.monitor='[\"http://127.0.0.1:8222\"]' backup.jsonl

Exit codes:
  0  done
  1  damage of the records, or a failure; NATS may have a part, and the same import goes on with the rest
  2  nothing was done: the line on standard error names the remedy";

pub(super) fn run(args: &Args) -> ExitCode {
    let done = try_run(args).and_then(|imported| {
        output::print(&summary(&imported))
            .map_err(|error| Failure::damaged(format!("cannot write standard output: {error}")))
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("braidmq: {}", printable(&failure.message));
            ExitCode::from(failure.code)
        }
    }
}

fn try_run(args: &Args) -> Result<Imported, Failure> {
    let config = args.location.configure().map_err(Failure::refused)?;
    let cluster = config.cluster_watch_options().map_err(|error| Failure::refused(error.to_string()))?;
    let (store, mark, _folder) = unpack(args)?;
    let is_urgent = is_urgent(config.priority);
    let options = ImportOptions { mark, skip_existing: args.skip_existing, is_urgent };
    run_import(&cluster, store, &options)
}

/// Store with the content of the export in a folder for temporary files, and the mark of the content.
fn unpack(args: &Args) -> Result<(EmbeddedStore, String, tempfile::TempDir), Failure> {
    let file = args.file.as_deref().filter(|file| file.as_os_str() != "-");
    let (name, from) = open(file)?;
    let mut from = Marked { from, mark: BASIS };
    let temporary = |error: io::Error| {
        Failure::refused(format!(
            "no folder for temporary files can be made: {error}; name another by TMPDIR"
        ))
    };
    let folder = tempfile::tempdir().map_err(temporary)?;
    let progress = Arc::new(ProgressLine::new(false));
    let unpacked = OfflineStore::restore(folder.path(), Existing::Keep, &mut from, options_with(&progress));
    let opened = match unpacked {
        Ok(_) => EmbeddedStore::open(folder.path(), options_with(&progress)).map_err(Failure::from_unpacked),
        Err(braid_store::TransferError::Store(error)) => Err(Failure::from_unpacked(error)),
        Err(error) => Err(Failure::of_import(error, &name)),
    };
    progress.finish();
    Ok((opened?, format!("{:016x}", from.mark), folder))
}

impl Failure {
    /// Failure of the folder for temporary files.
    fn from_unpacked(error: OpenError) -> Self {
        let Self { code, message } = error.into();
        Self { code, message: format!("the export cannot be unpacked in the folder of TMPDIR: {message}") }
    }
}

fn run_import(
    cluster: &ClusterOptions,
    store: EmbeddedStore,
    options: &ImportOptions,
) -> Result<Imported, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error| Failure::refused(format!("the system refuses an event queue: {error}")))?;
    let work = with_progress(|report| async move {
        import(cluster, Arc::new(store), options, &|stage| report(Step::Import(stage))).await
    });
    runtime.block_on(work).map_err(|error| match error {
        error if error.is_partial() => Failure::damaged(error.to_string()),
        error @ ImportError::Store(_) => Failure::damaged(error.to_string()),
        error => Failure::refused(error.to_string()),
    })
}

fn summary(imported: &Imported) -> String {
    let Imported { sessions, present, skipped, messages, retained, kept, expired } = *imported;
    let mut text = format!(
        "{} sessions, {} messages of their queues and {} retained messages are in the cluster\n",
        thousands(sessions),
        thousands(messages),
        thousands(retained)
    );
    for (count, what) in [
        (present, "sessions were there from an earlier run of this import"),
        (skipped, "sessions were left out: their clients have others in the cluster"),
        (kept, "topics have a retained message in the cluster, which was kept"),
        (expired, "messages were left out: they have expired"),
    ] {
        if count > 0 {
            text.push_str(&format!("{} {what}\n", thousands(count)));
        }
    }
    text
}

/// Test for topics that the rules give a priority above the default.
fn is_urgent(rules: Vec<PriorityRule>) -> IsUrgent {
    Arc::new(move |topic: &TopicName| {
        let rule = rules.iter().find(|rule| rule.filter.matches(topic));
        rule.is_some_and(|rule| rule.priority > Priority::DEFAULT)
    })
}

/// Input with an FNV-1a hash of all that was read.
struct Marked<R> {
    from: R,
    mark: u64,
}

impl<R: Read> Read for Marked<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(into)?;
        self.mark = fnv_1a(self.mark, into[..count].iter().copied());
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_names_what_was_left_out() {
        let whole = Imported { sessions: 1200, messages: 3, retained: 1, ..Imported::default() };
        let text = "1,200 sessions, 3 messages of their queues and 1 retained messages are in the cluster\n";
        assert_eq!(summary(&whole), text);
        let part = Imported { present: 1, skipped: 2, kept: 3, expired: 4, ..whole };
        let lines: Vec<_> = summary(&part).lines().skip(1).map(|line| line.as_bytes()[0] as char).collect();
        assert_eq!(lines, ['1', '2', '3', '4']);
    }

    #[test]
    fn the_first_rule_that_matches_says_whether_a_topic_is_urgent() {
        let rule = |filter: &str, priority| PriorityRule {
            filter: braid_proto::topic::TopicFilter::parse(filter).unwrap(),
            priority: Priority::new(priority),
        };
        let default = Priority::DEFAULT.value();
        let is_urgent = is_urgent(vec![rule("a/b", default), rule("a/#", default + 1)]);
        let cases = [("a/b", false), ("a", true), ("a/c", true), ("b", false), ("$a", false)];
        for (topic, expected) in cases {
            assert_eq!(is_urgent(&TopicName::parse(topic).unwrap()), expected, "{topic}");
        }
    }

    #[test]
    fn the_mark_is_that_of_the_content() {
        let mark = |parts: &[&'static [u8]]| {
            let (first, second) = (parts[0], parts.get(1).copied().unwrap_or_default());
            let mut from = Marked { from: first.chain(second), mark: BASIS };
            io::copy(&mut from, &mut io::sink()).unwrap();
            from.mark
        };
        assert_eq!(mark(&[b"foobar"]), 0x8594_4171_f739_67e8, "FNV-1a");
        assert_eq!(mark(&[b"foo", b"bar"]), mark(&[b"foobar"]));
        assert_ne!(mark(&[b"foobaz"]), mark(&[b"foobar"]));
    }
}
