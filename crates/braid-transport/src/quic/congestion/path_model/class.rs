//! Class of a path: the limit that it is taken to have, and the reason.
//!
//! Each change of the class of a path stands in this file and goes through [`Gate::enter`], which logs it.

use std::time::Instant;

use super::policer_model::PolicerModel;
use super::queue_model::QueueModel;
use super::rtt_samples::{MinRtt, RttSample};
use super::sent_packets::{Fate, SentPacket};
use super::startup::{FateCounts, Passthrough, Startup};
use super::tail_pings::TailPings;
use super::window_model::WindowModel;
use super::{FAST, Gate};

/// Wait (s) that shows a queue.
const QUEUE_WAIT: f64 = 0.01;

/// Consecutive packets that wait behind what was taken for a policer, and the least time (s) in which they do: then it
/// is a queue.
const POLICER_DELAYS: u32 = 8;
const POLICER_DELAY_TIME: f64 = 0.3;

/// Packets a second below which each packet of a queue is modelled. Above this, and a little more, a window keeps the
/// queue as short: two packets wait no longer than an urgent one may.
const SLOW: f64 = 150.0;
const NOT_SLOW: f64 = 200.0;

/// Least time (s) between two departures that measure the rate of a queue.
const QUEUE_RATE_SPAN: f64 = 0.015;

/// Packets a second above which a window measures what a policer passes: it sends evenly, where bursts of startup show
/// the depth of the bucket.
const MEASURED: f64 = 40.0;

/// Time (s) for which drops make no policer after one that was refuted: at first, and at most.
pub(super) const REFUTED: f64 = 3.0;
const LONGEST_REFUTED: f64 = 6.0;

/// Time (s) for which a slow queue is not modelled after one whose waits were noise.
const NOISY: f64 = 20.0;

/// Round trip (s) until one is measured.
const NO_RTT: f64 = 0.1;

/// Time (s) within which packets are late twice on a path that reorders them.
const LATE_WITHIN: f64 = 10.0;

/// RTT (s) above which each round trip of startup counts.
const LONG: f64 = 0.01;

/// Limit that a path is taken to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Unknown so far.
    Startup,
    /// None that the gate has to know: the congestion controller decides.
    Passthrough,
    /// A queue whose rate is high or varies, or random losses: the window follows the delivery rate.
    Windowed,
    /// A policer: drops what exceeds its rate, and delays nothing.
    Policed,
    /// A slow queue: each packet is modelled.
    Queued,
}

impl Class {
    /// True if the gate decides, not the congestion controller.
    pub(in crate::quic) fn is_limited(self) -> bool {
        matches!(self, Self::Windowed | Self::Policed | Self::Queued)
    }

    /// Name in the gate log: `start`, `open`, `window`, `policed` or `queued`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Startup => "start",
            Self::Passthrough => "open",
            Self::Windowed => "window",
            Self::Policed => "policed",
            Self::Queued => "queued",
        }
    }
}

/// Reason for the class of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Startup: the connection, or its path, is new.
    NewPath,
    /// Startup: packets wait always the same behind a queue that should be short, so the path has become longer.
    LongerPath,
    /// Startup: packets wait behind what was taken for a policer.
    PolicerDelays,
    /// Startup: a queue loses a third of the packets, so a policer has taken its place.
    QueueLoses,
    /// Startup: nothing has passed a queue for a time.
    PersistentCongestion,
    /// Startup: a queue has become slower than 150 packets a second.
    SlowQueue,
    /// Startup: a path in passthrough loses a fifth of the packets, or is not fast.
    PassthroughLimits,
    /// Passthrough: startup has delivered 64 packets at more than 5,000 a second.
    FastDelivery,
    /// Passthrough: a queue has formed whose rate is near 5,000 packets a second.
    FastQueue,
    /// Passthrough: the rate of a model has risen above 5,000 packets a second.
    FastModel,
    /// Windowed: waits in a slow queue differ by more than two service times.
    NoisyWaits,
    /// Windowed: packets that counted as lost were late.
    LateNotLost,
    /// Windowed: startup has too few losses for a policer, and they go on.
    RandomLoss,
    /// Windowed: packets are lost although a policer would have had tokens.
    LossDespiteTokens,
    /// Policed: packets are dropped at flat round trips, too many for random losses. Windowed, at startup above 40
    /// packets a second.
    DropsAboveRate,
    /// Queued: full packets wait longer and longer. Windowed above 150 packets a second, and above 200 where a queue
    /// was slower.
    WaitsGrow,
}

