//! Lifecycle of one client: its connections, one after the other, and its work on them.

mod connecting;

use std::future::{pending, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use braid_proto::connection::Cause;
use braid_proto::error::Violation;
use braid_proto::session::Session;
use braid_transport::ClientTls;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::client_identity::ClientIdentity;
use super::publisher::Publisher;
use super::shared::{Phase, Shared, reached};
use super::statistics::{RunStatistics, Shard};
use super::subscriber::Subscriber;
use super::{ClientTurn, PlannedEnd, Work};
use crate::connection::Connection;
use crate::emqtt::{Counter, closed_line, disconnected_line, exit_line};
use crate::failure::Failure;
use crate::timer::Timer;

/// Time limit of a DISCONNECT.
const CLOSE: Duration = Duration::from_secs(1);
/// Longest wait after the last message of `-L` was taken, without bytes written or messages
/// acknowledged. The Erlang client has the same limit for an acknowledgement.
const LAST_WAIT: Duration = Duration::from_secs(30);
/// Turns of one poll, after which other clients of the thread are polled.
const TURNS: usize = 16;

/// A client from its first connection to its last.
pub(super) struct Client {
    shared: Arc<Shared>,
    identity: ClientIdentity,
    worker: Worker,
    phase: watch::Receiver<Phase>,
    /// Session of the ended connection.
    session: Option<Session>,
    /// TLS sessions to resume, if its connections are encrypted.
    own: Option<ClientTls>,
    /// Connections that were established.
    lives: u32,
    /// Reconnections begun, for `--reconnect`.
    returns: u32,
    has_finished: bool,
}

enum Worker {
    Publisher(Box<Publisher>),
    Subscriber(Box<Subscriber>),
    Idle,
}

/// Event that ends a wait.
enum Event {
    /// The run has reached this phase.
    Phase(Phase),
    /// Publishing may begin; after the last message is taken, the longest wait is over.
    Leave,
    /// The connection has ended, or no work is left.
    Ended(Result<(), Failure>),
    /// The planned end of the connection has come.
    Planned,
}

/// Work on a connection that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Worked {
    /// The run has ended, or no work is left.
    Done,
    /// The planned end has come.
    Planned,
}

impl Client {
    pub(super) fn new(shared: Arc<Shared>, number: u64) -> Self {
        let mut identity = ClientIdentity::new(&shared.plan.clients, number, shared.dialer.local(number));
        let worker = match &shared.plan.work {
            Work::Publish(plan) => Worker::Publisher(Box::new(Publisher::new(&shared, plan, &mut identity))),
            Work::Subscribe(plan) => {
                Worker::Subscriber(Box::new(Subscriber::new(&shared, plan, &mut identity)))
            }
            Work::Connect => Worker::Idle,
        };
        let phase = shared.phase.subscribe();
        let own = shared.dialer.own_sessions();
        let (session, lives, returns, has_finished) = (None, 0, 0, false);
        Self { shared, identity, worker, phase, session, own, lives, returns, has_finished }
    }

    /// Runs until the run is over, no work is left, or the client gives up.
    pub(super) async fn live(mut self) {
        let retries = self.shared.plan.clients.retries;
        loop {
            // Boxed, so that thousands of connections do not keep the memory of connecting.
            let connected = Box::pin(self.connect()).await;
            if self.lives == u32::from(connected.is_some()) {
                self.shared.arrived();
            }
            let Some(mut connection) = connected else {
                if self.lives > 0 {
                    self.finish();
                    let last_due = self.last_due(Instant::now()).await;
                    self.give_up(last_due);
                }
                break;
            };
            self.shared.statistics.client_connected();
            let end = self.work(&mut connection).await;
            let ended_at = Instant::now();
            self.shared.statistics.client_disconnected();
            if matches!(end, Ok(Worked::Planned)) {
                self.end_as_planned(connection, ended_at).await;
                self.returns += 1;
                continue;
            }
            let Some(connection) = self.conclude(connection, end.map(drop), ended_at).await else {
                self.give_up(ended_at);
                self.finish();
                return;
            };
            self.keep_session(connection);
            if self.returns == retries.reconnect {
                self.finish();
                let last_due = self.last_due(ended_at).await;
                self.give_up(last_due);
                return;
            }
            self.returns += 1;
            if !self.pause(retries.pause).await {
                break;
            }
        }
        self.give_up(Instant::now());
        self.finish();
    }

    // -- Working -----------------------------------------------------------------------------------

