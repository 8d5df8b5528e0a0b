//! Responding side.

mod connection;

use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use braid_transport::{Incoming, Listener};
use tokio::time::{Instant, sleep, timeout};

use self::connection::Connection;
use super::TimerService;
use super::counters::Counters;
use crate::lock::lock;
use crate::summary::RunSummary;

/// Time limit of a handshake.
const HANDSHAKE: Duration = Duration::from_secs(30);
/// Pause after an `accept` that failed for lack of resources.
const SHORTAGE: Duration = Duration::from_millis(100);

/// Entry of the counters for objects of every size.
const ALL: u64 = 0;

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
    service: Arc<ServiceQueue>,
    tally: Arc<Counters>,
    timers: TimerService,
}

impl Responder {
    /// Server whose summary counts from now.
    #[must_use]
    pub fn new(service: Service, timers: TimerService) -> Self {
        Self { service: Arc::new(ServiceQueue::new(service)), tally: Arc::new(Counters::new(&[ALL])), timers }
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
            Ok(Err(error)) => return self.failed(&error.to_string()),
            Err(_elapsed) => return self.failed("a handshake took too long"),
        };
        self.tally.counts().established += 1;
        let connection = Connection::new(link, &self.service, &self.tally, &self.timers);
        if let Err(error) = connection.run().await {
            self.failed(&error.to_string());
        }
    }

    /// Counts a failed connection or handshake.
    fn failed(&self, why: &str) {
        self.tally.counts().failed += 1;
        self.tally.note(why);
    }

    /// Counters so far: `requests`, of which some became `responses` and the others are
    /// `unfinished`, because their response is not complete or their client has left; `connections`, and those that
    /// `failed` because of a handshake, another protocol, or the path.
    #[must_use]
    pub fn summary(&self) -> RunSummary {
        self.tally.responses()
    }
}

/// Queue of the service, of which only the time of its end is kept.
#[derive(Debug)]
pub(super) struct ServiceQueue {
    service: Service,
    /// Time at which a serial service is free. A std lock: it is held for an addition.
    free: Mutex<Instant>,
}

impl ServiceQueue {
    pub(super) fn new(service: Service) -> Self {
        Self { service, free: Mutex::new(Instant::now()) }
    }

    /// Start of the response to a request that arrived at `now`.
    ///
    /// In a serial service these times follow each other exactly, however late a response leaves.
    pub(super) fn response_start(&self, now: Instant) -> Instant {
        if !self.service.serial {
            return now + self.service.time;
        }
        let mut free = lock(&self.free);
        *free = (*free).max(now) + self.service.time;
        *free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_serial_service_takes_one_after_the_other_and_rests_between() {
        let (start, time) = (Instant::now(), Duration::from_micros(6200));
        let serial = ServiceQueue::new(Service { time, serial: true });
        let start = start + Duration::from_secs(1);
        assert_eq!(
            [serial.response_start(start), serial.response_start(start)],
            [start + time, start + 2 * time]
        );
        let later = start + 10 * time;
        assert_eq!(serial.response_start(later), later + time);
        let parallel = ServiceQueue::new(Service { time, serial: false });
        assert_eq!([parallel.response_start(start), parallel.response_start(start)], [start + time; 2]);
    }
}
