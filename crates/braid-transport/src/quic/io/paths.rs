//! Paths of one connection: observes them, gives them their status, and opens those of a client.
//!
//! A path that does not answer keeps what is in flight on it: the library repeats that once the path is discarded,
//! three probe timeouts after the peer has agreed. A client is faster: it moves the path (RFC 9000, 9) to the socket of
//! another one, where a PING shows at once what is lost, at both ends. Then it closes the path.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use noq_proto::{FourTuple, PathError, PathEvent, PathId, PathStatus, TransportErrorCode, VarInt};

use super::own_endpoint::OwnEndpoint;
use super::sender::Sender;
use super::socket::Socket;
use crate::quic::congestion::path_activity::{PathActivities, SharedActivity};
use crate::quic::multipath::watchdog::{Order, Policy, Reading, Watchdog};
use crate::quic::multipath::{Multipath, PathChange, PathNotice, PathRole};

/// Interval of PINGs on a path that is silent otherwise: NATs keep its mapping, and a cut is found before it is needed.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Time for which a path on the socket of another one is kept, at least and at most.
const RESCUE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(1));

/// Time after which a path that the server has not answered is closed.
const OPEN_LIMIT: Duration = Duration::from_secs(10);

/// Pauses before a path is opened again: the first, and the longest. They double.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(32));

/// Time after which a path that fails is no path that has just been opened.
const STABLE: Duration = Duration::from_secs(10);

/// Pause while the server has issued no connection IDs for another path: they come after the handshake.
const NO_IDS: Duration = Duration::from_millis(50);

/// Opens a socket at a local path, by its index.
pub(in crate::quic) type OpenSocket = Arc<dyn Fn(usize) -> io::Result<Socket> + Send + Sync>;

/// Local paths of a client's connection.
#[derive(Clone)]
pub(in crate::quic) struct LocalPaths {
    pub(in crate::quic) options: Multipath,
    pub(in crate::quic) open: OpenSocket,
    /// Index of the one on which the connection begins.
    pub(in crate::quic) first: usize,
}

/// Paths of one connection whose ends know the extension.
pub(super) struct Paths {
    activities: PathActivities,
    watchdog: Watchdog,
    known: Vec<Known>,
    /// The path that carries data first.
    primary: PathId,
    /// `None` at a server.
    locals: Option<Locals>,
    notices: VecDeque<PathNotice>,
    /// Both ends know the extension.
    is_negotiated: bool,
}

/// Path of the library.
struct Known {
    id: PathId,
    activity: SharedActivity,
    remote: SocketAddr,
    is_closed: bool,
}

struct Locals {
    all: Vec<Local>,
    open: OpenSocket,
}

struct Local {
    state: LocalState,
    /// Address of its socket.
    ip: Option<IpAddr>,
    /// Failures in a row.
    failures: u32,
    /// Attempts without connection IDs.
    waits: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LocalState {
    /// Opened again at this time.
    Closed(Instant),
    Opening(PathId, Instant),
    Open(PathId, Instant),
    /// Moved to the socket of another one.
    Rescued(PathId, Instant),
}

impl LocalState {
    fn path(self) -> Option<PathId> {
        match self {
            Self::Closed(_) => None,
            Self::Opening(id, _) | Self::Open(id, _) | Self::Rescued(id, _) => Some(id),
        }
    }
}

impl Paths {
    /// Paths of a server's connection.
    pub(super) fn server(activities: PathActivities) -> Self {
        Self::new(activities, Policy::Follow, None)
    }

    /// Paths of a client's connection that begins on `socket`.
    pub(super) fn client(
        activities: PathActivities,
        locals: LocalPaths,
        socket: &Socket,
        now: Instant,
    ) -> Self {
        let LocalPaths { options, open, first } = locals;
        let all = (0..options.locals.len()).map(|index| {
            let is_first = index == first;
            let state = if is_first { LocalState::Open(PathId::ZERO, now) } else { LocalState::Closed(now) };
            let ip = if is_first { socket.local_addr().ok().map(|address| address.ip()) } else { None };
            Local { state, ip, failures: 0, waits: 0 }
        });
        let locals = Locals { all: all.collect(), open };
        Self::new(activities, Policy::Decide(options.mode), Some(locals))
    }

