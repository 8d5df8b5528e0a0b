//! Watchdog of the paths of one connection: finds those that do not answer, and gives each its role. Pure.
//!
//! The library declares a packet lost when a later one of the same path is acknowledged. On a path that is cut nothing
//! is: it would be used until its idle timeout. The watchdog sets a path aside once packets that are to be acknowledged
//! were not for [`PROBE_TIMEOUTS`] probe timeouts (RFC 9002, 6.2.1).
//!
//! The peer sends the acknowledgements for all paths on one of them, the first that carries data. When this one is cut
//! all others seem to be silent as well. So one path is set aside at a time, first those that carry data, in the order
//! in which the library sends, and the time of the others begins anew.

use std::time::{Duration, Instant};

use noq_proto::PathId;

use super::PathMode;

/// Probe timeouts without an acknowledgement after which a path is silent.
const PROBE_TIMEOUTS: u32 = 3;

/// Time by which the peer may delay its acknowledgement (RFC 9000, 18.2).
const MAX_ACK_DELAY: Duration = Duration::from_millis(25);

/// Bounds of that time. Acknowledgements of a policed path may be 100 ms late.
const SILENCE: (Duration, Duration) = (Duration::from_millis(120), Duration::from_secs(2));

/// Acknowledgements of one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::quic) struct Reading {
    /// Time since which packets are in flight and nothing was acknowledged.
    pub(in crate::quic) unanswered_since: Option<Instant>,
    /// Time of the last acknowledgement.
    pub(in crate::quic) answered_at: Option<Instant>,
    /// Probe timeout of the path, without the delay of an acknowledgement: its longest round trip.
    pub(in crate::quic) round_trip: Duration,
}

/// Authority over the roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::quic) enum Policy {
    /// A client decides.
    Decide(PathMode),
    /// A server uses the paths that the client does not keep for standby.
    Follow,
}

/// Change for the caller to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::quic) enum Order {
    /// The path carries data.
    Use(PathId),
    /// The path is kept ready.
    Spare(PathId),
    /// The path does not answer; `carrier` takes its place.
    SetAside { path: PathId, carrier: PathId },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Used,
    Spare,
}

#[derive(Debug)]
struct Watched {
    id: PathId,
    /// Place in the preference of the client.
    rank: usize,
    reading: Option<Reading>,
    /// Time of its validation: packets before it may have been sent for long, without an answer.
    since: Instant,
    /// Time of the verdict that the path is silent.
    silent_since: Option<Instant>,
    /// The peer keeps the path for standby, or has set it aside.
    is_peers_spare: bool,
    /// Role that the caller was told.
    told: Option<Role>,
}

/// Paths of one connection that are validated.
#[derive(Debug)]
pub(in crate::quic) struct Watchdog {
    policy: Policy,
    /// In the order of their numbers.
    paths: Vec<Watched>,
    /// Time of the last verdict: readings from before count from then on.
    grace: Option<Instant>,
}

impl Watchdog {
    pub(in crate::quic) fn new(policy: Policy) -> Self {
        Self { policy, paths: Vec::new(), grace: None }
    }

    // -- What has happened -------------------------------------------------------------------------

    /// A path is validated. `rank`: its place in the preference of the client, the smallest first.
    pub(in crate::quic) fn insert(&mut self, id: PathId, rank: usize, now: Instant) {
        if self.paths.iter().all(|path| path.id != id) {
            self.paths.push(Watched {
                id,
                rank,
                reading: None,
                since: now,
                silent_since: None,
                is_peers_spare: false,
                told: None,
            });
            self.paths.sort_by_key(|path| path.id);
        }
    }

    /// A path is closed.
    pub(in crate::quic) fn remove(&mut self, id: PathId) {
        self.paths.retain(|path| path.id != id);
    }

    /// Notes the acknowledgements of a path.
    pub(in crate::quic) fn handle_reading(&mut self, id: PathId, reading: Reading) {
        if let Some(path) = self.paths.iter_mut().find(|path| path.id == id) {
            path.reading = Some(reading);
            // A client closes a path that was silent: until then it answers on the socket of another one.
            let is_answered =
                path.silent_since.is_some_and(|since| reading.answered_at.is_some_and(|at| at > since));
            if is_answered && self.policy == Policy::Follow {
                path.silent_since = None;
            }
        }
    }

