//! Payloads of which every byte is known from its place, without holding any of them.

/// Bytes after which a payload repeats itself: no power of two, as the pieces are in which somebody could lose one.
const PERIOD: usize = (1 << 20) + 7;
/// Payloads of two clients begin so far from each other: a prime, so that all of them differ.
const STEP: u64 = 104_729;

/// What all payloads are cut from.
#[derive(Debug)]
pub(super) struct Pattern(Vec<u8>);

impl Pattern {
    pub(super) fn new() -> Self {
        let mut bytes = vec![0; PERIOD];
        fastrand::Rng::with_seed(1).fill(&mut bytes);
        Self(bytes)
    }

    /// What stands from this place on in the payload of this client, as far as it is in one piece.
    pub(super) fn at(&self, client: u32, place: u64) -> &[u8] {
        let start = (u64::from(client) * STEP + place) % PERIOD as u64;
        &self.0[usize::try_from(start).unwrap_or(0)..]
    }

    /// Whether these bytes are those from this place on.
    pub(super) fn matches(&self, client: u32, mut place: u64, mut bytes: &[u8]) -> bool {
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
