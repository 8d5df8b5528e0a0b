//! Switch between the hosts: addresses, and datagrams in flight.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep_until};

use braid_emulator::{LinkSpec, PathCounters, Pipeline};

use super::frame::{self, Frame};
use super::link::{Conditions, Counters, Direction};

/// The index of a host.
pub(crate) type HostId = usize;
/// The number of a socket, never used twice.
type SocketId = u64;

/// Least delay of a datagram. Some congestion controllers stall when a round trip takes no time at all.
const MIN_DELAY: Duration = Duration::from_millis(1);

/// First of the ports that the host chooses.
const FIRST_PORT: u16 = 50_000;

/// One machine on a [`Network`], and its link. Clones are the same machine.
#[derive(Clone)]
pub struct Host {
    pub(super) id: HostId,
    pub(super) switch: Arc<Switch>,
}

impl Host {
    /// The name it was asked for with.
    #[must_use]
    pub fn name(&self) -> String {
        self.switch.lock().host(self.id).name.clone()
    }

    /// Changes both directions of the link. Datagrams that have entered it are not affected.
    pub fn change(&self, change: impl Fn(&mut Conditions)) {
        self.change_one(Direction::Up, &change);
        self.change_one(Direction::Down, &change);
    }

    /// Changes one direction of the link. Datagrams that have entered it are not affected.
    pub fn change_one(&self, direction: Direction, change: impl FnOnce(&mut Conditions)) {
        let (mut state, now) = self.switch.advanced();
        let lane = state.host(self.id).lane(direction);
        change(&mut lane.conditions);
        lane.pipeline.change(now, lane.conditions.path());
    }

    /// Replaces both directions of the link by those of a specification, whose times count from the start of the
    /// network. Datagrams on their way are lost, [`change`](Self::change) begins with the default again, and what a NAT
    /// of the specification has translated finds no way back: [`rebind_nat`](Self::rebind_nat) is for that.
    pub fn replace_link(&self, link: &LinkSpec) {
        let (mut state, _) = self.switch.advanced();
        let seed = state.random.next();
        let host = state.host(self.id);
        (host.up, host.down) = lanes(link, seed);
    }

    /// Datagrams that one direction of the link has carried and dropped.
    #[must_use]
    pub fn counters(&self, direction: Direction) -> Counters {
        Counters::from(&self.path_counters(direction))
    }

    /// All counters of one direction of the link, in IP packets.
    #[must_use]
    pub fn path_counters(&self, direction: Direction) -> PathCounters {
        let (mut state, _) = self.switch.advanced();
        *state.host(self.id).lane(direction).pipeline.counters()
    }

    /// Keeps a copy of every datagram from now on.
    #[must_use]
    pub fn record(&self) -> Recording {
        let recording = Recording::default();
        self.switch.lock().host(self.id).recordings.push(recording.clone());
        recording
    }

    /// Sends one datagram from a port that is used for nothing else, and returns its address. Nothing that is sent
    /// there arrives.
    pub fn send(&self, to: SocketAddr, bytes: &[u8]) -> Option<SocketAddr> {
        let socket = self.attach(None).ok()?;
        socket.send(to, None, bytes);
        Some(socket.local)
    }

    /// Drops the mappings of the NAT in front of the host: peers see another address from now on, and datagrams to the
    /// old one are lost. The host itself notices nothing.
    pub fn rebind_nat(&self) {
        self.rebind(true);
    }

    /// Does the same, but only the port changes.
    pub fn rebind_nat_port(&self) {
        self.rebind(false);
    }

    /// `moves`: to another IP address.
    fn rebind(&self, moves: bool) {
        let mut state = self.switch.lock();
        let State { sockets, routes, next_mapping, .. } = &mut *state;
        let mut of_host: Vec<_> = sockets.iter_mut().filter(|(_, socket)| socket.host == self.id).collect();
        of_host.sort_by_key(|(id, _)| **id);
        for (id, socket) in of_host {
            let mut public = socket.public;
            while routes.contains_key(&public) {
                let [high, low] = next_mapping.to_be_bytes();
                let ip = if moves { IpAddr::from([100, 64, high, low]) } else { public.ip() };
                public = SocketAddr::new(ip, FIRST_PORT.wrapping_add(*next_mapping).max(1024));
                *next_mapping = next_mapping.wrapping_add(1);
            }
            routes.remove(&socket.public);
            socket.public = public;
            routes.insert(socket.public, *id);
        }
    }