    /// The peer has set the status of a path. A client whose server leaves a path that it is to use takes it as silent:
    /// the server has found that out by its own packets.
    pub(in crate::quic) fn handle_peer_status(&mut self, id: PathId, is_spare: bool, now: Instant) {
        let may_leave = self.live().count() > 1 && self.policy != Policy::Follow;
        if let Some(path) = self.paths.iter_mut().find(|path| path.id == id) {
            // Not the echo of an order of this end, which comes after the role was told.
            let has_left = is_spare && !std::mem::replace(&mut path.is_peers_spare, is_spare);
            if has_left && may_leave && path.told == Some(Role::Used) {
                path.silent_since.get_or_insert(now);
                path.told = None;
                self.grace = Some(now);
            }
        }
    }

    // -- What is to be done ------------------------------------------------------------------------

    /// The next change. To be called until there is none.
    pub(in crate::quic) fn poll(&mut self, now: Instant) -> Option<Order> {
        if let Some(id) = self.overdue(now) {
            self.grace = Some(now);
            if let Some(path) = self.paths.iter_mut().find(|path| path.id == id) {
                path.silent_since = Some(now);
                path.told = None;
            }
        }
        // Before others, so that there is one to go to.
        for index in 0..self.paths.len() {
            let role = self.role(index);
            let path = &mut self.paths[index];
            if path.silent_since.is_none() && role == Role::Used && path.told != Some(role) {
                path.told = Some(role);
                return Some(Order::Use(path.id));
            }
        }
        let carrier = self.live().filter(|path| path.told == Some(Role::Used)).min_by_key(|path| path.rank);
        let carrier = carrier.map(|path| path.id);
        for index in 0..self.paths.len() {
            let role = self.role(index);
            let path = &mut self.paths[index];
            if path.told != Some(role) {
                path.told = Some(role);
                return Some(match (path.silent_since, carrier) {
                    (Some(_), Some(carrier)) => Order::SetAside { path: path.id, carrier },
                    _ => Order::Spare(path.id),
                });
            }
        }
        None
    }

    /// Time of the next verdict.
    pub(in crate::quic) fn next_timeout(&self) -> Option<Instant> {
        if self.live().count() < 2 {
            return None;
        }
        self.live().filter_map(|path| self.deadline(path)).min()
    }

    /// The path that carries data, and is asked first; the library has no other rule.
    pub(in crate::quic) fn primary(&self) -> Option<PathId> {
        let used = self.live().find(|path| path.told == Some(Role::Used));
        used.or_else(|| self.live().next()).or(self.paths.first()).map(|path| path.id)
    }

    /// Tests whether a path carries data; `None` if it is not validated or does not answer.
    pub(in crate::quic) fn is_used(&self, id: PathId) -> Option<bool> {
        self.live().find(|path| path.id == id).map(|path| path.told == Some(Role::Used))
    }

    /// Paths that are not silent.
    fn live(&self) -> impl Iterator<Item = &Watched> {
        self.paths.iter().filter(|path| path.silent_since.is_none())
    }

    /// The path to set aside.
    fn overdue(&self, now: Instant) -> Option<PathId> {
        if self.live().count() < 2 {
            return None;
        }
        let is_overdue = |path: &&Watched| self.deadline(path).is_some_and(|deadline| deadline <= now);
        let first = self.live().find(|path| path.told == Some(Role::Used));
        let overdue = first.filter(is_overdue).or_else(|| self.live().find(is_overdue));
        overdue.map(|path| path.id)
    }

    fn deadline(&self, path: &Watched) -> Option<Instant> {
        let reading = path.reading?;
        let since = reading.unanswered_since?.max(path.since);
        let since = self.grace.map_or(since, |grace| grace.max(since));
        let (least, most) = SILENCE;
        Some(since + (reading.round_trip * PROBE_TIMEOUTS + MAX_ACK_DELAY).clamp(least, most))
    }

