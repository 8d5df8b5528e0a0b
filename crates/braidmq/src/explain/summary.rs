//! The numbers: what `--json` prints, and what the text and the picture tell.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use super::Args;
use super::burst::Burst;
use super::number::{float, told};
use super::repair::Repair;
use super::view::View;

/// Times are milliseconds of the log, durations milliseconds, sizes bytes, shares of 1.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    pub(super) file: String,
    pub(super) picture: String,
    /// Who wrote the log.
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
    /// By RFC 9000, section 2.1.
    pub(super) kind: &'static str,
    pub(super) urgent: bool,
    /// Without repetitions.
    pub(super) bytes: u64,
    pub(super) bytes_again: u64,
    pub(super) packets: u64,
    pub(super) first_ms: f64,
    pub(super) last_ms: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct ConnectionNumbers {
    pub(super) packets: u64,
    /// `None`: they all have the same time.
    pub(super) packets_per_second: Option<f64>,
    /// Bytes of the packets, where the log says them.
    pub(super) bytes: u64,
    /// `None`: the log cannot know it, on the receiving side.
    pub(super) lost: Option<u64>,
    /// `None`: the log does not say.
    pub(super) probe_timeouts: Option<usize>,
}

/// Urgent bytes, and the bulk that left while they waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Share {
    /// `None`: no urgent bytes, or no bulk in the log.
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
    /// `None`: not sent again.
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
            from_ms: told(from),
            to_ms: told(to),
            log_is_cut_off: view.trace.is_cut_off,
            other_connections: view.trace.others,
            urgent: view.urgent.iter().copied().collect(),
            urgent_is_chosen: view.is_chosen,
            connection: ConnectionNumbers::of(view, args),
            urgent_first: Share::of(bursts, has_bulk),
            after_a_loss: Share::of(repairs, has_bulk),
            bursts: view.bursts.iter().map(BurstNumbers::of).collect(),
            repairs: view.repairs.iter().map(RepairNumbers::of).collect(),
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
            packets_per_second: (last > first).then(|| told(float(count) * 1000.0 / (last - first))),
            bytes: packets.iter().fold(0, |sum, packet| sum.saturating_add(packet.length())),
            lost: sent.then(|| packets.iter().filter(|packet| packet.lost.is_some()).count() as u64),
            probe_timeouts: timeouts
                .map(|times| times.iter().filter(|time| view.window.contains(**time)).count()),
        }
    }
}

impl BurstNumbers {
    fn of(burst: &Burst) -> Self {
        Self {
            first_ms: told(burst.first),
            bytes: burst.bytes,
            packets: burst.packets,
            left_after_ms: told(burst.last - burst.first),
            bulk_bytes_ahead: burst.ahead.bytes,
        }
    }
}

impl RepairNumbers {
    fn of(repair: &Repair) -> Self {
        Self {
            lost_ms: told(repair.lost),
            bytes: repair.bytes,
            bytes_again: repair.again,
            again_after_ms: repair.last.map(|last| told(last - repair.lost)),
            bulk_bytes_ahead: repair.ahead.bytes,
        }
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
                first_ms: told(packet.time),
                ..StreamNumbers::default()
            });
            numbers.bytes = numbers.bytes.saturating_add(frame.fresh());
            numbers.bytes_again = numbers.bytes_again.saturating_add(frame.again);
            numbers.last_ms = told(packet.time);
            if !counted.contains(&frame.stream) {
                counted.push(frame.stream);
                numbers.packets += 1;
            }
        }
    }
    streams.into_values().collect()
}

/// Who opened a stream, and its direction: the two lowest bits of its id.
fn kind(stream: u64) -> &'static str {
    match stream & 3 {
        0 => "client, bidi",
        1 => "server, bidi",
        2 => "client, uni",
        _ => "server, uni",
    }
}
