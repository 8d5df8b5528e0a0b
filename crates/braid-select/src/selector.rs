//! Selector: takes measurements of networks and decides between QUIC and TCP for each.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::time::Duration;

use lru::LruCache;

use crate::backoff::Backoff;
use crate::cost::{Stack, Workload};
use crate::decision::{Decision, Reason};
use crate::entry::{Entry, Model};
use crate::explain::Explanation;
use crate::key::{Key, Network};
use crate::protocol::{Mode, Protocol};
use crate::reading::{QuicMeter, QuicReading, TcpMeter, TcpReading};
use crate::switch::Switch;

/// Age after which measurements of a key are forgotten.
const MAX_AGE: Duration = Duration::from_secs(24 * 3600);
/// Lifetimes of an advertisement. The default of RFC 7838 is the longest.
const ADVERTISEMENT: (Duration, Duration) = (Duration::from_secs(600), Duration::from_secs(24 * 3600));
/// Time and TCP packets after an advertisement without any use of QUIC, from which on it counts as failed.
const NOT_USED: (Duration, u64) = (Duration::from_secs(60), 100);
/// Time and TCP packets since the last use of QUIC, from which on it counts as failed. Longer, since all clients that
/// are left may be such that do not know QUIC.
const NO_LONGER_USED: (Duration, u64) = (Duration::from_secs(600), 1000);
/// Probe timeouts one after the other that count as a failure of QUIC.
const MAX_PROBES: u32 = 3;
/// Time within which TCP must have answered, and QUIC must not have, for unanswered probes to count.
const ANSWERED: Duration = Duration::from_secs(10);
/// Age of a QUIC connection from which on the rule of autoquic applies to it.
const COMPAT_AGE: Duration = Duration::from_secs(30);
/// Most packets without an answer by the rule of autoquic.
const COMPAT_PACKETS: u64 = 60;
/// Bounds of the time by which TCP starts after QUIC.
const STAGGER: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(250));

/// Configuration of a [`Selector`].
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Way of deciding.
    pub mode: Mode,
    /// Protocol before anything is known: TCP on a server, QUIC on a client.
    pub initial: Protocol,
    /// Most keys that are kept. The least recently used one is evicted; it takes at most 896 bytes, and its origin if
    /// no other key shares it. An advertisement that was sent for an evicted key is not cleared, but ends with its
    /// lifetime.
    pub capacity: NonZeroUsize,
    /// Most decisions that are kept; the oldest ones give way.
    pub decisions: usize,
    /// Responses whose cost is compared.
    pub workload: Workload,
    /// Implementation of TCP.
    pub tcp: Stack,
    /// Implementation of QUIC.
    pub quic: Stack,
    /// Random number that seeds the jitter of back-offs.
    pub seed: u64,
}

impl Config {
    /// Configuration with 16,384 keys (at most 14 MiB), 256 decisions and the default workload.
    pub const fn new(mode: Mode, initial: Protocol, seed: u64) -> Self {
        Self {
            mode,
            initial,
            capacity: NonZeroUsize::MIN.saturating_add(16_383),
            decisions: 256,
            workload: Workload { streams: 8, large_bytes: 64 * 1024 },
            tcp: Stack::TCP,
            quic: Stack::QUIC,
            seed,
        }
    }
}

/// Advertisement of QUIC in a response (RFC 7838).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AltSvc {
    /// No header: the client knows of nothing.
    None,
    /// The alternative, with its lifetime in whole seconds.
    Advertise {
        /// Lifetime, `ma`.
        max_age: Duration,
    },
    /// `clear`: the client may know an earlier advertisement.
    Clear,
}

/// First protocol of a connection attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    /// QUIC, and TCP beside it if QUIC is not established in time.
    Quic {
        /// Time after which TCP starts.
        tcp_after: Duration,
    },
    /// TCP.
    Tcp {
        /// True if QUIC should be tried in the background. The result belongs into [`Selector::quic_works`] or
        /// [`Selector::quic_failed`].
        probe_quic: bool,
    },
}

/// Failure of QUIC that counts without any comparison of costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A handshake did not complete. On a server only after the client's address was validated: otherwise spoofed
    /// packets could turn QUIC off.
    Handshake,
    /// Packets of an established connection no longer arrive.
    BlackHole,
}

