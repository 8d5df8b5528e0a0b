use std::time::Duration;

use crate::exchange::LARGEST_OBJECT;

/// Requests of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestLoad {
    /// Number of connections.
    pub connections: usize,
    /// Most unanswered requests of each connection.
    pub streams: usize,
    /// Reuse of connections.
    pub reuse: Reuse,
    /// Sizes of the objects in bytes, requested in turn.
    pub sizes: Vec<u64>,
    /// Requests over all connections; `None` is limited by the duration alone.
    pub requests: Option<u64>,
    /// Duration of the run; requests without a response are unfinished then.
    pub duration: Option<Duration>,
    /// Requests per second over all connections, at equal distances (open loop), each with its
    /// latency from its due time. `None`: as many as keep all streams busy (closed loop).
    pub rate: Option<f64>,
    /// Time limit of a request, with the connection if it is the first.
    pub patience: Duration,
    /// Connections after the first send at once on QUIC (0-RTT).
    pub zero_rtt: bool,
}

/// Reuse of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reuse {
    /// Connections carry requests until they fail.
    #[default]
    Kept,
    /// Each request has a connection of its own, whose handshake is part of its latency.
    OneRequest,
}

/// Contradiction in a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// No connection or no stream.
    #[error("at least one connection and one stream are needed")]
    NoStreams,
    /// Several streams on connections for one request each.
    #[error("a connection for each request has one at a time: keep connections, or leave the streams at 1")]
    Streams,
    /// The run would never end.
    #[error("give a number of requests, a duration, or both")]
    Endless,
    /// No object.
    #[error("give the size of the objects")]
    NoSize,
    /// The object is too large.
    #[error("objects of {0} bytes: more than {LARGEST_OBJECT} are not served")]
    TooLarge(u64),
    /// No positive rate.
    #[error("the rate is a number of requests per second above 0")]
    Rate,
}

impl Default for RequestLoad {
    /// One kept connection, one request at a time, objects of 80,000 bytes, without an end.
    fn default() -> Self {
        Self {
            connections: 1,
            streams: 1,
            reuse: Reuse::default(),
            sizes: vec![80_000],
            requests: None,
            duration: None,
            rate: None,
            patience: Duration::from_secs(30),
            zero_rtt: false,
        }
    }
}

impl RequestLoad {
    /// Checks the load.
    ///
    /// # Errors
    /// The load is contradictory; the message says what to change.
    pub fn check(&self) -> Result<(), LoadError> {
        if self.connections == 0 || self.streams == 0 {
            return Err(LoadError::NoStreams);
        }
        if self.reuse == Reuse::OneRequest && self.streams > 1 {
            return Err(LoadError::Streams);
        }
        if self.requests.is_none() && self.duration.is_none() {
            return Err(LoadError::Endless);
        }
        match self.sizes.iter().max() {
            None => return Err(LoadError::NoSize),
            Some(size) if *size > LARGEST_OBJECT => return Err(LoadError::TooLarge(*size)),
            Some(_) => {}
        }
        match self.rate {
            Some(rate) if !(rate.is_finite() && rate > 0.0) => Err(LoadError::Rate),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictory_options_are_refused() {
        let good = RequestLoad { requests: Some(1), ..RequestLoad::default() };
        assert_eq!(good.check(), Ok(()));
        let with = |change: &dyn Fn(&mut RequestLoad)| {
            let mut load = good.clone();
            change(&mut load);
            load.check()
        };
        assert_eq!(with(&|load| load.connections = 0), Err(LoadError::NoStreams));
        assert_eq!(with(&|load| load.streams = 0), Err(LoadError::NoStreams));
        assert_eq!(with(&|load| load.requests = None), Err(LoadError::Endless));
        assert_eq!(with(&|load| load.sizes = vec![]), Err(LoadError::NoSize));
        assert_eq!(with(&|load| load.sizes[0] = 1 << 31), Err(LoadError::TooLarge(1 << 31)));
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(with(&|load| load.rate = Some(rate)), Err(LoadError::Rate));
        }
        let one = |load: &mut RequestLoad| (load.reuse, load.streams) = (Reuse::OneRequest, 2);
        assert_eq!(with(&one), Err(LoadError::Streams));
    }
}
