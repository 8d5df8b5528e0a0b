//! View of a trace: a window of time, and the urgent streams.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::burst::{Burst, bursts};
use super::qlog::Packet;
use super::repair::{Repair, repairs};
use super::trace::Trace;

/// Window in milliseconds of the log, both ends included.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    from: f64,
    to: f64,
}

impl Window {
    pub(super) fn of(from: Option<f64>, to: Option<f64>) -> Self {
        Self { from: from.unwrap_or(f64::NEG_INFINITY), to: to.unwrap_or(f64::INFINITY) }
    }

    pub(super) fn contains(self, time: f64) -> bool {
        (self.from..=self.to).contains(&time)
    }
}

pub(super) struct View<'a> {
    pub(super) trace: &'a Trace,
    pub(super) window: Window,
    /// Packets of the trace in the window.
    range: Range<usize>,
    pub(super) urgent: BTreeSet<u64>,
    /// Whether the urgent streams were chosen by default.
    pub(super) is_chosen: bool,
    /// Bursts that began in the window.
    pub(super) bursts: Vec<Burst>,
    /// Repairs whose loss was detected in the window.
    pub(super) repairs: Vec<Repair>,
    /// Indices of packets with bulk that were sent while urgent bytes waited.
    ahead: BTreeSet<usize>,
}

impl<'a> View<'a> {
    /// Creates the view. If `urgent` is empty: the control stream and, of several data streams, the one with the fewest
    /// bytes.
    pub(super) fn new(trace: &'a Trace, urgent: &[u64], window: Window) -> Result<Self, String> {
        let bytes = bytes_by_stream(&trace.packets);
        if let Some(stream) = urgent.iter().find(|stream| !bytes.contains_key(stream)) {
            let known = list(bytes.keys());
            return Err(format!("--urgent {stream}: no such stream in the log; it has {known}"));
        }
        let is_chosen = urgent.is_empty();
        let urgent = if is_chosen { chosen(&bytes) } else { urgent.iter().copied().collect() };
        let range = range(&trace.packets, window)?;
        let is_urgent = |stream: u64| urgent.contains(&stream);
        let mut bursts = bursts(&trace.packets, is_urgent);
        bursts.retain(|burst| window.contains(burst.first));
        let mut repairs = repairs(&trace.packets, is_urgent);
        repairs.retain(|repair| window.contains(repair.lost));
        let waits = bursts.iter().map(|burst| &burst.ahead).chain(repairs.iter().map(|repair| &repair.ahead));
        let ahead = waits.flat_map(|ahead| ahead.packets.iter().copied()).collect();
        Ok(Self { trace, window, range, urgent, is_chosen, bursts, repairs, ahead })
    }

    pub(super) fn packets(&self) -> &'a [Packet] {
        &self.trace.packets[self.range.clone()]
    }

    pub(super) fn is_urgent(&self, stream: u64) -> bool {
        self.urgent.contains(&stream)
    }

    /// Whether bulk in this packet of `packets()` was sent while urgent bytes waited.
    pub(super) fn is_ahead(&self, index: usize) -> bool {
        self.ahead.contains(&(self.range.start + index))
    }

    /// First and last time of the packets, in milliseconds of the log.
    pub(super) fn span(&self) -> (f64, f64) {
        span(self.packets())
    }
}

fn span(packets: &[Packet]) -> (f64, f64) {
    let times = || packets.iter().map(|packet| packet.time);
    (times().fold(f64::INFINITY, f64::min), times().fold(f64::NEG_INFINITY, f64::max))
}

fn range(packets: &[Packet], window: Window) -> Result<Range<usize>, String> {
    let is_inside = |packet: &Packet| window.contains(packet.time);
    let first = packets.iter().position(is_inside);
    let last = packets.iter().rposition(is_inside);
    first.zip(last).map(|(first, last)| first..last + 1).ok_or_else(|| {
        let (first, last) = span(packets);
        let (from, to) = (window.from.max(0.0), if window.to.is_finite() { window.to } else { last });
        format!(
            "nothing lies between --from {from} and --to {to}; the log goes from {first:.3} to {last:.3} ms"
        )
    })
}

/// Bytes of each stream, without retransmissions.
fn bytes_by_stream(packets: &[Packet]) -> BTreeMap<u64, u64> {
    let mut bytes = BTreeMap::new();
    for frame in packets.iter().flat_map(|packet| &packet.frames) {
        let sum: &mut u64 = bytes.entry(frame.stream).or_default();
        *sum = sum.saturating_add(frame.fresh());
    }
    bytes
}

fn chosen(bytes: &BTreeMap<u64, u64>) -> BTreeSet<u64> {
    let data = || bytes.iter().filter(|(stream, _)| **stream != 0);
    let smallest = data().min_by_key(|(_, bytes)| **bytes).filter(|_| data().count() > 1);
    let control = bytes.get_key_value(&0);
    control.into_iter().chain(smallest).map(|(stream, _)| *stream).collect()
}

/// Text `stream 4` or `streams 0, 4 and 8`; long lists are shortened.
pub(super) fn list<'b>(streams: impl ExactSizeIterator<Item = &'b u64>) -> String {
    const MOST: usize = 12;
    let count = streams.len();
    let mut names: Vec<String> = streams.take(MOST).map(u64::to_string).collect();
    if count > MOST {
        names.push(format!("{} more", count - MOST));
    }
    match names.split_last() {
        None => "no stream".to_owned(),
        Some((only, [])) => format!("stream {only}"),
        Some((last, rest)) => format!("streams {} and {last}", rest.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_stream_and_the_smallest_of_several_data_streams_are_chosen() {
        let chosen =
            |bytes: &[(u64, u64)]| chosen(&bytes.iter().copied().collect()).into_iter().collect::<Vec<_>>();
        assert_eq!(chosen(&[(0, 900), (4, 50), (8, 40), (12, 60)]), [0, 8]);
        assert_eq!(chosen(&[(0, 900), (4, 50)]), [0]);
        assert_eq!(chosen(&[(4, 50), (8, 60)]), [4]);
        assert_eq!(chosen(&[(4, 50)]), [0_u64; 0]);
    }

    #[test]
    fn streams_are_listed_as_one_says_it() {
        assert_eq!(list([].iter()), "no stream");
        assert_eq!(list([4].iter()), "stream 4");
        assert_eq!(list([0, 4, 8].iter()), "streams 0, 4 and 8");
        assert!(list([1; 20].iter()).ends_with(", 1 and 8 more"));
    }
}