    /// Works until the run has ended, no work is left, or the planned end has come; the error ended the connection.
    async fn work(&mut self, connection: &mut Connection) -> Result<Worked, Failure> {
        match &mut self.worker {
            Worker::Publisher(publisher) => publisher.resume(connection),
            Worker::Subscriber(subscriber) => subscriber.begin(connection),
            Worker::Idle => {}
        }
        let mut timer = None;
        let mut leave: Pin<Box<dyn Future<Output = ()> + Send>> = match &self.worker {
            Worker::Publisher(publisher) if !publisher.has_begun() => {
                let wait = match &self.shared.plan.work {
                    Work::Publish(plan) => self.identity.between(plan.random_wait),
                    Work::Subscribe(_) | Work::Connect => Duration::ZERO,
                };
                Box::pin(may_begin(self.shared.gate.subscribe(), wait))
            }
            _ => Box::pin(pending()),
        };
        let mut planned = self.planned_end();
        let mut next_phase = Phase::Spent;
        // Bytes written and messages inflight at the beginning of the last wait.
        let mut moved = (0, 0);
        loop {
            let turns = poll_fn(|cx| {
                turns(&self.shared, &mut self.worker, &mut self.identity, connection, &mut timer, cx)
            });
            let event = tokio::select! {
                biased;
                phase = reached(&mut self.phase, next_phase) => Event::Phase(phase),
                () = &mut planned => Event::Planned,
                () = &mut leave => Event::Leave,
                ended = turns => Event::Ended(ended),
            };
            match event {
                Event::Phase(Phase::Over) => return Ok(Worked::Done),
                Event::Planned => return Ok(Worked::Planned),
                Event::Leave if next_phase == Phase::Spent => {
                    leave = Box::pin(pending());
                    if let Worker::Publisher(publisher) = &mut self.worker {
                        publisher.begin(connection);
                    }
                }
                Event::Ended(Err(failure)) => return Err(failure),
                Event::Phase(_) => {
                    // A client without unacknowledged messages ends with the next turn.
                    next_phase = Phase::Over;
                    moved = self.worker.moved(connection);
                    leave = Box::pin(sleep(LAST_WAIT));
                }
                Event::Leave if self.worker.moved(connection) != moved => {
                    moved = self.worker.moved(connection);
                    leave = Box::pin(sleep(LAST_WAIT));
                }
                Event::Leave | Event::Ended(Ok(())) if !self.shared.plan.ending.keep_connected => {
                    return Ok(Worked::Done);
                }
                Event::Leave | Event::Ended(Ok(())) => {
                    leave = Box::pin(pending());
                    self.stay(connection);
                }
            }
        }
    }

    /// Completes at the planned end of the current connection.
    fn planned_end(&self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let retries = self.shared.plan.clients.retries;
        let now = Instant::now();
        let at = match retries.planned {
            PlannedEnd::After(lifetime) => Some(now + lifetime),
            PlannedEnd::At(time) => {
                Some(self.shared.statistics.clock().start() + time).filter(|at| *at > now)
            }
            PlannedEnd::Never => None,
        };
        match at.filter(|_| self.returns < retries.reconnect) {
            Some(at) => Box::pin(sleep_until(at)),
            None => Box::pin(pending()),
        }
    }

    /// Every message is done; the connection stays open.
    fn stay(&mut self, connection: &mut Connection) {
        let now = Instant::now();
        self.count_written(connection, now);
        self.give_up(now);
        self.finish();
    }

    /// Reports once that the client will publish no more.
    fn finish(&mut self) {
        if !self.has_finished {
            self.has_finished = true;
            self.shared.finished(1);
        }
    }

    // -- The end -----------------------------------------------------------------------------------

    /// Ends a connection after which another one follows.
    async fn end_as_planned(&mut self, mut connection: Connection, ended_at: Instant) {
        if let PlannedEnd::After(_) = self.shared.plan.clients.retries.planned {
            connection.disconnect();
            let _ = timeout(CLOSE, poll_fn(|cx| connection.poll_close(cx))).await;
        }
        self.count_written(&mut connection, ended_at);
        self.note_unanswered(&mut connection, ended_at);
        self.keep_session(connection);
    }

    /// Sends DISCONNECT if the client ended it, or records why it ended; then the connection is for its session only.
    async fn conclude(
        &mut self,
        mut connection: Connection,
        end: Result<(), Failure>,
        ended_at: Instant,
    ) -> Option<Connection> {
        let Err(failure) = end else {
            connection.disconnect();
            let _ = timeout(CLOSE, poll_fn(|cx| connection.poll_close(cx))).await;
            // Bytes written with the DISCONNECT have left.
            self.count_written(&mut connection, ended_at);
            self.note_unanswered(&mut connection, ended_at);
            return None;
        };
        self.count_written(&mut connection, ended_at);
        self.note_unanswered(&mut connection, ended_at);
        let number = self.identity.number;
        let statistics = &self.shared.statistics;
        statistics.add_event(match &failure {
            Failure::Ended(Cause::Disconnected(reason)) => disconnected_line(number, reason.value()),
            Failure::Ended(Cause::Violation(Violation::PingrespTimeout)) => {
                exit_line(number, "keepalive_timeout")
            }
            Failure::Link(error) if connection.is_multi() && error.kind() == std::io::ErrorKind::TimedOut => {
                statistics.shard().count(Counter::ConnectionIdle, 1);
                exit_line(number, "connection_idle")
            }
            Failure::Ended(Cause::Lost | Cause::Closed(_)) | Failure::Link(_) => {
                closed_line(number, connection.transport())
            }
            other => exit_line(number, &other.to_string()),
        });
        Some(connection)
    }

