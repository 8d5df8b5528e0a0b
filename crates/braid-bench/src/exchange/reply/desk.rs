use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

use super::Service;

/// Schedule of the service.
#[derive(Debug)]
pub(super) struct Desk {
    service: Service,
    /// Time at which a serial service is free. A std lock: it is held for an addition.
    free: Mutex<Instant>,
}

impl Desk {
    pub(super) fn new(service: Service) -> Self {
        Self { service, free: Mutex::new(Instant::now()) }
    }

    /// Start of the response to a request that arrived at `now`.
    ///
    /// In a serial service these times follow each other exactly, however late a response leaves.
    pub(super) fn done(&self, now: Instant) -> Instant {
        if !self.service.serial {
            return now + self.service.time;
        }
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        *free = (*free).max(now) + self.service.time;
        *free
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_serial_service_takes_one_after_the_other_and_rests_between() {
        let (start, time) = (Instant::now(), Duration::from_micros(6200));
        let serial = Desk::new(Service { time, serial: true });
        let start = start + Duration::from_secs(1);
        assert_eq!([serial.done(start), serial.done(start)], [start + time, start + 2 * time]);
        let later = start + 10 * time;
        assert_eq!(serial.done(later), later + time);
        let parallel = Desk::new(Service { time, serial: false });
        assert_eq!([parallel.done(start), parallel.done(start)], [start + time; 2]);
    }
}
