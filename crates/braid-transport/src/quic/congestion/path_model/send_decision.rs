//! Decisions when packets may leave.

use std::time::{Duration, Instant};

use super::class::{Model, Reason};
use super::policer_model::STARVED;
use super::{Gate, duration, whole};

/// Time (s) without a datagram after which the peer misses something: an acknowledgement is due after 25 ms.
const SILENCE: f64 = 0.03;

/// Least time (s) of four packets, which is the silence where the path limits.
const LIMITED_SILENCE: f64 = 0.2;

/// Time (s) that an acknowledgement may take beyond two round trips.
const PATIENCE: f64 = 0.5;

/// Upper bound of the packets that may be unanswered, twice as many with urgent ones.
const UNANSWERED: u64 = 4096;

/// Bytes that the library may hold unsent: those of this time (s), and as many as are in flight.
const AHEAD: f64 = 0.1;

/// Packets that it may hold at startup.
const AHEAD_AT_STARTUP: u64 = 32;

/// Decision about the next packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::quic) enum SendDecision {
    /// The congestion controller decides.
    Controller,
    /// Number of packets that may be in flight, unless the congestion controller permits fewer.
    Window(u64),
    /// Number of packets that may be in flight in any case.
    UrgentWindow(u64),
    /// One packet may leave, however many are in flight.
    One,
    Send,
    Wait,
}

impl Gate {
    /// Decides whether the next packet may leave.
    pub(in crate::quic) fn decide(&mut self, now: Instant) -> SendDecision {
        let now = self.seconds(now);
        let is_urgent = self.urgent.bytes > 0;
        let is_new = self.reason == Reason::NewPath;
        self.sent.forget(now);
        let is_unanswered = self.is_unanswered();
        let is_silent = self.is_silent(now);
        let may = match &mut self.model {
            Model::Passthrough(_) => return SendDecision::Controller,
            // BBR empties a long path while it is new, to measure it: urgent packets would wait a round trip.
            Model::Startup(startup) if is_urgent && is_new && startup.favours_urgent() => {
                let window = SendDecision::UrgentWindow(startup.window());
                return if is_silent { SendDecision::Send } else { window };
            }
            Model::Startup(_) if is_silent => return SendDecision::One,
            Model::Startup(startup) => return SendDecision::Window(startup.window()),
            _ if is_silent => true,
            _ if is_unanswered => false,
            Model::Policed(policer) => {
                if self.urgent.since.is_some_and(|since| now - since > STARVED) {
                    policer.probe(now);
                } else if !is_urgent {
                    policer.probe_behind(self.urgent.arrivals.last(), now);
                }
                let may = (is_urgent && policer.permits_urgent(now)) || policer.permits_bulk(now);
                if !may && !is_urgent {
                    policer.refuse_bulk(now);
                }
                may
            }
            Model::Queued(queue) => {
                (is_urgent && queue.permits_urgent(now))
                    || queue.permits_bulk(self.urgent.arrivals.next(), now)
            }
            Model::Windowed(path) => {
                let in_flight = self.sent.in_flight();
                (is_urgent && path.permits_urgent(in_flight)) || path.permits_bulk(in_flight, now)
            }
        };
        if may { SendDecision::Send } else { SendDecision::Wait }
    }

    /// Time for which timeouts of the library wait: a probe would be dropped, or wait in the queue.
    pub(in crate::quic) fn timeouts_wait(&self, now: Instant) -> Option<Duration> {
        let now = self.seconds(now);
        let at = match &self.model {
            Model::Policed(policer) => policer.permits_urgent_at(now),
            Model::Queued(queue) => queue.permits_urgent_at(now),
            _ => return None,
        };
        let wait = at.min(self.sent.last_at + self.silence()) - now;
        (wait > 0.0).then(|| Duration::from_secs_f64(wait))
    }

    /// Time of a PING behind the last packet, if the window has room for it. Behind a policer it would take a token,
    /// and in a slow queue a place.
    pub(in crate::quic) fn ping_due(&self) -> Option<Instant> {
        let Model::Windowed(path) = &self.model else { return None };
        let rtt = self.rtt.smoothed.filter(|_| path.permits_urgent(self.sent.in_flight()))?;
        self.tail.due(rtt).map(|due| self.epoch + duration(due))
    }

    /// Takes the PING that is due.
    pub(in crate::quic) fn take_ping(&mut self, now: Instant) -> bool {
        let is_due = self.ping_due().is_some_and(|due| due <= now);
        if is_due {
            self.tail.take(self.seconds(now));
        }
        is_due
    }

    /// True if urgent bytes wait to be sent.
    pub(in crate::quic) fn has_urgent(&self) -> bool {
        self.urgent.bytes > 0
    }

    /// Bytes that may be written and not be acknowledged; `None`: as many as the congestion controller's window
    /// suggests.
    pub(in crate::quic) fn send_limit(&self) -> Option<u64> {
        let packets = match &self.model {
            Model::Passthrough(_) => return None,
            // Its window is that of another connection.
            Model::Startup(startup) if startup.is_resumed() => return None,
            Model::Startup(startup) => (startup.window() * 2).max(AHEAD_AT_STARTUP),
            _ => {
                let ahead = self.model.rate().map_or(0, |rate| whole(rate * AHEAD));
                self.sent.in_flight() * 2 + ahead.max(6)
            }
        };
        Some(packets * self.sent.mtu)
    }

    /// True if no datagram was sent for so long that the peer may miss something: the library holds acknowledgements
    /// and PATH_RESPONSE frames back while other data waits for the window.
    fn is_silent(&self, now: f64) -> bool {
        now - self.sent.last_at > self.silence()
    }

    fn silence(&self) -> f64 {
        self.model.rate().map_or(SILENCE, |rate| (4.0 / rate).clamp(LIMITED_SILENCE, 2.0))
    }

    /// True if so much is unanswered that more would be lost as well, or wait behind it.
    fn is_unanswered(&self) -> bool {
        let (Some(rate), Some(rtt)) = (self.model.rate(), self.rtt.min.rtt) else { return false };
        let most = (whole(rate * (rtt * 2.0 + PATIENCE)) + 10).min(UNANSWERED);
        let in_flight = self.sent.in_flight();
        in_flight > most * 2 || (in_flight > most && self.urgent.bytes == 0)
    }

    /// Time until more is permitted than now, if nothing happens before.
    pub(in crate::quic) fn next(&self, now: Instant) -> Option<Duration> {
        let now = self.seconds(now);
        let at = match &self.model {
            Model::Startup(_) | Model::Passthrough(_) => return None,
            _ if self.is_unanswered() => self.sent.last_at + self.silence(),
            Model::Policed(policer) => policer.next(self.urgent.arrivals.last(), now),
            Model::Windowed(path) => {
                let silent = (self.sent.last_at + self.silence()).max(now);
                path.next(self.sent.in_flight(), now).map_or(silent, |at| at.min(silent))
            }
            Model::Queued(queue) => queue.next(self.urgent.arrivals.next(), now),
        };
        Some(Duration::from_secs_f64((at - now).clamp(0.0, 10.0)))
    }
}