    fn new(activities: PathActivities, policy: Policy, locals: Option<Locals>) -> Self {
        Self {
            activities,
            watchdog: Watchdog::new(policy),
            known: Vec::new(),
            primary: PathId::ZERO,
            locals,
            notices: VecDeque::new(),
            is_negotiated: false,
        }
    }

    // -- What has happened -------------------------------------------------------------------------

    /// The handshake is complete. False: there is nothing more to do.
    pub(super) fn handle_connected(&mut self, library: &mut noq_proto::Connection, now: Instant) -> bool {
        self.is_negotiated = library.is_multipath_negotiated();
        if self.is_negotiated {
            let rank = self.rank(PathId::ZERO);
            self.watchdog.insert(PathId::ZERO, rank, now);
            if self.locals.is_some() {
                let _ = library.set_path_keep_alive_interval(PathId::ZERO, Some(KEEP_ALIVE));
            }
        } else if let Some(locals) = &self.locals {
            let others = locals.all.iter().enumerate().filter(|(_, local)| local.state.path().is_none());
            let notice = |(local, _)| PathNotice { local, change: PathChange::Unsupported };
            self.notices.extend(others.map(notice));
        }
        self.is_negotiated || !self.notices.is_empty()
    }

    pub(super) fn handle_event(
        &mut self,
        event: &PathEvent,
        library: &mut noq_proto::Connection,
        now: Instant,
    ) {
        match event {
            PathEvent::Established { id, .. } => {
                let rank = self.rank(*id);
                self.watchdog.insert(*id, rank, now);
                // Its status may have come before.
                let is_spare = library.remote_path_status(*id) == Some(PathStatus::Backup);
                self.watchdog.handle_peer_status(*id, is_spare, now);
                if self.locals.is_some() {
                    let _ = library.set_path_keep_alive_interval(*id, Some(KEEP_ALIVE));
                }
                if let Some((index, local)) = self.local_of(*id)
                    && let LocalState::Opening(..) = local.state
                {
                    (local.state, local.waits) = (LocalState::Open(*id, now), 0);
                    self.notices.push_back(PathNotice { local: index, change: PathChange::Opened });
                }
            }
            PathEvent::Abandoned { id, .. } => {
                self.watchdog.remove(*id);
                self.known
                    .iter_mut()
                    .filter(|known| known.id == *id)
                    .for_each(|known| known.is_closed = true);
                // Closed by the server; what this end closes has no path by now.
                if let Some((index, local)) = self.local_of(*id) {
                    let was_open = matches!(local.state, LocalState::Open(..));
                    local.close(now);
                    if was_open {
                        self.notices.push_back(PathNotice { local: index, change: PathChange::Silent });
                    }
                }
            }
            PathEvent::Discarded { id, .. } => self.known.retain(|known| known.id != *id),
            PathEvent::RemoteStatus { id, status, .. } => {
                self.watchdog.handle_peer_status(*id, *status == PathStatus::Backup, now);
            }
            _ => {}
        }
    }

    /// Finds the controllers of new paths, and of those that have moved.
    fn take_activities(&mut self, library: &noq_proto::Connection) {
        while let Some(activity) = self.activities.take() {
            let remote = |id| library.network_path(id).ok().map(|path| path.remote());
            let new = library.paths().into_iter().find(|id| self.known.iter().all(|known| known.id != *id));
            if let Some(id) = new {
                let Some(remote) = remote(id) else { continue };
                self.known.push(Known { id, activity, remote, is_closed: false });
            } else if let Some(moved) =
                self.known.iter_mut().find(|known| remote(known.id).is_some_and(|now| now != known.remote))
            {
                moved.activity = activity;
                moved.remote = remote(moved.id).unwrap_or(moved.remote);
            }
        }
    }

    // -- Turns -------------------------------------------------------------------------------------

