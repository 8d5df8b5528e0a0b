//! HTTP beside MQTT: how the broker is, for load balancers and whatever starts and stops brokers.
//!
//! This crate never changes anything in the broker, never reads a body of a request, never asks who is asking (what it
//! tells is no secret of any client, and its address is for the operator to choose), and shares no thread with clients.

mod answer;
mod server;
mod state;

pub use server::{HealthServer, ServerError};
pub use state::HealthState;
