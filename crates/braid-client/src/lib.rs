//! An async MQTT client over TCP, TLS, WebSocket and QUIC.
//!
//! This crate never parses a packet (that is `braid-proto`), never names a TLS or QUIC library (that is
//! `braid-transport`), keeps nothing on disk but the state file that it is asked for, and runs on no other runtime than
//! tokio.
//!
//! ```no_run
//! use braid_client::{Client, Publication, QoS, Subscribe};
//!
//! # async fn example() -> Result<(), braid_client::Error> {
//! let (client, mut messages) = Client::builder("mqtt://localhost").client_id("thermometer").connect().await?;
//! client.subscribe(Subscribe::to("sensors/#")?.qos(QoS::AtLeastOnce)).await?;
//! client.publish(Publication::to("sensors/7/temperature", "21.5")?.qos(QoS::AtLeastOnce)).await?;
//!
//! let message = messages.recv().await.expect("the client is not closed");
//! assert_eq!(message.topic.as_str(), "sensors/7/temperature");
//! assert_eq!(message.payload, "21.5");
//! client.disconnect().await
//! # }
//! ```
//!
//! # Guarantees
//!
//! * [`Client::publish`] resolves when the server's acknowledgement has arrived; QoS 0: when the message is written.
//! * The client reconnects after a pause that grows ([`Reconnect`]). Inflight QoS 1 and 2 messages survive that in
//!   memory. Subscriptions are restored when the server has lost them, and only then.
//! * [`Builder::start`] works without a connection: requests wait for one.
//! * With a URL `auto://host` the client chooses between QUIC and TLS, and moves a connection from one to the other
//!   while it lives: the new link is established before the old one is left, and the session with all unanswered
//!   requests goes on there. Plain TCP is never used.
//! * Over QUIC messages are spread over streams ([`StreamPolicy`]). On every link the queued message with the highest
//!   priority is sent next ([`Publication::priority`]): it waits for no queue room, no acknowledgement and no stream of
//!   a message with a lower priority.
//! * A client with several interfaces keeps a path of one QUIC connection on each ([`Builder::paths`]). When one does
//!   not answer, messages go on on another within some round trips, and nothing is lost or sent twice.
//! * Every queue is bounded. A full one makes the application wait ([`Client::publish`]), fails
//!   ([`Client::try_publish`]) or applies backpressure to the server ([`Messages`]); no message is dropped silently.
//! * With [`Builder::scram`] the password is not sent, and no message leaves before the server has proved that it knows
//!   it.
//! * Every [`Error`] is one line that says what to change.

mod auto;
mod builder;
mod client;
mod connection;
mod datagrams;
mod dialer;
mod driver;
mod error;
mod events;
mod inflight;
mod lanes;
mod lock;
mod publication;
mod receive_queue;
mod reconnect;
mod scram;
mod send_queue;
mod settings;
mod state;
mod subscribe;

pub use braid_proto::connection::SendError;
pub use braid_proto::message::{Message, SharedMessage};
pub use braid_proto::packet::{ConnackProperties, MessageProperties, PacketId, ProtocolVersion, QoS};
pub use braid_proto::reason::ReasonCode;
pub use braid_proto::session::RetainHandling;
pub use braid_proto::stream::{Priority, StreamPolicy};
pub use braid_proto::topic::{TopicError, TopicFilter, TopicName};
pub use braid_transport::quic::{Congestion, LocalPath, PathChange, PathMode};
pub use braid_transport::{CertificateFiles, ClientTlsOptions, ConnectError, Transport};
pub use builder::Builder;
pub use client::{Acknowledgement, Client, Messages};
pub use datagrams::DatagramStatistics;
pub use dialer::{Address, is_auto, without_credentials};
pub use error::{Error, OptionsError};
pub use events::{ConnectionEvent, Events};
pub use publication::Publication;
pub use receive_queue::Received;
pub use reconnect::Reconnect;
pub use subscribe::Subscribe;