    /// Looks after the paths, and makes the changes that follow. `ends`: sockets of a client.
    pub(super) fn turn(
        &mut self,
        library: &mut noq_proto::Connection,
        mut ends: Option<(&mut OwnEndpoint, &mut Sender)>,
        now: Instant,
    ) {
        if !self.is_negotiated {
            return;
        }
        self.take_activities(library);
        for known in &self.known {
            let activity = known.activity.read();
            let reading = Reading {
                unanswered_since: activity.unanswered_since,
                answered_at: activity.answered_at,
                round_trip: activity.longest_round_trip(library.rtt(known.id).unwrap_or_default()),
            };
            self.watchdog.handle_reading(known.id, reading);
        }
        while let Some(order) = self.watchdog.poll(now) {
            tracing::debug!(?order, "path");
            let (path, status) = match order {
                Order::Use(path) => (path, PathStatus::Available),
                Order::Spare(path) | Order::SetAside { path, .. } => (path, PathStatus::Backup),
            };
            let _ = library.set_path_status(path, status);
            if let (Order::SetAside { path, carrier }, Some((own, sender))) = (order, &mut ends) {
                self.rescue(path, carrier, library, (&**own, &mut **sender), now);
            }
        }
        if let (Some(locals), Some((own, sender))) = (&mut self.locals, &mut ends) {
            for index in own.take_failed() {
                if let Some(id) = locals.all.get(index).and_then(|local| local.state.path()) {
                    close(library, id, now);
                }
            }
            let answered_at = |id| {
                let known = self.known.iter().find(|known| known.id == id)?;
                known.activity.read().answered_at
            };
            locals.turn(library, own, sender, now, answered_at);
        }
        self.primary = self.watchdog.primary().unwrap_or(self.primary);
    }

    /// Time of the next turn.
    pub(super) fn next_timeout(&self, now: Instant) -> Option<Instant> {
        if !self.is_negotiated {
            return None;
        }
        let due = |local: &Local| match local.state {
            LocalState::Closed(at) => Some(at),
            LocalState::Opening(_, since) => Some(since + OPEN_LIMIT),
            LocalState::Open(..) => None,
            LocalState::Rescued(_, since) if now < since + RESCUE.0 => Some(since + RESCUE.0),
            LocalState::Rescued(_, since) => Some(since + RESCUE.1),
        };
        let locals = self.locals.iter().flat_map(|locals| &locals.all).filter_map(due);
        self.watchdog.next_timeout().into_iter().chain(locals).min()
    }

    /// Moves a path that does not answer to the socket of another one.
    fn rescue(
        &mut self,
        path: PathId,
        carrier: PathId,
        library: &mut noq_proto::Connection,
        (own, sender): (&OwnEndpoint, &mut Sender),
        now: Instant,
    ) {
        let carrier = self.local(carrier);
        let Some((index, local)) = self.local_of(path) else { return };
        if let LocalState::Open(_, since) = local.state
            && now.saturating_duration_since(since) >= STABLE
        {
            local.failures = 0;
        }
        local.state = LocalState::Rescued(path, now);
        let ip = local.ip;
        if let (Some(ip), Some(socket)) = (ip, carrier.and_then(|carrier| own.socket_of(carrier))) {
            sender.set_route(ip, socket);
            let _ = library.ping_path(path);
            // The window is full of what is lost, and would hold the PING back.
            if let Some(known) = self.known.iter().find(|known| known.id == path) {
                known.activity.open_window();
            }
        }
        self.notices.push_back(PathNotice { local: index, change: PathChange::Silent });
    }

    // -- Properties --------------------------------------------------------------------------------

    /// Number of notices that wait.
    pub(super) fn notices(&self) -> usize {
        self.notices.len()
    }

    pub(super) fn take_notice(&mut self) -> Option<PathNotice> {
        self.notices.pop_front()
    }

    pub(super) fn primary(&self) -> PathId {
        self.primary
    }

    pub(super) fn role(&self, id: PathId) -> PathRole {
        match self.watchdog.is_used(id) {
            Some(true) => PathRole::InUse,
            Some(false) => PathRole::Standby,
            None => PathRole::Unavailable,
        }
    }

    /// Paths that are not discarded.
    pub(super) fn ids(&self) -> impl Iterator<Item = PathId> {
        self.known.iter().map(|known| known.id)
    }

    /// Paths that carry data.
    pub(super) fn used(&self) -> impl Iterator<Item = PathId> {
        self.known.iter().map(|known| known.id).filter(|id| self.watchdog.is_used(*id) == Some(true))
    }

