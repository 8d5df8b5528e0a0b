//! Packets in the order of sending, and their fates.

use std::collections::VecDeque;

/// Time (s) after which a packet without a fate no longer holds up the packets behind it.
const FORGET_AFTER: f64 = 3.0;

/// Ack-eliciting packet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SentPacket {
    pub(super) number: u64,
    /// Time of sending (s).
    pub(super) at: f64,
    /// Urgent bytes in it.
    pub(super) urgent: u64,
    /// Datagrams before it that elicit no acknowledgement: their fates stay unknown.
    pub(super) ack_only: u64,
    /// Packets in flight, with this one.
    pub(super) in_flight: u64,
    /// As large as the path permits: more was waiting to be sent.
    pub(super) is_full: bool,
    /// Sent beyond the tokens of the policer model, to find out whether its rate is too low.
    pub(super) is_probe: bool,
    /// PING behind other packets.
    pub(super) is_ping: bool,
    /// Tokens of the policer model before it, and the sum of its corrections until then.
    pub(super) level: f64,
    pub(super) correction: f64,
    /// Ordinal number among all datagrams.
    pub(super) ordinal: u64,
    /// Predicted wait (s) in the queue model.
    pub(super) expected: Option<f64>,
    /// Fate, and when (s) it became known.
    pub(super) fate: Option<(Fate, f64)>,
}

impl SentPacket {
    /// Packets as which it counts while it is in flight.
    fn weight(&self) -> u64 {
        u64::from(!self.is_ping)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Passed,
    Lost,
}

/// Sent packets until their fates are used, and counters of datagrams.
#[derive(Clone, Debug, Default)]
pub(super) struct SentPackets {
    packets: VecDeque<SentPacket>,
    /// Packets without a fate, but for PINGs behind others: thirty of those are as large as one packet.
    unresolved: u64,
    pub(super) mtu: u64,
    /// Datagrams sent, those without ack-eliciting packets included.
    pub(super) datagrams: u64,
    /// Datagrams that elicit no acknowledgement.
    pub(super) ack_only: u64,
    /// Ack-eliciting packets since the last transmit.
    pub(super) eliciting: u64,
    /// The next packet is full, whatever its size.
    pub(super) is_next_full: bool,
    /// Bytes of the present batch that do not leave.
    pub(super) withheld: u64,
    /// Time (s) of the last datagram.
    pub(super) last_at: f64,
}

impl SentPackets {
    pub(super) fn new(mtu: u16) -> Self {
        Self { mtu: mtu.into(), ..Self::default() }
    }

    pub(super) fn push(&mut self, sent: SentPacket) {
        self.packets.push_back(sent);
        self.unresolved += sent.weight();
    }

    pub(super) fn clear(&mut self) {
        self.packets.clear();
        self.unresolved = 0;
    }

    /// Sets the fate of a packet. The oldest with this number counts: until the handshake is over, each number exists
    /// in up to three packet number spaces.
    pub(super) fn resolve(&mut self, number: u64, fate: Fate, now: f64) -> Option<SentPacket> {
        let sent = self.packets.iter_mut().find(|sent| sent.number == number && sent.fate.is_none())?;
        sent.fate = Some((fate, now));
        self.unresolved -= sent.weight();
        Some(*sent)
    }

    /// Tests whether a packet without a fate is a PING behind others.
    pub(super) fn is_ping(&self, number: u64) -> bool {
        self.packets.iter().any(|sent| sent.number == number && sent.fate.is_none() && sent.is_ping)
    }

    /// Next packet whose fate and that of all before it is known. A packet is skipped when its fate is unknown
    /// `patience` s after that of a later one became known: packets of discarded keys never get one.
    pub(super) fn next(&mut self, patience: f64, now: f64) -> Option<(SentPacket, Fate)> {
        self.forget(now);
        while self.packets.front().is_some_and(|first| first.fate.is_none())
            && self.packets.iter().any(|later| later.fate.is_some_and(|(_, at)| now - at > patience))
        {
            self.drop_first();
        }
        let (fate, _) = self.packets.front()?.fate?;
        self.packets.pop_front().map(|first| (first, fate))
    }

    /// Drops the oldest packets if they are older than three seconds and have no fate.
    pub(super) fn forget(&mut self, now: f64) {
        let is_old = |first: &SentPacket| first.fate.is_none() && now - first.at > FORGET_AFTER;
        while self.packets.front().is_some_and(is_old) {
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        self.unresolved -= self.packets.pop_front().map_or(0, |first| first.weight());
    }

    /// Ordinals and times of the packets sent after this ordinal.
    pub(super) fn after(&self, ordinal: u64) -> impl Iterator<Item = (u64, f64)> {
        self.packets.iter().filter(move |sent| sent.ordinal > ordinal).map(|sent| (sent.ordinal, sent.at))
    }

    /// True while a probe is not known to have passed.
    pub(super) fn has_unresolved_probe(&self) -> bool {
        self.packets.iter().any(|sent| sent.is_probe && sent.fate.is_none_or(|(fate, _)| fate == Fate::Lost))
    }

    /// Packets without a fate, but for PINGs behind others.
    pub(super) fn in_flight(&self) -> u64 {
        self.unresolved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: f64 = 0.05;

    fn packets(count: u64) -> SentPackets {
        let mut packets = SentPackets::default();
        (0..count).for_each(|number| packets.push(sent(number)));
        packets
    }

    /// One of packets that are sent every 10 ms.
    fn sent(number: u64) -> SentPacket {
        SentPacket {
            number,
            at: number as f64 * 0.01,
            urgent: 0,
            ack_only: 0,
            in_flight: 0,
            is_full: true,
            is_probe: false,
            is_ping: false,
            level: 0.0,
            correction: 0.0,
            ordinal: number,
            expected: None,
            fate: None,
        }
    }

    fn next(packets: &mut SentPackets, now: f64) -> Option<(u64, Fate)> {
        packets.next(PATIENCE, now).map(|(sent, fate)| (sent.number, fate))
    }

    /// The library reports an acknowledgement first, and then the losses that it shows, of whatever age.
    #[test]
    fn a_loss_counts_that_is_reported_after_a_later_packet_has_passed() {
        let mut packets = packets(2);
        packets.resolve(1, Fate::Passed, 1.0);
        assert_eq!(next(&mut packets, 1.0), None);
        packets.resolve(0, Fate::Lost, 1.0);
        assert_eq!(next(&mut packets, 1.0), Some((0, Fate::Lost)));
        assert_eq!(next(&mut packets, 1.0), Some((1, Fate::Passed)));
        assert_eq!(packets.in_flight(), 0);
    }

    #[test]
    fn a_packet_without_a_fate_does_not_hold_up_later_ones() {
        let mut packets = packets(3);
        packets.resolve(1, Fate::Passed, 1.0);
        assert_eq!(next(&mut packets, 1.0 + PATIENCE * 0.9), None);
        assert_eq!(next(&mut packets, 1.0 + PATIENCE * 1.1), Some((1, Fate::Passed)));
        assert_eq!(next(&mut packets, 2.0), None, "the fate of the third may yet be reported");
        assert_eq!(packets.in_flight(), 1);
        assert_eq!(next(&mut packets, FORGET_AFTER + 0.1), None);
        assert_eq!(packets.in_flight(), 0);
    }
}