    fn role(&self, index: usize) -> Role {
        let path = &self.paths[index];
        let is_used = match self.policy {
            _ if path.silent_since.is_some() => false,
            Policy::Decide(PathMode::Both) => true,
            Policy::Decide(PathMode::Standby) => {
                self.live().map(|path| path.rank).min().is_some_and(|best| best == path.rank)
            }
            // Without one that it is to use, the library would take those that are set aside as well.
            // [BQ-72]
            Policy::Follow => !path.is_peers_spare || self.live().all(|path| path.is_peers_spare),
        };
        if is_used { Role::Used } else { Role::Spare }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const RTT: Duration = Duration::from_millis(40);

    struct Paths {
        watchdog: Watchdog,
        begin: Instant,
    }

    fn id(number: u32) -> PathId {
        PathId::from(number)
    }

    impl Paths {
        /// `ranks`: those of the paths 0, 1 and so on.
        fn new(policy: Policy, ranks: &[usize]) -> Self {
            let (mut watchdog, begin) = (Watchdog::new(policy), Instant::now());
            for (number, rank) in (0..).zip(ranks) {
                watchdog.insert(id(number), *rank, begin);
            }
            Self { watchdog, begin }
        }

        fn at(&self, ms: u32) -> Instant {
            self.begin + ms * MS
        }

        /// Packets of a path are in flight since then; the last acknowledgement came at the same time.
        fn unanswered(&mut self, path: u32, since: u32) {
            let at = self.at(since);
            self.read(path, Some(at), Some(at));
        }

        fn answered(&mut self, path: u32, at: u32) {
            self.read(path, None, Some(self.at(at)));
        }

        fn read(&mut self, path: u32, unanswered_since: Option<Instant>, answered_at: Option<Instant>) {
            let reading = Reading { unanswered_since, answered_at, round_trip: RTT };
            self.watchdog.handle_reading(id(path), reading);
        }

        fn orders(&mut self, ms: u32) -> Vec<Order> {
            let now = self.at(ms);
            std::iter::from_fn(|| self.watchdog.poll(now)).collect()
        }

        fn timeout(&self) -> Option<u128> {
            self.watchdog.next_timeout().map(|at| (at - self.begin).as_millis())
        }
    }

    /// Three round trips and the delay of an acknowledgement, ms.
    const PATIENCE: u32 = 145;

    #[test]
    fn the_preferred_path_is_used_and_the_other_kept_ready() {
        let mut paths = Paths::new(Policy::Decide(PathMode::Standby), &[1, 0]);
        assert_eq!(paths.orders(0), [Order::Use(id(1)), Order::Spare(id(0))]);
        assert_eq!(paths.watchdog.primary(), Some(id(1)));
        assert_eq!(paths.orders(1), []);
        let mut paths = Paths::new(Policy::Decide(PathMode::Both), &[1, 0]);
        assert_eq!(paths.orders(0), [Order::Use(id(0)), Order::Use(id(1))]);
        assert_eq!(paths.watchdog.primary(), Some(id(0)));
    }

    #[test]
    fn a_path_that_does_not_answer_is_set_aside_after_three_probe_timeouts() {
        let mut paths = Paths::new(Policy::Decide(PathMode::Standby), &[0, 1]);
        paths.orders(0);
        paths.unanswered(0, 10);
        assert_eq!(paths.timeout(), Some(u128::from(10 + PATIENCE)));
        assert_eq!(paths.orders(9 + PATIENCE), []);
        let aside = Order::SetAside { path: id(0), carrier: id(1) };
        assert_eq!(paths.orders(10 + PATIENCE), [Order::Use(id(1)), aside]);
        assert_eq!(paths.watchdog.primary(), Some(id(1)));
        assert_eq!(paths.timeout(), None, "the last path stays, whatever it does");
        paths.answered(0, 280);
        assert_eq!(paths.orders(280), [], "it answers in place of the other, until it is closed");
        paths.unanswered(1, 300);
        assert_eq!(paths.orders(5_000), []);
    }

    /// Acknowledgements of all paths come on the one that is cut.
    #[test]
    fn all_paths_are_silent_when_the_one_with_the_acknowledgements_is_cut() {
        for mode in [PathMode::Standby, PathMode::Both] {
            let mut paths = Paths::new(Policy::Decide(mode), &[0, 1]);
            paths.orders(0);
            paths.unanswered(0, 10);
            paths.unanswered(1, 0);
            let aside = Order::SetAside { path: id(0), carrier: id(1) };
            assert_eq!(paths.orders(10 + PATIENCE).pop(), Some(aside), "{mode:?}");
            assert_eq!(paths.orders(5_000), [], "{mode:?}");
        }
    }

    #[test]
    fn a_third_path_has_its_full_time_after_a_verdict() {
        let mut paths = Paths::new(Policy::Decide(PathMode::Standby), &[0, 1, 2]);
        paths.orders(0);
        for path in 0..3 {
            paths.unanswered(path, 0);
        }
        assert!(paths.orders(PATIENCE).contains(&Order::SetAside { path: id(0), carrier: id(1) }));
        assert_eq!(paths.timeout(), Some(u128::from(2 * PATIENCE)));
        assert!(paths.orders(2 * PATIENCE).contains(&Order::SetAside { path: id(1), carrier: id(2) }));
        assert_eq!(paths.timeout(), None);
    }

    #[test]
    fn a_spare_path_that_does_not_answer_is_set_aside_too() {
        let mut paths = Paths::new(Policy::Decide(PathMode::Standby), &[0, 1]);
        paths.orders(0);
        paths.answered(0, 5);
        paths.unanswered(1, 0);
        assert_eq!(paths.orders(PATIENCE), [Order::SetAside { path: id(1), carrier: id(0) }]);
    }

    #[test]
    fn a_path_that_is_opened_again_takes_its_place() {
        let mut paths = Paths::new(Policy::Decide(PathMode::Standby), &[0, 1]);
        paths.orders(0);
        paths.unanswered(0, 0);
        paths.orders(PATIENCE);
        paths.watchdog.remove(id(0));
        let now = paths.at(400);
        paths.watchdog.insert(id(2), 0, now);
        // Its first packets were sent before the link was there.
        paths.unanswered(2, 200);
        assert_eq!(paths.orders(400), [Order::Use(id(2)), Order::Spare(id(1))]);
        assert_eq!(paths.timeout(), Some(u128::from(400 + PATIENCE)));
    }

    #[test]
    fn a_server_follows_the_client_and_finds_silence_itself() {
        let mut paths = Paths::new(Policy::Follow, &[0, 1]);
        assert_eq!(paths.orders(0), [Order::Use(id(0)), Order::Use(id(1))]);
        paths.watchdog.handle_peer_status(id(1), true, paths.begin);
        assert_eq!(paths.orders(1), [Order::Spare(id(1))]);
        paths.unanswered(0, 10);
        let aside = Order::SetAside { path: id(0), carrier: id(1) };
        assert_eq!(paths.orders(10 + PATIENCE), [Order::Use(id(1)), aside]);
        assert_eq!(paths.watchdog.primary(), Some(id(1)));
        paths.answered(0, 300);
        assert_eq!(paths.orders(300), [Order::Use(id(0)), Order::Spare(id(1))]);
    }

    #[test]
    fn a_client_leaves_a_path_that_its_server_leaves() {
        let mut paths = Paths::new(Policy::Decide(PathMode::Standby), &[0, 1]);
        paths.orders(0);
        // The echo of the client's own status.
        paths.watchdog.handle_peer_status(id(1), true, paths.begin);
        assert_eq!(paths.orders(1), []);
        paths.watchdog.handle_peer_status(id(0), true, paths.at(50));
        let aside = Order::SetAside { path: id(0), carrier: id(1) };
        assert_eq!(paths.orders(50), [Order::Use(id(1)), aside]);
        // A late echo of the first status, and the one that follows.
        paths.watchdog.handle_peer_status(id(1), true, paths.at(60));
        paths.watchdog.handle_peer_status(id(1), false, paths.at(90));
        assert_eq!(paths.orders(100), []);
    }
}