/// Knowledge of a key that a later run of a program may begin with. Measurements of the path are not part of it: they
/// age within minutes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remembered {
    /// Network and origin.
    pub key: Key,
    /// Failures of QUIC since it worked last.
    pub failures: u32,
    /// Time until QUIC may be tried again.
    pub retry_in: Duration,
    /// Time since the latest event.
    pub age: Duration,
    /// Smoothed RTT of the path; `None` if it was not measured.
    pub srtt: Option<Duration>,
}

/// Selection of the protocol for each network and origin. See the [crate](crate) for the order of calls.
#[derive(Debug)]
pub struct Selector {
    mode: Mode,
    initial: Protocol,
    model: Model,
    entries: LruCache<Key, Entry>,
    decisions: VecDeque<Decision>,
    max_decisions: usize,
    /// State of the generator for jitter (SplitMix64).
    random: u64,
}

impl Selector {
    /// Selector that knows nothing.
    pub fn new(config: &Config) -> Self {
        let Config { mode, initial, capacity, decisions, workload, tcp, quic, seed } = *config;
        Self {
            mode,
            initial,
            model: Model { tcp, quic, workload },
            entries: LruCache::sparse(capacity),
            decisions: VecDeque::new(),
            max_decisions: decisions,
            random: seed,
        }
    }

    /// Keys that are known.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Tests whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Latest decisions, oldest first.
    pub fn decisions(&self) -> impl ExactSizeIterator<Item = &Decision> {
        self.decisions.iter()
    }

    /// Protocol that is chosen for a key.
    pub fn chosen(&self, now: Duration, key: &Key) -> Protocol {
        match self.mode {
            Mode::Always => Protocol::Quic,
            Mode::Never => Protocol::Tcp,
            Mode::Auto | Mode::AutoquicCompat => {
                self.peek(now, key).map_or(self.initial, |entry| entry.switch.chosen())
            }
        }
    }

    /// Time of the latest change of the protocol of a key.
    pub fn changed(&self, now: Duration, key: &Key) -> Option<Duration> {
        self.peek(now, key)?.switch.changed()
    }

    /// Takes a reading of a TCP connection.
    pub fn observe_tcp(
        &mut self,
        now: Duration,
        key: &Key,
        meter: &mut TcpMeter,
        reading: &TcpReading,
    ) -> Option<Decision> {
        let interval = meter.advance(reading);
        let model = self.model;
        let entry = self.entry(now, key);
        entry.observe(now, &model, Protocol::Tcp, &interval);
        entry.tcp_packets = entry.tcp_packets.saturating_add(interval.sent);
        match self.mode {
            Mode::AutoquicCompat => self.compat_tcp(now, key, meter.max_ssthresh, reading),
            _ => self.not_used(now, key).or_else(|| self.compare(now, key)),
        }
    }

    /// Takes a reading of a QUIC connection.
    pub fn observe_quic(
        &mut self,
        now: Duration,
        key: &Key,
        meter: &mut QuicMeter,
        reading: &QuicReading,
    ) -> Option<Decision> {
        let interval = meter.advance(reading);
        let model = self.model;
        let entry = self.entry(now, key);
        entry.observe(now, &model, Protocol::Quic, &interval);
        if self.mode == Mode::AutoquicCompat {
            return self.compat_quic(now, key, reading);
        }
        let event = match interval.progress {
            true => self.quic_works(now, key),
            false => self.unanswered(now, key, reading.pto_count),
        };
        event.or_else(|| self.compare(now, key))
    }

    /// Takes the time from the first byte of a response that was written to the acknowledgement of its last one.
    pub fn observe_response(
        &mut self,
        now: Duration,
        key: &Key,
        over: Protocol,
        bytes: u64,
        elapsed: Duration,
    ) -> Option<Decision> {
        let model = self.model;
        self.entry(now, key).complete(now, &model, over, bytes as f64, elapsed.as_secs_f64());
        self.compare(now, key)
    }

