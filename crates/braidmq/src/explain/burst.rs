//! Bursts: urgent bytes that waited together, and the bulk that left ahead of them.

use super::qlog::{Packet, StreamFrame};

/// Urgent bytes from the first after the urgent streams were empty until they were empty again.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Burst {
    /// Time of its first byte, in milliseconds of the log.
    pub(super) first: f64,
    /// Time of the first transmission of its last byte.
    pub(super) last: f64,
    /// Bytes, without retransmissions.
    pub(super) bytes: u64,
    /// Packets that carried them.
    pub(super) packets: usize,
    pub(super) ahead: Ahead,
}

/// Bulk that left while urgent bytes waited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ahead {
    pub(super) bytes: u64,
    /// Packets that carried it, by index in the log.
    pub(super) packets: Vec<usize>,
    /// Bulk since the last urgent byte: ahead only if another urgent byte follows.
    pending: Vec<(usize, u64)>,
}

impl Ahead {
    /// Counts bulk bytes that were sent.
    pub(super) fn handle_bulk(&mut self, packet: usize, bytes: u64) {
        self.pending.push((packet, bytes));
    }

    /// Urgent bytes of the burst were sent: all bulk so far was ahead of them.
    pub(super) fn handle_urgent(&mut self) {
        for (packet, bytes) in self.pending.drain(..) {
            self.bytes = self.bytes.saturating_add(bytes);
            if self.packets.last() != Some(&packet) {
                self.packets.push(packet);
            }
        }
    }

    /// Ends the burst: pending bulk was not ahead.
    pub(super) fn finish(mut self) -> Self {
        self.pending = Vec::new();
        self
    }
}

/// Silence in milliseconds after which urgent bytes begin another burst in any case.
const LONGEST_SILENCE: f64 = 1000.0;
/// Bursts of all urgent streams together.
pub(super) fn bursts(packets: &[Packet], is_urgent: impl Fn(u64) -> bool) -> Vec<Burst> {
    let emptied = emptied(packets, &is_urgent);
    let mut bursts = Vec::new();
    let mut open: Option<Burst> = None;
    for (place, packet) in packets.iter().enumerate() {
        if let Some(burst) = open.take_if(|burst| packet.time - burst.last > LONGEST_SILENCE) {
            bursts.push(burst);
        }
        handle_packet(&mut open, place, packet, &is_urgent);
        if emptied[place] {
            bursts.extend(open.take());
        }
    }
    bursts.extend(open);
    bursts.into_iter().map(|burst| Burst { ahead: burst.ahead.finish(), ..burst }).collect()
}

fn handle_packet(open: &mut Option<Burst>, place: usize, packet: &Packet, is_urgent: impl Fn(u64) -> bool) {
    let mut counted = false;
    // A packet is assembled at one moment, so bulk in front of urgent bytes was chosen before them.
    let mut in_front = Ahead::default();
    for frame in packet.frames.iter().filter(|frame| frame.length > 0) {
        if !is_urgent(frame.stream) {
            let ahead = open.as_mut().map_or(&mut in_front, |burst| &mut burst.ahead);
            ahead.handle_bulk(place, frame.length);
        } else if frame.fresh() > 0 {
            let burst = open.get_or_insert_with(|| Burst {
                first: packet.time,
                last: packet.time,
                bytes: 0,
                packets: 0,
                ahead: std::mem::take(&mut in_front),
            });
            burst.ahead.handle_urgent();
            burst.last = packet.time;
            burst.bytes = burst.bytes.saturating_add(frame.fresh());
            burst.packets += usize::from(!std::mem::replace(&mut counted, true));
        }
    }
}

// === Emptied queues ===

/// A full packet of RFC 9000 has at least 1200 bytes; logs may leave out header and authentication tag.
const SMALLEST_FULL: u64 = 1100;
/// Full packets differ by this: the fields of the last stream frame.
const TOLERANCE: u64 = 8;
/// In so few bytes a sender begins no further stream frame.
const NO_ROOM: u64 = 32;
/// Number of neighbouring packets that end with bulk, on each side; path MTU discovery changes the length of full ones.
const NEAR: usize = 8;

