//! What packets prove about the backlog of the urgent streams: whether any of their bytes still waited.

use super::packet::{Packet, StreamFrame};

/// A full packet of RFC 9000 has at least 1200 bytes; logs may leave out header and authentication tag.
const SMALLEST_FULL: u64 = 1100;
/// Full packets differ by this: the fields of the last stream frame.
const TOLERANCE: u64 = 8;
/// In so few bytes a sender begins no further stream frame.
const NO_ROOM: u64 = 32;
/// How many packets that end with bulk are near, to each side; path MTU discovery changes the length of full ones.
const NEAR: usize = 8;

/// For each packet whether it shows that nothing urgent was left once it had been put together.
///
/// A sender fills a packet as long as it has bytes. So nothing was left if bulk follows fresh urgent bytes, which
/// would have gone on otherwise, or if the packet has room left. Without stream bytes it shows nothing: the sender
/// may have been held back by congestion control.
pub(super) fn emptied(packets: &[Packet], is_urgent: impl Fn(u64) -> bool) -> Vec<bool> {
    let lengths = FullLengths::of(packets, &is_urgent);
    let is_emptied = |(place, packet): (usize, &Packet)| {
        let Some(last) = last_frame(packet, |_| true) else { return false };
        if !is_urgent(last.stream) {
            // After repeated bytes the next fresh ones may well have waited for another turn.
            let bulk_follows = last_frame(packet, &is_urgent).is_some_and(|frame| frame.fresh() > 0);
            return bulk_follows || !lengths.is_full(place, packet.length(), NO_ROOM);
        }
        // What goes on fills the packet to the last byte; repeated bytes end where what was lost ended.
        let tolerance = if last.fresh() > 0 { TOLERANCE } else { NO_ROOM };
        last.fin || !lengths.is_full(place, packet.length(), tolerance)
    };
    packets.iter().enumerate().map(is_emptied).collect()
}

fn last_frame(packet: &Packet, wanted: impl Fn(u64) -> bool) -> Option<&StreamFrame> {
    packet.frames.iter().rfind(|frame| frame.length > 0 && wanted(frame.stream))
}

/// How long full packets are, at each place of a log: as long as packets that end with bulk, which has a backlog.
struct FullLengths {
    /// Place and length of each packet that ends with bulk.
    bulk: Vec<(usize, u64)>,
}

impl FullLengths {
    fn of(packets: &[Packet], is_urgent: impl Fn(u64) -> bool) -> Self {
        let ends_with_bulk =
            |packet: &Packet| last_frame(packet, |_| true).is_some_and(|frame| !is_urgent(frame.stream));
        let bulk = packets.iter().enumerate().filter(|(_, packet)| ends_with_bulk(packet));
        Self { bulk: bulk.map(|(place, packet)| (place, packet.length())).collect() }
    }

    /// Whether a packet of this length at this place is full but for `tolerance`: another near it is so long.
    fn is_full(&self, place: usize, length: u64, tolerance: u64) -> bool {
        let here = self.bulk.partition_point(|(other, _)| *other < place);
        let near = here.saturating_sub(NEAR)..(here + NEAR + 1).min(self.bulk.len());
        let mut others = self.bulk[near].iter().filter(|(other, _)| *other != place);
        length >= SMALLEST_FULL && others.any(|(_, other)| other.abs_diff(length) <= tolerance)
    }
}
