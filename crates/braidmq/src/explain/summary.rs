//! Numbers of an explanation: as JSON for `--json`, and as text.

use std::collections::BTreeMap;
use std::path::Path;

use askama::Template;
use serde::Serialize;

use super::Args;
use super::burst::Burst;
use super::qlog::{float, rounded};
use super::repair::Repair;
use super::view::{View, list};

/// Numbers of an explanation. Times are milliseconds of the log, durations milliseconds, sizes bytes, shares of 1.
#[derive(Debug, Serialize, Template)]
#[template(path = "explain.txt", whitespace = "preserve")]
pub(super) struct Summary {
    pub(super) file: String,
    pub(super) picture: String,
    /// Endpoint that wrote the log.
    pub(super) vantage: Option<String>,
    pub(super) side: &'static str,
    pub(super) from_ms: f64,
    pub(super) to_ms: f64,
    pub(super) log_is_cut_off: bool,
    /// Other connections in the file, which are not explained.
    pub(super) other_connections: usize,
    pub(super) urgent: Vec<u64>,
    /// The urgent streams were not named with `--urgent`.
    pub(super) urgent_is_chosen: bool,
    pub(super) streams: Vec<StreamNumbers>,
    pub(super) connection: ConnectionNumbers,
    pub(super) urgent_first: Share,
    pub(super) after_a_loss: Share,
    pub(super) bursts: Vec<BurstNumbers>,
    pub(super) repairs: Vec<RepairNumbers>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct StreamNumbers {
    pub(super) stream: u64,
    /// Kind by RFC 9000, section 2.1.
    pub(super) kind: &'static str,
    pub(super) urgent: bool,
    /// Bytes without retransmissions.
    pub(super) bytes: u64,
    pub(super) bytes_again: u64,
    pub(super) packets: u64,
    pub(super) first_ms: f64,
    pub(super) last_ms: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct ConnectionNumbers {
    pub(super) packets: u64,
    /// `None` if all have the same time.
    pub(super) packets_per_second: Option<f64>,
    /// Bytes of the packets, if logged.
    pub(super) bytes: u64,
    /// `None` on the receiving side, which cannot know it.
    pub(super) lost: Option<u64>,
    /// `None` if not logged.
    pub(super) probe_timeouts: Option<usize>,
}

/// Urgent bytes, and the bulk that left while they waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Share {
    /// `None` without urgent bytes or without bulk.
    pub(super) share: Option<f64>,
    pub(super) urgent_bytes: u64,
    pub(super) bulk_bytes_ahead: u64,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct BurstNumbers {
    pub(super) first_ms: f64,
    pub(super) bytes: u64,
    pub(super) packets: usize,
    /// From its first byte to its last.
    pub(super) left_after_ms: f64,
    pub(super) bulk_bytes_ahead: u64,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct RepairNumbers {
    pub(super) lost_ms: f64,
    pub(super) bytes: u64,
    pub(super) bytes_again: u64,
    /// `None` if not retransmitted.
    pub(super) again_after_ms: Option<f64>,
    pub(super) bulk_bytes_ahead: u64,
}

impl Summary {
    pub(super) fn of(view: &View<'_>, args: &Args, picture: &Path) -> Self {
        let streams = streams(view);
        let (from, to) = view.span();
        let has_bulk = streams.iter().any(|stream| !stream.urgent);
        let bursts = view.bursts.iter().map(|burst| (burst.bytes, burst.ahead.bytes));
        let repairs = view.repairs.iter().map(|repair| (repair.again, repair.ahead.bytes));
        Self {
            file: args.file.display().to_string(),
            picture: picture.display().to_string(),
            vantage: view.trace.vantage.clone(),
            side: args.side.name(),
            from_ms: rounded(from),
            to_ms: rounded(to),
            log_is_cut_off: view.trace.is_cut_off,
            other_connections: view.trace.others,
            urgent: view.urgent.iter().copied().collect(),
            urgent_is_chosen: view.is_chosen,
            connection: ConnectionNumbers::of(view, args),
            urgent_first: Share::of(bursts, has_bulk),
            after_a_loss: Share::of(repairs, has_bulk),
            bursts: view.bursts.iter().map(burst_numbers).collect(),
            repairs: view.repairs.iter().map(repair_numbers).collect(),
            streams,
        }
    }
}

impl Share {
    fn of(waits: impl Iterator<Item = (u64, u64)>, has_bulk: bool) -> Self {
        let (urgent_bytes, bulk_bytes_ahead) = waits.fold((0_u64, 0_u64), |(urgent, bulk), wait| {
            (urgent.saturating_add(wait.0), bulk.saturating_add(wait.1))
        });
        let all = float(urgent_bytes) + float(bulk_bytes_ahead);
        let share = (has_bulk && urgent_bytes > 0).then(|| float(urgent_bytes) / all);
        Self { share, urgent_bytes, bulk_bytes_ahead }
    }
}

impl ConnectionNumbers {
    fn of(view: &View<'_>, args: &Args) -> Self {
        let packets = view.packets();
        let (first, last) = view.span();
        let count = packets.len() as u64;
        let sent = args.side == super::Side::Sent;
        let timeouts = view.trace.probe_timeouts.as_ref().filter(|_| sent);
        Self {
            packets: count,
            packets_per_second: (last > first).then(|| rounded(float(count) * 1000.0 / (last - first))),
            bytes: packets.iter().fold(0, |sum, packet| sum.saturating_add(packet.length())),
            lost: sent.then(|| packets.iter().filter(|packet| packet.lost.is_some()).count() as u64),
            probe_timeouts: timeouts
                .map(|times| times.iter().filter(|time| view.window.contains(**time)).count()),
        }
    }
}

fn burst_numbers(burst: &Burst) -> BurstNumbers {
    BurstNumbers {
        first_ms: rounded(burst.first),
        bytes: burst.bytes,
        packets: burst.packets,
        left_after_ms: rounded(burst.last - burst.first),
        bulk_bytes_ahead: burst.ahead.bytes,
    }
}

fn repair_numbers(repair: &Repair) -> RepairNumbers {
    RepairNumbers {
        lost_ms: rounded(repair.lost),
        bytes: repair.bytes,
        bytes_again: repair.again,
        again_after_ms: repair.last.map(|last| rounded(last - repair.lost)),
        bulk_bytes_ahead: repair.ahead.bytes,
    }
}

fn streams(view: &View<'_>) -> Vec<StreamNumbers> {
    let mut streams: BTreeMap<u64, StreamNumbers> = BTreeMap::new();
    for packet in view.packets() {
        let mut counted = Vec::new();
        for frame in &packet.frames {
            let numbers = streams.entry(frame.stream).or_insert_with(|| StreamNumbers {
                stream: frame.stream,
                kind: kind(frame.stream),
                urgent: view.is_urgent(frame.stream),
                first_ms: rounded(packet.time),
                ..StreamNumbers::default()
            });
            numbers.bytes = numbers.bytes.saturating_add(frame.fresh());
            numbers.bytes_again = numbers.bytes_again.saturating_add(frame.again);
            numbers.last_ms = rounded(packet.time);
            if !counted.contains(&frame.stream) {
                counted.push(frame.stream);
                numbers.packets += 1;
            }
        }
    }
    streams.into_values().collect()
}

/// Initiator and direction of a stream: the two lowest bits of its id.
fn kind(stream: u64) -> &'static str {
    match stream & 3 {
        0 => "client, bidi",
        1 => "server, bidi",
        2 => "client, uni",
        _ => "server, uni",
    }
}

// === Text ===

/// Limit of bursts in the text; `--json` has all.
const MOST_BURSTS: usize = 20;

/// Values that only the text has.
impl Summary {
    fn lost_percent(&self) -> f64 {
        100.0 * float(self.connection.lost.unwrap_or(0)) / float(self.connection.packets.max(1))
    }

    /// Title of the retransmitted bytes.
    fn repeated(&self) -> &'static str {
        if self.side == "sent" { "sent again" } else { "came again" }
    }

    fn bursts_of_one_packet(&self) -> usize {
        self.bursts.iter().filter(|burst| burst.packets == 1).count()
    }

    fn sorted_waits(&self) -> Vec<f64> {
        let mut waits: Vec<f64> = self.repairs.iter().filter_map(|repair| repair.again_after_ms).collect();
        waits.sort_by(f64::total_cmp);
        waits
    }

    /// All bursts in the order of time, or those with the most bulk ahead, then the slowest.
    fn worst_bursts(&self) -> Vec<&BurstNumbers> {
        let mut bursts: Vec<&BurstNumbers> = self.bursts.iter().collect();
        if bursts.len() > MOST_BURSTS {
            bursts.sort_by(|a, b| {
                let slowest = b.left_after_ms.total_cmp(&a.left_after_ms);
                let ahead = b.bulk_bytes_ahead.cmp(&a.bulk_bytes_ahead);
                ahead.then(slowest).then(a.first_ms.total_cmp(&b.first_ms))
            });
            bursts.truncate(MOST_BURSTS);
        }
        bursts
    }
}

impl StreamNumbers {
    fn class(&self) -> &'static str {
        if self.urgent { "urgent" } else { "bulk" }
    }
}

impl Share {
    /// Share in percent, never rounded up to 100, which means that no bulk was ahead.
    pub(super) fn shown(&self) -> Option<String> {
        let share = self.share?;
        let percent = if share < 1.0 { (share * 1000.0).floor() / 10.0 } else { 100.0 };
        Some(if percent < 100.0 { format!("{percent:.1} %") } else { "100 %".to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_never_rounded_up_to_all() {
        let share = |share| Share { share, ..Share::default() }.shown();
        assert_eq!(share(Some(1.0)).as_deref(), Some("100 %"));
        assert_eq!(share(Some(0.99999)).as_deref(), Some("99.9 %"));
        assert_eq!(share(Some(0.5)).as_deref(), Some("50.0 %"));
        assert_eq!(share(None), None);
    }
}
