//! Payload of every benchmark message: due time, publisher, sequence number, and a pattern.
//!
//! ```text
//! 0..8    due, nanoseconds since the run's epoch, little-endian
//! 8..12   publisher's index, little-endian
//! 12..16  sequence number within that publisher, from 0, little-endian
//! 16..    byte i is (31 i + 7) mod 256
//! ```

/// Bytes of the shortest payload: the three numbers.
pub(crate) const MINIMUM: usize = 16;

/// Numbers in a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// Due time, nanoseconds since the run's epoch.
    pub(crate) due: u64,
    /// Index of the publisher.
    pub(crate) publisher: u32,
    /// Sequence number within the publisher, from 0.
    pub(crate) sequence: u32,
}

/// Payload of `length` bytes (at least [`MINIMUM`]) whose numbers are zero.
pub(crate) fn blank(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; MINIMUM];
    let mut value = pattern_at(MINIMUM);
    while bytes.len() < length {
        bytes.push(value);
        value = value.wrapping_add(31);
    }
    bytes
}

/// Byte of the pattern at `position`.
fn pattern_at(position: usize) -> u8 {
    let low = u8::try_from(position % 256).unwrap_or(0);
    low.wrapping_mul(31).wrapping_add(7)
}

/// Writes the numbers into `payload`, unless it is too short.
pub(crate) fn write(payload: &mut [u8], stamp: Stamp) {
    let Some(front) = payload.first_chunk_mut::<MINIMUM>() else { return };
    front[0..8].copy_from_slice(&stamp.due.to_le_bytes());
    front[8..12].copy_from_slice(&stamp.publisher.to_le_bytes());
    front[12..16].copy_from_slice(&stamp.sequence.to_le_bytes());
}

/// Reads the numbers. `None` unless `payload` has the length and the pattern of `blank`.
pub(crate) fn read(payload: &[u8], blank: &[u8]) -> Option<Stamp> {
    let (front, rest) = payload.split_first_chunk::<MINIMUM>()?;
    if blank.get(MINIMUM..) != Some(rest) {
        return None;
    }
    let (due, ids) = front.split_first_chunk::<8>()?;
    let (publisher, ids) = ids.split_first_chunk::<4>()?;
    Some(Stamp {
        due: u64::from_le_bytes(*due),
        publisher: u32::from_le_bytes(*publisher),
        sequence: u32::from_le_bytes(*ids.first_chunk::<4>()?),
    })
}

#[cfg(test)]
mod tests {
    use super::{Stamp, blank, read, write};

    const STAMP: Stamp = Stamp { due: 0x0102_0304_0506_0708, publisher: 9, sequence: u32::MAX };

    #[test]
    fn numbers_survive_and_the_rest_is_the_pattern() {
        let empty = blank(64);
        let mut payload = empty.clone();
        write(&mut payload, STAMP);
        assert_eq!(payload.len(), 64);
        assert_eq!(payload[16], 247, "31 * 16 + 7");
        assert_eq!(payload[63], 168, "(31 * 63 + 7) mod 256");
        assert_eq!(read(&payload, &empty), Some(STAMP));
    }

    #[test]
    fn one_wrong_byte_or_length_is_seen() {
        let empty = blank(64);
        let mut payload = empty.clone();
        write(&mut payload, STAMP);
        for position in 16..64 {
            let mut wrong = payload.clone();
            wrong[position] ^= 1;
            assert_eq!(read(&wrong, &empty), None, "byte {position}");
        }
        assert_eq!(read(&payload[..63], &empty), None);
        payload.push(0);
        assert_eq!(read(&payload, &empty), None);
        assert_eq!(read(&[0; 15], &blank(16)), None);
    }
}