/// Whether each packet proves that no urgent bytes were queued after it.
///
/// A sender fills a packet as long as it has bytes. The urgent streams were therefore empty if bulk follows fresh
/// urgent bytes, or if the packet has room left. A packet without stream bytes proves nothing: congestion control may
/// have held the sender back.
pub(super) fn emptied(packets: &[Packet], is_urgent: impl Fn(u64) -> bool) -> Vec<bool> {
    let lengths = FullLengths::of(packets, &is_urgent);
    let is_emptied = |(place, packet): (usize, &Packet)| {
        let Some(last) = last_frame(packet, |_| true) else { return false };
        if !is_urgent(last.stream) {
            // After retransmitted bytes the next fresh ones may have waited for another turn.
            let bulk_follows = last_frame(packet, &is_urgent).is_some_and(|frame| frame.fresh() > 0);
            return bulk_follows || !lengths.is_full(place, packet.length(), NO_ROOM);
        }
        // A stream that continues fills the packet to the last byte; a retransmission ends where the lost bytes ended.
        let tolerance = if last.fresh() > 0 { TOLERANCE } else { NO_ROOM };
        last.fin || !lengths.is_full(place, packet.length(), tolerance)
    };
    packets.iter().enumerate().map(is_emptied).collect()
}

fn last_frame(packet: &Packet, wanted: impl Fn(u64) -> bool) -> Option<&StreamFrame> {
    packet.frames.iter().rfind(|frame| frame.length > 0 && wanted(frame.stream))
}

/// Length of full packets along a log: that of packets which end with bulk, whose stream always has bytes queued.
struct FullLengths {
    /// Index and length of each packet that ends with bulk.
    bulk: Vec<(usize, u64)>,
}

impl FullLengths {
    fn of(packets: &[Packet], is_urgent: impl Fn(u64) -> bool) -> Self {
        let ends_with_bulk =
            |packet: &Packet| last_frame(packet, |_| true).is_some_and(|frame| !is_urgent(frame.stream));
        let bulk = packets.iter().enumerate().filter(|(_, packet)| ends_with_bulk(packet));
        Self { bulk: bulk.map(|(place, packet)| (place, packet.length())).collect() }
    }