    /// Counts the messages of a connection that ended at `ended_at`: those that the link has not taken are lost.
    fn count_written(&mut self, connection: &mut Connection, ended_at: Instant) {
        let mut shard = self.shared.statistics.shard();
        if let Worker::Publisher(publisher) = &mut self.worker {
            publisher.lose_unwritten(connection, ended_at, &mut shard);
        }
        note_traffic(&self.worker, connection, &self.shared.statistics, ended_at, &mut shard);
    }

    /// Counts PINGREQ packets without a PINGRESP at the end of a connection.
    fn note_unanswered(&self, connection: &mut Connection, ended_at: Instant) {
        let (count, waited) = connection.take_unanswered(ended_at);
        let at = self.shared.statistics.clock().unix(ended_at);
        let mut shard = self.shared.statistics.shard();
        shard.unanswered_pings += count;
        waited.into_iter().for_each(|waited| shard.answered(at, waited));
    }

    /// Counts every unacknowledged message as lost if the session ends with its connection.
    fn keep_session(&mut self, connection: Connection) {
        if !self.shared.plan.clients.clean_start {
            self.session = connection.into_session();
        }
        if self.session.is_none()
            && let Worker::Publisher(publisher) = &mut self.worker
        {
            publisher.lose_unacknowledged(&mut self.shared.statistics.shard());
        }
    }

    /// Counts messages that will never leave or arrive, and removes them, so that each is counted once.
    fn give_up(&mut self, at: Instant) {
        match &mut self.worker {
            Worker::Publisher(publisher) => {
                let mut shard = self.shared.statistics.shard();
                publisher.lose_unacknowledged(&mut shard);
                publisher.lose_overdue(at, &mut shard);
            }
            Worker::Subscriber(subscriber) => subscriber.report_order(&self.identity),
            Worker::Idle => {}
        }
        self.worker = Worker::Idle;
    }
}

impl Worker {
    /// Bytes written and messages inflight: while these change, the client waits on.
    fn moved(&self, connection: &Connection) -> (u64, usize) {
        let unacknowledged_count = match self {
            Self::Publisher(publisher) => publisher.unacknowledged_count(),
            Self::Subscriber(_) | Self::Idle => 0,
        };
        (connection.written(), unacknowledged_count)
    }
}

/// Completes when publishing may begin.
async fn may_begin(mut gate: watch::Receiver<bool>, wait: Duration) {
    if gate.wait_for(|open| *open).await.is_err() {
        pending::<()>().await;
    }
    if !wait.is_zero() {
        sleep(wait).await;
    }
}

/// Polls a worker until it makes no progress. Ready when the connection has ended, or the worker has no work left.
fn turns(
    shared: &Shared,
    worker: &mut Worker,
    identity: &mut ClientIdentity,
    connection: &mut Connection,
    timer: &mut Option<Timer>,
    cx: &mut Context<'_>,
) -> Poll<Result<(), Failure>> {
    let mut shard = shared.statistics.shard();
    for _ in 0..TURNS {
        let mut on = ClientTurn { connection, identity, shard: &mut shard, now: Instant::now(), cx };
        let (has_moved, next) = match worker {
            Worker::Publisher(publisher) => {
                let turn = publisher.turn(&mut on)?;
                (turn.has_moved, turn.next)
            }
            Worker::Subscriber(subscriber) => (subscriber.turn(&mut on)?, None),
            Worker::Idle => (on.connection.poll_next(on.cx)?.is_ready(), None),
        };
        if has_moved {
            continue;
        }
        note_traffic(worker, connection, &shared.statistics, Instant::now(), &mut shard);
        if let Worker::Publisher(publisher) = worker
            && publisher.is_finished()
        {
            return Poll::Ready(Ok(()));
        }
        let Some(next) = next else { return Poll::Pending };
        let timer = timer.get_or_insert_with(|| shared.timers.at(next));
        timer.set(next);
        if Pin::new(timer).poll(cx).is_pending() {
            return Poll::Pending;
        }
    }
    note_traffic(worker, connection, &shared.statistics, Instant::now(), &mut shard);
    cx.waker().wake_by_ref();
    Poll::Pending
}

/// Records the bytes that the link took from a publisher, or brought to other clients.
fn note_traffic(
    worker: &Worker,
    connection: &mut Connection,
    statistics: &RunStatistics,
    at: Instant,
    shard: &mut Shard,
) {
    for took in connection.take_round_trips() {
        shard.answered(statistics.clock().unix(at), took);
    }
    let second = statistics.second(at);
    connection.take_traffic(|key, written, read| match worker {
        Worker::Publisher(publisher) => shard.moved(publisher.number(key).into(), second, written),
        Worker::Subscriber(subscriber) => shard.moved(subscriber.number(key).into(), second, read),
        Worker::Idle => shard.moved(0, second, written + read),
    });
}
