//! Change of a client's address.

use std::net::SocketAddr;
use std::time::Duration;

use noq_proto::PathId;
use tokio::time::Instant;

use crate::quic::io::{Connection, DoubtfulMark};
use crate::transport::canonical;

/// Time for which a new address is polled for its validation.
const VALIDATION_LIMIT: Duration = Duration::from_secs(3);

/// Shortest time between two such polls.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Round trips, and time in addition, after which the library has given up a validation: three probe timeouts.
const GIVEN_UP: (u32, Duration) = (10, Duration::from_millis(100));

/// Time for which a validation that has begun again is left alone: a repetition ends what is under way.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes that have to come from an address before its validation begins again: a third of two padded datagrams
/// (RFC 9000, 8.1).
const LEAST_RECEIVED: u64 = 800;

/// Watches a client's address, which may change while its connection goes on. [BQ-70]
pub(super) struct PathMigration {
    /// The last address that was validated.
    known: SocketAddr,
    /// The address in use.
    current: SocketAddr,
    /// The path that carries data.
    path: PathId,
    unvalidated: Option<Validation>,
    /// Mark of the address in use, whose validation is to begin again.
    mark: Option<DoubtfulMark>,
    /// Changes of the address so far, to those that are never validated too.
    moves: u64,
}

/// Validation of an address that is in use.
#[derive(Clone, Copy)]
struct Validation {
    /// Time of its begin, or of the last sign that it goes on.
    begun: Instant,
    /// Counts at that time.
    before: Counts,
    /// ACK frames that were sent before the address was used.
    acknowledgements: u64,
    /// True if it was to begin again.
    is_repeated: bool,
    /// True if the library repeats it by itself.
    is_lasting: bool,
}

/// Counts of a path.
#[derive(Clone, Copy)]
struct Counts {
    /// Bytes that have come.
    received: u64,
    /// PATH_CHALLENGE frames that were sent.
    challenges: u64,
    /// PATH_RESPONSE frames that have come.
    responses: u64,
}

impl PathMigration {
    pub(super) fn new(known: SocketAddr) -> Self {
        Self { known, current: known, path: PathId::ZERO, unvalidated: None, mark: None, moves: 0 }
    }

    /// Changes of the address so far.
    pub(super) fn moves(&self) -> u64 {
        self.moves
    }

    fn note_move(&mut self, address: SocketAddr, unvalidated: Option<Validation>) {
        (self.current, self.unvalidated, self.mark) = (address, unvalidated, None);
        self.moves += 1;
    }

    /// The peer's new address, once. Begins its validation again if the library has given up: it does so after three
    /// probe timeouts, sends the address nothing from then on, and never tries again.
    ///
    /// The library uses a new address at once and does not tell when it has validated it. An ACK frame is the sign: it
    /// sends none to an address that is not validated, and the packet with the PATH_RESPONSE asks for one. The
    /// PATH_RESPONSE itself is none: one that comes late, or from a change before, validates nothing.
    ///
    /// Once it has begun again, the library goes on by itself: when it gives up, it falls back to port 0, and the next
    /// packet begins another validation.
    pub(super) fn take_new_address(&mut self, connection: &mut Connection) -> Option<SocketAddr> {
        let address = canonical(connection.remote_address()?);
        if address == self.current && self.unvalidated.is_none() {
            return None;
        }
        let stats = connection.path_stats()?;
        let acknowledgements = stats.frame_tx.acks + stats.frame_tx.path_acks;
        let counts = Counts {
            received: stats.udp_rx.bytes,
            challenges: stats.frame_tx.path_challenge,
            responses: stats.frame_rx.path_response,
        };
        let now = Instant::now();
        let fresh = Validation {
            begun: now,
            before: counts,
            acknowledgements,
            is_repeated: false,
            is_lasting: address.port() == 0,
        };
        if address.port() == 0 {
            self.unvalidated.get_or_insert(fresh).is_lasting = true;
            return None;
        }
        // Another path carries data only once it is validated.
        let path = connection.primary_path();
        if std::mem::replace(&mut self.path, path) != path {
            self.note_move(address, None);
            return self.validated(address);
        }
        let Some(validation) = self.unvalidated.as_mut().filter(|_| address == self.current) else {
            self.note_move(address, Some(fresh));
            return None;
        };
        if acknowledgements > validation.acknowledgements {
            (self.unvalidated, self.mark) = (None, None);
            return self.validated(address);
        }
        if counts.responses != validation.before.responses {
            // Perhaps the one that validates it: the ACK frame follows.
            (validation.begun, validation.before) = (now, counts);
            return None;
        }
        validation.is_lasting |= validation.is_repeated && counts.challenges != validation.before.challenges;
        let (round_trips, more) = GIVEN_UP;
        let wait = if validation.is_lasting { PATIENCE } else { stats.rtt * round_trips + more };
        if now - validation.begun > wait && counts.received - validation.before.received >= LEAST_RECEIVED {
            // An old one would take the new one back.
            drop(self.mark.take());
            self.mark = connection.validate_again();
            (validation.begun, validation.before) = (now, counts);
            (validation.is_repeated, validation.is_lasting) = (true, false);
        }
        None
    }

    /// The address, if it is not the last one that was validated.
    fn validated(&mut self, address: SocketAddr) -> Option<SocketAddr> {
        (std::mem::replace(&mut self.known, address) != address).then_some(address)
    }

    /// Time of the next poll; the validation itself is no event.
    pub(super) fn next_poll(&self, connection: &Connection) -> Option<Instant> {
        let now = Instant::now();
        let rtt = connection.rtt().unwrap_or_default();
        (now < self.unvalidated?.begun + VALIDATION_LIMIT).then(|| now + rtt.max(POLL_INTERVAL))
    }
}

#[cfg(test)]
mod tests {
    use braid_proto::stream::StreamKey;

    use super::super::state::Role;
    use super::super::tests::{next, pair, state, write};
    use super::*;
    use crate::link::Link;
    use crate::transport::Read;

    /// Tests whether another address may be marked.
    fn has_room(server: &mut Link) -> bool {
        state(server).connection.validate_again().is_some()
    }

    /// Addresses are marked up to the number of connections.
    #[tokio::test(start_paused = true)]
    async fn an_address_that_its_client_has_left_leaves_its_mark_to_another() {
        let (_listener, mut server, mut client) = pair().await;
        // All acknowledgements have come.
        tokio::select! {
            read = next(&mut server) => panic!("{read:?}"),
            read = next(&mut client) => panic!("{read:?}"),
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
        }
        assert!(has_room(&mut server));
        let mark = state(&mut server).connection.validate_again();
        let Role::Server { migration, .. } = &mut state(&mut server).role else { panic!("a server") };
        migration.mark = mark;
        assert!(!has_room(&mut server));
        client.rebind(None).expect("rebind");
        write(&mut client, StreamKey::CONTROL).await;
        assert_eq!(next(&mut server).await, Read::Bytes(StreamKey::CONTROL));
        assert!(has_room(&mut server));
    }
}
