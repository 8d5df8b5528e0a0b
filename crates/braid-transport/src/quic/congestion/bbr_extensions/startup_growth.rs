//! Startup whose window triples in a round trip, until the path shows a limit.
//!
//! Slow start doubles its window (RFC 9002, 7.3.1), so that a gigabit of 200 ms is full after twelve round trips. One
//! that triples takes eight, and is further beyond the limit when it learns of it. So it ends with the first loss, or
//! when packets that left together wait behind each other for an eighth of a round trip, and BBR goes on with what was
//! acknowledged, half as much. BBR itself then sends twice the rate of the path for three round trips until it finds
//! that it does not grow. Once all packets of a round trip have waited (as in HyStart++, RFC 9406, 4.2), or many are
//! lost, a quarter more than that rate is in flight at most, for a few round trips.

use std::time::Duration;

use super::{Floor, PathNow};
use crate::quic::rate::{bytes_in, rate_of};

/// Growth of the window for each acknowledged byte, bytes.
const GROWTH: u64 = 2;

/// Largest window, in multiples of what was in flight: a window that is not used shows nothing (RFC 9002, 7.8). Packets
/// that an acknowledgement permits leave later, as they are paced.
const UNUSED: u64 = 4;

/// Percent of a window that are sent in a round trip, as in the startup of BBR. With 100, a window that triples would
/// take so long to be sent that it grows by 2.35.
const PACING_GAIN: u64 = 277;
const GRANULARITY: Duration = Duration::from_millis(1);

/// Divisor of the shortest round trip, and bounds, for the time by which those of packets are longer that have waited:
/// MIN_RTT_DIVISOR, MIN_RTT_THRESH and MAX_RTT_THRESH of RFC 9406, 4.3. The upper bound is for a queue that all packets
/// of a round trip have met.
const DIVISOR: u32 = 8;
const THRESHOLD: [Duration; 2] = [Duration::from_millis(4), Duration::from_millis(16)];

/// Number of packets in a row that have waited behind each other.
const ROW: u32 = 4;

/// Least number of packets (N_RTT_SAMPLE of RFC 9406) and shortest round trip that show a queue. On a shorter path a
/// late acknowledgement is longer than a queue.
const SAMPLES: u32 = 8;
const SHORT: Duration = Duration::from_millis(5);

/// Number and share of packets that are lost in a round trip behind a limit, and not at random, and least number of
/// gaps between which others have passed: an outage is one.
const LOST: u32 = 6;
const LOST_SHARE: u32 = 50;
const GAPS: u32 = 2;

/// Share of the product of rate and round trip that is in flight beyond it, and number of such windows that are
/// delivered until BBR decides alone.
const BEYOND: u64 = 4;
const WINDOWS: u64 = 6;

/// Ratio of pacing rate and delivery rate between that of the startup of BBR, 2.77, and those of its other states, 1.25
/// and less.
const STARTUP_GAIN: u64 = 2;

/// Growth of the window of a new path.
#[derive(Clone, Debug)]
pub(super) struct StartupGrowth {
    phase: Phase,
    initial_window: u64,
    /// Bytes of the present acknowledgement.
    acked: u64,
    /// Window of BBR, bytes. Without a loss it shrinks only where BBR measures an empty path.
    inner: u64,
    shortest: Duration,
    /// Number of the last packet that was sent.
    last: u64,
    round: Round,
    /// Most bytes in flight in the round before.
    flight: u64,
    /// Packets in a row that have waited.
    row: u32,
}

/// Round trip: until a packet is acknowledged that was sent after its begin.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    /// Number of the last packet that was sent before.
    end: u64,
    passed: u32,
    /// Packets that passed while there was more to send.
    busy: u32,
    least: Option<Duration>,
    /// Most bytes in flight.
    flight: u64,
    /// Packets that were lost, number of the last one, and gaps of one and more of them.
    lost: u32,
    last_lost: Option<u64>,
    gaps: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The path has shown no limit. Window, bytes.
    Tripling(u64),
    /// A limit may have shown, and BBR doubles its window.
    Doubling,
    /// The path has a limit. Largest window, and bytes that were delivered since, if both are known.
    Limited(Option<(u64, u64)>),
    /// BBR decides alone.
    Over,
}

