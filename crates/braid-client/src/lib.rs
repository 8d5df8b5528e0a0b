//! An async MQTT client over TCP, TLS, WebSocket and QUIC.
//!
//! This crate never parses a packet (that is `braid-proto`), never names a TLS or QUIC library (that is
//! `braid-transport`), keeps nothing on disk and runs on no other runtime than tokio.
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
//! # What it promises
//!
//! * [`Client::publish`] resolves when the server's acknowledgement is in; QoS 0: when the message is written.
//! * A lost connection is replaced after a pause that grows ([`Reconnect`]). QoS 1 and 2 messages on their way
//!   survive that in memory. Subscriptions are restored when the server has forgotten them, and only then.
//! * [`Builder::start`] works without a connection: requests wait for one.
//! * Over QUIC messages travel on streams of their own ([`StreamPolicy`]), and on every link the most urgent that
//!   waits is sent next ([`Publication::priority`]): it waits for no room, no acknowledgement and no stream that
//!   belongs to what is less urgent.
//! * Every queue has a cap. A full one makes the application wait ([`Client::publish`]), fail
//!   ([`Client::try_publish`]) or makes the server wait ([`Messages`]); nothing is dropped silently.
//! * Every [`Error`] is one line that says what to change.

mod address;
mod builder;
mod connection;
mod dispatch;
mod driver;
mod error;
mod events;
mod handle;
mod inbox;
mod lanes;
mod ledger;
mod messages;
mod publication;
mod queue;
mod reconnect;
mod request;
mod settings;
mod subscribe;

pub use braid_proto::connection::Unsendable;
pub use braid_proto::message::Message;
pub use braid_proto::packet::{ConnackProperties, MessageProperties, PacketId, ProtocolVersion, QoS};
pub use braid_proto::reason::ReasonCode;
pub use braid_proto::session::RetainHandling;
pub use braid_proto::stream::{Priority, StreamPolicy};
pub use braid_proto::topic::{TopicError, TopicFilter, TopicName};
pub use braid_transport::quic::Congestion;
pub use braid_transport::{CertificateFiles, ClientTlsOptions, ConnectError};
pub use builder::Builder;
pub use error::{Error, OptionsError};
pub use events::{ConnectionEvent, Events};
pub use handle::{Acknowledgement, Client};
pub use messages::{Messages, Received};
pub use publication::Publication;
pub use reconnect::Reconnect;
pub use subscribe::Subscribe;
