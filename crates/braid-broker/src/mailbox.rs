//! What others have for a session: the only thing of a session that other tasks touch.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use braid_proto::message::Delivery;
use braid_proto::packet::QoS;
use braid_proto::reason::ReasonCode;

/// What a delivery costs beside its payload, about.
const DELIVERY_OVERHEAD: usize = 256;

/// Capacity that an empty mailbox may keep.
const KEEP_CAPACITY: usize = 64;

/// A session's bounded queue with the means to wake its owner.
///
/// Overflow policy: what does not fit is dropped and counted; QoS 0 is dropped while nobody is online. Nobody
/// ever waits here: a publisher pushes and goes on.
///
/// A std Mutex: it is held for a few pushes or one swap, never across an await or a wake-up.
#[derive(Debug, Default)]
pub(crate) struct Mailbox(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    queue: VecDeque<Delivery>,
    bytes: usize,
    state: State,
    signal: Option<Signal>,
    /// Set while the owner sleeps.
    owner: Option<Waker>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Offline,
    Online,
    /// The session has ended.
    Closed,
}

/// What the owner must do apart from delivering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// Close the connection and give the session to whoever asked for it.
    TakeOver,
    /// Close the connection.
    Close(ReasonCode),
}

/// How much a mailbox holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capacity {
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic elsewhere must not take this session's messages with it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds deliveries and returns how many were dropped. The owner's waker goes to `wakers`, to be woken after
    /// the whole batch and outside of every lock.
    pub(crate) fn push(
        &self,
        deliveries: impl Iterator<Item = Delivery>,
        capacity: Capacity,
        wakers: &mut Vec<Waker>,
    ) -> u64 {
        let mut dropped = 0;
        let mut inner = self.lock();
        for delivery in deliveries {
            let cost = cost(&delivery);
            let fits =
                inner.queue.len() < capacity.messages && inner.bytes.saturating_add(cost) <= capacity.bytes;
            // A message larger than the whole mailbox is let in alone.
            let fits = fits || inner.queue.is_empty() && capacity.messages > 0;
            let wanted = match inner.state {
                State::Online => true,
                State::Offline => delivery.qos > QoS::AtMostOnce,
                State::Closed => false,
            };
            if fits && wanted {
                inner.bytes += cost;
                inner.queue.push_back(delivery);
            } else {
                dropped += 1;
            }
        }
        if !inner.queue.is_empty() {
            wakers.extend(inner.owner.take());
        }
        dropped
    }

    /// Whether a member of a shared subscription should get the next message.
    pub(crate) fn is_ready(&self, capacity: Capacity) -> bool {
        let inner = self.lock();
        inner.state == State::Online
            && inner.queue.len() < capacity.messages
            && inner.bytes < capacity.bytes
    }

    /// Whether anything pushed now is kept.
    pub(crate) fn is_open(&self) -> bool {
        self.lock().state != State::Closed
    }

    /// Moves everything into `inbox`, which must be empty. With nothing there, the owner is woken at the next
    /// push or signal.
    pub(crate) fn poll_take(&self, inbox: &mut VecDeque<Delivery>, context: &Context<'_>) -> Option<Signal> {
        let mut inner = self.lock();
        let signal = inner.signal.take();
        if inbox.is_empty() && !inner.queue.is_empty() {
            std::mem::swap(&mut inner.queue, inbox);
            inner.bytes = 0;
            if inner.queue.capacity() > KEEP_CAPACITY {
                inner.queue.shrink_to(KEEP_CAPACITY);
            }
        }
        match &mut inner.owner {
            Some(owner) => owner.clone_from(context.waker()),
            owner => *owner = Some(context.waker().clone()),
        }
        signal
    }

    /// Tells the owner to do something. Outside of the lock the caller wakes what is returned.
    #[must_use]
    pub(crate) fn signal(&self, signal: Signal) -> Option<Waker> {
        let mut inner = self.lock();
        // A take-over must not be forgotten for a mere close.
        if inner.signal != Some(Signal::TakeOver) {
            inner.signal = Some(signal);
        }
        inner.owner.take()
    }

    /// A connection begins to take from here.
    pub(crate) fn open(&self) {
        let mut inner = self.lock();
        inner.state = State::Online;
        inner.signal = None;
    }

    /// The connection has ended; what it took but did not send comes back to the front.
    pub(crate) fn park(&self, leftover: VecDeque<Delivery>) {
        let mut inner = self.lock();
        inner.state = State::Offline;
        inner.owner = None;
        for delivery in leftover.into_iter().rev() {
            inner.bytes += cost(&delivery);
            inner.queue.push_front(delivery);
        }
        inner.queue.retain(|delivery| delivery.qos > QoS::AtMostOnce);
        inner.bytes = inner.queue.iter().map(cost).sum();
    }

    /// The session has ended: what is left.
    pub(crate) fn close(&self) -> VecDeque<Delivery> {
        let mut inner = self.lock();
        inner.state = State::Closed;
        inner.owner = None;
        inner.bytes = 0;
        std::mem::take(&mut inner.queue)
    }

    /// Messages waiting.
    pub(crate) fn len(&self) -> usize {
        self.lock().queue.len()
    }
}

fn cost(delivery: &Delivery) -> usize {
    DELIVERY_OVERHEAD + delivery.message.payload.len()
}
