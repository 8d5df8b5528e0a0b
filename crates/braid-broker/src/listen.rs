//! Accepting connections: cheap here, everything slow in the connection's own task.

use std::sync::Arc;
use std::time::Duration;

use braid_transport::Listener;
use tokio::sync::watch;

use crate::driver;
use crate::hub::Hub;

/// The pause after the process ran short of something that every accept needs, such as descriptors.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(100);

/// Accepts until `stop` turns true, then gives the listener back.
pub(crate) async fn run(hub: Arc<Hub>, mut listener: Listener, mut stop: watch::Receiver<bool>) -> Listener {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => return listener,
        };
        match accepted {
            Ok(incoming) if hub.statistics.connections() >= hub.config.limits.connections as u64 => {
                tracing::warn!(from = ?incoming.peer_address(), "refused: the limit of connections is reached");
                incoming.refuse();
            }
            Ok(incoming) => {
                let guard = Counted::new(hub.clone());
                tokio::spawn(async move {
                    driver::serve(guard.hub.clone(), incoming).await;
                    drop(guard);
                });
            }
            Err(error) => {
                tracing::warn!(transport = %listener.transport(), %error, "accept failed, pausing");
                tokio::time::sleep(SHORTAGE_PAUSE).await;
            }
        }
    }
}

/// Counts a connection for as long as its task lives, however that ends.
struct Counted {
    hub: Arc<Hub>,
}

impl Counted {
    fn new(hub: Arc<Hub>) -> Self {
        hub.statistics.connection_opened();
        Self { hub }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.hub.statistics.connection_closed();
        self.hub.connection_ended.notify_one();
    }
}
