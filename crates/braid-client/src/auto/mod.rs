//! Automatic choice of the transport: QUIC or TLS for each connection, and moves of a connection from one to the other.
//!
//! Nothing here goes over plain TCP.

mod dialers;
mod hint;
mod memory;
mod network;
mod state_file;
mod watch;

use std::fmt;
use std::path::PathBuf;
use std::task::{Context, Poll};
use std::time::Duration;

use braid_proto::packet::ConnackProperties;
use braid_proto::reason::ReasonCode;
use braid_select::{Decision, First, Key, Protocol};
use braid_transport::Link;
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use self::dialers::{Attempt, Dialers};
use self::hint::{ServerReference, quic_hint};
use self::memory::Memory;
use self::network::NetworkChanges;
use self::watch::{Beside, Cause, Watch};
use crate::dialer::{Dialer, within};
use crate::error::Error;

/// Time for QUIC to be established after TLS was: as long as the whole race took, so many times, and at least.
const LATE: (u32, Duration) = (8, Duration::from_secs(3));
/// Handshakes of TLS, one after the other, in whose time QUIC has to answer a client that ends sooner, or be in doubt.
const LATE_HANDSHAKES: u32 = 8;
/// Head start of TLS over QUIC where QUIC has failed or costs more.
const TLS_HEAD_START: Duration = Duration::from_millis(250);
/// Time for which the transport that the application asked for is kept, unless it falls silent.
const ASKED: Duration = Duration::from_secs(60);
/// Bytes that wait for the link, from which on a cheaper TLS is no reason to leave QUIC: urgent messages would wait
/// behind them.
const MUCH_UNSENT: usize = 64 * 1024;
/// Connections over QUIC in a row that end without CONNACK, from which on QUIC does not work here.
const UNANSWERED: u32 = 2;
/// Times that QUIC fell silent while TLS answered, within a time, from which on it does not work here: new connections
/// may do so for some seconds each.
const SILENCES: (usize, Duration) = (2, Duration::from_secs(600));
/// Most Server References that are followed within a time: servers may refer to each other.
const MOST_REFERENCES: (usize, Duration) = (5, Duration::from_secs(60));

/// Chooser of the transport of one client.
pub(crate) struct Auto {
    dialers: Dialers,
    memory: Memory,
    watch: Watch,
    /// Attempt of QUIC that lost the race, and goes on: its end tells whether QUIC works here.
    late: Option<Attempt>,
    /// Beginning of that attempt, and the duration of the handshake of TLS.
    late_since: Option<(Instant, Duration)>,
    changes: NetworkChanges,
    /// Whether a connection that works may be left for a better one.
    may_choose: bool,
    answered: Answered,
    /// Time until which the application's choice holds.
    asked_until: Option<Instant>,
    /// Times of the latest Server References that were followed.
    references: Vec<Instant>,
}

/// Times at which QUIC was left for TLS because it was silent.
#[derive(Default)]
struct Silences(Vec<(Key, Instant)>);

impl Silences {
    /// Notes one in a network. True: they are too many there.
    fn note(&mut self, key: &Key) -> bool {
        let (most, within_time) = SILENCES;
        self.0.retain(|(_, at)| at.elapsed() < within_time);
        self.0.push((key.clone(), Instant::now()));
        self.0.iter().filter(|(one, _)| one == key).count() >= most
    }
}

/// Answers of the server, and failures to get one.
#[derive(Default)]
struct Answered {
    /// Whether the present link has brought CONNACK with Success; `None` between connections.
    is_connected: Option<bool>,
    /// Whether the session ends with the connection, as CONNACK says.
    ends_session: bool,
    /// Connections over QUIC in a row that ended without CONNACK, and their network.
    failures: Option<(Key, u32)>,
    silences: Silences,
    /// Whether TLS sends from an address that this machine has left.
    has_left_address: bool,
}

/// Link that takes the place of the present one.
#[derive(Debug)]
pub(crate) struct Replacement {
    pub(crate) link: Link,
    pub(crate) reason: String,
    /// Time limit for the requests that the present link has not answered yet.
    pub(crate) settle: Duration,
    /// Whether CONNACK has arrived on the present link.
    pub(crate) is_established: bool,
}

impl fmt::Debug for Auto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dialers, memory, watch, .. } = self;
        f.debug_struct("Auto")
            .field("dialers", dialers)
            .field("memory", memory)
            .field("watch", watch)
            .finish_non_exhaustive()
    }
}

