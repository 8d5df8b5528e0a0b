//! Health over HTTP, for load balancers and process supervisors.
//!
//! This crate never changes anything in the broker, never reads the body of a request, never authenticates (its report
//! holds no data of clients, and the operator chooses its address), and shares no thread with clients.

mod answer;
mod server;
mod state;

pub use server::{HealthServer, ServerError};
pub use state::HealthState;
