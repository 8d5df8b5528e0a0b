use std::num::NonZeroU32;
use std::sync::Arc;

use crate::connection::acks::Token;
use crate::error::Violation;
use crate::message::{Delivery, Message};
use crate::packet::{Auth, Connack, ConnackProperties, Disconnect, PacketId, Suback, Unsuback};
use crate::reason::ReasonCode;
use crate::stream::StreamKey;

/// What the shell must know or answer.
#[derive(Debug)]
pub enum ClientEvent {
    /// The server accepted the CONNECT.
    Connected(Box<Connected>),
    /// The server refused the CONNECT; the connection is closed. [MQTT-3.2.2-7]
    Refused(Box<Connack>),
    /// A message for the application.
    Message(Incoming),
    /// A message of ours is completely acknowledged: the exchange of this identifier is over.
    Published(PacketId, ReasonCode),
    /// The answer to [`Client::subscribe`].
    Subscribed(Box<Suback>),
    /// The answer to [`Client::unsubscribe`]; without codes before MQTT 5.
    Unsubscribed(Box<Unsuback>),
    /// A step of enhanced authentication: answer with [`Client::authenticate`] if it continues.
    Auth(Box<Auth>),
    /// The server's DISCONNECT; the connection is closed.
    Disconnected(Box<Disconnect>),
    /// The server broke the specification on a data stream, which is ended for it.
    StreamViolated(StreamKey, Violation),
    /// A data stream has ended. Its messages that were not acknowledged go on on the control stream, or where the
    /// shell places them ([`Client::take_resends`]); these requests of it have no answer and must be asked anew.
    StreamEnded(StreamKey, Vec<PacketId>),
}

/// What a CONNACK of success brought.
#[derive(Debug)]
pub struct Connected {
    /// The server goes on with the session: subscriptions are still there.
    pub session_present: bool,
    /// The server's properties; empty before MQTT 5.
    pub properties: ConnackProperties,
    /// What the session had inflight when the server had no session any more, in the order of sending; `None`
    /// for a QoS 2 message whose PUBREC had come, which means that the server has it. [MQTT-3.2.2-5]
    pub lost: Vec<(PacketId, Option<Delivery>)>,
}

/// A message that arrived.
#[derive(Debug)]
pub struct Incoming {
    /// The message with the QoS and RETAIN of this PUBLISH.
    pub message: Arc<Message>,
    /// The server sent it before, or believes so.
    pub dup: bool,
    /// The identifier of its PUBLISH; `None` with QoS 0.
    pub packet_id: Option<PacketId>,
    /// The Topic Alias that stood for its topic or was defined with it.
    pub topic_alias: Option<u16>,
    /// The Subscription Identifiers that it matched.
    pub subscription_ids: Vec<NonZeroU32>,
    /// With QoS 1 and 2: give it to [`Client::acknowledge`] once the message is taken.
    pub token: Option<Token>,
}
