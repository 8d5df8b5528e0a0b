//! Payloads whose bytes follow from client and offset, so that none has to be kept.

/// Period of a payload in bytes: no power of two, unlike the blocks of which one could be lost.
const PERIOD: usize = (1 << 20) + 7;
/// Distance of the beginnings of two clients' payloads: a prime, so that all of them differ.
const STEP: u64 = 104_729;

/// Source of all payloads.
#[derive(Debug)]
pub(crate) struct Pattern(Vec<u8>);

impl Pattern {
    pub(crate) fn new() -> Self {
        let mut bytes = vec![0; PERIOD];
        fastrand::Rng::with_seed(1).fill(&mut bytes);
        Self(bytes)
    }

    /// Bytes of a client's payload from `place` on, up to the end of the period.
    pub(crate) fn at(&self, client: u32, place: u64) -> &[u8] {
        let start = (u64::from(client) * STEP + place) % PERIOD as u64;
        &self.0[usize::try_from(start).unwrap_or(0)..]
    }

    /// True if `bytes` are those of the client's payload from `place` on.
    pub(crate) fn matches(&self, client: u32, mut place: u64, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            let expected = self.at(client, place);
            let (now, later) = bytes.split_at(bytes.len().min(expected.len()));
            if now != &expected[..now.len()] {
                return false;
            }
            place += now.len() as u64;
            bytes = later;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::{PERIOD, Pattern};

    #[test]
    fn a_payload_is_known_by_its_client_and_place() {
        let pattern = Pattern::new();
        let whole = [pattern.at(3, 0), pattern.at(3, pattern.at(3, 0).len() as u64)].concat();
        assert!(whole.len() > PERIOD, "over the end of a period");
        assert!(pattern.matches(3, 0, &whole) && pattern.matches(3, 70, &whole[70..]));
        assert!(!pattern.matches(4, 0, &whole[..100]) && !pattern.matches(3, 1, &whole[..100]));
        let mut changed = whole;
        *changed.last_mut().expect("not empty") ^= 1;
        assert!(!pattern.matches(3, 0, &changed));
    }
}
