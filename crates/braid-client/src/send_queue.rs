//! Requests of the application, and the bounded queue from which the driver takes them.
//!
//! A std Mutex guards the queue: it is held for a few instructions and never across an await.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Waker};

use braid_proto::message::Delivery;
use braid_proto::packet::{PacketId, UserProperties};
use braid_proto::reason::ReasonCode;
use braid_proto::stream::{LogicalStream, Priority};
use braid_proto::topic::TopicFilter;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::error::Error;
use crate::lock::lock;
use crate::subscribe::Subscribe;

/// Number of idle classes whose semaphores are kept.
const CLASSES_KEPT: usize = 64;

/// Sender of the result to the caller that waits for it.
pub(crate) type Waiter<T> = oneshot::Sender<Result<T, Error>>;

/// Request of the application to the driver, or a retransmission.
#[derive(Debug)]
pub(crate) enum Request {
    Publish {
        delivery: Delivery,
        stream: LogicalStream,
        /// `None`: no caller waits for the outcome.
        waiter: Option<Waiter<ReasonCode>>,
        /// Whether it goes in a datagram where that is possible.
        is_unreliable: bool,
    },
    /// Message that an earlier connection, or a stream that has ended, left unacknowledged.
    Resend {
        id: PacketId,
        delivery: Delivery,
        stream: LogicalStream,
    },
    Control(Control),
}

/// Request that SUBACK or UNSUBACK answers.
#[derive(Debug)]
pub(crate) enum Control {
    Subscribe {
        subscribe: Subscribe,
        waiter: Waiter<Vec<ReasonCode>>,
    },
    Unsubscribe(Unsubscribe),
    /// Restores subscriptions that the server has lost, or keeps on another stream.
    Resubscribe(Subscribe),
}

/// UNSUBSCRIBE, sent as one packet for the filters of each stream, one after the other.
#[derive(Debug)]
pub(crate) struct Unsubscribe {
    /// Filters that are not answered yet.
    pub(crate) filters: Vec<TopicFilter>,
    /// Number of filters, from the first, in the unanswered packet.
    pub(crate) asked: usize,
    /// Codes of the filters that are answered.
    pub(crate) codes: Vec<ReasonCode>,
    pub(crate) user: UserProperties,
    pub(crate) waiter: Waiter<Vec<ReasonCode>>,
}

impl Request {
    pub(crate) fn fail(self, error: Error) {
        match self {
            Self::Publish { waiter: Some(waiter), .. } => answer(waiter, Err(error)),
            // The waiter of a message that was sent is in the inflight tracker.
            Self::Publish { waiter: None, .. } | Self::Resend { .. } => {}
            Self::Control(control) => control.fail(error),
        }
    }
}

impl Control {
    pub(crate) fn fail(self, error: Error) {
        match self {
            Self::Subscribe { waiter, .. } | Self::Unsubscribe(Unsubscribe { waiter, .. }) => {
                answer(waiter, Err(error));
            }
            Self::Resubscribe(_) => {}
        }
    }
}

/// Sends a result to a caller, which may have stopped waiting.
pub(crate) fn answer<T>(waiter: Waiter<T>, result: Result<T, Error>) {
    let _ = waiter.send(result);
}

/// Permit for one request in the queue; dropping it makes room.
pub(crate) type Room = OwnedSemaphorePermit;

/// Request about the connection itself, which fails without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionRequest {
    /// Move to another local port.
    Rebind,
    /// Move to another link, over QUIC or TLS in turn.
    Move,
    Reauthenticate,
}

/// Reason why a request was not queued.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotTaken {
    Full,
    Closed,
}

/// FIFO queue of requests. Each class has a limit of its own: an urgent message never waits for room that bulk
/// occupies.
#[derive(Debug)]
pub(crate) struct SendQueue {
    /// Maximum number of requests of each class.
    capacity: usize,
    state: Mutex<State>,
}

