//! Bounded queue of received messages from the driver to the application, with acknowledgements and the request to
//! close in the other direction.
//!
//! A std Mutex guards it: it is held for a few instructions and never across an await. Both sides lock it once per
//! batch or message, and wake the other after they have unlocked it.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::ops::Deref;
use std::sync::{Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use braid_proto::connection::Token;
use braid_proto::message::{Message, SharedMessage};
use braid_proto::packet::PacketId;

use crate::lock::lock;

/// Identity of an acknowledgement: number of the connection, and token in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Receipt {
    pub(crate) connection: u64,
    pub(crate) token: Token,
}

/// Received message. It dereferences to the [`Message`], with the QoS and RETAIN of this delivery.
#[derive(Clone, Debug)]
pub struct Received {
    /// The message; cloning shares it.
    pub message: SharedMessage,
    /// DUP flag: the server may have sent the message before.
    pub dup: bool,
    /// Packet Identifier of its PUBLISH; `None` with QoS 0.
    pub packet_id: Option<PacketId>,
    /// Topic Alias of its PUBLISH (MQTT 5).
    pub topic_alias: Option<u16>,
    /// Subscription Identifiers of the subscriptions that it matched (MQTT 5).
    pub subscription_ids: Vec<NonZeroU32>,
    /// `None` with QoS 0.
    pub(crate) receipt: Option<Receipt>,
}

impl Received {
    /// Message as received with QoS 0, for tests of message handlers.
    pub fn new(message: SharedMessage) -> Self {
        let subscription_ids = Vec::new();
        Self { message, dup: false, packet_id: None, topic_alias: None, subscription_ids, receipt: None }
    }
}

impl Deref for Received {
    type Target = Message;

    fn deref(&self) -> &Message {
        &self.message
    }
}

/// Bounded queue of received messages. The driver stops reading while it is full.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    capacity: usize,
    /// Whether taking a message acknowledges it.
    is_automatic: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    messages: VecDeque<Received>,
    /// Newest acknowledgement of the application that the driver has not taken.
    acknowledged: Option<Receipt>,
    application: Option<Waker>,
    driver: Option<Waker>,
    /// Whether messages are discarded, because the application has dropped its end.
    is_discarding: bool,
    /// Whether the application has requested the end of the connection.
    is_closing: bool,
    /// Whether the driver has ended, so that no further message arrives.
    is_ended: bool,
}

impl ReceiveQueue {
    pub(crate) fn new(capacity: usize, is_automatic: bool) -> Self {
        Self { capacity: capacity.max(1), is_automatic, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Changes the state, and wakes the task that `change` returns once the lock is released.
    fn change(&self, change: impl FnOnce(&mut State) -> Option<Waker>) {
        let waker = change(&mut self.lock());
        waker.into_iter().for_each(Waker::wake);
    }

    // -- Driver ------------------------------------------------------------------------------------

    /// Queues the messages of one read and wakes the application once. If messages are discarded, returns the receipt
    /// up to which the driver has to acknowledge them itself.
    pub(crate) fn put(&self, messages: &mut Vec<Received>) -> Option<Receipt> {
        let mut discarded = None;
        self.change(|state| {
            if state.is_discarding {
                discarded = messages.drain(..).filter_map(|message| message.receipt).next_back();
                return None;
            }
            state.messages.extend(messages.drain(..));
            state.application.take()
        });
        discarded
    }

    /// Whether the driver has to stop reading. It is woken when half of the capacity is free.
    pub(crate) fn is_full(&self) -> bool {
        let state = self.lock();
        !state.is_discarding && state.messages.len() >= self.capacity
    }

    /// Takes the newest acknowledgement; the driver is woken by the next one.
    pub(crate) fn poll_acknowledged(&self, cx: &mut Context<'_>) -> Option<Receipt> {
        let mut state = self.lock();
        set_waker(&mut state.driver, cx);
        state.acknowledged.take()
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.lock().is_closing
    }

    /// Ready when the application has requested the end of the connection.
    pub(crate) fn poll_closing(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if state.is_closing {
            return Poll::Ready(());
        }
        set_waker(&mut state.driver, cx);
        Poll::Pending
    }

    /// Ends the stream of messages.
    pub(crate) fn end(&self) {
        self.change(|state| {
            state.is_ended = true;
            state.application.take()
        });
    }

    // -- Application -------------------------------------------------------------------------------

    pub(crate) fn poll_take(&self, cx: &mut Context<'_>) -> Poll<Option<Received>> {
        let mut state = self.lock();
        if state.messages.is_empty() && !state.is_ended {
            set_waker(&mut state.application, cx);
            return Poll::Pending;
        }
        Poll::Ready(self.take(state))
    }

    pub(crate) fn try_take(&self) -> Option<Received> {
        self.take(self.lock())
    }

    /// Takes a message. Wakes the driver if that makes an acknowledgement, or frees half of the capacity.
    fn take(&self, mut state: MutexGuard<'_, State>) -> Option<Received> {
        let message = state.messages.pop_front()?;
        let mut wakes_driver = state.messages.len() == self.capacity / 2;
        if let (true, Some(receipt)) = (self.is_automatic, message.receipt) {
            state.acknowledged = state.acknowledged.max(Some(receipt));
            wakes_driver = true;
        }
        let waker = if wakes_driver { state.driver.take() } else { None };
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        Some(message)
    }

    pub(crate) fn acknowledge(&self, receipt: Receipt) {
        self.change(|state| {
            // Each counts for all before it, so that an older one must not displace a newer one.
            state.acknowledged = state.acknowledged.max(Some(receipt));
            state.driver.take()
        });
    }

    /// Discards queued and future messages; they count as acknowledged.
    pub(crate) fn stop_listening(&self) {
        self.change(|state| {
            state.is_discarding = true;
            let last = state.messages.drain(..).filter_map(|message| message.receipt).next_back();
            state.acknowledged = state.acknowledged.max(last);
            state.driver.take()
        });
    }

    /// Requests the end of the connection.
    pub(crate) fn close(&self) {
        self.change(|state| {
            state.is_closing = true;
            state.driver.take()
        });
    }
}

fn set_waker(registered: &mut Option<Waker>, cx: &Context<'_>) {
    registered.get_or_insert_with(|| cx.waker().clone()).clone_from(cx.waker());
}