    pub(super) fn is_closed(&self, id: PathId) -> bool {
        self.known.iter().any(|known| known.id == id && known.is_closed)
    }

    /// Index of the local path of a client.
    pub(super) fn local(&self, id: PathId) -> Option<usize> {
        self.locals.as_ref()?.all.iter().position(|local| local.state.path() == Some(id))
    }

    fn local_of(&mut self, id: PathId) -> Option<(usize, &mut Local)> {
        let index = self.local(id)?;
        Some((index, self.locals.as_mut()?.all.get_mut(index)?))
    }

    /// Place of a path in the preference; a server has none.
    fn rank(&self, id: PathId) -> usize {
        self.local(id).unwrap_or(0)
    }
}

impl Locals {
    /// Closes and opens paths whose time has come. `answered_at`: time of the last acknowledgement of a path.
    fn turn(
        &mut self,
        library: &mut noq_proto::Connection,
        own: &mut OwnEndpoint,
        sender: &mut Sender,
        now: Instant,
        answered_at: impl Fn(PathId) -> Option<Instant>,
    ) {
        for index in 0..self.all.len() {
            let state = self.all[index].state;
            match state {
                LocalState::Opening(id, since) if now >= since + OPEN_LIMIT => {
                    self.all[index].close(now);
                    close(library, id, now);
                }
                LocalState::Rescued(id, since) if now >= since + RESCUE.0 => {
                    let is_answered = answered_at(id).is_some_and(|at| at > since);
                    if is_answered || now >= since + RESCUE.1 {
                        self.all[index].close(now);
                        close(library, id, now);
                    }
                }
                LocalState::Closed(at) if now >= at => {
                    if let Err(error) = self.open(index, library, own, sender, now) {
                        tracing::debug!(%error, index, "a path cannot be opened");
                        self.all[index].close(now);
                    }
                }
                _ => {}
            }
        }
    }

    /// Opens a path on a new socket: the address of the interface may have changed.
    fn open(
        &mut self,
        index: usize,
        library: &mut noq_proto::Connection,
        own: &mut OwnEndpoint,
        sender: &mut Sender,
        now: Instant,
    ) -> io::Result<()> {
        if library.is_closed() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let socket = Arc::new((self.open)(index)?);
        let ip = socket.local_addr()?.ip();
        let is_taken = |(other, local): (usize, &Local)| {
            other != index && local.ip == Some(ip) && local.state.path().is_some()
        };
        if self.all.iter().enumerate().any(is_taken) {
            return Err(io::Error::new(
                io::ErrorKind::AddrInUse,
                format!("another path has the address {ip}"),
            ));
        }
        let remote = own.server();
        let local = &mut self.all[index];
        match library.open_path(FourTuple::new(remote, Some(ip)), PathStatus::Available, now) {
            Ok(id) => {
                local.state = LocalState::Opening(id, now);
                local.ip = Some(ip);
                own.set_socket(index, Arc::clone(&socket), ip);
                sender.set_route(ip, socket);
                Ok(())
            }
            Err(PathError::RemoteCidsExhausted | PathError::MaxPathIdReached) => {
                local.waits = (local.waits + 1).min(20);
                local.state = LocalState::Closed(now + NO_IDS * local.waits);
                Ok(())
            }
            Err(error) => Err(io::Error::other(error)),
        }
    }
}

impl Local {
    /// The path is over; it is opened again after a pause.
    fn close(&mut self, now: Instant) {
        let (first, longest) = PAUSES;
        let pause = first.saturating_mul(1 << self.failures.min(6)).min(longest);
        self.failures = self.failures.saturating_add(1);
        self.state = LocalState::Closed(now + pause);
    }
}

/// Closes a path, unless it is the last one.
fn close(library: &mut noq_proto::Connection, id: PathId, now: Instant) {
    let code = VarInt::from_u64(u64::from(TransportErrorCode::PATH_UNSTABLE_OR_POOR)).unwrap_or_default();
    if let Err(error) = library.close_path(now, id, code) {
        tracing::debug!(%error, %id, "a path cannot be closed");
    }
}