    /// Records that QUIC works: a handshake completed, or a background probe of a client. Ends the back-off. A client
    /// returns to QUIC if it left it for a failure and the dwell time is over.
    pub fn quic_works(&mut self, now: Duration, key: &Key) -> Option<Decision> {
        let is_client = self.initial == Protocol::Quic;
        let entry = self.entry(now, key);
        entry.backoff.succeed();
        entry.quic_worked = Some(now);
        entry.tcp_packets = 0;
        let returns = is_client && entry.failed && entry.switch.dwell(now).is_none();
        returns.then(|| self.change(now, key, Protocol::Quic, Reason::QuicWorks)).flatten()
    }

    /// Records a failure of QUIC. Changes to TCP at once, for 300 s and longer after further failures.
    pub fn quic_failed(&mut self, now: Duration, key: &Key, failure: Failure) -> Option<Decision> {
        let reason = match failure {
            Failure::Handshake => Reason::HandshakeFailed,
            Failure::BlackHole => Reason::UdpBlackHole,
        };
        self.fail(now, key, reason)
    }

    /// Advertisement for a response. Clients may remember it, so the selector does too.
    pub fn alt_svc(&mut self, now: Duration, key: &Key) -> AltSvc {
        let (min, max) = ADVERTISEMENT;
        match self.mode {
            Mode::Always => return AltSvc::Advertise { max_age: max },
            // Clients may remember an advertisement from before the mode was set.
            Mode::Never => return AltSvc::Clear,
            Mode::Auto | Mode::AutoquicCompat => {}
        }
        let initial = self.initial;
        let is_compat = self.mode == Mode::AutoquicCompat;
        if self.peek(now, key).is_none() && initial == Protocol::Tcp {
            return AltSvc::None;
        }
        let entry = self.entry(now, key);
        match entry.switch.chosen() {
            Protocol::Quic => {
                // As long again as QUIC has been right so far.
                let proven = now.saturating_sub(entry.switch.changed().unwrap_or(now));
                let max_age = Duration::from_secs(proven.clamp(min, max).as_secs());
                entry.advertised_until = entry.advertised_until.max(now.saturating_add(max_age));
                AltSvc::Advertise { max_age }
            }
            Protocol::Tcp if entry.advertised_until > now && !is_compat => AltSvc::Clear,
            Protocol::Tcp => AltSvc::None,
        }
    }

    /// First protocol of a client's next connection.
    ///
    /// QUIC, if it is known to work or unknown; TCP starts 1.5 RTT later, at least 50 and at most 250 ms. TCP, if
    /// QUIC failed or costs more here.
    pub fn first(&self, now: Duration, key: &Key) -> First {
        let (min, max) = STAGGER;
        let entry = self.peek(now, key);
        let srtt = entry.and_then(|entry| entry.srtt());
        let stagger = srtt.and_then(|srtt| Duration::try_from_secs_f64(1.5 * srtt).ok());
        let quic = First::Quic { tcp_after: stagger.unwrap_or(max).clamp(min, max) };
        match (self.mode, entry) {
            (Mode::Never, _) => First::Tcp { probe_quic: false },
            (Mode::Always, _) | (_, None) => quic,
            (_, Some(entry)) if entry.backoff.failures() > 0 || entry.failed => {
                // A success during the dwell time would change nothing, and would be tried again at once.
                let may_return = entry.backoff.remaining(now).is_none() && entry.switch.dwell(now).is_none();
                First::Tcp { probe_quic: may_return }
            }
            (_, Some(entry)) if entry.switch.chosen() == Protocol::Quic => quic,
            (_, Some(entry)) if entry.switch.changed().is_none() => quic,
            (_, Some(_)) => First::Tcp { probe_quic: false },
        }
    }

    /// Present state of a key in numbers; `None` if nothing is known.
    pub fn explain(&self, now: Duration, key: &Key) -> Option<Explanation> {
        let entry = self.peek(now, key)?;
        Some(Explanation::of(now, key, self.mode, self.chosen(now, key), entry, &self.model))
    }

    /// Knowledge of all keys, the latest used first.
    pub fn remember(&self, now: Duration) -> impl Iterator<Item = Remembered> {
        self.keys(now).filter_map(move |key| self.known(now, key))
    }

