//! Watch over the link of a connection: readings of its path, silence, and attempts of other links beside it.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use braid_select::{
    Decision, First, Key, Protocol, QuicCounters, QuicMeter, QuicReading, QuicSampler, TcpMeter, TcpReading,
};
use braid_transport::http::{PathSample, PathStats, TcpMetrics};
use braid_transport::{Link, Transport};
use tokio::time::{Instant, Sleep, sleep_until};

use super::dialers::Attempt;
use super::memory::Memory;
use crate::error::Error;

/// Time between two readings of a connection that sends.
const ACTIVE: Duration = Duration::from_secs(1);
/// Time between two readings while an answer is missing.
const UNANSWERED: Duration = Duration::from_millis(250);
/// Time between two readings of a connection that sends nothing.
const IDLE: Duration = Duration::from_secs(60);
/// Probe timeouts until a path without an answer is silent: the third one ends 1 + 2 + 4 of them after the first packet
/// (RFC 9002, 6.2.1).
const PROBE_TIMEOUTS: u32 = 7;
/// Bounds of that time. A policer of some packets a second may be silent for most of a second.
const SILENCE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(6));
/// Delay of an acknowledgement that a peer may add (RFC 9000, 18.2).
const MAX_ACK_DELAY: Duration = Duration::from_millis(25);
/// Retransmissions of TCP by its timer, one after the other, that make a path silent: 1.4 s at least.
const TCP_TIMEOUTS: u8 = 3;
/// Bounds of the time for which a link that is left may answer what was sent on it.
const SETTLE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// Bounds of the pause after an attempt that failed.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Cause of an attempt beside a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// QUIC lost the race against TLS, and goes on.
    Late,
    /// The present link does not answer.
    Silence,
    /// QUIC failed earlier, and may work again.
    Probe,
    /// The other protocol is the choice in this network.
    Choice,
    /// The application asked for it.
    Asked,
    /// The machine has another address.
    Network,
}

/// Readings of the link of one connection.
pub(super) struct Watch {
    protocol: Protocol,
    tcp: TcpMeter,
    quic: (QuicMeter, QuicSampler),
    /// Time of the next reading.
    tick: Option<Pin<Box<Sleep>>>,
    answers: Answers,
    attempt: Option<Beside>,
    /// Attempts because of silence that failed since the link answered last, and the end of the pause after the latest.
    silence: Pauses,
    /// Other attempts that failed in a row, likewise.
    choice: Pauses,
}

/// Attempt beside a connection.
pub(super) struct Beside {
    pub(super) cause: Cause,
    pub(super) to: Protocol,
    /// Network in which it began.
    pub(super) key: Key,
    attempt: Attempt,
}

/// Pauses after failures in a row.
#[derive(Clone, Copy, Debug, Default)]
struct Pauses {
    failures: u32,
    until: Option<Instant>,
}

impl Pauses {
    /// Begins the pause after one more failure, and returns it.
    fn fail(&mut self) -> Duration {
        let (least, most) = RETRY;
        let pause = least.saturating_mul(1 << self.failures.min(6)).min(most);
        self.failures = self.failures.saturating_add(1);
        self.until = Some(Instant::now() + pause);
        pause
    }

    fn is_over(&self) -> bool {
        self.until.is_none_or(|until| until <= Instant::now())
    }
}

/// Signs that the path answers.
#[derive(Clone, Copy, Debug, Default)]
struct Answers {
    sent: u64,
    received: u64,
    /// Time of the reading from which on an answer is missing.
    missing_since: Option<Instant>,
    /// Time without an answer from which on the path is silent.
    limit: Duration,
    /// Whether TCP says that the path is silent.
    is_tcp_silent: bool,
    /// End of the wait for the first answer to early data.
    early_until: Option<Instant>,
    srtt: Duration,
}