    /// A socket on a free port.
    ///
    /// # Errors
    /// There is none.
    pub fn socket(&self) -> io::Result<Socket> {
        self.attach(None)
    }

    /// A socket on `port`, or on a free one.
    pub(crate) fn attach(&self, port: Option<u16>) -> io::Result<Socket> {
        let mut state = self.switch.lock();
        let ip = IpAddr::V4(state.host(self.id).ip);
        let local = match port {
            Some(port) => SocketAddr::new(ip, port),
            None => state.free_port(self.id, ip),
        };
        if state.routes.contains_key(&local) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let id = state.next_socket;
        state.next_socket += 1;
        let receive_queue = Arc::new(ReceiveQueue::default());
        let socket = SocketState { host: self.id, public: local, receive_queue: Arc::clone(&receive_queue) };
        state.sockets.insert(id, socket);
        state.routes.insert(local, id);
        Ok(Socket { switch: Arc::clone(&self.switch), id, local, receive_queue, timer: Mutex::default() })
    }

    /// A random number, as a seed.
    pub(crate) fn draw(&self) -> u64 {
        self.switch.lock().random.next()
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Host").field(&self.name()).finish()
    }
}

/// One datagram as the host sent it, or as the network sent it towards the host. Datagrams that the host's own link
/// drops are recorded too.
#[derive(Clone, Debug)]
pub struct Datagram {
    /// Time at which the host sent it, or at which it left the link of its sender.
    pub at: Instant,
    /// Whether the host sent it, or it was sent to the host.
    pub direction: Direction,
    /// Destination.
    pub to: SocketAddr,
    /// The UDP payload.
    pub bytes: Bytes,
}

/// All datagrams of a host since [`Host::record`], for as long as the network lives.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    datagrams: Arc<Mutex<Vec<Datagram>>>,
}

impl Recording {
    pub(super) fn push(&self, datagram: Datagram) {
        self.lock().push(datagram);
    }

