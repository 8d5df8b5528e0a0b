//! The MQTT broker: listeners, one task per connection, the registry of sessions, and dispatch.
//!
//! This crate never parses a packet (that is `braid-proto`), never matches a topic (`braid-router`), never
//! touches a socket, TLS or QUIC library (`braid-transport`), never reads arguments, files or the environment
//! (`braidmq`), never lets one client's queue stop another's (an acknowledgement may wait up to 2 s for a receiver that
//! cannot keep up), and never acknowledges a message before `braid-store` has reported it durable.

mod admission;
mod auth;
pub mod bans;
mod broker;
mod clock;
pub mod cluster;
pub mod command;
mod config;
mod connection_guard;
mod core;
mod dispatch;
mod driver;
pub mod health;
mod limit;
mod listen;
mod listener_policy;
mod lock_order;
mod log_throttle;
mod memory;
mod mountpoint;
pub mod node_handle;
mod overload;
mod persist;
mod priority;
mod queue;
mod registry;
mod retained;
mod routing;
mod session_queues;
mod sessions;
mod sharded;
mod spool_monitor;
mod statistics;
mod sys;
mod time_slice;
mod timers;
mod token_bucket;
pub mod view;

pub use auth::{
    Action, Anonymous, Authenticate, Authentication, Authorize, Challenge, Credential, Credentials, Exchange,
    Expiry, Grant, Outcome, PermitAll, Refusal, SecurityAction, SecurityEvent,
};
pub use broker::{Broker, Handle};
pub use config::{
    BrokerConfig, EarlyPublishConfig, LimitsConfig, MqttConfig, QueueOverflow, StreamsConfig, SysConfig,
};
pub use limit::Limit;
pub use listen::BrokerListener;
pub use listener_policy::ListenerPolicy;
pub use mountpoint::MountpointTemplate;
pub use persist::Recovery;
pub use priority::PriorityRule;
pub use statistics::{Counter, Statistics};