/// Model that belongs to a class.
#[derive(Clone, Debug)]
pub(super) enum Model {
    Startup(Startup),
    Passthrough(Passthrough),
    Policed(PolicerModel),
    Queued(QueueModel),
    Windowed(WindowModel),
}

impl Model {
    pub(super) fn class(&self) -> Class {
        match self {
            Self::Startup(_) => Class::Startup,
            Self::Passthrough(_) => Class::Passthrough,
            Self::Policed(_) => Class::Policed,
            Self::Queued(_) => Class::Queued,
            Self::Windowed(_) => Class::Windowed,
        }
    }

    /// True if the rate need not be known.
    fn is_fast(&self) -> bool {
        match self {
            Self::Windowed(path) => path.is_faster_than(FAST),
            _ => self.rate().is_some_and(|rate| rate > FAST),
        }
    }

    /// Packets per second, where something limits them.
    pub(super) fn rate(&self) -> Option<f64> {
        match self {
            Self::Startup(_) | Self::Passthrough(_) => None,
            Self::Policed(policer) => Some(policer.rate()),
            Self::Queued(queue) => Some(queue.rate()),
            Self::Windowed(path) => Some(path.rate()),
        }
    }
}

impl Gate {
    /// Changes the class.
    fn enter(&mut self, model: Model, reason: Reason, now: f64) {
        tracing::debug!(from = ?self.model.class(), to = ?model.class(), ?reason, "the path changes its class");
        (self.rtt.queue_began, self.rtt.delayed) = (None, None);
        match reason {
            Reason::LossDespiteTokens => {
                self.ignore_loss_until = now + self.refuted;
                self.refuted = (self.refuted * 2.0).min(LONGEST_REFUTED);
            }
            Reason::NoisyWaits => self.no_queue_until = now + NOISY,
            _ => {}
        }
        // Few packets empty a queue, if there is one; a path or a peer that is slower stays so.
        if matches!(reason, Reason::PolicerDelays | Reason::QueueLoses) {
            self.rtt.min = MinRtt::default();
        }
        if matches!(reason, Reason::PolicerDelays | Reason::LongerPath) {
            self.rtt.forget_departures();
        }
        if let Model::Passthrough(_) = model {
            self.sent.clear();
            self.urgent.forget();
            self.rtt.forget_departures();
        }
        if !matches!(model, Model::Windowed(_)) {
            self.tail = TailPings::default();
        }
        (self.model, self.reason) = (model, reason);
    }

    /// Sends a window from now on. `rate`: packets per second; otherwise those that are in flight in a round trip, and
    /// at startup those that may be.
    fn enter_windowed(&mut self, rate: Option<f64>, reason: Reason, now: f64) {
        let smoothed = self.rtt.smoothed.unwrap_or(NO_RTT);
        let permitted = if let Model::Startup(startup) = &self.model { startup.window() } else { 0 };
        let rate = rate.unwrap_or_else(|| self.sent.in_flight().max(permitted) as f64 / smoothed.max(1e-4));
        let base = self.rtt.min.rtt.unwrap_or(smoothed);
        self.enter(Model::Windowed(WindowModel::new(rate, base, now)), reason, now);
    }

