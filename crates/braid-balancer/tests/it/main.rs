//! The balancer on real sockets of the loopback interface.

mod datagrams;
mod quic;
mod tcp;

use std::net::SocketAddr;
use std::time::Duration;

use braid_transport::quic::{QuicLb, QuicLbKey};

/// Limit of the time in which something happens that should.
const LIMIT: Duration = Duration::from_secs(20);

fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// Connection IDs of node `number`, encrypted.
fn lb(number: u8) -> QuicLb {
    let server_id = format!("00{number:02x}").parse().expect("server ID");
    QuicLb::new(2, server_id, 7, Some(QuicLbKey::from([5; 16]))).expect("configuration")
}
