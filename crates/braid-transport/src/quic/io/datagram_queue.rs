//! Queue between the task of an endpoint and that of a connection.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use noq_proto::{ConnectionEvent, VarInt};

/// Datagrams that wait for the task of their connection at most, 3 MB. More are dropped, as a network may.
const MAX_WAITING: usize = 2048;

/// Datagrams that a connection takes in before it takes pieces of streams out of the library.
const MAX_TAKEN: usize = 256;

/// Datagrams of one connection, and what its endpoint tells it.
#[derive(Default)]
pub(super) struct DatagramQueue {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    datagrams: Vec<ConnectionEvent>,
    /// Sources of what has come, with bytes: one for several datagrams in a row.
    sources: Vec<(SocketAddr, usize)>,
    order: Option<Order>,
    waker: Option<Waker>,
}

/// Order of an endpoint to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// The connection has to be closed with this code.
    Close(VarInt),
    /// The endpoint is gone: nothing is received any more.
    Lost,
}

impl DatagramQueue {
    /// Adds a datagram of so many bytes. Returns the waker of the connection if it has to be woken; that of the whole
    /// batch is one.
    pub(super) fn push(&self, datagram: ConnectionEvent, from: SocketAddr, bytes: usize) -> Option<Waker> {
        let mut state = self.lock();
        if state.datagrams.len() < MAX_WAITING {
            state.datagrams.push(datagram);
            match state.sources.last_mut() {
                Some((last, sum)) if *last == from => *sum += bytes,
                _ => state.sources.push((from, bytes)),
            }
        }
        state.waker.take()
    }

    /// Gives an order, in place of the one before.
    pub(super) fn order(&self, order: Order) {
        let waker = {
            let mut state = self.lock();
            state.order = Some(order);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Takes what has come, and registers the task for what comes next. `note_source` is called with each source and
    /// its bytes, also of datagrams that are left for the next turn.
    pub(super) fn take(
        &self,
        cx: &Context<'_>,
        mut note_source: impl FnMut(SocketAddr, usize),
    ) -> (Vec<ConnectionEvent>, Option<Order>) {
        let mut state = self.lock();
        state.sources.drain(..).for_each(|(from, bytes)| note_source(from, bytes));
        match &mut state.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        let mut datagrams = std::mem::take(&mut state.datagrams);
        if datagrams.len() > MAX_TAKEN {
            state.datagrams = datagrams.split_off(MAX_TAKEN);
            cx.waker().wake_by_ref();
            // An order comes behind them.
            return (datagrams, None);
        }
        (datagrams, state.order.take())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Poisoning is harmless: each change is one push, take or assignment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
