//! User Properties (MQTT 5, 2.2.2.2).

use std::fmt;

use bytes::{BufMut, BytesMut};

use super::properties::{Field, id};
use crate::types::Violation;
use crate::wire::{Reader, Source, put_string};

/// User Properties: name and value, in order, names may repeat. [MQTT-3.1.3-10]
///
/// They are kept in the encoding of the wire: a broker passes them on, and a packet may have tens of thousands. Names
/// and values longer than 65,535 bytes are cut.
#[derive(Clone, Default, Eq)]
pub struct UserProperties(Vec<u8>);

impl UserProperties {
    /// No properties.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a property.
    pub fn push(&mut self, name: &str, value: &str) {
        self.0.put_u8(id::USER_PROPERTY);
        put_string(&mut self.0, name);
        put_string(&mut self.0, value);
    }

    /// Names and values, in their order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut rest = Reader::new(&self.0, Source::Borrowed);
        std::iter::from_fn(move || {
            // All of it was checked when it was added.
            rest.u8().ok()?;
            Some((rest.string().ok()?, rest.string().ok()?))
        })
    }

    /// Tests whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes of their encoding, and of the memory that they take.
    #[must_use]
    pub const fn encoded_len(&self) -> usize {
        self.0.len()
    }

    /// Removes all.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

impl PartialEq for UserProperties {
    fn eq(&self, other: &Self) -> bool {
        // An empty vector has no memory: a `memcmp` with masked loads (AVX-512) that is given its address suppresses a
        // page fault, which takes 75 ns. Most packets have no User Properties.
        self.0.len() == other.0.len() && (self.is_empty() || self.0 == other.0)
    }
}

impl fmt::Debug for UserProperties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<N: AsRef<str>, V: AsRef<str>> FromIterator<(N, V)> for UserProperties {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        let mut properties = Self::new();
        pairs.into_iter().for_each(|(name, value)| properties.push(name.as_ref(), value.as_ref()));
        properties
    }
}

impl<N: AsRef<str>, V: AsRef<str>, const COUNT: usize> From<[(N, V); COUNT]> for UserProperties {
    fn from(pairs: [(N, V); COUNT]) -> Self {
        pairs.into_iter().collect()
    }
}

impl Field for UserProperties {
    fn put(&self, _: u8, out: &mut BytesMut) {
        out.put_slice(&self.0);
    }

    fn read(&mut self, _: u8, part: &mut Reader<'_>) -> Result<(), Violation> {
        let (name, value) = (part.string()?, part.string()?); // [MQTT-1.5.7-1]
        self.push(name, value);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_keep_their_order_and_repetitions() {
        let pairs = [("b", "1"), ("a", ""), ("", "é"), ("b", "1")];
        let mut properties = UserProperties::from(pairs);
        assert_eq!(properties.iter().collect::<Vec<_>>(), pairs);
        assert_eq!(format!("{properties:?}"), format!("{pairs:?}"));
        assert_eq!(properties.encoded_len(), 4 * 5 + 2 + 1 + 2 + 2);
        assert_ne!(properties, pairs[..3].iter().copied().collect());
        properties.clear();
        assert!(properties.is_empty() && properties.iter().next().is_none());
    }

    #[test]
    fn a_text_that_is_too_long_is_cut_between_characters() {
        let long = "é".repeat(40_000);
        let properties = UserProperties::from([(long.as_str(), "value")]);
        assert_eq!(properties.iter().collect::<Vec<_>>(), [(&long[..65_534], "value")]);
    }
}
