//! Class of a path: the limit that it is taken to have, and the reason.
//!
//! Each change of the class of a path stands in this file and goes through [`Gate::enter`], which logs it. A path is
//! taken for a policer in two cases:
//! - [`Reason::DropsAboveRate`]: [`Startup::dropped`] has found drops at flat round trips, too many for random loss,
//!   with packets that pass between them.
//! - [`Reason::PolicerCapHelped`]: in passthrough, BBR's policer cap has limited the rate, and the losses ended.

use std::time::Instant;

use super::policer_model::PolicerModel;
use super::queue_model::QueueModel;
use super::rtt_samples::{MinRtt, RttSample};
use super::sent_packets::{Fate, SentPacket};
use super::startup::{LossTolerant, Passthrough, Startup};
use super::{FAST, Gate};

/// Wait (s) that shows a queue.
const QUEUE_WAIT: f64 = 0.01;

/// Consecutive packets that wait behind what was taken for a policer, and the least time (s) in which they do: then it
/// is a queue.
const POLICER_DELAYS: u32 = 8;
const POLICER_DELAY_TIME: f64 = 0.3;

/// Least time (s) between two departures that measure the rate of a queue.
const QUEUE_RATE_SPAN: f64 = 0.015;

/// Share of [`FAST`] above which a new queue is left to the congestion controller: its rate is not known well at first.
const FAST_QUEUE_SHARE: f64 = 0.7;

/// Time (s) for which losses make no policer after random losses, and round trips make no queue after noise.
const IGNORE_FOR: f64 = 60.0;

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
    /// Unknown so far, and packets are lost at random.
    LossTolerant,
    /// A policer: drops what exceeds its rate, and delays nothing.
    Policed,
    /// A queue.
    Queued,
}

impl Class {
    /// True if the gate decides, not the congestion controller.
    pub(in crate::quic) fn is_limited(self) -> bool {
        matches!(self, Self::LossTolerant | Self::Policed | Self::Queued)
    }

    /// Name in the gate log: `start`, `open`, `search`, `policed` or `queued`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Startup => "start",
            Self::Passthrough => "open",
            Self::LossTolerant => "search",
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
    /// Startup: a path in passthrough loses a fifth of the packets, or queues.
    PassthroughLimits,
    /// Startup: the minimum RTT is below 250 ms again.
    ShortRtt,
    /// Passthrough: the minimum RTT is above 300 ms.
    LongRtt,
    /// Passthrough: startup has delivered 64 packets at more than 5,000 a second.
    FastDelivery,
    /// Passthrough: a queue has formed whose rate is near 5,000 packets a second.
    FastQueue,
    /// Passthrough: the rate of a model has risen above 5,000 packets a second.
    FastModel,
    /// Passthrough: waits in a queue differ by more than two service times.
    NoisyWaits,
    /// Passthrough: too much is lost for random losses.
    ExcessLoss,
    /// Passthrough: packets that counted as lost were late.
    LateNotLost,
    /// Passthrough, for a while: models were wrong too often.
    Unmodelled,
    /// Loss tolerant: startup has too few losses for a policer, and they go on.
    RandomLoss,
    /// Loss tolerant: packets are lost although a policer would have had tokens.
    LossDespiteTokens,
    /// Policed: packets are dropped at flat round trips. See [`Startup::dropped`].
    DropsAboveRate,
    /// Policed: the policer cap of BBR has ended the losses.
    PolicerCapHelped,
    /// Queued: full packets wait longer and longer.
    WaitsGrow,
}

impl Reason {
    /// Tests whether the gate was wrong about the path.
    fn contradicts_a_model(self) -> bool {
        matches!(
            self,
            Self::NoisyWaits
                | Self::ExcessLoss
                | Self::LossDespiteTokens
                | Self::PolicerDelays
                | Self::LateNotLost
        )
    }
}

/// Wrong models within this time (s) that are tolerated, and the time (s) for which the next one sets the gate aside at
/// first and at most.
const WRONG_WITHIN: f64 = 60.0;
const TOLERATED: u32 = 1;
const ASIDE: f64 = 10.0;
const LONGEST_ASIDE: f64 = 40.0;

/// Models that were wrong.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WrongModels {
    count: u32,
    last: f64,
}

impl WrongModels {
    /// Notes a wrong model. Returns the time (s) for which the gate stands aside, if there were too many.
    fn handle_wrong(&mut self, now: f64) -> Option<f64> {
        self.count = if now - self.last > WRONG_WITHIN { 1 } else { self.count + 1 };
        self.last = now;
        let excess = self.count.checked_sub(TOLERATED + 1)?;
        Some((ASIDE * f64::from(2_u32.pow(excess.min(4)))).min(LONGEST_ASIDE))
    }
}

