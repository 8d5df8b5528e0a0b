//! Where the application hands its requests to the connection's task.
//!
//! A std Mutex, because it is held for a few instructions and never across an await.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use braid_proto::stream::Priority;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::error::Error;
use crate::request::Request;

/// Classes whose counts are kept although nothing of them waits.
const CLASSES_KEPT: usize = 64;

/// A place in the queue; dropping it makes room.
pub(crate) type Room = OwnedSemaphorePermit;

/// Who waits for the connection to move.
pub(crate) type Rebind = oneshot::Sender<Result<(), Error>>;

/// Why a request was not taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotTaken {
    Full,
    Closed,
}

/// Requests in the order of their coming. Each class has room of its own, so that what is urgent never waits for
/// room that bulk holds.
#[derive(Debug)]
pub(crate) struct SendQueue {
    /// The most of each class.
    capacity: usize,
    state: Mutex<State>,
}

/// The priority of messages; `None` for all other requests.
type Class = Option<Priority>;

#[derive(Debug, Default)]
struct State {
    requests: Vec<(Request, Room)>,
    rooms: HashMap<Class, Arc<Semaphore>>,
    rebinds: Vec<Rebind>,
    task: Option<Waker>,
    is_closed: bool,
    is_connected: bool,
}

impl SendQueue {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity: capacity.clamp(1, Semaphore::MAX_PERMITS), state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // -- The application's side --------------------------------------------------------------------

    /// Waits for room in the class of the request, in the order of asking.
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
            // Nobody holds a place of these, nor waits for one.
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
        let waker = state.task.take();
        drop(state);
        wake(waker);
        Ok(())
    }

    /// Asks for the connection to move to another local port. False: there is none.
    pub(crate) fn rebind(&self, waiter: Rebind) -> bool {
        let mut state = self.lock();
        if !state.is_connected {
            return false;
        }
        state.rebinds.push(waiter);
        let waker = state.task.take();
        drop(state);
        wake(waker);
        true
    }

    // -- The task's side ---------------------------------------------------------------------------

    /// What came since the last time; the task is woken by the next one.
    pub(crate) fn take(&self, cx: &mut Context<'_>) -> Vec<(Request, Room)> {
        let mut state = self.lock();
        match &mut state.task {
            Some(waker) => waker.clone_from(cx.waker()),
            None => state.task = Some(cx.waker().clone()),
        }
        std::mem::take(&mut state.requests)
    }

    pub(crate) fn take_rebinds(&self) -> Vec<Rebind> {
        std::mem::take(&mut self.lock().rebinds)
    }

    /// A link is there, or not any more: then who waits for it to move learns that.
    pub(crate) fn set_connected(&self, is_connected: bool) {
        let mut state = self.lock();
        state.is_connected = is_connected;
        if !is_connected {
            state.rebinds.clear();
        }
    }

    /// Takes no more. Returns what came since the last time.
    pub(crate) fn close(&self) -> Vec<Request> {
        let mut state = self.lock();
        state.is_closed = true;
        state.rooms.values().for_each(|room| room.close());
        state.requests.drain(..).map(|(request, _room)| request).collect()
    }
}

fn class(request: &Request) -> Class {
    match request {
        Request::Publish { delivery, .. } | Request::Resend { delivery, .. } => Some(delivery.priority),
        Request::Control(_) => None,
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}
