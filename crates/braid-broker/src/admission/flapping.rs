//! Detection of clients that connect again and again.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use braid_proto::packet::ClientId;

use super::address::AddressKey;
use super::recent::RecentMap;
use crate::config::LimitsConfig;

/// Clients that are remembered at least; twice as many at most. Each takes about 40 bytes.
const REMEMBERED_CLIENTS: usize = 32 * 1024;

/// Client to which connects are counted: Client Identifier, user and address.
///
/// Behind one address translation there may be thousands of clients, and a client elsewhere, or another user at the
/// same address, must not be able to get a client banned by using its identifier.
type Connecting<'a> = (&'a ClientId, Option<&'a str>, AddressKey);

/// Counts the connects of each client in a window of time, which begins with the first of them.
#[derive(Debug)]
pub(super) struct FlappingDetector {
    /// Connects in a window that are not flapping.
    most: u64,
    window: Duration,
    /// Names have up to 64 KiB: a keyed hash stands for them.
    connects: RecentMap<u64, Window>,
    hasher: RandomState,
}

#[derive(Debug)]
struct Window {
    began: Instant,
    connects: u64,
}

impl FlappingDetector {
    pub(super) fn new(limits: &LimitsConfig) -> Self {
        Self {
            most: limits.flapping_connects,
            window: Duration::from_secs(limits.flapping_window_secs),
            connects: RecentMap::new(REMEMBERED_CLIENTS),
            hasher: RandomState::new(),
        }
    }

    /// Counts a connect. True if it is one too many; then counting begins anew.
    pub(super) fn note_connect(&mut self, client: Connecting<'_>, now: Instant) -> bool {
        let (client_id, user, address) = client;
        let key = self.hasher.hash_one((client_id.as_str(), user, address));
        let window = self.connects.touch(key, || Window { began: now, connects: 0 });
        if now.saturating_duration_since(window.began) >= self.window {
            *window = Window { began: now, connects: 0 };
        }
        window.connects += 1;
        let is_flapping = window.connects > self.most;
        if is_flapping {
            self.connects.remove(key);
        }
        is_flapping
    }

    /// Removes what makes no difference any more.
    pub(super) fn expire(&mut self, now: Instant) {
        let length = self.window;
        self.connects.retain(|window| now.saturating_duration_since(window.began) < length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detector(most: u64) -> FlappingDetector {
        FlappingDetector::new(&LimitsConfig { flapping_connects: most, ..LimitsConfig::default() })
    }

    const HERE: AddressKey = AddressKey::V4([10, 0, 0, 1]);

    #[test]
    fn one_connect_too_many_in_a_window_is_flapping() {
        let (mut detector, start) = (detector(15), Instant::now());
        let client = ClientId::from("client");
        for second in [0, 60, 120] {
            let at = |tenths: u64| start + Duration::from_secs(second) + Duration::from_millis(tenths * 100);
            for connect in 0..15 {
                assert!(
                    !detector.note_connect((&client, None, HERE), at(connect * 10)),
                    "{connect} in {second}"
                );
                detector.expire(at(connect * 10));
            }
        }
        let late = start + Duration::from_secs(179);
        let others = [
            ("other", None, HERE),
            ("client", Some("eve"), HERE),
            ("client", None, AddressKey::V4([10, 0, 0, 2])),
        ];
        for (client, user, address) in others {
            let client = ClientId::from(client);
            assert!(
                !detector.note_connect((&client, user, address), late),
                "{client:?} {user:?} {address:?}"
            );
        }
        assert!(detector.note_connect((&client, None, HERE), late));
        assert!(!detector.note_connect((&client, None, HERE), late), "counted anew");
        detector.expire(late + Duration::from_secs(60));
        assert_eq!(detector.connects.len(), 0);
    }
}