/// Priority of messages; `None` for all other requests.
type Class = Option<Priority>;

#[derive(Debug, Default)]
struct State {
    requests: Vec<(Request, Room)>,
    rooms: HashMap<Class, Arc<Semaphore>>,
    connection_requests: Vec<(ConnectionRequest, Waiter<()>)>,
    task: Option<Waker>,
    is_closed: bool,
    is_connected: bool,
}

impl SendQueue {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity: capacity.clamp(1, Semaphore::MAX_PERMITS), state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    // -- Application -------------------------------------------------------------------------------

    /// Queues a request once its class has room. Callers get room in the order of their calls.
    pub(crate) async fn send(&self, request: Request) -> Result<(), NotTaken> {
        let room = self.room(&request)?.acquire_owned().await.map_err(|_| NotTaken::Closed)?;
        self.push(request, room)
    }

    pub(crate) fn try_send(&self, request: Request) -> Result<(), NotTaken> {
        let room = self.room(&request)?.try_acquire_owned().map_err(|_| NotTaken::Full)?;
        self.push(request, room)
    }

    fn room(&self, request: &Request) -> Result<Arc<Semaphore>, NotTaken> {
        let mut state = self.lock();
        if state.is_closed {
            return Err(NotTaken::Closed);
        }
        if state.rooms.len() > CLASSES_KEPT {
            // No request of these classes is queued, and no caller waits for room.
            state.rooms.retain(|_, room| Arc::strong_count(room) > 1);
        }
        let new = || Arc::new(Semaphore::new(self.capacity));
        Ok(Arc::clone(state.rooms.entry(class(request)).or_insert_with(new)))
    }

    fn push(&self, request: Request, room: Room) -> Result<(), NotTaken> {
        let mut state = self.lock();
        if state.is_closed {
            return Err(NotTaken::Closed);
        }
        state.requests.push((request, room));
        wake_driver(state);
        Ok(())
    }

    /// Asks something of the connection. False: there is none.
    pub(crate) fn ask_connection(&self, request: ConnectionRequest, waiter: Waiter<()>) -> bool {
        let mut state = self.lock();
        if !state.is_connected {
            return false;
        }
        state.connection_requests.push((request, waiter));
        wake_driver(state);
        true
    }

    // -- Driver ------------------------------------------------------------------------------------

    /// Takes all requests; the driver is woken by the next one.
    pub(crate) fn take(&self, cx: &mut Context<'_>) -> Vec<(Request, Room)> {
        let mut state = self.lock();
        state.task.get_or_insert_with(|| cx.waker().clone()).clone_from(cx.waker());
        std::mem::take(&mut state.requests)
    }

    pub(crate) fn take_connection_requests(&self) -> Vec<(ConnectionRequest, Waiter<()>)> {
        std::mem::take(&mut self.lock().connection_requests)
    }

    /// Sets whether there is a link. Without one, pending calls of [`ask_connection`](Self::ask_connection)
    /// fail.
    pub(crate) fn set_connected(&self, is_connected: bool) {
        let mut state = self.lock();
        state.is_connected = is_connected;
        if !is_connected {
            state.connection_requests.clear();
        }
    }

    /// Refuses further requests. Returns those that are queued.
    pub(crate) fn close(&self) -> Vec<Request> {
        let mut state = self.lock();
        state.is_closed = true;
        state.rooms.values().for_each(|room| room.close());
        state.requests.drain(..).map(|(request, _room)| request).collect()
    }
}

/// Unlocks the queue, then wakes the driver.
fn wake_driver(mut state: MutexGuard<'_, State>) {
    let waker = state.task.take();
    drop(state);
    waker.into_iter().for_each(Waker::wake);
}

fn class(request: &Request) -> Class {
    match request {
        Request::Publish { delivery, .. } | Request::Resend { delivery, .. } => Some(delivery.priority),
        Request::Control(_) => None,
    }
}
