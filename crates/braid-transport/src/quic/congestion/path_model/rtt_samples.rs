//! Round-trip times: samples from the library's smoothed value, their minimum, and waits in a queue.

use std::collections::VecDeque;

use super::sent_packets::SentPacket;

/// Packets in a row that found no other packet of ours in the queue and still took longer: the path is longer.
const LONE_SAMPLES: usize = 5;

/// Least growth (s) of the minimum.
const LONGER: f64 = 0.01;

/// Packets in a row whose waits differ by less than this share: the wait is no queue.
const FLAT_SAMPLES: u32 = 8;
const FLAT_SHARE: f64 = 0.2;

/// Least time (s) and number of round trips that they take.
const FLAT_SPAN: f64 = 0.3;
const FLAT_ROUND_TRIPS: f64 = 4.0;

/// Difference (s) between the time since sending and the RTT of the library once it has subtracted an acknowledgement
/// delay.
const ADJUSTED: f64 = 0.002;

/// Longest acknowledgement delay (s): 25 ms, and the lateness of the peer's timer.
const ACK_DELAY: f64 = 0.03;

/// The library reports the fate of a packet at the latest so many round trips, and this time (s), after that of a later
/// one.
const REPORT_ROUND_TRIPS: f64 = 2.0;
const REPORT_DELAY: f64 = 0.05;

/// Ordinal of a packet, and when (s) it left the bottleneck.
pub(super) type Departure = (u64, f64);

/// Acknowledged packet.
#[derive(Clone, Copy, Debug)]
struct AckedPacket {
    sent: SentPacket,
    /// s
    at: f64,
    /// Only packet that its acknowledgement reports: the peer may have delayed it.
    is_single: bool,
}

/// RTT sample.
#[derive(Clone, Copy, Debug)]
pub(super) struct RttSample {
    pub(super) sent: SentPacket,
    /// s
    pub(super) rtt: f64,
    /// Excess (s) over the minimum.
    pub(super) wait: f64,
    /// True if no other packet of ours can have been in the queue.
    pub(super) is_alone: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct RttSamples {
    pub(super) min: MinRtt,
    /// Smoothed RTT (s) of the library.
    pub(super) smoothed: Option<f64>,
    /// Packet with the largest number that was acknowledged last. The library reports its RTT with the next
    /// acknowledgement.
    newest: Option<AckedPacket>,
    /// Packets that the present acknowledgement is the first to report.
    acked: u32,
    /// The peer delays acknowledgements of single packets.
    peer_delays_acks: bool,
    /// Departure of the packet of the last sample.
    pub(super) last_departure: Option<Departure>,
    /// Departure of the first packet of a row that waited.
    pub(super) queue_began: Option<Departure>,
    /// Behind what was taken for a policer: packets in a row that waited, and since when (s).
    pub(super) delayed: Option<(u32, f64)>,
}

impl RttSamples {
    pub(super) fn handle_acked(&mut self, sent: SentPacket, now: f64) {
        self.acked += 1;
        if self.newest.is_none_or(|newest| newest.sent.number < sent.number) {
            self.newest = Some(AckedPacket { sent, at: now, is_single: self.acked == 1 });
        }
    }

    /// Ends the packets of one acknowledgement.
    pub(super) fn handle_end_of_acks(&mut self) {
        if let Some(newest) = &mut self.newest {
            newest.is_single = std::mem::take(&mut self.acked) == 1;
        }
    }

    /// Computes a sample from two smoothed values: an eighth of the later one is new.
    pub(super) fn sample(&mut self, smoothed: f64) -> Option<RttSample> {
        let before = self.smoothed.replace(smoothed);
        let acked = self.newest.take_if(|_| before != Some(smoothed))?;
        let sent = acked.sent;
        // The value before the first sample is the library's initial RTT.
        let rtt = match before {
            Some(before) if self.min.rtt.is_some() => (smoothed * 8.0 - before * 7.0).max(0.0),
            _ => smoothed,
        };
        // The average is rounded.
        let rtt = rtt.min(acked.at - sent.at);
        if self.may_hold_ack_delay(&acked, rtt) {
            return None;
        }
        let is_alone = self.last_departure.is_none_or(|(_, at)| sent.at >= at);
        Some(RttSample { sent, rtt, wait: self.min.wait(rtt, is_alone), is_alone })
    }