impl Auto {
    /// `limit`: time limit of one attempt. `may_choose`: whether a connection that works may be left for a better one.
    pub(crate) fn new(
        quic: Dialer,
        tls: Dialer,
        limit: Duration,
        state_file: Option<PathBuf>,
        may_choose: bool,
    ) -> Self {
        let dialers = Dialers::new(quic, tls, limit);
        let memory = Memory::new(dialers.server(), state_file);
        Self {
            dialers,
            memory,
            watch: Watch::default(),
            late: None,
            late_since: None,
            changes: NetworkChanges::default(),
            may_choose,
            answered: Answered::default(),
            asked_until: None,
            references: Vec::new(),
        }
    }

    // -- Connects ----------------------------------------------------------------------------------

    /// Establishes a link: races QUIC and TLS, and the one that is the better choice here has a head start.
    pub(crate) async fn dial(&mut self, may_be_early: bool) -> Result<Link, Error> {
        (self.late, self.late_since) = (None, None);
        self.answered.is_connected = None;
        if self.dialers.return_to_origin() {
            self.memory.set_origin(self.dialers.server());
        }
        self.dialers.resolve().await?;
        self.memory.enter(self.dialers.route(None));
        if let Some(round_trip) = self.memory.round_trip() {
            self.dialers.assume_round_trip(round_trip);
        }
        match self.memory.first() {
            First::Quic { tcp_after } if self.dialers.has_quic() => {
                self.race(Protocol::Quic, tcp_after, may_be_early).await
            }
            First::Quic { .. } | First::Tcp { .. } => {
                self.race(Protocol::Tcp, TLS_HEAD_START, may_be_early).await
            }
        }
    }

    /// Races both protocols. A failure of the first one ends its head start.
    async fn race(
        &mut self,
        first: Protocol,
        head_start: Duration,
        may_be_early: bool,
    ) -> Result<Link, Error> {
        let start = Instant::now();
        // Early data is no answer: where QUIC is not the first choice it has to show that it works.
        let mut leading = self.dialers.attempt(first, may_be_early && first == Protocol::Quic);
        let mut leading_error = match timeout(head_start, &mut leading).await {
            Ok(Ok(link)) => return Ok(self.won(first, link, None)),
            Ok(Err(error)) => Some(error),
            Err(_) => None,
        };
        let second = first.other();
        if second == Protocol::Quic && !self.dialers.has_quic() {
            let link = match leading_error {
                Some(error) => Err(error),
                None => leading.await,
            };
            return link.map(|link| self.won(first, link, None));
        }
        info!(
            "{}",
            match &leading_error {
                Some(error) => format!("{} fails, trying {} now: {error}", name(first), name(second)),
                None => format!(
                    "no answer over {} within {} ms, trying {} as well",
                    name(first),
                    head_start.as_millis(),
                    name(second)
                ),
            }
        );
        let second_start = Instant::now();
        let mut trailing = self.dialers.attempt(second, false);
        let mut trailing_error = None;
        loop {
            tokio::select! {
                biased;
                outcome = &mut leading, if leading_error.is_none() => match outcome {
                    Ok(link) => return Ok(self.won(first, link, None)),
                    Err(error) => leading_error = Some(error),
                },
                outcome = &mut trailing, if trailing_error.is_none() => match outcome {
                    Ok(link) => {
                        let rest = leading_error.is_none().then_some((leading, start.elapsed()));
                        self.late_since = Some((start, second_start.elapsed()));
                        if let (Protocol::Quic, Some(error)) = (first, &leading_error) {
                            let key = self.memory.key().clone();
                            self.quic_failed(&key, error);
                        }
                        return Ok(self.won(second, link, rest));
                    }
                    Err(error) => trailing_error = Some(error),
                },
                else => break,
            }
        }
        let (one, other) = (leading_error.unwrap_or(Error::Closed), trailing_error.unwrap_or(Error::Closed));
        let (quic, tls) = if first == Protocol::Quic { (one, other) } else { (other, one) };
        Err(Error::NoTransport { quic: Box::new(quic), tls: Box::new(tls) })
    }

    /// Notes the result of a race. `rest`: the attempt that did not win, and the time it has had.
    fn won(&mut self, protocol: Protocol, link: Link, rest: Option<(Attempt, Duration)>) -> Link {
        if protocol == Protocol::Quic && !link.is_early() {
            self.quic_works_here();
        }
        self.late = rest.filter(|_| protocol == Protocol::Tcp).map(|(attempt, elapsed)| {
            let (times, least) = LATE;
            Box::pin(within((elapsed * times).max(least), attempt)) as Attempt
        });
        link
    }