impl Default for Watch {
    fn default() -> Self {
        Self {
            protocol: Protocol::Quic,
            tcp: TcpMeter::default(),
            quic: Default::default(),
            tick: None,
            answers: Answers::default(),
            attempt: None,
            silence: Pauses::default(),
            choice: Pauses::default(),
        }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("protocol", &self.protocol).finish_non_exhaustive()
    }
}

impl Watch {
    /// Watch over a link that was established as `first` had it.
    pub(super) fn new(link: &Link, first: First) -> Self {
        let protocol = match link.peer().transport {
            Transport::Quic => Protocol::Quic,
            _ => Protocol::Tcp,
        };
        let now = Instant::now();
        let early_until = match first {
            First::Quic { tcp_after } if link.is_early() => Some(now + tcp_after),
            _ => link.is_early().then_some(now + SILENCE.0),
        };
        let answers = Answers { limit: SILENCE.0, early_until, ..Answers::default() };
        let tick = Some(Box::pin(sleep_until(early_until.unwrap_or(now + UNANSWERED))));
        Self { protocol, tick, answers, ..Self::default() }
    }

    pub(super) fn protocol(&self) -> Protocol {
        self.protocol
    }

    // -- Attempts ----------------------------------------------------------------------------------

    /// Whether an attempt may begin now, because of silence or for another cause. One because of silence displaces one
    /// that waits for CONNACK.
    pub(super) fn may_attempt(&self, is_silent: bool, is_established: bool) -> bool {
        let pauses = if is_silent { &self.silence } else { &self.choice };
        let is_waiting = |beside: &Beside| is_silent && !is_established && beside.cause != Cause::Silence;
        self.attempt.as_ref().is_none_or(is_waiting) && pauses.is_over()
    }

    /// Whether QUIC has lost the race, and not answered since.
    pub(super) fn is_attempting_late(&self) -> bool {
        self.attempt.as_ref().is_some_and(|beside| beside.cause == Cause::Late)
    }

    /// Begins an attempt, in place of the one before.
    pub(super) fn attempt(&mut self, cause: Cause, to: Protocol, key: Key, attempt: Attempt) {
        self.attempt = Some(Beside { cause, to, key, attempt });
    }

    /// Protocol of the next attempt of a silent link: both in turn, TLS first. A link of the same protocol may answer
    /// where the present one does not: the server or a NAT has forgotten that.
    pub(super) fn next_protocol(&self) -> Protocol {
        if self.silence.failures.is_multiple_of(2) { Protocol::Tcp } else { Protocol::Quic }
    }

    /// Lets the next attempt for a cause wait, after one that failed.
    pub(super) fn attempt_later(&mut self, cause: Cause) {
        let pauses = if cause == Cause::Silence { &mut self.silence } else { &mut self.choice };
        let pause = pauses.fail();
        if cause == Cause::Network {
            self.tick_after(pause); // A connection that sends nothing would not be read for a minute.
        }
    }

    /// The attempt that has ended, if one has. `is_established`: CONNACK has arrived. Until then only silence ends a
    /// connection: the server would take it for the end of the client, and publish the Will.
    pub(super) fn poll_attempt(
        &mut self,
        is_established: bool,
        cx: &mut Context<'_>,
    ) -> Option<(Beside, Result<Link, Error>)> {
        let beside =
            self.attempt.as_mut().filter(|beside| is_established || beside.cause == Cause::Silence)?;
        let Poll::Ready(outcome) = beside.attempt.as_mut().poll(cx) else { return None };
        self.attempt.take().map(|beside| (beside, outcome))
    }

    // -- Readings ----------------------------------------------------------------------------------

    /// Ready when a reading is due; the next one is set by [`Watch::take_sample`].
    pub(super) fn poll_tick(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(tick) = &mut self.tick else { return Poll::Pending };
        if tick.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        self.tick_after(IDLE);
        Poll::Ready(())
    }

