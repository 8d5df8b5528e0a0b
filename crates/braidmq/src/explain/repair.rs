//! Repairs: urgent bytes in packets that were lost, until they were sent again.

use super::burst::Ahead;
use super::qlog::Packet;

/// Urgent bytes that were declared lost at one moment.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Repair {
    /// Time of the loss detection, in milliseconds of the log.
    pub(super) lost: f64,
    /// Bytes of the urgent streams in the lost packets.
    pub(super) bytes: u64,
    /// Bytes that were retransmitted since.
    pub(super) again: u64,
    /// Time of the last retransmission; `None` without one, since a copy arrived, or the stream or log ended.
    pub(super) last: Option<f64>,
    pub(super) ahead: Ahead,
    /// Ranges that were not retransmitted: stream, start, end (exclusive).
    missing: Vec<(u64, u64, u64)>,
}

/// Limit of concurrent repairs; older ones are stale, since their bytes arrived after all.
const MOST_AT_A_TIME: usize = 64;

/// Repairs in the order of loss detection.
pub(super) fn repairs(packets: &[Packet], is_urgent: impl Fn(u64) -> bool) -> Vec<Repair> {
    let mut losses = losses(packets, &is_urgent).into_iter().peekable();
    let mut running: Vec<Repair> = Vec::new();
    let mut repairs = Vec::new();
    for (place, packet) in packets.iter().enumerate() {
        while let Some((_, repair)) = losses.next_if(|(before, _)| *before <= place) {
            if running.len() == MOST_AT_A_TIME {
                repairs.push(running.remove(0));
            }
            running.push(repair);
        }
        for frame in packet.frames.iter().filter(|frame| frame.length > 0) {
            for repair in &mut running {
                if is_urgent(frame.stream) {
                    repair.handle_urgent(packet.time, frame.stream, frame.offset, frame.end());
                } else {
                    repair.ahead.handle_bulk(place, frame.length);
                }
            }
        }
        repairs.extend(running.extract_if(.., |repair| repair.missing.is_empty()));
    }
    repairs.extend(running);
    repairs.extend(losses.map(|(_, repair)| repair));
    repairs.sort_by(|a, b| a.lost.total_cmp(&b.lost));
    repairs.into_iter().map(|repair| Repair { ahead: repair.ahead.finish(), ..repair }).collect()
}

/// Losses of urgent bytes with the index of the next packet; one for each moment.
fn losses(packets: &[Packet], is_urgent: impl Fn(u64) -> bool) -> Vec<(usize, Repair)> {
    let mut lost: Vec<_> = packets.iter().filter_map(|packet| Some((packet.lost?, packet))).collect();
    lost.sort_by_key(|(loss, _)| loss.before);
    let mut losses: Vec<(usize, Repair)> = Vec::new();
    for (loss, packet) in lost {
        let urgent = packet.frames.iter().filter(|frame| is_urgent(frame.stream) && frame.length > 0);
        let missing: Vec<_> = urgent.map(|frame| (frame.stream, frame.offset, frame.end())).collect();
        if missing.is_empty() {
            continue;
        }
        let bytes = packet.bytes_of(&is_urgent);
        match losses.last_mut() {
            Some((before, repair)) if *before == loss.before => {
                repair.bytes = repair.bytes.saturating_add(bytes);
                repair.missing.extend(missing);
            }
            _ => {
                let (lost, ahead) = (loss.time, Ahead::default());
                losses.push((loss.before, Repair { lost, bytes, again: 0, last: None, ahead, missing }));
            }
        }
    }
    losses
}

impl Repair {
    fn handle_urgent(&mut self, time: f64, stream: u64, start: u64, end: u64) {
        let mut rest = Vec::new();
        let mut again = 0;
        for (missing, from, to) in self.missing.drain(..) {
            let overlap = start.max(from)..end.min(to);
            if missing != stream || overlap.is_empty() {
                rest.push((missing, from, to));
                continue;
            }
            again += overlap.end - overlap.start;
            let around = [(missing, from, overlap.start), (missing, overlap.end, to)];
            rest.extend(around.into_iter().filter(|(_, from, to)| from < to));
        }
        self.missing = rest;
        if again > 0 {
            self.again = self.again.saturating_add(again);
            self.last = Some(time);
            self.ahead.handle_urgent();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::qlog::{Loss, StreamFrame};
    use super::*;

    const URGENT: u64 = 4;

    /// One packet each millisecond: stream, offset, length.
    fn packets(frames: &[(u64, u64, u64)]) -> Vec<Packet> {
        let mut time = 0.0;
        frames
            .iter()
            .map(|(stream, offset, length)| {
                time += 1.0;
                let frame =
                    StreamFrame { stream: *stream, offset: *offset, length: *length, ..Default::default() };
                Packet { time, frames: vec![frame], ..Packet::default() }
            })
            .collect()
    }

    fn lose(packet: &mut Packet, before: usize) {
        packet.lost = Some(Loss { time: 100.0, before });
    }

    fn found(packets: &[Packet]) -> Vec<(u64, u64, Option<f64>, u64)> {
        let repairs = repairs(packets, |stream| stream == URGENT || stream == 0);
        repairs.into_iter().map(|r| (r.bytes, r.again, r.last, r.ahead.bytes)).collect()
    }

    #[test]
    fn bulk_between_the_loss_and_the_repetition_is_ahead() {
        let mut all =
            packets(&[(URGENT, 0, 100), (8, 0, 1), (8, 1, 20), (8, 21, 300), (URGENT, 0, 100), (8, 321, 9)]);
        lose(&mut all[0], 2);
        assert_eq!(found(&all), [(100, 100, Some(5.0), 320)]);
        // Bulk right after the retransmission is not.
        lose(&mut all[0], 4);
        assert_eq!(found(&all), [(100, 100, Some(5.0), 0)]);
        // Other bytes of the stream repair nothing, and neither does another urgent stream.
        all[4].frames[0].offset = 100;
        assert_eq!(found(&all), [(100, 0, None, 0)]);
        all[4].frames[0] = StreamFrame { stream: 0, ..all[0].frames[0] };
        assert_eq!(found(&all), [(100, 0, None, 0)]);
    }

    #[test]
    fn losses_of_one_moment_are_one_repair_and_may_be_sent_in_parts() {
        let mut all = packets(&[
            (URGENT, 0, 100),
            (URGENT, 100, 100),
            (URGENT, 50, 100),
            (8, 0, 7),
            (URGENT, 0, 50),
            (8, 7, 8),
            (URGENT, 140, 200),
        ]);
        lose(&mut all[0], 2);
        lose(&mut all[1], 2);
        assert_eq!(found(&all), [(200, 200, Some(7.0), 15)]);
    }

    #[test]
    fn lost_bulk_and_what_was_never_sent_again_count_nothing() {
        let mut all = packets(&[(8, 0, 100), (URGENT, 0, 10), (8, 100, 100)]);
        lose(&mut all[0], 2);
        assert_eq!(found(&all), []);
        lose(&mut all[1], 3);
        assert_eq!(found(&all), [(10, 0, None, 0)]);
    }
}
