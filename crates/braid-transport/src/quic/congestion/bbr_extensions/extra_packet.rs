//! One packet beyond the window on a silent path.
//!
//! When a window of packets or their acknowledgements are lost, nothing may be sent until the probe timeout; the
//! library holds back even acknowledgements while data waits, so that the probes of the peer are not answered either.
//! The packets of the probe timeout are not subject to the window [RFC 9002, 7.5]; neither is this one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Round-trip time until one is measured.
const INITIAL_RTT: Duration = Duration::from_millis(50);

/// Time for which a peer delays acknowledgements [RFC 9000, 18.2].
const ACK_DELAY: Duration = Duration::from_millis(25);

/// Permission for one packet. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct ExtraPacket {
    is_permitted: Arc<AtomicBool>,
    in_flight: u64,
    /// Time from which on nothing was acknowledged while packets were in flight.
    silent_since: Option<Instant>,
    srtt: Option<Duration>,
}

impl ExtraPacket {
    /// Permits a packet if packets are in flight and none was acknowledged for a round trip. Returns whether that is
    /// so.
    pub(super) fn permit(&self, now: Instant) -> bool {
        let limit = self.srtt.unwrap_or(INITIAL_RTT) + ACK_DELAY;
        let is_silent = self.silent_since.is_some_and(|since| now.saturating_duration_since(since) >= limit);
        if is_silent {
            self.is_permitted.store(true, Ordering::Relaxed);
        }
        is_silent
    }

    /// Window with which the packet may be sent; 0 without a permission.
    pub(super) fn window(&self, mtu: u16) -> u64 {
        // Sizes of datagrams and of packets differ a little.
        if self.is_permitted.load(Ordering::Relaxed) { self.in_flight + 2 * u64::from(mtu) } else { 0 }
    }

    pub(super) fn handle_sent(&mut self, bytes: u16, now: Instant) {
        self.in_flight += u64::from(bytes);
        self.silent_since.get_or_insert(now);
        self.is_permitted.store(false, Ordering::Relaxed);
    }

    pub(super) fn handle_acked(&mut self, srtt: Duration) {
        self.srtt = Some(srtt);
    }

    pub(super) fn handle_end_of_acks(&mut self, in_flight: u64, now: Instant) {
        self.in_flight = in_flight;
        self.silent_since = (in_flight > 0).then_some(now);
        self.is_permitted.store(false, Ordering::Relaxed);
    }

    pub(super) fn handle_lost(&mut self, bytes: u16) {
        self.in_flight = self.in_flight.saturating_sub(bytes.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MTU: u16 = 1200;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_silent_path_takes_one_packet_beyond_the_window() {
        let (mut extra, start) = (ExtraPacket::default(), Instant::now());
        let permitted = |in_flight: u64| in_flight + 2 * u64::from(MTU);
        (0..10).for_each(|_| extra.handle_sent(MTU, start));
        extra.handle_acked(ms(100));
        extra.handle_end_of_acks(8000, start);
        extra.handle_lost(1000);
        assert!(!extra.permit(start + ms(124)));
        assert_eq!(extra.window(MTU), 0, "it is not silent");
        // By a copy, as the library gives to others.
        assert!(extra.clone().permit(start + ms(125)));
        assert_eq!(extra.window(MTU), permitted(7000));
        extra.handle_sent(MTU, start + ms(126));
        assert_eq!(extra.window(MTU), 0, "one packet");
        assert!(extra.permit(start + ms(136)));
        assert_eq!(extra.window(MTU), permitted(7000 + u64::from(MTU)), "and one more for the next probe");
        extra.handle_end_of_acks(1000, start + ms(200));
        assert_eq!(extra.window(MTU), 0);
        assert!(!extra.permit(start + ms(324)) && extra.permit(start + ms(325)));
    }

    #[test]
    fn a_path_without_packets_in_flight_is_not_silent() {
        let (mut extra, start) = (ExtraPacket::default(), Instant::now());
        assert!(!extra.permit(start + ms(10_000)));
        extra.handle_sent(MTU, start);
        assert!(
            !extra.permit(start + ms(74)) && extra.permit(start + ms(75)),
            "before a round trip is known"
        );
        extra.handle_acked(ms(1));
        extra.handle_end_of_acks(0, start + ms(80));
        assert!(!extra.permit(start + ms(10_000)));
        assert_eq!(extra.window(MTU), 0);
    }
}