    /// Knowledge of a key; `None` if there is none.
    pub fn known(&self, now: Duration, key: &Key) -> Option<Remembered> {
        let entry = self.peek(now, key)?;
        Some(Remembered {
            key: key.clone(),
            failures: entry.backoff.failures(),
            retry_in: entry.backoff.remaining(now).unwrap_or_default(),
            age: now.saturating_sub(entry.at),
            srtt: entry.srtt().and_then(|srtt| Duration::try_from_secs_f64(srtt).ok()),
        })
    }

    /// Records that QUIC has not answered for too short a time to call it broken: TCP comes first, and QUIC may be
    /// tried beside it at once.
    pub fn quic_doubtful(&mut self, now: Duration, key: &Key) {
        let entry = self.entry(now, key);
        if entry.backoff.failures() == 0 {
            entry.backoff = Backoff::restored(now, 1, Duration::ZERO);
            entry.failed = true;
        }
    }

    /// Begins with the knowledge of an earlier run, the latest used last. QUIC that had failed is not chosen before its
    /// back-off has ended and it works. Ages count if `now` is a day after the epoch or later.
    pub fn restore(&mut self, now: Duration, remembered: &Remembered) {
        let Remembered { key, failures, retry_in, age, srtt } = remembered;
        let entry = self.entry(now.saturating_sub(*age), key);
        entry.backoff = Backoff::restored(now, *failures, *retry_in);
        entry.remembered_srtt = srtt.map(|srtt| srtt.as_secs_f32());
        if *failures > 0 && entry.switch.chosen() == Protocol::Quic {
            entry.failed = true;
            entry.switch = Switch::new(Protocol::Tcp);
        }
    }

    /// Keys of which something is known, the latest used first.
    pub fn keys(&self, now: Duration) -> impl Iterator<Item = &Key> {
        let is_known = move |entry: &Entry| now.saturating_sub(entry.at) <= MAX_AGE;
        self.entries.iter().filter(move |(_, entry)| is_known(entry)).map(|(key, _)| key)
    }

    /// Forgets a network, because it is another one behind the same addresses.
    pub fn forget(&mut self, network: Network) {
        self.entries.retain(|key, _| key.network != network);
    }

    fn peek(&self, now: Duration, key: &Key) -> Option<&Entry> {
        self.entries.peek(key).filter(|entry| now.saturating_sub(entry.at) <= MAX_AGE)
    }

    /// Entry of a key as the most recently used one; a new one, if it is missing or too old.
    fn entry(&mut self, now: Duration, key: &Key) -> &mut Entry {
        if self.peek(now, key).is_none() {
            self.entries.pop(key);
        }
        let initial = self.initial;
        let entry = self.entries.get_or_insert_mut_ref(key, || Entry::new(now, initial));
        entry.at = entry.at.max(now);
        entry
    }

    /// Changes the choice by the costs, if they are clear for long enough.
    fn compare(&mut self, now: Duration, key: &Key) -> Option<Decision> {
        if self.mode != Mode::Auto {
            return None;
        }
        let model = self.model;
        let entry = self.entry(now, key);
        let mut comparison = entry.compare(now, &model)?;
        comparison.lasted = entry.switch.compare(now, comparison.tcp.total(), comparison.quic.total())?;
        match entry.switch.chosen() {
            Protocol::Tcp if entry.backoff.remaining(now).is_some() => None,
            Protocol::Tcp => self.change(now, key, Protocol::Quic, Reason::QuicCostsLess(comparison)),
            Protocol::Quic => self.change(now, key, Protocol::Tcp, Reason::QuicCostsMore(comparison)),
        }
    }

    /// Takes an advertisement that no client of the network has used for a failure: UDP may be blocked.
    fn not_used(&mut self, now: Duration, key: &Key) -> Option<Decision> {
        if self.initial == Protocol::Quic {
            return None;
        }
        let entry = self.entry(now, key);
        let changed = entry.switch.changed().filter(|_| entry.switch.chosen() == Protocol::Quic)?;
        let used = entry.quic_worked.filter(|worked| *worked >= changed);
        let (time, packets) = if used.is_some() { NO_LONGER_USED } else { NOT_USED };
        let unused = now.saturating_sub(used.unwrap_or(changed));
        if unused < time || entry.tcp_packets < packets {
            return None;
        }
        let reason = Reason::NotUsed { unused, packets: entry.tcp_packets };
        self.fail(now, key, reason)
    }