    /// Leaves the path to the congestion controller.
    pub(super) fn pass_through(&mut self, reason: Reason, now: f64) {
        self.enter(Model::Passthrough(Passthrough::new(now)), reason, now);
    }

    /// Counts a delivered packet.
    pub(super) fn handle_delivered(&mut self, sent: &SentPacket, now: f64) {
        match &mut self.model {
            Model::Startup(startup) => {
                let is_long =
                    self.rtt.min.rtt.is_some_and(|rtt| rtt > LONG) && self.rtt.queue_began.is_none();
                // A path that has shown a limit before is found again with less.
                let is_new = self.reason == Reason::NewPath;
                if startup.passed(sent.in_flight, is_long, is_new, now) {
                    self.pass_through(Reason::FastDelivery, now);
                }
            }
            Model::Windowed(path) => {
                let may_be_policed = now >= self.ignore_loss_until;
                if let Some(rate) = path.passed(sent.ordinal, now - sent.at, may_be_policed, now) {
                    let policer = PolicerModel::unverified(rate, self.reserve, now);
                    self.enter(Model::Policed(policer), Reason::DropsAboveRate, now);
                } else if path.rate() < SLOW && path.wait() > QUEUE_WAIT && now > self.no_queue_until {
                    self.enter(Model::Startup(Startup::new(now)), Reason::SlowQueue, now);
                }
            }
            _ => {}
        }
    }

    /// Uses the fates of all packets up to the first without one.
    pub(super) fn handle_fates(&mut self, now: f64) {
        let patience = self.rtt.patience();
        let mut is_excessive = false;
        while let Some((sent, fate)) = self.sent.next(patience, now) {
            match (&mut self.model, fate) {
                (Model::Policed(policer), fate) => {
                    match fate {
                        Fate::Passed => policer.passed(&sent, &self.sent, now),
                        Fate::Lost => policer.dropped(&sent, now),
                    }
                    if policer.is_random_loss() {
                        let rate = policer.rate();
                        self.enter_windowed(Some(rate), Reason::LossDespiteTokens, now);
                    }
                }
                (Model::Startup(startup), Fate::Lost) => match startup.dropped(sent.at, sent.ack_only) {
                    Some(rate) if rate > MEASURED => {
                        self.enter_windowed(Some(rate), Reason::DropsAboveRate, now);
                    }
                    Some(rate) if now >= self.ignore_loss_until => {
                        let policer = PolicerModel::new(rate, self.reserve, now);
                        self.enter(Model::Policed(policer), Reason::DropsAboveRate, now);
                    }
                    _ if startup.is_random_loss() => self.enter_windowed(None, Reason::RandomLoss, now),
                    _ => {}
                },
                (Model::Queued(queue), fate) => is_excessive = queue.is_lossy(fate),
                (Model::Windowed(path), Fate::Lost) => path.lost(now),
                _ => {}
            }
        }
        if is_excessive && now >= self.ignore_loss_until {
            self.enter(Model::Startup(Startup::new(now)), Reason::QueueLoses, now);
        } else if self.model.is_fast() {
            self.pass_through(Reason::FastModel, now);
        }
    }