/// Model that belongs to a class.
#[derive(Clone, Debug)]
pub(super) enum Model {
    Startup(Startup),
    Passthrough(Passthrough),
    LossTolerant(LossTolerant),
    Policed(PolicerModel),
    Queued(QueueModel),
}

impl Model {
    pub(super) fn class(&self) -> Class {
        match self {
            Self::Startup(_) => Class::Startup,
            Self::Passthrough(_) => Class::Passthrough,
            Self::LossTolerant(_) => Class::LossTolerant,
            Self::Policed(_) => Class::Policed,
            Self::Queued(_) => Class::Queued,
        }
    }

    /// Packets per second, where something limits them.
    pub(super) fn rate(&self) -> Option<f64> {
        match self {
            Self::Startup(_) | Self::Passthrough(_) | Self::LossTolerant(_) => None,
            Self::Policed(policer) => Some(policer.rate()),
            Self::Queued(queue) => Some(queue.rate()),
        }
    }
}

impl Gate {
    /// Changes the class.
    fn enter(&mut self, model: Model, reason: Reason, now: f64) {
        tracing::debug!(from = ?self.model.class(), to = ?model.class(), ?reason, "the path changes its class");
        match reason {
            Reason::RandomLoss | Reason::LossDespiteTokens => self.ignore_loss_until = now + IGNORE_FOR,
            Reason::NoisyWaits => self.ignore_rtt_until = now + IGNORE_FOR,
            // Few packets empty a queue, if there is one; a path or a peer that is slower stays so.
            Reason::PolicerDelays | Reason::QueueLoses => self.rtt.min = MinRtt::default(),
            _ => {}
        }
        if reason.contradicts_a_model()
            && let Some(time) = self.wrong.handle_wrong(now)
        {
            let min_rtt = self.rtt.min.rtt.unwrap_or(f64::INFINITY);
            let aside = Passthrough::aside(min_rtt, now, now + time);
            return self.enter(Model::Passthrough(aside), Reason::Unmodelled, now);
        }
        if matches!(reason, Reason::PolicerDelays | Reason::LongerPath) {
            self.rtt.forget_departures();
        }
        if let Model::Passthrough(_) = model {
            self.discard_deferred(|_| true, now);
            self.sent.clear();
            self.urgent.forget();
            self.rtt.forget_departures();
        }
        (self.model, self.reason) = (model, reason);
    }

    /// Leaves the path to the congestion controller.
    pub(super) fn pass_through(&mut self, reason: Reason, now: f64) {
        let min_rtt = self.rtt.min.rtt.unwrap_or(f64::INFINITY);
        self.enter(
            Model::Passthrough(Passthrough::new(min_rtt, reason == Reason::LongRtt, now)),
            reason,
            now,
        );
    }

    /// Counts a delivered packet.
    pub(super) fn handle_delivered(&mut self, sent: &SentPacket, now: f64) {
        let is_long = self.rtt.min.is_long(now);
        match &mut self.model {
            Model::Passthrough(_) => {}
            _ if is_long => self.pass_through(Reason::LongRtt, now),
            Model::Startup(startup) => {
                let is_full = sent.in_flight * 2 > startup.window();
                let is_long =
                    self.rtt.min.rtt.is_some_and(|rtt| rtt > LONG) && self.rtt.queue_began.is_none();
                if startup.passed(is_full, is_long, now) {
                    self.pass_through(Reason::FastDelivery, now);
                }
            }
            Model::LossTolerant(path) => path.passed(sent.in_flight * 2 > path.window()),
            _ => {}
        }
    }

