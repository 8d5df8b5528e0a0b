//! Events of a connection: ready streams, incoming streams, confirmation and end.

use noq_proto::{ConnectionError, Dir};

use super::state::ConnectionState;
use super::stream::{self, CloseReason};
use crate::quic::early::Early;
use crate::quic::io::Event;
use crate::transport::Read;

impl ConnectionState {
    /// Handles the events of the connection; how many there were. Looks at the streams that they name, and at no
    /// others.
    pub(super) fn handle_events(&mut self) -> usize {
        let mut count = 0;
        while let Some(event) = self.connection.poll_event() {
            count += 1;
            match event {
                Event::Opened(dir) => self.reads.are_incoming[usize::from(dir == Dir::Uni)] = true,
                Event::Readable(id) => {
                    if let Some(key) = stream::key(id) {
                        self.enqueue(key);
                    }
                }
                Event::Writable(id) => {
                    if let Some(key) = stream::key(id) {
                        self.writes.scheduler.handle_woken(key);
                        self.handle_room(key);
                    }
                }
                Event::Stopped(id, code) => {
                    if let Some(key) = stream::key(id) {
                        self.handle_stop(key, code);
                    }
                }
                Event::Connected => self.handle_connected(),
                Event::Confirmed => {
                    // Not before: the packet that completes a client's handshake shares its datagram with others.
                    if let Some(gate) = &self.gate {
                        gate.set_established();
                    }
                    if let Some(Early::Received) = self.early {
                        self.confirm();
                    }
                }
                Event::Path(notice) => self.reads.notices.push_back(Read::Path(notice)),
                Event::Lost => self.handle_lost(),
                // A task that waits for a stream polls for it.
                Event::Available(_) | Event::Finished(_) => {}
                // Reads ask for it.
                Event::Datagram => {}
            }
        }
        count
    }

    /// A client that sent early data knows whether the server has taken it.
    fn handle_connected(&mut self) {
        let Some(Early::Sent(_)) = self.early else { return };
        if self.connection.is_early_taken() {
            self.confirm();
        } else {
            self.end_wait();
            // The library has forgotten the streams.
            self.close_reason = Some(CloseReason::EarlyDataRejected);
            self.window.handle_dropped();
            self.streams.clear();
            (self.control.is_sending, self.control.is_receiving) = (false, false);
            self.reads.is_control_queued = false;
        }
    }

    /// The handshake is confirmed. Told before the bytes that arrived with it, which are no early data.
    fn confirm(&mut self) {
        self.end_wait();
        self.reads.notices.push_back(Read::Confirmed);
    }

    fn handle_lost(&mut self) {
        let Some(error) = self.connection.error() else { return };
        if let ConnectionError::TransportError(error) = error {
            // Such as a datagram for an end that has announced none. [BQ-80]
            tracing::info!(%error, "a QUIC connection is closed, its peer has violated the protocol");
        }
        self.close_reason.get_or_insert(CloseReason::Connection(error.clone()));
        // Bytes before it are read, and there may have been no event for them yet.
        self.reads.is_control_queued |= self.control.is_receiving;
        let keys: Vec<_> = self.streams.keys().copied().collect();
        keys.into_iter().for_each(|key| self.enqueue(key));
        self.reads.are_incoming = [true; 2];
    }

    /// Ends the wait for the confirmation.
    pub(super) fn end_wait(&mut self) {
        if let Some(Early::Sent(wait)) = self.early.take() {
            wait.end(self.connection.stats().udp_rx.datagrams);
        }
    }
}
