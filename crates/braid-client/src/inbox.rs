//! Where the connection's task and the application meet: messages one way, their acknowledgements and the wish
//! to close the other.
//!
//! A std Mutex, because it is held for a few instructions and never across an await: both sides take it once
//! per batch or message, and wake the other after they let go.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use braid_proto::connection::Token;

use crate::messages::Received;

/// Names an acknowledgement: the connection it belongs to, and its token there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Receipt {
    pub(crate) connection: u64,
    pub(crate) token: Token,
}

#[derive(Debug)]
pub(crate) struct Inbox {
    capacity: usize,
    /// Whether taking a message acknowledges it.
    acknowledges_itself: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    messages: VecDeque<Received>,
    /// The newest acknowledgement of the application that the task has not seen.
    acknowledged: Option<Receipt>,
    application: Option<Waker>,
    task: Option<Waker>,
    /// The application dropped its end: messages go nowhere.
    is_deaf: bool,
    /// The application wants the connection to end.
    is_closing: bool,
    /// The task has ended: no message will come any more.
    is_ended: bool,
}

impl Inbox {
    pub(crate) fn new(capacity: usize, acknowledges_itself: bool) -> Self {
        Self { capacity: capacity.max(1), acknowledges_itself, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // -- The task's side ---------------------------------------------------------------------------

    /// Puts the messages of one read and wakes the application once. Returns the receipt up to which nobody
    /// will ever acknowledge, because nobody listens.
    pub(crate) fn put(&self, messages: &mut Vec<Received>) -> Option<Receipt> {
        let mut state = self.lock();
        if state.is_deaf {
            return messages.drain(..).filter_map(|message| message.receipt).next_back();
        }
        state.messages.extend(messages.drain(..));
        let waker = state.application.take();
        drop(state);
        wake(waker);
        None
    }

    /// Whether the task should read no more for now. It is woken when there is room again.
    pub(crate) fn is_full(&self) -> bool {
        let state = self.lock();
        !state.is_deaf && state.messages.len() >= self.capacity
    }

    /// The newest acknowledgement; the task is woken by the next one.
    pub(crate) fn poll_acknowledged(&self, cx: &mut Context<'_>) -> Option<Receipt> {
        let mut state = self.lock();
        set_waker(&mut state.task, cx);
        state.acknowledged.take()
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.lock().is_closing
    }

    /// Ready when the application wants the connection to end.
    pub(crate) fn poll_closing(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if state.is_closing {
            return Poll::Ready(());
        }
        set_waker(&mut state.task, cx);
        Poll::Pending
    }

    /// No message will come any more.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.is_ended = true;
        let waker = state.application.take();
        drop(state);
        wake(waker);
    }

    // -- The application's side --------------------------------------------------------------------

    pub(crate) fn poll_take(&self, cx: &mut Context<'_>) -> Poll<Option<Received>> {
        let mut state = self.lock();
        if let Some(message) = state.messages.pop_front() {
            let waker = self.taken(&mut state, &message);
            drop(state);
            wake(waker);
            return Poll::Ready(Some(message));
        }
        if state.is_ended {
            return Poll::Ready(None);
        }
        set_waker(&mut state.application, cx);
        Poll::Pending
    }

    pub(crate) fn try_take(&self) -> Option<Received> {
        let mut state = self.lock();
        let message = state.messages.pop_front()?;
        let waker = self.taken(&mut state, &message);
        drop(state);
        wake(waker);
        Some(message)
    }

    /// Notes what taking a message means for the task, and whom to wake for it.
    fn taken(&self, state: &mut State, message: &Received) -> Option<Waker> {
        let mut is_news = state.messages.len() == self.capacity / 2;
        if let (true, Some(receipt)) = (self.acknowledges_itself, message.receipt) {
            state.acknowledged = Some(receipt);
            is_news = true;
        }
        is_news.then(|| state.task.take()).flatten()
    }

    pub(crate) fn acknowledge(&self, receipt: Receipt) {
        let mut state = self.lock();
        state.acknowledged = Some(receipt);
        let waker = state.task.take();
        drop(state);
        wake(waker);
    }

    /// The application takes no more messages.
    pub(crate) fn stop_listening(&self) {
        let mut state = self.lock();
        state.is_deaf = true;
        // Nobody will take what is here: as good as taken.
        let last = state.messages.drain(..).filter_map(|message| message.receipt).next_back();
        state.acknowledged = last.or(state.acknowledged);
        let waker = state.task.take();
        drop(state);
        wake(waker);
    }

    /// The application wants the connection to end.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.is_closing = true;
        let waker = state.task.take();
        drop(state);
        wake(waker);
    }
}

fn set_waker(slot: &mut Option<Waker>, cx: &Context<'_>) {
    match slot {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *slot = Some(cx.waker().clone()),
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}