    fn quic_failed(&mut self, key: &Key, reason: &dyn fmt::Display) {
        let wait = self.memory.quic_failed(key);
        warn!("QUIC does not work here, next try in {} s at the earliest: {reason}", wait.as_secs());
    }

    /// Notes that QUIC does not work in the network of the present link, and for the next connection from here, which
    /// asks by the first address of the server's name: that may be of another family.
    fn quic_failed_here(&mut self, reason: &dyn fmt::Display) {
        let key = self.memory.key().clone();
        self.quic_failed(&key, reason);
        if let Some(next) = self.next_key() {
            self.memory.quic_failed(&next);
        }
    }

    /// Notes that QUIC works, likewise. Returns the change of the choice for the present link.
    fn quic_works_here(&mut self) -> Option<Decision> {
        let key = self.memory.key().clone();
        let decision = self.memory.quic_works(&key);
        if let Some(next) = self.next_key() {
            self.memory.quic_works(&next);
        }
        decision
    }

    /// Network of the next connection, if it began now; `None`: that of the present link.
    fn next_key(&self) -> Option<Key> {
        let next = self.dialers.route(None).map(|route| self.memory.key_of(route));
        next.filter(|next| next != self.memory.key())
    }

    // -- Connections -------------------------------------------------------------------------------

    /// Begins to watch over a link on which a connection begins.
    pub(crate) fn begin(&mut self, link: &Link) {
        self.memory.enter(self.dialers.route(link.peer().address));
        self.answered.is_connected = Some(false);
        self.answered.has_left_address = false;
        self.watch = Watch::new(link, self.memory.first());
        if let Some(late) = self.late.take() {
            self.watch.attempt(Cause::Late, Protocol::Quic, self.memory.key().clone(), late);
        }
    }

    /// Handles CONNACK with Success.
    pub(crate) fn handle_connected(&mut self, properties: &ConnackProperties) {
        match quic_hint(properties) {
            Ok(Some(hint)) => self.dialers.take_hint(hint),
            Ok(None) => {}
            Err(reason) => warn!("the server's hint about QUIC is ignored: {reason}"),
        }
        self.answered.is_connected = Some(true);
        self.answered.failures = None;
        // A session that ends with the link would take messages with it.
        self.answered.ends_session = properties.session_expiry == Some(0);
        self.memory.save_changes();
    }

    /// Handles the failure of a connection, or of an attempt to connect. `is_moving`: another link was left for it.
    /// Returns whether the next attempt goes elsewhere.
    pub(crate) fn handle_failure(&mut self, error: &Error, is_moving: bool) -> bool {
        if self.answered.is_connected.take() != Some(false) {
            return false;
        }
        // Without any answer of the path it is no failure of QUIC, and a refusal is the server's answer, unless that
        // accepts the client elsewhere.
        let is_over_quic = self.watch.protocol() == Protocol::Quic && !self.watch.is_silent(true);
        let before = self.answered.failures.take().filter(|(key, _)| key == self.memory.key());
        if is_over_quic && (is_moving || !matches!(error, Error::Refused { .. })) {
            let failures = before.map_or(0, |(_, failures)| failures) + 1;
            self.answered.failures = Some((self.memory.key().clone(), failures));
            if is_moving || failures >= UNANSWERED {
                self.quic_failed_here(error);
            }
        }
        is_moving
    }

    fn may_choose(&self) -> bool {
        self.may_choose && !self.answered.ends_session
    }

