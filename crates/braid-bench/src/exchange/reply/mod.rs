//! Responding side.

mod connection;
mod desk;
mod tally;

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use braid_transport::{Incoming, Listener};
use tokio::time::{sleep, timeout};

use self::connection::Connection;
use self::desk::Desk;
use self::tally::Tally;
use super::Alarm;
use crate::summary::RunSummary;

/// Time limit of a handshake.
const HANDSHAKE: Duration = Duration::from_secs(30);
/// Pause after an `accept` that failed for lack of resources.
const SHORTAGE: Duration = Duration::from_millis(100);

/// Service time of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// Duration.
    pub time: Duration,
    /// True for one request at a time over all connections, in the order of arrival.
    pub serial: bool,
}

/// Server of objects of the requested sizes. Clones share their counters, and a serial service.
#[derive(Clone, Debug)]
pub struct Responder {
    desk: Arc<Desk>,
    tally: Arc<Tally>,
    alarm: Alarm,
}

impl Responder {
    /// Server whose summary counts from now.
    #[must_use]
    pub fn new(service: Service, alarm: Alarm) -> Self {
        Self { desk: Arc::new(Desk::new(service)), tally: Arc::new(Tally::new()), alarm }
    }

    /// Serves the connections of `listener`, until that fails or this future is dropped. Established connections
    /// go on.
    ///
    /// # Errors
    /// The listener's socket failed.
    pub async fn serve(&self, mut listener: Listener) -> io::Result<Infallible> {
        loop {
            match listener.accept().await {
                Ok(incoming) => {
                    let responder = self.clone();
                    tokio::spawn(async move { responder.attend(incoming).await });
                }
                Err(error) if error.kind() == io::ErrorKind::NotConnected => return Err(error),
                Err(error) => {
                    self.tally.note(&format!("cannot accept: {error}"));
                    sleep(SHORTAGE).await;
                }
            }
        }
    }

    async fn attend(&self, incoming: Incoming) {
        let link = match timeout(HANDSHAKE, incoming.handshake()).await {
            Ok(Ok(link)) => link,
            Ok(Err(error)) => return self.tally.failed(&error.to_string()),
            Err(_elapsed) => return self.tally.failed("a handshake took too long"),
        };
        self.tally.connected();
        let connection = Connection::new(link, &self.desk, &self.tally, &self.alarm);
        if let Err(error) = connection.run().await {
            self.tally.failed(&error.to_string());
        }
    }

    /// Counters so far: `requests`, of which some became `responses` and the others are
    /// `unfinished`, because their response is not complete or their client has left; `connections`, and those that `failed`
    /// because of a handshake, another protocol, or the path.
    #[must_use]
    pub fn summary(&self) -> RunSummary {
        self.tally.summary()
    }
}