impl StartupGrowth {
    pub(super) fn new(initial_window: u64) -> Self {
        Self {
            phase: Phase::Tripling(initial_window),
            initial_window,
            acked: 0,
            inner: 0,
            shortest: Duration::MAX,
            last: 0,
            round: Round::default(),
            flight: 0,
            row: 0,
        }
    }

    /// Lower limit while the path has shown none, once there is a round trip.
    pub(super) fn floor(&self) -> Option<Floor> {
        let Phase::Tripling(window) = self.phase else { return None };
        let rate = rate_of(window.saturating_mul(PACING_GAIN), self.shortest.max(GRANULARITY)) / 100;
        (self.shortest < Duration::MAX).then_some(Floor { rate, window })
    }

    /// Largest window, bytes.
    pub(super) fn ceiling(&self) -> u64 {
        match self.phase {
            Phase::Limited(Some((window, _))) => window,
            _ => u64::MAX,
        }
    }

    pub(super) fn handle_sent(&mut self, number: u64) {
        self.last = self.last.max(number);
    }

    /// Notes a packet that was acknowledged. `rtt`: its round trip.
    pub(super) fn handle_acked(&mut self, number: u64, bytes: u64, rtt: Duration, app_limited: bool) {
        if self.phase == Phase::Over {
            return;
        }
        if number > self.round.end {
            self.end_round();
        }
        self.acked += bytes;
        self.shortest = self.shortest.min(rtt);
        let round = &mut self.round;
        round.passed += 1;
        round.busy += u32::from(!app_limited);
        round.least = Some(round.least.map_or(rtt, |least| least.min(rtt)));
        let has_waited = rtt > self.shortest + self.threshold() && !app_limited;
        self.row = if has_waited { self.row.saturating_add(1) } else { 0 };
        if self.row == ROW {
            self.double();
        }
    }

    /// Time by which round trips are longer that have waited.
    fn threshold(&self) -> Duration {
        (self.shortest / DIVISOR).max(THRESHOLD[0])
    }

    fn end_round(&mut self) {
        let Round { passed, busy, least, flight, .. } =
            std::mem::replace(&mut self.round, Round { end: self.last, ..Round::default() });
        self.flight = flight;
        let Some(least) = least else { return };
        if busy == 0 && flight <= self.initial_window {
            // No queue of ours: what was known of the path is old.
            self.shortest = least;
            if let Phase::Tripling(window) = &mut self.phase {
                *window = self.initial_window;
            }
        } else if busy == passed
            && passed >= SAMPLES
            && self.shortest >= SHORT
            && least > self.shortest + self.threshold().min(THRESHOLD[1])
        {
            self.handle_limit();
        }
    }

    /// Ends the packets of one acknowledgement. `in_flight`: bytes that are left.
    pub(super) fn handle_end_of_acks(&mut self, path: &PathNow, in_flight: u64, app_limited: bool) {
        let acked = std::mem::take(&mut self.acked);
        self.round.flight = self.round.flight.max(in_flight + acked);
        let has_shrunk = path.window < std::mem::replace(&mut self.inner, path.window);
        match &mut self.phase {
            Phase::Over => {}
            _ if !is_in_startup(path) => self.phase = Phase::Over,
            Phase::Tripling(_) if has_shrunk => self.phase = Phase::Over,
            Phase::Tripling(window) => {
                if !app_limited && *window <= self.round.flight.max(self.flight) * UNUSED {
                    *window = window.saturating_add(acked * GROWTH);
                }
            }
            Phase::Doubling => {}
            Phase::Limited(_) if app_limited => self.phase = Phase::Over,
            Phase::Limited(limit) => {
                let window = filling(path, self.shortest);
                let delivered = limit.map_or(0, |(_, delivered)| delivered + acked);
                *limit = window.map(|window| (window, delivered));
                if window.is_some_and(|window| delivered > window.saturating_mul(WINDOWS)) {
                    self.phase = Phase::Over;
                }
            }
        }
    }

    /// Notes a packet that was lost.
    pub(super) fn handle_lost(&mut self, number: u64) {
        if self.phase == Phase::Over {
            return;
        }
        self.double();
        let round = &mut self.round;
        round.lost = round.lost.saturating_add(1);
        let before = round.last_lost.replace(number);
        round.gaps += u32::from(before.is_none_or(|before| before + 1 != number));
        let are_many = round.lost >= LOST && round.gaps >= GAPS;
        if are_many && round.lost.saturating_mul(LOST_SHARE) >= round.passed {
            self.handle_limit();
        }
    }

