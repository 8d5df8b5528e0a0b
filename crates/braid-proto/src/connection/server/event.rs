use std::sync::Arc;

use crate::connection::acks::Token;
use crate::error::Violation;
use crate::message::Message;
use crate::packet::{Connect, PacketId, Subscribe, Unsubscribe};
use crate::reason::ReasonCode;
use crate::stream::StreamKey;

/// What the shell must answer or know.
#[derive(Debug)]
pub enum Event {
    /// A CONNECT: answer with [`Server::accept`] or [`Server::reject`]. Nothing more is read until then.
    Connect(Box<Connect>),
    /// A message to route. With a token its acknowledgement waits for [`Server::handle_persisted`].
    Publish(Arc<Message>, Option<Token>),
    /// PUBREL: an identifier of QoS 2 is free again. Its PUBCOMP waits for [`Server::handle_persisted`].
    Release(Token),
    /// A SUBSCRIBE on this stream: answer with [`Server::suback`].
    Subscribe(StreamKey, Box<Subscribe>),
    /// An UNSUBSCRIBE on this stream: answer with [`Server::unsuback`].
    Unsubscribe(StreamKey, Box<Unsubscribe>),
    /// The client broke the specification on a data stream, which is ended for it.
    StreamViolated(StreamKey, Violation),
    /// A data stream has ended: its subscriptions go to the control stream. [BQ-42]
    StreamEnded(StreamKey),
    /// A message of ours is completely acknowledged: the exchange of this identifier is over.
    Complete(PacketId, ReasonCode),
}
