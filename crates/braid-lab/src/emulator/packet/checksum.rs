//! The Internet checksum (RFC 1071) and its incremental update (RFC 1624).

/// The ones' complement sum of `bytes`, not folded; an odd last byte counts as the upper half of a word.
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    let (words, last) = bytes.as_chunks::<2>();
    let words: u64 = words.iter().map(|&word| u64::from(u16::from_be_bytes(word))).sum();
    words + last.first().map_or(0, |&byte| u64::from(byte) << 8)
}

/// Folds a sum to the 16 bits of its ones' complement arithmetic.
#[expect(clippy::cast_possible_truncation, reason = "folded below 2^16")]
pub(crate) fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// `checksum` after `old` in what it covers became `new`; both have the same, even length and an even place.
pub(crate) fn updated(checksum: u16, old: &[u8], new: &[u8]) -> u16 {
    // RFC 1624, eqn. 3: HC' = ~(~HC + ~m + m')
    !fold(u64::from(!checksum) + u64::from(!fold(sum(old))) + sum(new))
}