    /// Whether a packet is full except for `tolerance`: a neighbour is as long.
    fn is_full(&self, place: usize, length: u64, tolerance: u64) -> bool {
        let here = self.bulk.partition_point(|(other, _)| *other < place);
        let near = here.saturating_sub(NEAR)..(here + NEAR + 1).min(self.bulk.len());
        let mut others = self.bulk[near].iter().filter(|(other, _)| *other != place);
        length >= SMALLEST_FULL && others.any(|(_, other)| other.abs_diff(length) <= tolerance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const URGENT: u64 = 4;
    const BULK: u64 = 8;

    /// One packet each millisecond: pairs of stream and bytes; the logged length is theirs and 28 bytes.
    fn packets(all: &[&[(u64, u64)]]) -> Vec<Packet> {
        let mut offsets = std::collections::HashMap::new();
        let mut time = 0.0;
        all.iter()
            .map(|frames| {
                time += 1.0;
                let frames: Vec<_> = frames
                    .iter()
                    .map(|(stream, length)| {
                        let next: &mut u64 = offsets.entry(*stream).or_default();
                        let offset = *next;
                        *next += length;
                        StreamFrame { stream: *stream, offset, length: *length, ..StreamFrame::default() }
                    })
                    .collect();
                let length = frames.iter().map(|frame| frame.length).sum::<u64>() + 28;
                Packet { time, logged_length: Some(length), frames, ..Packet::default() }
            })
            .collect()
    }

    /// First and last time, bytes, packets and bulk bytes ahead of each burst.
    fn found(all: &[&[(u64, u64)]]) -> Vec<(f64, f64, u64, usize, u64)> {
        bursts(&packets(all), |stream| stream == URGENT || stream == 0)
            .into_iter()
            .map(|burst| (burst.first, burst.last, burst.bytes, burst.packets, burst.ahead.bytes))
            .collect()
    }

    const FULL: &[(u64, u64)] = &[(BULK, 1172)];

    #[test]
    fn a_message_within_one_packet_has_ahead_what_stands_before_it_there() {
        let all: &[&[_]] =
            &[FULL, &[(URGENT, 100), (BULK, 1070)], FULL, &[(BULK, 500), (URGENT, 100), (BULK, 570)], FULL];
        assert_eq!(found(all), [(2.0, 2.0, 100, 1, 0), (4.0, 4.0, 100, 1, 500)]);
    }

    #[test]
    fn a_message_of_several_packets_is_one_burst() {
        let all: &[&[_]] =
            &[FULL, FULL, &[(URGENT, 1172)], &[(URGENT, 1172)], &[(URGENT, 656), (BULK, 514)], FULL];
        assert_eq!(found(all), [(3.0, 5.0, 3000, 3, 0)]);
        // The age of the bulk that shows the length of full packets does not matter.
        let mut later = vec![FULL; 2];
        later.extend([&[(URGENT, 1172_u64)][..]; 20]);
        assert_eq!(found(&later), [(3.0, 22.0, 20 * 1172, 20, 0)]);
    }

    #[test]
    fn bulk_between_its_packets_is_ahead() {
        let all: &[&[_]] =
            &[FULL, &[(URGENT, 1172)], FULL, &[(URGENT, 1172)], FULL, &[(URGENT, 656), (BULK, 514)], FULL];
        assert_eq!(found(all), [(2.0, 6.0, 3000, 3, 2344)]);
        assert_eq!(bursts(&packets(all), |stream| stream == URGENT)[0].ahead.packets, [2, 4]);
        // Before the next urgent byte in the same packet counts too, after it does not.
        let all: &[&[_]] = &[FULL, &[(URGENT, 1172)], &[(BULK, 700), (URGENT, 100), (BULK, 372)], FULL];
        assert_eq!(found(all), [(2.0, 3.0, 1272, 2, 700)]);
    }

    #[test]
    fn a_packet_with_room_ends_the_burst() {
        // The second urgent packet was not filled although bulk had ended: all had been sent.
        let all: &[&[_]] =
            &[FULL, &[(URGENT, 1172)], &[(URGENT, 200)], FULL, FULL, &[(URGENT, 100), (BULK, 1070)]];
        assert_eq!(found(all), [(2.0, 3.0, 1372, 2, 0), (6.0, 6.0, 100, 1, 0)]);
        // Bulk that leaves room shows the same.
        let all: &[&[_]] = &[FULL, &[(URGENT, 1172)], &[(BULK, 1120)], FULL, &[(URGENT, 100), (BULK, 1070)]];
        assert_eq!(found(all), [(2.0, 2.0, 1172, 1, 0), (5.0, 5.0, 100, 1, 0)]);
    }

    #[test]
    fn small_packets_are_never_full() {
        let all: &[&[_]] = &[&[(BULK, 100)], &[(URGENT, 100)], &[(BULK, 100)], &[(URGENT, 100)]];
        assert_eq!(found(all), [(2.0, 2.0, 100, 1, 0), (4.0, 4.0, 100, 1, 0)]);
    }

    #[test]
    fn bulk_after_repeated_bytes_ends_nothing() {
        let all: &[&[_]] =
            &[FULL, &[(URGENT, 1172)], &[(URGENT, 300), (BULK, 872)], &[(URGENT, 100), (BULK, 1070)], FULL];
        let mut packets = packets(all);
        packets[2].frames[0] = StreamFrame { offset: 0, again: 300, ..packets[2].frames[0] };
        let bursts = bursts(&packets, |stream| stream == URGENT);
        assert_eq!(bursts.len(), 1);
        assert_eq!((bursts[0].bytes, bursts[0].packets, bursts[0].ahead.bytes), (1272, 2, 872));
    }

    #[test]
    fn room_for_no_further_frame_ends_nothing() {
        // The third packet is 20 bytes short of a full one, the fourth 30.
        let all: &[&[_]] = &[
            FULL,
            &[(URGENT, 1172)],
            &[(URGENT, 1152)],
            &[(BULK, 1142)],
            &[(URGENT, 100), (BULK, 1070)],
            FULL,
        ];
        let mut packets = packets(all);
        let count = |packets: &[Packet]| bursts(packets, |stream| stream == URGENT).len();
        assert_eq!(count(&packets), 2, "fresh bytes would have gone on");
        packets[2].frames[0].again = 1152;
        assert_eq!(count(&packets), 1);
    }

    #[test]
    fn silence_and_the_end_of_the_stream_end_the_burst() {
        let mut late = packets(&[FULL, &[(URGENT, 1172)], FULL, &[(URGENT, 1172)], FULL]);
        late[3].time += LONGEST_SILENCE;
        let count = |packets: &[Packet]| bursts(packets, |stream| stream == URGENT).len();
        assert_eq!(count(&late), 2);
        late[3].time -= LONGEST_SILENCE;
        assert_eq!(count(&late), 1);
        late[1].frames[0].fin = true;
        assert_eq!(count(&late), 2);
    }

    #[test]
    fn urgent_streams_are_one_class_and_repetitions_are_no_burst() {
        let all: &[&[_]] =
            &[FULL, &[(URGENT, 1172)], &[(0, 40), (URGENT, 1132)], &[(0, 9), (BULK, 1161)], FULL];
        assert_eq!(found(all), [(2.0, 4.0, 2353, 3, 0)]);
        let mut again = packets(all);
        again.iter_mut().flat_map(|packet| &mut packet.frames).for_each(|frame| frame.again = frame.length);
        assert_eq!(bursts(&again, |stream| stream == URGENT), []);
    }
}
