//! Hash of texts that is the same on each node, and in each version.

/// Offset basis of FNV-1a for 64 bits.
pub const BASIS: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a for 64 bits, from a basis on.
#[must_use]
pub fn fnv_1a(basis: u64, bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(basis, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test vectors of the authors of FNV.
    #[test]
    fn known_texts_have_known_hashes() {
        for (text, hash) in [("", BASIS), ("a", 0xaf63_dc4c_8601_ec8c), ("foobar", 0x8594_4171_f739_67e8)] {
            assert_eq!(fnv_1a(BASIS, text.bytes()), hash, "{text}");
        }
    }
}
