//! Choice of the node for a QUIC datagram (draft-ietf-quic-load-balancers, 4.2). Pure but for the seed of its hash.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::time::Duration;

use braid_transport::quic::{QuicHeader, QuicLbFormat, ServerId};
use lru::LruCache;
use tokio::time::Instant;

use crate::health::Health;
use crate::options::QuicFront;

/// Routes of datagrams by the server IDs of the nodes, and by the addresses of clients.
pub(crate) struct Routes {
    formats: Vec<QuicLbFormat>,
    nodes: HashMap<ServerId, usize>,
    /// Node of each client address whose datagrams named none, and time of the last one. A change of the nodes'
    /// health during a handshake must not move it.
    by_address: LruCache<SocketAddr, (usize, Instant)>,
    idle: Duration,
    hash: RandomState,
}

impl Routes {
    /// `entries`: client addresses that are remembered, for `idle` after their last datagram.
    pub(crate) fn new(front: &QuicFront, entries: NonZeroUsize, idle: Duration) -> Self {
        let nodes = front.backends.iter().enumerate().map(|(node, backend)| (backend.server_id, node));
        Self {
            formats: front.formats.clone(),
            nodes: nodes.collect(),
            by_address: LruCache::sparse(entries),
            idle,
            hash: RandomState::new(),
        }
    }

    /// Node for a datagram from `client`. `None`: it is no QUIC, or belongs to no known connection.
    pub(crate) fn node(
        &mut self,
        datagram: &[u8],
        client: SocketAddr,
        health: &Health,
        now: Instant,
    ) -> Option<usize> {
        let header = QuicHeader::parse(datagram)?;
        let named = self.formats.iter().find_map(|format| format.server_of(header));
        let named = named.and_then(|server_id| self.nodes.get(&server_id).copied());
        match (header, named) {
            // The connection lives at that node or nowhere.
            (QuicHeader::Short { .. }, Some(node)) => Some(node),
            // A stateless reset of the client, or no QUIC.
            (QuicHeader::Short { .. }, None) => self.remembered(client, now),
            (QuicHeader::Long { .. }, Some(node)) if health.is_usable(node, now) => Some(node),
            // Mostly the first packets of a client, which it gave a random ID.
            (QuicHeader::Long { .. }, _) => {
                let remembered = self.remembered(client, now).filter(|node| health.is_usable(*node, now));
                let node = remembered.or_else(|| self.chosen(client, health, now))?;
                self.by_address.put(client, (node, now));
                Some(node)
            }
        }
    }

    /// Node of earlier datagrams from this address.
    fn remembered(&mut self, client: SocketAddr, now: Instant) -> Option<usize> {
        let (node, last) = self.by_address.get_mut(&client)?;
        if now.saturating_duration_since(*last) >= self.idle {
            self.by_address.pop(&client);
            return None;
        }
        *last = now;
        Some(*node)
    }

    /// Node by rendezvous hashing: a node that fails moves its own clients only.
    fn chosen(&self, client: SocketAddr, health: &Health, now: Instant) -> Option<usize> {
        let weight = |node: &usize| self.hash.hash_one((client, *node));
        let usable = (0..health.nodes()).filter(|node| health.is_usable(*node, now)).max_by_key(weight);
        usable.or_else(|| (0..health.nodes()).max_by_key(weight))
    }
}

#[cfg(test)]
mod tests {
    use braid_transport::quic::QuicLbKey;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::options::QuicBackend;

    const NODES: u16 = 3;
    const IDLE: Duration = Duration::from_secs(30);
    const PAUSE: Duration = Duration::from_secs(2);

    /// ID of appendix B.2 of the draft, in config 0, of the server `ed793a`.
    const NAMES_NODE_1: [u8; 8] = [0x07, 0x20, 0xb1, 0xd0, 0x7b, 0x35, 0x9d, 0x3c];
    /// In the clear, in config 1, of the server `000002`.
    const NAMES_NODE_2: [u8; 9] = [0x28, 0, 0, 2, 1, 1, 1, 1, 1];
    /// In the clear, in config 1, of no server.
    const NAMES_NO_NODE: [u8; 9] = [0x28, 9, 9, 9, 1, 1, 1, 1, 1];
    const RANDOM: [u8; 8] = [0xFF; 8];

    fn routes(entries: usize) -> (Routes, Health) {
        let key: QuicLbKey = "8f95f09245765f80256934e50c66207f".parse().expect("key");
        let ids: [[u8; 3]; 3] = [[0, 0, 0], [0xed, 0x79, 0x3a], [0, 0, 2]];
        let backends = ids.iter().zip(1..).map(|(id, port)| QuicBackend {
            address: address(port),
            server_id: ServerId::new(id).expect("ID"),
        });
        let format = |config_id, nonce, key| QuicLbFormat::new(config_id, 3, nonce, key).expect("in range");
        let front = QuicFront {
            listen: address(0),
            formats: vec![format(0, 4, Some(key)), format(1, 5, None)],
            backends: backends.collect(),
        };
        let entries = NonZeroUsize::new(entries).expect("not zero");
        (Routes::new(&front, entries, IDLE), Health::new(front.backends.len(), PAUSE))
    }

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn long(id: &[u8]) -> Vec<u8> {
        [&[0xC0, 0, 0, 0, 1, u8::try_from(id.len()).expect("short")], id, &[0; 30]].concat()
    }

