//! Connection IDs of a listener that name its server: [`QuicLb`] for the QUIC library.

use std::time::Duration;

use noq_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid, RandomConnectionIdGenerator};

use ring::hmac;

use super::quic_lb::{MAX_NONCE, QuicLb};

/// Key of a server's stateless resets, made from the key of its connection IDs: after a restart of the process it
/// resets the connections of before. Other servers have others, as one that answers for this one would tell its tokens
/// (RFC 9000, 21.11).
pub(super) fn reset_key(lb: &QuicLb) -> Option<hmac::Key> {
    let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, lb.key()?));
    context.update(b"QUIC stateless reset");
    context.update(&[lb.format().config_id()]);
    context.update(lb.server_id().as_bytes());
    Some(hmac::Key::new(hmac::HMAC_SHA256, context.sign().as_ref()))
}

/// Generator of connection IDs in the format of QUIC-LB.
pub(super) struct RoutableCidGenerator {
    lb: QuicLb,
    /// Counts up from a random number if nonces are encrypted, so that none comes twice; random otherwise.
    nonce: [u8; MAX_NONCE],
}

impl RoutableCidGenerator {
    pub(super) fn new(lb: QuicLb) -> Self {
        let mut generator = Self { lb, nonce: [0; MAX_NONCE] };
        generator.draw();
        generator
    }

    /// Draws a nonce from the library's generator of random connection IDs, which is a cryptographic one.
    fn draw(&mut self) {
        let random = RandomConnectionIdGenerator::new(self.lb.nonce_length()).generate_cid();
        self.nonce[..random.len()].copy_from_slice(&random);
    }

    fn advance(&mut self) {
        if !self.lb.is_encrypted() {
            return self.draw();
        }
        for octet in self.nonce[..self.lb.nonce_length()].iter_mut().rev() {
            let (next, is_carried) = octet.overflowing_add(1);
            *octet = next;
            if !is_carried {
                break;
            }
        }
    }
}

impl ConnectionIdGenerator for RoutableCidGenerator {
    fn generate_cid(&mut self) -> ConnectionId {
        self.advance();
        let mut id = [0; 20];
        let length = self.lb.encode(&self.nonce, &mut id);
        ConnectionId::new(&id[..length])
    }

    /// The library answers packets for this server that belong to no connection with a stateless reset: also those of
    /// connections that an endpoint before this one had.
    fn validate(&self, id: ConnectionId) -> Result<(), InvalidCid> {
        let server_id = self.lb.format().server_id(&id);
        if server_id == Some(self.lb.server_id()) { Ok(()) } else { Err(InvalidCid) }
    }

    fn cid_len(&self) -> usize {
        self.lb.format().id_length()
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::quic::quic_lb::QuicLbKey;

    fn lb(server_id: &str, key: Option<QuicLbKey>) -> QuicLb {
        QuicLb::new(3, server_id.parse().expect("id"), 4, key).expect("configuration")
    }

    #[test]
    fn ids_name_their_server_and_never_repeat() {
        let key = Some(QuicLbKey::from([7; 16]));
        for (own, other) in [(lb("0102", None), lb("0103", None)), (lb("0102", key.clone()), lb("0103", key))]
        {
            let (mut own, mut other) = (RoutableCidGenerator::new(own), RoutableCidGenerator::new(other));
            let ids: Vec<ConnectionId> = (0..300).map(|_| own.generate_cid()).collect();
            assert!(ids.iter().all(|id| id.len() == own.cid_len() && own.validate(*id).is_ok()));
            assert!(ids.iter().all(|id| other.validate(*id).is_err()));
            assert!(own.validate(other.generate_cid()).is_err());
            assert_eq!(ids.iter().collect::<HashSet<_>>().len(), 300);
        }
    }

    #[test]
    fn encrypted_nonces_count_over_the_end_and_clear_ones_do_not_count() {
        let mut keyed = RoutableCidGenerator::new(lb("01", Some(QuicLbKey::from([7; 16]))));
        keyed.nonce[..4].copy_from_slice(&[0, 0xFF, 0xFF, 0xFF]);
        keyed.generate_cid();
        assert_eq!(keyed.nonce[..4], [1, 0, 0, 0]);
        keyed.nonce[..4].copy_from_slice(&[0xFF; 4]);
        keyed.generate_cid();
        assert_eq!(keyed.nonce[..5], [0; 5]);

        let mut clear = RoutableCidGenerator::new(lb("01", None));
        let followed = (0..100).filter(|_| {
            let before = u32::from_be_bytes(clear.nonce[..4].try_into().expect("4"));
            clear.generate_cid();
            u32::from_be_bytes(clear.nonce[..4].try_into().expect("4")) == before.wrapping_add(1)
        });
        assert!(followed.count() < 3);
    }
}
