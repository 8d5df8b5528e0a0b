use std::time::Instant;

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// CONNECT, or CONNACK on a client.
    Handshake = 0,
    /// Any byte of the peer: one and a half times the Keep Alive on a server; PINGRESP on a client.
    Peer = 1,
    /// The time for a PINGREQ of our own, on a client.
    Ping = 2,
    /// More of an incomplete packet that others wait for, on a server.
    Hoarder = 3,
    /// More of any incomplete packet on a data stream, on a server.
    Partial = 4,
}

/// When each timer expires.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timers([Option<Instant>; 5]);

impl Timers {
    pub(crate) fn set(&mut self, timer: Timer, at: Option<Instant>) {
        self.0[timer as usize] = at;
    }

    pub(crate) fn is_set(&self, timer: Timer) -> bool {
        self.0[timer as usize].is_some()
    }

    pub(crate) fn is_due(&self, timer: Timer, now: Instant) -> bool {
        self.0[timer as usize].is_some_and(|at| at <= now)
    }

    /// The earliest of all.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.iter().flatten().min().copied()
    }
}