    /// The datagrams so far.
    #[must_use]
    pub fn datagrams(&self) -> Vec<Datagram> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Datagram>> {
        // Poisoning is harmless: the list is only pushed to and cloned.
        self.datagrams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub(crate) struct Switch {
    state: Mutex<State>,
    start: Instant,
    /// A datagram was sent.
    sent: Arc<Notify>,
}

#[derive(Debug)]
struct State {
    random: Random,
    hosts: Vec<HostState>,
    sockets: HashMap<SocketId, SocketState>,
    /// Sockets by the address that others see.
    routes: HashMap<SocketAddr, SocketId>,
    next_socket: SocketId,
    next_arrival: u64,
    next_mapping: u16,
    /// Whether the task that carries datagrams runs.
    is_carried: bool,
}

#[derive(Debug)]
struct HostState {
    name: String,
    ip: Ipv4Addr,
    up: Lane,
    down: Lane,
    next_port: u16,
    recordings: Vec<Recording>,
}

/// One direction of a host's link.
#[derive(Debug)]
struct Lane {
    conditions: Conditions,
    pipeline: Pipeline,
}

/// Both directions of a link.
fn lanes(link: &LinkSpec, seed: u64) -> (Lane, Lane) {
    let (up, down) = Pipeline::pair(link, seed);
    let lane = |pipeline: Pipeline| Lane {
        conditions: Conditions::default(),
        pipeline: pipeline.with_link_header(frame::SENT_AT),
    };
    (lane(up), lane(down))
}

#[derive(Debug)]
struct SocketState {
    host: HostId,
    /// Address that others see: its own, until the NAT changes its mappings.
    public: SocketAddr,
    receive_queue: Arc<ReceiveQueue>,
}

impl Switch {
    pub(crate) fn new(seed: u64) -> Self {
        let state = State {
            random: Random { state: seed },
            hosts: Vec::new(),
            sockets: HashMap::new(),
            routes: HashMap::new(),
            next_socket: 0,
            next_arrival: 0,
            next_mapping: 0,
            is_carried: false,
        };
        Self { state: Mutex::new(state), start: Instant::now(), sent: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Poisoning is harmless: a panic is a failed test, and the switch is part of tests only.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state after everything that is due now has moved on, and the time since the start.
    fn advanced(&self) -> (MutexGuard<'_, State>, Duration) {
        let now = self.start.elapsed();
        let mut state = self.lock();
        state.advance(self.start, now);
        (state, now)
    }

    /// The host of this name; a new one if there is none.
    pub(crate) fn host(&self, name: &str) -> HostId {
        let mut state = self.lock();
        if let Some(found) = state.hosts.iter().position(|host| host.name == name) {
            return found;
        }
        let [high, low] = u16::try_from(state.hosts.len() + 1).unwrap_or(u16::MAX).to_be_bytes();
        let seed = state.random.next();
        let (up, down) = lanes(&LinkSpec::from(Conditions::default().path()), seed);
        state.hosts.push(HostState {
            name: name.to_owned(),
            ip: Ipv4Addr::new(10, 0, high, low),
            up,
            down,
            next_port: FIRST_PORT,
            recordings: Vec::new(),
        });
        state.hosts.len() - 1
    }

    /// Sends one datagram.
    fn send(self: &Arc<Self>, socket: SocketId, to: SocketAddr, ecn: Option<u8>, bytes: &[u8]) {
        let (mut state, now) = self.advanced();
        let Some(SocketState { host, public, .. }) = state.sockets.get(&socket).filter(|_| to.is_ipv4())
        else {
            return;
        };
        let (host, public) = (*host, *public);
        let frame = Frame { sent_at: now, from: public, to, ecn, payload: bytes }.encode();
        state.host(host).record(self.start + now, Direction::Up, to, bytes);
        state.host(host).up.pipeline.handle(now, &frame);
        state.advance(self.start, now);
        if !std::mem::replace(&mut state.is_carried, true) {
            tokio::spawn(carry(Arc::downgrade(self), Arc::clone(&self.sent)));
        }
        drop(state);
        self.sent.notify_one();
    }
}

/// Moves datagrams on when their time has come, for as long as the network lives.
async fn carry(switch: Weak<Switch>, was_sent: Arc<Notify>) {
    while let Some(network) = switch.upgrade() {
        let next = network.advanced().0.first_due().map(|(due, ..)| network.start + due);
        drop(network);
        let sent = was_sent.notified();
        match next {
            Some(at) => tokio::select! { () = sleep_until(at) => {} () = sent => {} },
            None => sent.await,
        }
    }
}

impl State {
    /// Moves on everything that is due, in the order of its times.
    fn advance(&mut self, start: Instant, now: Duration) {
        while let Some((due, host, direction)) = self.first_due().filter(|(due, ..)| *due <= now) {
            while let Some(departure) = self.host(host).lane(direction).pipeline.take_due(due) {
                self.forward(start, departure.due, direction, &departure.bytes);
                self.host(host).lane(direction).pipeline.recycle(departure.bytes);
            }
            while self.host(host).lane(direction).pipeline.take_verdict().is_some() {}
        }
    }

    fn first_due(&self) -> Option<(Duration, HostId, Direction)> {
        let hosts = self.hosts.iter().enumerate();
        let lanes =
            hosts.flat_map(|(id, host)| [(id, Direction::Up, &host.up), (id, Direction::Down, &host.down)]);
        lanes
            .filter_map(|(id, direction, lane)| Some((lane.pipeline.next_due()?, id, direction)))
            .min_by_key(|(due, ..)| *due)
    }

    /// Hands a datagram on that has left one direction of a link at `due`.
    fn forward(&mut self, start: Instant, due: Duration, direction: Direction, frame: &[u8]) {
        let Some(Frame { sent_at, from, to, ecn, payload }) = Frame::decode(frame) else { return };
        let Some(target) = self.routes.get(&to).and_then(|id| self.sockets.get(id)) else { return };
        match direction {
            Direction::Up => {
                let host = target.host;
                // Recorded on this side: datagrams that the sender's link has let through.
                self.host(host).record(start + due, Direction::Down, to, payload);
                self.host(host).down.pipeline.handle(due, frame);
            }
            Direction::Down => {
                let key = (start + due.max(sent_at + MIN_DELAY), self.next_arrival);
                self.next_arrival += 1;
                target.receive_queue.push(key, Arrival { from, ecn, bytes: Bytes::copy_from_slice(payload) });
            }
        }
    }

    fn host(&mut self, host: HostId) -> &mut HostState {
        // Ids come from `Switch::host`, and hosts are never removed.
        &mut self.hosts[host]
    }

    fn free_port(&mut self, host: HostId, ip: IpAddr) -> SocketAddr {
        loop {
            let port = self.host(host).next_port;
            self.host(host).next_port = port.checked_add(1).unwrap_or(FIRST_PORT);
            let address = SocketAddr::new(ip, port);
            if !self.routes.contains_key(&address) {
                return address;
            }
        }
    }
}

impl HostState {
    fn record(&self, at: Instant, direction: Direction, to: SocketAddr, payload: &[u8]) {
        for recording in &self.recordings {
            recording.push(Datagram { at, direction, to, bytes: Bytes::copy_from_slice(payload) });
        }
    }

    fn lane(&mut self, direction: Direction) -> &mut Lane {
        match direction {
            Direction::Up => &mut self.up,
            Direction::Down => &mut self.down,
        }
    }
}

/// UDP socket of a host, attached to the network until it is dropped.
pub struct Socket {
    switch: Arc<Switch>,
    id: SocketId,
    local: SocketAddr,
    receive_queue: Arc<ReceiveQueue>,
    /// For the next arrival.
    timer: Mutex<Option<Pin<Box<Sleep>>>>,
}

impl Socket {
    /// Its own address; others may see another one.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Sends a datagram. `ecn`: the two bits of its IP header.
    pub fn send(&self, to: SocketAddr, ecn: Option<u8>, bytes: &[u8]) {
        self.switch.send(self.id, to, ecn, bytes);
    }

    /// Receives the next datagram. One task may wait.
    pub fn poll_receive(&self, cx: &mut Context<'_>) -> Poll<Arrival> {
        let mut timer = self.timer.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let next = match self.receive_queue.poll(cx, Instant::now()) {
                Ok(arrival) => return Poll::Ready(arrival),
                Err(next) => next,
            };
            let Some(at) = next else {
                *timer = None;
                return Poll::Pending;
            };
            let sleep = timer.get_or_insert_with(|| Box::pin(sleep_until(at)));
            if sleep.deadline() != at {
                sleep.as_mut().reset(at);
            }
            ready!(Future::poll(sleep.as_mut(), cx));
            *timer = None;
        }
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Socket").field(&self.local).finish()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let mut state = self.switch.lock();
        if let Some(socket) = state.sockets.remove(&self.id) {
            state.routes.remove(&socket.public);
        }
    }
}

/// A datagram at its destination, or on its way there.
#[derive(Debug)]
pub struct Arrival {
    /// Address of the sender, as the network shows it.
    pub from: SocketAddr,
    /// The two bits of its IP header.
    pub ecn: Option<u8>,
    /// The UDP payload.
    pub bytes: Bytes,
}

/// Datagrams in flight to one socket.
#[derive(Debug, Default)]
struct ReceiveQueue {
    state: Mutex<ReceiveQueueState>,
}

#[derive(Debug, Default)]
struct ReceiveQueueState {
    /// By time and, for ties, the order of sending.
    arrivals: BTreeMap<(Instant, u64), Arrival>,
    waker: Option<Waker>,
}

impl ReceiveQueue {
    fn lock(&self) -> MutexGuard<'_, ReceiveQueueState> {
        // Poisoning is harmless: each change is one push, pop or assignment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, key: (Instant, u64), arrival: Arrival) {
        let waker = {
            let mut state = self.lock();
            state.arrivals.insert(key, arrival);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The next datagram that has arrived; else when the next will (`None`: nothing is on its way),
    /// and the task is woken when something new sets out.
    fn poll(&self, cx: &Context<'_>, now: Instant) -> Result<Arrival, Option<Instant>> {
        let mut state = self.lock();
        let next = match state.arrivals.first_entry() {
            Some(first) if first.key().0 <= now => return Ok(first.remove()),
            first => first.map(|first| first.key().0),
        };
        state.waker = Some(cx.waker().clone());
        Err(next)
    }
}

/// `SplitMix64` by Guy Steele and others: every seed is good, every state is 8 bytes.
#[derive(Clone, Debug)]
struct Random {
    state: u64,
}

impl Random {
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}
