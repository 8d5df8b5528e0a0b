//! UDP port of a balancer, for QUIC.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::flows::{Flows, Front, MAX_DATAGRAM};
use crate::routes::Routes;
use crate::tcp::SHORTAGE_PAUSE;

/// Passes datagrams on until `stop` changes or its sender is gone.
pub(crate) async fn run(
    front: Arc<Front>,
    mut routes: Routes,
    mut flows: Flows,
    mut stop: watch::Receiver<()>,
) {
    let mut buffer = vec![0; MAX_DATAGRAM];
    loop {
        let received = tokio::select! {
            _ = stop.changed() => break,
            () = flows.remove_ended() => continue,
            received = front.socket.recv_from(&mut buffer) => received,
        };
        let (length, client) = match received {
            Ok(received) => received,
            Err(error) => {
                tracing::warn!(%error, "the balancer cannot receive a datagram; trying again");
                sleep(SHORTAGE_PAUSE).await;
                continue;
            }
        };
        let datagram = &buffer[..length];
        let node = routes.node(datagram, client, &front.health(), Instant::now());
        if let Some(node) = node
            && let Err(error) = flows.send(client, node, datagram)
        {
            tracing::debug!(%error, "the balancer has no socket for a client; its datagram is lost");
        }
    }
    flows.shutdown().await;
}