    fn tick_after(&mut self, pause: Duration) {
        let at = Instant::now() + pause;
        match &mut self.tick {
            Some(tick) => tick.as_mut().reset(at),
            None => self.tick = Some(Box::pin(sleep_until(at))),
        }
    }

    /// Lets an idle connection that sends again be read soon.
    pub(super) fn wake(&mut self) {
        let soon = Instant::now() + ACTIVE;
        if self.tick.as_ref().is_some_and(|tick| tick.deadline() > soon) {
            self.tick_after(UNANSWERED);
        }
    }

    /// Forgets the path, because the connection has moved to another one.
    pub(super) fn moved(&mut self) {
        self.quic.1.moved();
        self.answers.missing_since = None;
        self.tick_after(UNANSWERED);
    }

    /// Takes a reading. Returns the change of the choice that follows.
    pub(super) fn take_sample(&mut self, sample: &PathSample, memory: &mut Memory) -> Option<Decision> {
        let before = self.answers;
        let decision = match sample {
            PathSample::Quic(stats) => self.take_quic(stats, memory),
            PathSample::Tcp(metrics) => self.take_tcp(metrics, memory),
        };
        let answers = &self.answers;
        let is_answered = answers.received > before.received;
        if is_answered {
            self.silence = Pauses::default();
        }
        let is_missing = answers.missing_since.is_some() || answers.is_tcp_silent;
        self.tick_after(match (is_missing, answers.sent > before.sent || is_answered) {
            (true, _) => UNANSWERED,
            (false, true) => ACTIVE,
            (false, false) => IDLE,
        });
        decision
    }

    fn take_quic(&mut self, stats: &PathStats, memory: &mut Memory) -> Option<Decision> {
        let (meter, sampler) = &mut self.quic;
        let reading = sampler.sample(memory.now(), &QuicCounters::from(stats));
        let probe_timeout = reading.srtt + 4 * reading.rttvar + MAX_ACK_DELAY;
        self.answers.take(stats.sent_bytes, stats.received_datagrams, probe_timeout);
        self.answers.srtt = reading.srtt;
        // Silence is this watch's to find: the selector would need a connection over TCP beside this one.
        let reading = QuicReading { pto_count: 0, ..reading };
        memory.observe_quic(meter, &reading)
    }

    fn take_tcp(&mut self, metrics: &TcpMetrics, memory: &mut Memory) -> Option<Decision> {
        self.answers.sent = metrics.data_segments_sent.into();
        self.answers.received = metrics.delivered.into();
        self.answers.srtt = metrics.srtt;
        self.answers.is_tcp_silent = metrics.retransmits >= TCP_TIMEOUTS;
        memory.observe_tcp(&mut self.tcp, &TcpReading::from(metrics))
    }

    /// Whether the path does not answer. `is_early`: the server has not confirmed early data.
    pub(super) fn is_silent(&self, is_early: bool) -> bool {
        let now = Instant::now();
        let answers = &self.answers;
        let is_missing = answers.missing_since.is_some_and(|since| now - since >= answers.limit);
        let is_early_late = is_early && answers.early_until.is_some_and(|until| until <= now);
        is_missing || answers.is_tcp_silent || is_early_late
    }

    /// Time limit for the answers of a link that is left.
    pub(super) fn settle_limit(&self) -> Duration {
        let (least, most) = SETTLE;
        (self.answers.srtt * 3).clamp(least, most)
    }
}

impl Answers {
    /// Takes the bytes sent in packets that are acknowledged, and the datagrams received.
    fn take(&mut self, sent: u64, received: u64, probe_timeout: Duration) {
        let (least, most) = SILENCE;
        self.limit = (probe_timeout * PROBE_TIMEOUTS).clamp(least, most);
        if received > self.received {
            self.missing_since = None;
        } else if sent > self.sent && self.missing_since.is_none() {
            self.missing_since = Some(Instant::now());
        }
        (self.sent, self.received) = (sent, received);
    }
}