    /// Uses the fates of all packets up to the first without one.
    pub(super) fn handle_fates(&mut self, now: f64) {
        let patience = self.rtt.patience();
        let mut is_excessive = false;
        while let Some((sent, fate)) = self.sent.next(patience, now) {
            let next = match (&mut self.model, fate) {
                (Model::Policed(policer), fate) => {
                    match fate {
                        Fate::Passed => policer.passed(&sent, &self.sent, now),
                        Fate::Lost => policer.dropped(&sent, now),
                    }
                    let random = (Model::LossTolerant(LossTolerant::new()), Reason::LossDespiteTokens);
                    policer.is_random_loss().then_some(random)
                }
                (Model::Startup(startup), Fate::Lost) => match startup.dropped(sent.at, sent.ack_only) {
                    Some(rate) if now >= self.ignore_loss_until => {
                        let policer = PolicerModel::new(rate, self.reserve, now);
                        Some((Model::Policed(policer), Reason::DropsAboveRate))
                    }
                    _ if startup.is_random_loss() => {
                        Some((Model::LossTolerant(LossTolerant::new()), Reason::RandomLoss))
                    }
                    _ => None,
                },
                (Model::LossTolerant(path), Fate::Lost) => {
                    is_excessive = path.dropped();
                    None
                }
                (Model::Queued(queue), fate) => {
                    is_excessive = queue.is_lossy(fate);
                    None
                }
                _ => None,
            };
            if let Some((model, reason)) = next {
                self.enter(model, reason, now);
            }
        }
        if is_excessive {
            match self.model {
                Model::LossTolerant(_) => self.pass_through(Reason::ExcessLoss, now),
                _ if now >= self.ignore_loss_until => {
                    self.enter(Model::Startup(Startup::new(now)), Reason::QueueLoses, now);
                }
                _ => {}
            }
        } else if self.model.rate().is_some_and(|rate| rate > FAST) && self.rtt.is_delivery_fast() {
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
                let is_certain = self.rtt.is_certain(sample, &self.sent);
                queue.handle_sample(sample, is_certain, now);
                if queue.is_too_noisy(now) {
                    self.pass_through(Reason::NoisyWaits, now);
                }
            }
            Model::Startup(_) | Model::LossTolerant(_) if sent.is_full && wait > QUEUE_WAIT / 2.0 => {
                if let Model::Startup(startup) = &mut self.model {
                    startup.handle_queue();
                }
                if wait <= QUEUE_WAIT || now < self.ignore_rtt_until {
                    return;
                }
                let (ordinal, left) = *self.rtt.queue_began.get_or_insert(before.unwrap_or(departure));
                let span = departure.1 - left;
                let rate = sent.ordinal.saturating_sub(ordinal) as f64 / span.max(1e-6);
                if span < QUEUE_RATE_SPAN {
                    return;
                }
                if rate < FAST * FAST_QUEUE_SHARE {
                    let queue = QueueModel::new(rate, departure, self.sent.after(sent.ordinal));
                    self.enter(Model::Queued(queue), Reason::WaitsGrow, now);
                } else {
                    self.pass_through(Reason::FastQueue, now);
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
            self.rtt.delayed = None;
            self.enter(Model::Startup(Startup::new(now)), Reason::PolicerDelays, now);
        }
    }

    /// Counts packets that were acknowledged and lost in passthrough. `smoothed`: RTT (s) of the library, if the
    /// acknowledgement brought one.
    pub(in crate::quic) fn handle_passthrough(
        &mut self,
        acked: u32,
        lost: u32,
        smoothed: Option<f64>,
        app_limited: bool,
        now: Instant,
    ) {
        let now = self.seconds(now);
        self.rtt.smoothed = smoothed.or(self.rtt.smoothed);
        let Model::Passthrough(path) = &mut self.model else { return };
        path.count(acked, lost);
        let (rtt, is_long) = (self.rtt.smoothed.unwrap_or(0.0), path.is_long);
        if let Some(packets) = path.evaluate(rtt, now < self.ignore_rtt_until, app_limited, now) {
            let reason = if is_long { Reason::ShortRtt } else { Reason::PassthroughLimits };
            self.enter(Model::Startup(Startup::with_window(packets, now)), reason, now);
        }
    }

    /// Notes that all packets which counted as lost have arrived after all.
    pub(in crate::quic) fn handle_late(&mut self, now: Instant) {
        let now = self.seconds(now);
        // A deferred packet is late by our own doing.
        if now - self.released_at < LATE_WITHIN
            || now - std::mem::replace(&mut self.late_at, now) > LATE_WITHIN
        {
            return;
        }
        // Neither drops nor round trips show what limits such a path.
        self.ignore_loss_until = self.ignore_loss_until.max(now + LATE_WITHIN);
        if !matches!(self.model, Model::Passthrough(_)) {
            self.pass_through(Reason::LateNotLost, now);
        }
    }

    /// Takes the rate (bytes per second) over that the policer cap of BBR has found in passthrough.
    pub(in crate::quic) fn handle_policer(&mut self, rate: u64, now: Instant) {
        let now = self.seconds(now);
        if let Model::Passthrough(path) = &self.model
            && path.may_be_policed(now)
            && now >= self.ignore_loss_until
        {
            let policer = PolicerModel::new(rate as f64 / self.sent.mtu.max(1) as f64, self.reserve, now);
            self.enter(Model::Policed(policer), Reason::PolicerCapHelped, now);
        }
    }
}