    /// Ready when another link is to take the place of the present one. `is_established`: CONNACK has arrived.
    /// `unsent`: bytes of packets that wait for the present link.
    pub(crate) fn poll_replacement(
        &mut self,
        link: &mut Link,
        is_established: bool,
        unsent: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Replacement> {
        while self.changes.poll(cx).is_ready() {
            self.handle_network_change(link);
        }
        loop {
            if let Some((beside, outcome)) = self.watch.poll_attempt(is_established, cx) {
                if let Some(replacement) = self.handle_attempt(link, &beside, outcome, is_established) {
                    return Poll::Ready(replacement);
                }
                continue;
            }
            if self.watch.poll_tick(cx).is_pending() {
                return Poll::Pending;
            }
            self.tick(link, is_established, unsent);
        }
    }

    /// Notes that bytes were sent: the path may be silent from now on.
    pub(crate) fn note_sent(&mut self) {
        self.watch.wake();
    }

    /// Moves to another link now, for applications and tests that ask for it.
    pub(crate) fn move_now(&mut self) {
        let to = self.watch.protocol().other();
        if to == Protocol::Tcp || self.dialers.has_quic() {
            self.attempt(Cause::Asked, to);
            self.asked_until = Some(Instant::now() + ASKED);
        }
    }

    fn attempt(&mut self, cause: Cause, to: Protocol) {
        let attempt = self.dialers.attempt_beside(to);
        self.watch.attempt(cause, to, self.memory.key().clone(), attempt);
    }

    /// Takes a reading of the path. Returns whether it is silent.
    fn read(&mut self, link: &mut Link) -> bool {
        if let Some(sample) = link.path_sample()
            && let Some(decision) = self.watch.take_sample(&sample, &mut self.memory)
        {
            info!("{decision}");
        }
        self.watch.is_silent(link.is_early())
    }

    /// Takes a reading of the path, and begins an attempt if another link would be better.
    fn tick(&mut self, link: &mut Link, is_established: bool, unsent: usize) {
        let is_silent = self.read(link);
        if !self.watch.may_attempt(is_silent, is_established) {
            return;
        }
        let is_kept = !self.may_choose() || self.asked_until.is_some_and(|until| until > Instant::now());
        let (to, cause) = match self.dialers.has_quic() {
            false if is_silent => (Protocol::Tcp, Cause::Silence),
            true if is_silent => (self.watch.next_protocol(), Cause::Silence),
            _ if self.answered.has_left_address => (Protocol::Tcp, Cause::Network),
            _ if is_kept => return,
            has_quic => {
                let (chosen, first) = (self.memory.chosen(), self.memory.first());
                let better = better_link(self.watch.protocol(), chosen, first, has_quic, unsent);
                let Some(better) = better else { return };
                better
            }
        };
        self.attempt(cause, to);
    }

    /// Handles the end of an attempt beside a connection.
    fn handle_attempt(
        &mut self,
        link: &mut Link,
        beside: &Beside,
        outcome: Result<Link, Error>,
        is_established: bool,
    ) -> Option<Replacement> {
        let Beside { cause, to, ref key, .. } = *beside;
        let next = match outcome {
            Ok(next) => next,
            Err(error) => {
                // A network that does not answer at all says nothing about QUIC.
                if to == Protocol::Quic && cause != Cause::Silence && !self.read(link) {
                    self.quic_failed(key, &error);
                } else {
                    info!("no other link over {}: {error}", name(to));
                }
                self.watch.attempt_later(cause);
                return None;
            }
        };
        let decision = if to == Protocol::Quic { self.quic_works_here() } else { None };
        // An answer may have come since the last reading, which this task has not had time for.
        let is_silent = self.read(link);
        let is_wanted = match cause {
            Cause::Silence => is_silent,
            Cause::Probe => decision.is_some(),
            Cause::Late => self.may_choose(),
            Cause::Choice | Cause::Asked | Cause::Network => true,
        };
        if !is_wanted {
            return None;
        }
        let from = self.watch.protocol();
        let reason = match cause {
            Cause::Silence if from == to => format!("no answer, while another {} link answers", name(to)),
            Cause::Silence => format!("no answer over {}, while {} answers", name(from), name(to)),
            Cause::Late => "QUIC answers after all".to_owned(),
            Cause::Probe => "QUIC works again".to_owned(),
            Cause::Choice => format!("{} is the better choice here", name(to)),
            Cause::Asked => "the application asks for it".to_owned(),
            Cause::Network => "the network has changed".to_owned(),
        };
        if cause == Cause::Silence && (from, to) == (Protocol::Quic, Protocol::Tcp) {
            self.handle_silent_quic();
        }
        let settle = if is_silent || !is_established { Duration::ZERO } else { self.watch.settle_limit() };
        Some(Replacement { link: next, reason, settle, is_established })
    }

    /// Handles silence of QUIC where TLS answers. Is it UDP, or only the old connection, that the server or a NAT has
    /// forgotten?
    fn handle_silent_quic(&mut self) {
        if self.answered.silences.note(self.memory.key()) {
            self.quic_failed_here(&"its connections fall silent while TLS answers");
        } else {
            self.late = Some(Box::pin(within(LATE.1, self.dialers.attempt_beside(Protocol::Quic))));
        }
    }

    /// Handles a look at the addresses of this machine: QUIC moves along with them, TLS is replaced.
    fn handle_network_change(&mut self, link: &mut Link) {
        let Some(route) = self.dialers.route(link.peer().address) else { return };
        if !self.memory.enter(Some(route)) {
            return;
        }
        info!("this machine sends from {route} now");
        match self.watch.protocol() {
            Protocol::Quic => match link.rebind(None) {
                Ok(()) => self.watch.moved(),
                Err(error) => warn!("the QUIC connection cannot move to {route}: {error}"),
            },
            // Known to work, unlike QUIC here. That may follow when its turn comes.
            Protocol::Tcp => {
                self.answered.has_left_address = true;
                self.attempt(Cause::Network, Protocol::Tcp);
            }
        }
    }

    // -- Other servers -----------------------------------------------------------------------------

    /// Follows a Server Reference of CONNACK or DISCONNECT. Returns whether to connect again at once; otherwise the
    /// next attempt goes to the server of the URL, or to one that was referred to for good.
    pub(crate) fn follow(&mut self, reason: ReasonCode, reference: &str) -> bool {
        let (most, within) = MOST_REFERENCES;
        self.references.retain(|at| at.elapsed() < within);
        if self.references.len() >= most {
            warn!("the server refers to {reference:?}, too many within a minute: not followed");
            return false;
        }
        match ServerReference::parse(reference) {
            Ok(server) => {
                self.references.push(Instant::now());
                info!("the server refers to {server}");
                let is_permanent = reason == ReasonCode::ServerMoved;
                self.dialers.refer_to(&server, self.watch.protocol(), is_permanent);
                self.memory.set_origin(self.dialers.server());
                true
            }
            Err(reason) => {
                warn!("the server refers to {reference:?}, which is ignored: {reason}");
                false
            }
        }
    }

    /// Notes what the end of the client says about QUIC, and writes the state file, if there is one.
    pub(crate) fn end(&mut self) {
        if let Some((since, handshake)) = self.late_since
            && self.watch.is_attempting_late()
            && since.elapsed() >= handshake * LATE_HANDSHAKES
        {
            self.memory.quic_doubtful();
        }
        self.memory.save();
    }
}

/// Link that would be better than the present one, which works, and why. `unsent`: bytes that wait for the present one.
fn better_link(
    present: Protocol,
    chosen: Protocol,
    first: First,
    has_quic: bool,
    unsent: usize,
) -> Option<(Protocol, Cause)> {
    match (present, first) {
        (Protocol::Quic, _) => {
            let is_cheaper = chosen == Protocol::Tcp && unsent <= MUCH_UNSENT;
            is_cheaper.then_some((Protocol::Tcp, Cause::Choice))
        }
        (Protocol::Tcp, _) if !has_quic => None,
        (Protocol::Tcp, First::Quic { .. }) => Some((Protocol::Quic, Cause::Choice)),
        (Protocol::Tcp, First::Tcp { probe_quic }) => probe_quic.then_some((Protocol::Quic, Cause::Probe)),
    }
}

/// Name of a protocol for the log.
fn name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Quic => "QUIC",
        Protocol::Tcp => "TLS",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn two_silences_of_quic_in_one_network_within_ten_minutes_are_too_many() {
        let key = |last| Key::new([10, 0, last, 1].into(), "server".into());
        let mut silences = Silences::default();
        assert!(!silences.note(&key(1)) && !silences.note(&key(2)));
        tokio::time::advance(SILENCES.1).await;
        assert!(!silences.note(&key(1)), "the first is forgotten");
        tokio::time::advance(SILENCES.1 / 2).await;
        assert!(silences.note(&key(1)));
    }

    #[test]
    fn a_link_that_works_is_left_for_a_better_one() {
        let (quic, tcp) = (Protocol::Quic, Protocol::Tcp);
        let first = First::Quic { tcp_after: Duration::ZERO };
        let probe = |probe_quic| First::Tcp { probe_quic };
        assert_eq!(better_link(quic, quic, first, true, 0), None);
        assert_eq!(better_link(quic, tcp, probe(false), true, 0), Some((tcp, Cause::Choice)));
        assert_eq!(better_link(quic, tcp, probe(false), true, MUCH_UNSENT), Some((tcp, Cause::Choice)));
        // Urgent messages would wait behind a large one.
        assert_eq!(better_link(quic, tcp, probe(false), true, MUCH_UNSENT + 1), None);
        assert_eq!(better_link(tcp, quic, first, true, MUCH_UNSENT + 1), Some((quic, Cause::Choice)));
        assert_eq!(better_link(tcp, quic, first, false, 0), None);
        assert_eq!(better_link(tcp, tcp, probe(true), true, 0), Some((quic, Cause::Probe)));
        assert_eq!(better_link(tcp, tcp, probe(false), true, 0), None);
    }
}
