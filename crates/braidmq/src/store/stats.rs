//! `braidmq store stats`.

use std::fmt::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::SystemTime;

use braid_store::{OfflineStore, QueueStats, Stats};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::progress::options_with;
use super::{Failure, Location, print, thousands};
use crate::printable::printable;
use crate::progress::ProgressLine;

/// Count sessions, queues, retained messages and bytes, and list the longest queues
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    location: Location,
    /// Print the numbers as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let progress = Arc::new(ProgressLine::new(false));
    let directory = &args.location.data_dir;
    let counted = OfflineStore::open(directory, options_with(&progress)).and_then(|store| store.stats());
    progress.finish();
    let stats = counted?;
    print(&if args.json { format!("{:#}\n", json(&stats)) } else { text(&stats, directory) })?;
    Ok(ExitCode::SUCCESS)
}

fn time(at: Option<SystemTime>) -> Option<String> {
    at.and_then(|at| Timestamp::try_from(at).ok()).map(|at| format!("{at:.0}"))
}

fn json(stats: &Stats) -> Value {
    let oldest = stats.oldest.as_ref().map(|oldest| {
        json!({
            "number": oldest.message.value(),
            "topic": oldest.topic.as_str(),
            "payload_bytes": oldest.payload,
            "client_id": oldest.client_id.as_str(),
            "away_since": time(oldest.parked_at),
        })
    });
    let queue = |queue: &QueueStats| {
        json!({
            "client_id": queue.client_id.as_str(),
            "messages": queue.entries,
            "bytes": queue.bytes,
            "away_since": time(queue.parked_at),
        })
    };
    json!({
        "format": stats.format,
        "opened": stats.opens,
        "sessions": stats.sessions,
        "subscriptions": stats.subscriptions,
        "wills": stats.wills,
        "received": stats.received,
        "queued": stats.queued,
        "inflight": stats.inflight,
        "retained": stats.retained,
        "messages": stats.messages,
        "message_bytes": stats.bytes,
        "file_bytes": stats.length,
        "used_bytes": stats.used,
        "oldest": oldest,
        "largest_queues": stats.queues.iter().map(queue).collect::<Vec<_>>(),
    })
}

fn text(stats: &Stats, directory: &Path) -> String {
    let mut out = String::new();
    // Writing into a string cannot fail.
    let _ = heading(&mut out, stats, directory)
        .and_then(|()| table(&mut out, stats))
        .and_then(|()| queues(&mut out, stats));
    out
}

fn heading(out: &mut String, stats: &Stats, directory: &Path) -> fmt::Result {
    writeln!(out, "{}/store.redb, format {}\n", directory.display(), stats.format)
}

fn table(out: &mut String, stats: &Stats) -> fmt::Result {
    for (name, number, meaning) in [
        ("sessions", stats.sessions, "of clients that may return"),
        ("subscriptions", stats.subscriptions, "of these sessions"),
        ("queued", stats.queued, "messages that are not acknowledged by their receivers"),
        ("in flight", stats.inflight, "sent, and not completed by the client"),
        ("received", stats.received, "QoS 2 messages whose sender has not released them"),
        ("retained", stats.retained, "topics with a retained message"),
        ("wills", stats.wills, "that are not published yet"),
        ("messages", stats.messages, "each once, even with several receivers"),
        ("message bytes", stats.bytes, "of these messages"),
        ("openings", stats.opens, "by a broker or an import"),
        ("file bytes", stats.length, "of store.redb"),
        ("used bytes", stats.used, "of these; the others are used again before the file grows"),
    ] {
        writeln!(out, "{name:<14}{:>15}  {meaning}", thousands(number))?;
    }
    Ok(())
}

fn queues(out: &mut String, stats: &Stats) -> fmt::Result {
    if let Some(oldest) = &stats.oldest {
        let (topic, client) = (printable(oldest.topic.as_str()), printable(oldest.client_id.as_str()));
        let (bytes, away) = (thousands(oldest.payload), away(oldest.parked_at));
        writeln!(out, "\noldest queued message: {topic}, {bytes} bytes, for {client} ({away})")?;
    }
    if stats.queues.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nlargest queues\n{:>12}  {:>15}  client", "messages", "bytes")?;
    for queue in &stats.queues {
        let [entries, bytes] = [queue.entries, queue.bytes].map(thousands);
        let client = printable(queue.client_id.as_str());
        writeln!(out, "{entries:>12}  {bytes:>15}  {client} ({})", away(queue.parked_at))?;
    }
    Ok(())
}

fn away(parked_at: Option<SystemTime>) -> String {
    time(parked_at).map_or_else(|| "connected to the last".into(), |at| format!("away since {at}"))
}
