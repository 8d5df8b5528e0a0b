//! Balancer of TCP and QUIC connections over the nodes of a cluster, for the demo and for tests.
//!
//! This crate never reads MQTT or ends TLS: bytes and datagrams are passed on. A TCP connection goes to the next live
//! node. A QUIC datagram goes to the node that its connection ID names (QUIC-LB), whatever address it comes from, so
//! that a client keeps its connection when its address changes.
//!
//! The nodes see the balancer's addresses instead of those of the clients.

mod balancer;
mod flows;
mod health;
mod options;
mod quic;
mod routes;
mod tcp;

pub use balancer::Balancer;
pub use options::{BalancerError, BalancerLimits, BalancerOptions, QuicBackend, QuicFront, TcpFront};
