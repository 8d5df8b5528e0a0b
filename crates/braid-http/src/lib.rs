//! HTTP beside MQTT: health for load balancers, REST API with metrics and dashboard, files, and a reverse proxy, over
//! HTTP/1.1, 2 and 3.
//!
//! This crate never changes anything in the broker but by its `Handle`, and shares no thread with MQTT clients.
//! [`Server`] is the front: it takes [`Routes`], checks each request before it is routed, and asks
//! [`Upgrade`] before each response. [`HealthServer`] is a smaller one for health probes alone, which runs while the
//! broker starts and stops.

mod answer;
mod api;
mod autoquic;
mod counters;
mod fields;
mod front;
mod limits;
mod network;
mod problem;
mod quota;
mod request;
mod route;
mod server;
mod state;
mod upgrade;

pub use api::{
    Api, ApiOptions, Control, ControlError, ControlErrorKind, EventStreamLimits, Priority, Roles,
    RulesAction, RulesAnswer, RulesQuestion, RulesText, User,
};
pub use autoquic::AutoQuic;
pub use braid_select::Mode as AutoQuicMode;
pub use counters::FrontCounters;
pub use front::{Server, ServerOptions, StartError};
pub use limits::Limits;
pub use problem::problem;
pub use request::Client;
pub use route::{
    MqttRoute, Route, RouteError, RouteTarget, Routes, Services, Upstream, UpstreamError, router,
};
pub use server::{HealthServer, ServerError};
pub use state::HealthState;
pub use upgrade::{Advice, Link, Observer, PathSample, Sent, Upgrade};