    /// Tests whether a sample may hold the peer's acknowledgement delay. The library subtracts the delay, but not below
    /// its own minimum RTT, which includes the processing time of the handshake: such samples were wrong by up to 25
    /// ms.
    fn may_hold_ack_delay(&mut self, acked: &AckedPacket, rtt: f64) -> bool {
        let was_adjusted = rtt + ADJUSTED < acked.at - acked.sent.at;
        let Some(min) = self.min.rtt else { return false };
        self.peer_delays_acks |= was_adjusted && acked.is_single;
        self.peer_delays_acks && acked.is_single && !was_adjusted && min < rtt && rtt < min + ACK_DELAY
    }

    /// Time (s) that a packet without a fate may hold up later ones.
    pub(super) fn patience(&self) -> f64 {
        self.smoothed.map_or(f64::INFINITY, |smoothed| smoothed * REPORT_ROUND_TRIPS + REPORT_DELAY)
    }

    /// Forgets departures, and the packet whose sample is due.
    pub(super) fn forget_departures(&mut self) {
        (self.newest, self.last_departure, self.queue_began) = (None, None, None);
    }
}

/// Minimum RTT: the path without queues.
#[derive(Clone, Debug, Default)]
pub(super) struct MinRtt {
    /// s
    pub(super) rtt: Option<f64>,
    lone: VecDeque<f64>,
    flat: Option<Flat>,
}

impl MinRtt {
    /// Wait (s) of a packet with this RTT (s). `is_alone`: no other packet of ours can have been in the queue.
    fn wait(&mut self, rtt: f64, is_alone: bool) -> f64 {
        let mut min = self.rtt.map_or(rtt, |min| min.min(rtt));
        if is_alone {
            push_bounded(&mut self.lone, LONE_SAMPLES, rtt);
            let least = self.lone.iter().copied().fold(f64::INFINITY, f64::min);
            if self.lone.len() == LONE_SAMPLES && least > min + LONGER {
                min = least;
                self.lone.clear();
            }
        }
        self.rtt = Some(min);
        rtt - min
    }

    /// Tests samples of packets that were sent when our queue should have been short. True: the path is longer, since
    /// the wait is always the same.
    pub(super) fn is_longer(&mut self, rtt: f64, now: f64) -> bool {
        let before = self.flat.take();
        let Some(min) = self.rtt.filter(|min| rtt > min + LONGER) else { return false };
        let before = before.unwrap_or(Flat { least: rtt, most: rtt, count: 0, since: now });
        let (least, most, count) = (before.least.min(rtt), before.most.max(rtt), before.count + 1);
        let is_flat = most - least <= LONGER.min((least - min) * FLAT_SHARE);
        let is_long = count >= FLAT_SAMPLES && now - before.since > FLAT_SPAN.max(most * FLAT_ROUND_TRIPS);
        if is_flat && is_long {
            *self = Self { rtt: Some(least), ..Self::default() };
        } else if is_flat {
            self.flat = Some(Flat { least, most, count, ..before });
        }
        is_flat && is_long
    }
}

/// Samples in a row that are longer than the minimum and much the same.
#[derive(Clone, Copy, Debug)]
struct Flat {
    least: f64,
    most: f64,
    count: u32,
    since: f64,
}

/// Adds a value to the last `most`.
pub(super) fn push_bounded<T>(values: &mut VecDeque<T>, most: usize, value: T) {
    if values.len() == most {
        values.pop_front();
    }
    values.push_back(value);
}

/// Median of at least one value.
pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}