    /// Takes unanswered probes for a failure if the network answers TCP, and no other QUIC connection.
    fn unanswered(&mut self, now: Duration, key: &Key, count: u32) -> Option<Decision> {
        let entry = self.entry(now, key);
        let tcp_answered = now.saturating_sub(entry.measurement(Protocol::Tcp).path.progress?);
        let quic_answers = entry.quic_worked.is_some_and(|worked| now.saturating_sub(worked) <= ANSWERED);
        let is_counted = entry.backoff.remaining(now).is_some();
        if count < MAX_PROBES || tcp_answered > ANSWERED || quic_answers || is_counted {
            return None;
        }
        self.fail(now, key, Reason::ProbeTimeouts { count, tcp_answered })
    }

    fn fail(&mut self, now: Duration, key: &Key, reason: Reason) -> Option<Decision> {
        let jitter = self.next_random();
        let is_auto = self.mode == Mode::Auto;
        let entry = self.entry(now, key);
        entry.backoff.fail(now, jitter);
        if !is_auto || entry.switch.chosen() == Protocol::Tcp {
            return None;
        }
        entry.failed = true;
        self.change(now, key, Protocol::Tcp, reason)
    }

    fn compat_tcp(
        &mut self,
        now: Duration,
        key: &Key,
        max_ssthresh: u32,
        reading: &TcpReading,
    ) -> Option<Decision> {
        let TcpReading { snd_ssthresh, retransmits, lost, retrans, total_retrans, .. } = *reading;
        let has_losses = retransmits > 0 || lost > 0 || retrans > 0 || total_retrans > 0;
        let upgrades = snd_ssthresh != 0 && (has_losses || snd_ssthresh < max_ssthresh / 2);
        let reason = Reason::CompatLoss { total_retrans, snd_ssthresh, max_ssthresh };
        upgrades.then(|| self.change(now, key, Protocol::Quic, reason)).flatten()
    }

    fn compat_quic(&mut self, now: Duration, key: &Key, reading: &QuicReading) -> Option<Decision> {
        let QuicReading { sent, largest_received, .. } = *reading;
        let changed = self.entry(now, key).switch.changed()?;
        let is_old = now.saturating_sub(changed) >= COMPAT_AGE;
        let downgrades = is_old && sent.saturating_sub(largest_received) <= COMPAT_PACKETS;
        let reason = Reason::CompatPackets { sent, largest_received };
        downgrades.then(|| self.change(now, key, Protocol::Tcp, reason)).flatten()
    }

    /// Changes the choice and records the decision; `None` if it is the same already.
    fn change(&mut self, now: Duration, key: &Key, to: Protocol, reason: Reason) -> Option<Decision> {
        let entry = self.entry(now, key);
        let from = entry.switch.chosen();
        if from == to {
            return None;
        }
        entry.switch.change(now, to);
        entry.tcp_packets = 0;
        entry.failed &= to == Protocol::Tcp;
        let decision = Decision { when: now, key: key.clone(), from, to, reason };
        if self.max_decisions > 0 {
            if self.decisions.len() >= self.max_decisions {
                self.decisions.pop_front();
            }
            self.decisions.push_back(decision.clone());
        }
        Some(decision)
    }

    /// Next pseudorandom number from 0 to 1.
    fn next_random(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) as f64 / u64::MAX as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_takes_at_most_896_bytes() {
        // The node has two pointers, the map a hash byte, a pointer to the key and one to the node, at a load of 7/16.
        let node = size_of::<(Key, Entry)>() + 16;
        let bucket = (1 + 2 * size_of::<usize>()) * 16 / 7;
        assert!(node + bucket <= 896, "{node} + {bucket}");
    }

    #[test]
    fn jitter_is_spread() {
        let mut selector = Selector::new(&Config::new(Mode::Auto, Protocol::Tcp, 1));
        let numbers: Vec<f64> = (0..1000).map(|_| selector.next_random()).collect();
        let mean = numbers.iter().sum::<f64>() / 1000.0;
        assert!((0.45..0.55).contains(&mean) && numbers.iter().all(|number| (0.0..=1.0).contains(number)));
    }
}
