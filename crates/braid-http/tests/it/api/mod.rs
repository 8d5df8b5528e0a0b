//! REST API of a running broker, with MQTT clients over TCP and QUIC.

mod access;
mod clients;
mod document;
mod events;
mod messages;
mod metrics;
mod mqtt;
mod support;
mod system;
