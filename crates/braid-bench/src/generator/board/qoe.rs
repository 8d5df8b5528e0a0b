//! Durations of single clients, for callers that ask for them.

use std::time::Duration;

use braid_transport::{ConnectTimes, Transport};

use super::{Board, Tally, lock};
use crate::emqtt::{DurationHistogram, Qoe};

impl Board {
    /// Records the durations of single clients from now on, for repeated calls of [`Board::take_qoe`].
    pub fn keep_qoe(&self) {
        for tally in &self.shared.tallies {
            lock(tally).qoe.get_or_insert_default();
        }
    }

    /// Durations of the clients since the last call.
    #[must_use]
    pub fn take_qoe(&self) -> Qoe {
        let mut all = Qoe::default();
        for tally in &self.shared.tallies {
            if let Some(kept) = &mut lock(tally).qoe {
                all.append(std::mem::take(kept));
            }
        }
        all
    }
}

impl Tally {
    /// Records a duration of a client.
    pub(in crate::generator) fn keep(&mut self, which: DurationHistogram, took: Duration) {
        if let Some(qoe) = &mut self.qoe {
            qoe.observe(which, took);
        }
    }

    /// Records the durations of an established connection. To the Erlang client the handshake is all
    /// that precedes MQTT, and that of TCP a part of it which only TLS reports.
    pub(in crate::generator) fn keep_connect(
        &mut self,
        after: Duration,
        times: ConnectTimes,
        carried: Transport,
    ) {
        if let Some(tcp) = times.tcp.filter(|_| carried == Transport::Tls) {
            self.keep(DurationHistogram::TcpHandshake, tcp);
        }
        if let Some(handshake) = times.secured.or(times.tcp) {
            self.keep(DurationHistogram::Handshake, handshake);
        }
        self.keep(DurationHistogram::Connect, after);
    }
}