    /// Notes that packets which counted as lost have arrived after all.
    pub(super) fn handle_late(&mut self) {
        if matches!(self.phase, Phase::Limited(_)) {
            self.phase = Phase::Doubling;
        }
    }

    /// Notes a queue, a mark, or many losses.
    pub(super) fn handle_limit(&mut self) {
        if matches!(self.phase, Phase::Tripling(_) | Phase::Doubling) {
            self.phase = Phase::Limited(None);
        }
    }

    fn double(&mut self) {
        if matches!(self.phase, Phase::Tripling(_)) {
            self.phase = Phase::Doubling;
        }
    }

    /// Leaves the path to BBR: it has a policer or an outage, or is another one.
    pub(super) fn end(&mut self) {
        self.phase = Phase::Over;
    }
}

/// Bytes in flight that fill the path, and a part more.
fn filling(path: &PathNow, round_trip: Duration) -> Option<u64> {
    let bytes = bytes_in(path.rate?, round_trip.saturating_add(GRANULARITY));
    Some((bytes + bytes / BEYOND).max(path.initial_window))
}

fn is_in_startup(path: &PathNow) -> bool {
    let (Some(rate), Some(pacing)) = (path.rate, path.pacing) else { return true };
    pacing > rate.saturating_mul(STARTUP_GAIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    const IW: u64 = 12_000;
    const PACKET: u64 = 1200;
    const MS: Duration = Duration::from_millis(1);

    /// BBR at startup on a path of 1 MB/s.
    const STARTUP: PathNow =
        PathNow { rate: Some(1_000_000), pacing: Some(2_770_000), window: IW, initial_window: IW };

    /// 1 MB/s in 101 ms, and a quarter more.
    const CEILING: u64 = 126_250;

    /// Growth whose packets are acknowledged in their order.
    struct Flow {
        growth: StartupGrowth,
        next: u64,
    }

    impl Flow {
        /// After windows that were acknowledged whole, in round trips of 100 ms.
        fn grown(windows: usize) -> Self {
            let mut flow = Self { growth: StartupGrowth::new(IW), next: 1 };
            (0..windows).for_each(|_| flow.pass(100 * MS, false));
            flow
        }

        fn window(&self) -> Option<u64> {
            self.growth.floor().map(|floor| floor.window)
        }

        /// Sends a window and has it acknowledged, ten packets at a time.
        fn pass(&mut self, rtt: Duration, app_limited: bool) {
            let packets = self.window().unwrap_or(IW) / PACKET;
            self.send(packets, |_| Some(rtt), app_limited);
        }

        /// Sends packets at once, of which each has a round trip or is lost.
        fn send(&mut self, packets: u64, rtt: impl Fn(u64) -> Option<Duration>, app_limited: bool) {
            self.growth.handle_sent(self.next + packets - 1);
            for index in 0..packets {
                match rtt(index) {
                    Some(rtt) => self.growth.handle_acked(self.next, PACKET, rtt, app_limited),
                    None => self.growth.handle_lost(self.next),
                }
                self.next += 1;
                if index % 10 == 9 || index + 1 == packets {
                    let left = (packets - index - 1) * PACKET;
                    self.growth.handle_end_of_acks(&STARTUP, left, app_limited);
                }
            }
        }

        /// Ends the round: what it has shown is evaluated with the next packet.
        fn end_round(&mut self) {
            self.send(1, |_| Some(100 * MS), false);
        }
    }

    #[test]
    fn a_window_triples_while_it_is_used() {
        assert_eq!(StartupGrowth::new(IW).floor(), None, "there is no round trip yet");
        let mut flow = Flow::grown(3);
        let floor = Floor { rate: 8_974_800, window: 27 * IW };
        assert_eq!((flow.growth.floor(), flow.growth.ceiling()), (Some(floor), u64::MAX));
        flow.pass(100 * MS, true);
        assert_eq!(flow.window(), Some(27 * IW), "nothing more was to be sent");
        let mut flow = Flow::grown(2);
        (0..100).for_each(|_| flow.send(10, |_| Some(100 * MS), false));
        assert!(flow.window().is_some_and(|window| window < 14 * IW), "a window of which little is used");
    }

    #[test]
    fn a_round_of_longer_round_trips_is_a_limit_of_a_quarter_more_than_the_rate() {
        for (rtt, is_limited) in [(112, false), (113, true)] {
            let mut flow = Flow::grown(2);
            flow.pass(rtt * MS, false);
            flow.end_round();
            let expected = if is_limited { CEILING } else { u64::MAX };
            assert_eq!((flow.window().is_none(), flow.growth.ceiling()), (is_limited, expected), "{rtt} ms");
        }
        let mut flow = Flow::grown(2);
        flow.send(90, |index| Some(if index == 50 { 100 * MS } else { 200 * MS }), false);
        flow.end_round();
        assert_eq!((flow.window(), flow.growth.ceiling()), (None, u64::MAX), "one was not longer");
    }

    #[test]
    fn packets_that_wait_behind_each_other_end_it() {
        for (rtt, row, is_over) in [(112, 8, false), (113, 3, false), (113, 4, true)] {
            let mut flow = Flow::grown(2);
            flow.send(90, |index| Some(if index % 9 < row { rtt * MS } else { 100 * MS }), false);
            assert_eq!(
                (flow.window().is_none(), flow.growth.ceiling()),
                (is_over, u64::MAX),
                "{row} of {rtt}"
            );
        }
    }

    #[test]
    fn a_loss_ends_it_and_many_in_a_round_are_a_limit() {
        type Fates = fn(u64) -> bool;
        let cases: [(&str, Fates, bool); 4] = [
            ("one", |index| index == 0, false),
            ("six that are one gap", |index| index < 6, false),
            ("six of 348", |index| index % 58 == 57, false),
            ("six of 288", |index| index % 48 == 47, true),
        ];
        for (case, is_lost, is_limited) in cases {
            let mut flow = Flow::grown(4);
            let packets = if case.ends_with("288") { 288 } else { 348 };
            flow.send(packets, |index| (!is_lost(index)).then_some(100 * MS), false);
            assert_eq!(flow.window(), None, "{case}");
            assert_eq!(flow.growth.ceiling() < u64::MAX, is_limited, "{case}");
            flow.growth.handle_late();
            flow.end_round();
            assert_eq!(flow.growth.ceiling(), u64::MAX, "packets that were late");
        }
    }

    #[test]
    fn a_path_that_became_longer_while_there_was_little_to_send_has_no_limit() {
        let mut flow = Flow::grown(0);
        for rtt in [20, 100] {
            (0..20).for_each(|_| flow.send(1, |_| Some(rtt * MS), true));
        }
        flow.pass(100 * MS, false);
        assert_eq!(flow.window(), Some(3 * IW));
        (0..3).for_each(|_| flow.send(1, |_| Some(100 * MS), true));
        assert_eq!(flow.window(), Some(IW), "what was known is old");
    }

    #[test]
    fn a_limit_ends_with_the_startup_of_bbr_and_after_some_windows() {
        let limited = || {
            let mut flow = Flow::grown(2);
            flow.growth.handle_limit();
            flow.end_round();
            assert_eq!(flow.growth.ceiling(), CEILING);
            flow
        };
        let mut flow = limited();
        let probing = PathNow { pacing: Some(1_250_000), ..STARTUP };
        flow.growth.handle_end_of_acks(&probing, 0, false);
        assert_eq!(flow.growth.ceiling(), u64::MAX);
        flow.growth.handle_limit();
        flow.end_round();
        assert_eq!(flow.growth.ceiling(), u64::MAX, "once");
        let mut flow = limited();
        flow.send(1, |_| Some(100 * MS), true);
        assert_eq!(flow.growth.ceiling(), u64::MAX, "nothing more to send");
        let mut flow = limited();
        flow.send(6 * CEILING / PACKET, |_| Some(100 * MS), false);
        assert_eq!(flow.growth.ceiling(), CEILING);
        flow.send(2, |_| Some(100 * MS), false);
        assert_eq!(flow.growth.ceiling(), u64::MAX, "six windows");
    }

    #[test]
    fn it_ends_where_bbr_has_left_its_startup_or_measures_an_empty_path() {
        for (path, is_over) in [
            (STARTUP, false),
            (PathNow { pacing: Some(1_250_000), ..STARTUP }, true),
            (PathNow { window: IW / 2, ..STARTUP }, true),
        ] {
            let mut flow = Flow::grown(2);
            flow.growth.handle_end_of_acks(&path, 0, false);
            assert_eq!(flow.window().is_none(), is_over, "{path:?}");
        }
    }
}
