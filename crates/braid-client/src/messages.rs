//! The messages that arrive.

use std::future::poll_fn;
use std::num::NonZeroU32;
use std::ops::Deref;
use std::sync::Arc;
use std::task::{Context, Poll};

use braid_proto::message::Message;
use braid_proto::packet::PacketId;

use crate::handle::Handle;
use crate::inbox::Receipt;

/// A message that arrived. It dereferences to the [`Message`], with the QoS and RETAIN of this delivery.
#[derive(Clone, Debug)]
pub struct Received {
    /// The message; cloning shares it.
    pub message: Arc<Message>,
    /// The server sent it before, or believes so.
    pub dup: bool,
    /// The identifier of its PUBLISH; `None` with QoS 0.
    pub packet_id: Option<PacketId>,
    /// The Topic Alias that stood for its topic or was defined with it (MQTT 5).
    pub topic_alias: Option<u16>,
    /// The Subscription Identifiers that it matched (MQTT 5).
    pub subscription_ids: Vec<NonZeroU32>,
    /// `None` with QoS 0.
    pub(crate) receipt: Option<Receipt>,
}

impl Received {
    /// A message as if it had arrived with QoS 0: for tests of what handles messages.
    pub fn new(message: Arc<Message>) -> Self {
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

/// The messages that arrive, in their order.
///
/// When the application is slower than the server, up to the builder's `receive_queue` messages wait here; then
/// nothing more is read from streams that carry messages, acknowledgements included: that is every stream but those
/// of QUIC on which this client only publishes. So do not wait for `publish` in the task that takes messages unless
/// few arrive: use [`Client::enqueue`](crate::Client::enqueue), or another task.
/// When this is dropped, messages that arrive are acknowledged and forgotten.
#[derive(Debug)]
pub struct Messages {
    pub(crate) handle: Arc<Handle>,
}

impl Messages {
    /// The next message. `None`: the client is closed and all messages are taken. Taking a message of QoS 1 or 2
    /// acknowledges it, unless the builder asked for
    /// [`manual_acknowledgement`](crate::Builder::manual_acknowledgement).
    ///
    /// Cancel safe: a message that is not returned is not lost.
    pub async fn recv(&mut self) -> Option<Received> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// The next message if there is one now.
    pub fn try_recv(&mut self) -> Option<Received> {
        self.handle.inbox.try_take()
    }

    /// [`Messages::recv`] for hand-written futures and streams.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<Received>> {
        self.handle.inbox.poll_take(cx)
    }

    /// Acknowledges this message and all that arrived before it: MQTT acknowledges in order. Only needed after
    /// [`manual_acknowledgement`](crate::Builder::manual_acknowledgement).
    pub fn acknowledge(&self, message: &Received) {
        if let Some(receipt) = message.receipt {
            self.handle.inbox.acknowledge(receipt);
        }
    }
}

impl Drop for Messages {
    fn drop(&mut self) {
        self.handle.inbox.stop_listening();
    }
}