    /// Uses an RTT sample.
    pub(super) fn handle_sample(&mut self, sample: &RttSample, now: f64) {
        let RttSample { sent, rtt, wait, is_alone } = *sample;
        let was_short = sent.expected.is_some_and(|wait| wait < QUEUE_WAIT / 2.0);
        if was_short && self.rtt.min.is_longer(rtt, now) {
            let startup = Startup::with_window(self.sent.in_flight() as f64, now);
            return self.enter(Model::Startup(startup), Reason::LongerPath, now);
        }
        let departure = (sent.ordinal, sent.at + wait);
        // A packet that found no other of ours in the queue did not wait for them.
        let before = self.rtt.last_departure.replace(departure).filter(|_| !is_alone);
        if wait <= QUEUE_WAIT || before.is_none() {
            self.rtt.queue_began = None;
        }
        match &mut self.model {
            Model::Policed(_) => self.handle_delay(wait, now),
            Model::Queued(queue) => {
                queue.handle_sample(sample, now);
                let rate = queue.rate();
                if queue.is_too_noisy(now) {
                    self.enter_windowed(Some(rate), Reason::NoisyWaits, now);
                } else if rate > NOT_SLOW {
                    self.enter_windowed(Some(rate), Reason::WaitsGrow, now);
                }
            }
            Model::Startup(startup) if sent.is_full && wait > QUEUE_WAIT / 2.0 => {
                startup.handle_queue();
                if wait <= QUEUE_WAIT {
                    return;
                }
                let (ordinal, left) = *self.rtt.queue_began.get_or_insert(before.unwrap_or(departure));
                let span = departure.1 - left;
                let rate = sent.ordinal.saturating_sub(ordinal) as f64 / span.max(1e-6);
                if span < QUEUE_RATE_SPAN {
                    return;
                }
                if rate > FAST {
                    self.pass_through(Reason::FastQueue, now);
                } else if rate > SLOW {
                    self.enter_windowed(Some(rate), Reason::WaitsGrow, now);
                } else {
                    let queue = QueueModel::new(rate, departure, self.sent.after(sent.ordinal));
                    self.enter(Model::Queued(queue), Reason::WaitsGrow, now);
                }
            }
            _ => {}
        }
    }

    /// Counts a wait behind a policer, which delays nothing: where packets wait, another bottleneck has taken its
    /// place.
    fn handle_delay(&mut self, wait: f64, now: f64) {
        if wait <= QUEUE_WAIT {
            self.rtt.delayed = None;
            return;
        }
        let (count, since) = self.rtt.delayed.get_or_insert((0, now));
        *count += 1;
        if *count >= POLICER_DELAYS && now - *since > POLICER_DELAY_TIME {
            self.enter(Model::Startup(Startup::new(now)), Reason::PolicerDelays, now);
        }
    }

    /// Counts packets that were acknowledged and lost in passthrough.
    pub(in crate::quic) fn handle_passthrough(&mut self, fates: FateCounts, app_limited: bool, now: Instant) {
        let now = self.seconds(now);
        self.rtt.smoothed = fates.smoothed.or(self.rtt.smoothed);
        let Model::Passthrough(path) = &mut self.model else { return };
        if let Some(rate) = path.count(fates, app_limited, now) {
            let startup = Startup::with_window(rate * self.rtt.smoothed.unwrap_or(0.0), now);
            self.enter(Model::Startup(startup), Reason::PassthroughLimits, now);
        }
    }

    /// Notes that all packets which counted as lost have arrived after all.
    pub(in crate::quic) fn handle_late(&mut self, now: Instant) {
        let now = self.seconds(now);
        if now - std::mem::replace(&mut self.late_at, now) > LATE_WITHIN {
            return;
        }
        // Neither drops nor round trips show what limits such a path.
        self.ignore_loss_until = self.ignore_loss_until.max(now + LATE_WITHIN);
        match &mut self.model {
            Model::Passthrough(_) => {}
            Model::Windowed(path) => path.handle_late(now),
            _ => self.enter_windowed(None, Reason::LateNotLost, now),
        }
    }

    /// Notes congestion that the peer or the library reports: marks [RFC 9002, 7.1], or persistent congestion
    /// [RFC 9002, 7.6].
    pub(in crate::quic) fn handle_congestion(&mut self, is_persistent: bool, now: Instant) {
        let now = self.seconds(now);
        match &mut self.model {
            Model::Windowed(path) if is_persistent => path.collapse(now),
            Model::Windowed(path) => path.handle_mark(),
            Model::Queued(_) if is_persistent => {
                self.enter(Model::Startup(Startup::new(now)), Reason::PersistentCongestion, now);
            }
            _ => {}
        }
    }
}