    fn short(id: &[u8]) -> Vec<u8> {
        [&[0x40], id, &[0; 30]].concat()
    }

    #[test]
    fn connection_ids_lead_to_their_nodes_from_any_address() {
        let ((mut routes, mut health), now) = (routes(8), Instant::now());
        let mut node =
            |health: &Health, datagram: &[u8], port| routes.node(datagram, address(port), health, now);
        for port in 1..20 {
            assert_eq!(node(&health, &short(&NAMES_NODE_1), port), Some(1));
            assert_eq!(node(&health, &short(&NAMES_NODE_2), port), Some(2));
            assert_eq!(node(&health, &long(&NAMES_NODE_1), port), Some(1));
        }
        for datagram in [short(&NAMES_NO_NODE), short(&RANDOM), vec![], vec![0x40], vec![0xC0, 0, 0, 0, 1, 9]]
        {
            assert_eq!(node(&health, &datagram, 50), None, "{datagram:?}");
        }
        let first = node(&health, &long(&RANDOM), 50).expect("any");
        assert_eq!(node(&health, &short(&RANDOM), 50), Some(first), "a stateless reset");
        health.note_failure(1, now);
        assert_eq!(node(&health, &short(&NAMES_NODE_1), 51), Some(1), "no other has its connection");
        assert_ne!(node(&health, &long(&NAMES_NODE_1), 51), Some(1), "a handshake may begin elsewhere");
    }

    #[test]
    fn failed_nodes_get_no_new_clients_and_lose_no_others() {
        let ((mut routes, mut health), now) = (routes(1000), Instant::now());
        let later = now + Duration::from_secs(1);
        let mut node = |health: &Health, port, now| {
            routes.node(&long(&RANDOM), address(port), health, now).expect("any")
        };
        let before: Vec<usize> = (1..300).map(|port| node(&health, port, now)).collect();
        let counts: Vec<usize> = (0..3).map(|n| before.iter().filter(|node| **node == n).count()).collect();
        assert!(counts.iter().all(|count| *count > 50), "{counts:?}");
        health.note_failure(1, now);
        let during: Vec<usize> = (1..300).map(|port| node(&health, port, later)).collect();
        for (before, during) in before.iter().zip(&during) {
            assert!(if *before == 1 { *during != 1 } else { during == before });
        }
        health.note_success(1);
        let after: Vec<usize> = (1..300).map(|port| node(&health, port, later)).collect();
        assert_eq!(after, during, "handshakes stay where they are");
        for failed in 0..3 {
            health.note_failure(failed, later);
        }
        assert!((1..300).all(|port| node(&health, port, later) < 3), "all failed: any is tried");
    }

    /// Memory of one address, as [`Routes`] should have it.
    type Model = HashMap<u16, (usize, Instant)>;

    proptest! {
        /// Datagrams without server ID from few addresses, failures and pauses, against a model without bound.
        #[test]
        fn addresses_keep_their_nodes(
            steps in vec((1..6_u16, 0..NODES, 0..40_u64, any::<bool>(), any::<bool>()), 1..80),
        ) {
            let ((mut routes, mut health), mut now) = (routes(8), Instant::now());
            let mut model = Model::new();
            for (port, failed, pause, is_failure, is_short) in steps {
                if is_failure {
                    health.note_failure(usize::from(failed), now);
                }
                now += Duration::from_secs(pause / 4);
                let known = model.get(&port).filter(|(_, last)| now - *last < IDLE).map(|(node, _)| *node);
                let datagram = if is_short { short(&RANDOM) } else { long(&RANDOM) };
                let node = routes.node(&datagram, address(port), &health, now);
                if is_short {
                    prop_assert_eq!(node, known);
                } else {
                    let usable: Vec<usize> = (0..3).filter(|node| health.is_usable(*node, now)).collect();
                    let node = node.expect("any");
                    match known.filter(|known| usable.contains(known)) {
                        Some(known) => prop_assert_eq!(node, known),
                        None => prop_assert!(usable.is_empty() || usable.contains(&node)),
                    }
                }
                match node {
                    Some(node) => model.insert(port, (node, now)),
                    None => model.remove(&port),
                };
            }
        }
    }

    #[test]
    fn the_memory_of_addresses_is_bounded() {
        let ((mut routes, health), now) = (routes(2), Instant::now());
        let mut node = |datagram: &[u8], port| routes.node(datagram, address(port), &health, now);
        for port in 1..=3 {
            node(&long(&RANDOM), port).expect("any");
        }
        assert_eq!(node(&short(&RANDOM), 1), None, "the oldest one gave way");
        assert!(node(&short(&RANDOM), 2).is_some() && node(&short(&RANDOM), 3).is_some());
        assert_eq!(routes.by_address.len(), 2);
    }
}
