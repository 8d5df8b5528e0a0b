//! Payload of an Application Message.

use std::fmt;
use std::ops::Deref;

use bytes::Bytes;

/// Maximum bytes of a payload that is held in place: with them a message takes one allocation instead of two.
const INLINE: usize = 78;

/// Payload of an Application Message: one of up to 78 bytes in place, a longer one shared. Cloning copies no more.
#[derive(Clone)]
pub struct Payload(Form);

#[derive(Clone)]
enum Form {
    Inline { len: u8, bytes: [u8; INLINE] },
    Shared(Bytes),
}

const _: () = assert!(size_of::<Payload>() == 80, "length and form take two bytes beside those in place");

impl Payload {
    /// Payload without bytes.
    pub const EMPTY: Self = Self(Form::Inline { len: 0, bytes: [0; INLINE] });

    /// Copies these bytes into place. `None`, with nothing changed: they have no room there.
    fn copy_in_place(&mut self, payload: &[u8]) -> Option<()> {
        let Form::Inline { len, bytes } = &mut self.0 else { return None };
        let (place, length) = (bytes.get_mut(..payload.len())?, u8::try_from(payload.len()).ok()?);
        place.copy_from_slice(payload);
        *len = length;
        Some(())
    }

    /// Copy of these bytes if they have room in place.
    fn inline(payload: &[u8]) -> Option<Self> {
        let mut copy = Self::EMPTY;
        copy.copy_in_place(payload).map(|()| copy)
    }

    /// Sets these bytes: directly in place, where they have room there.
    pub(crate) fn set(&mut self, payload: PayloadSlice<'_>) {
        if self.copy_in_place(&payload).is_none() {
            *self = payload.into();
        }
    }

    /// Copy of these bytes.
    pub fn copy_of(payload: &[u8]) -> Self {
        Self::inline(payload).unwrap_or_else(|| Self(Form::Shared(Bytes::copy_from_slice(payload))))
    }

    /// The shared bytes, of a payload that is not in place.
    pub(crate) fn as_shared(&self) -> Option<&Bytes> {
        match &self.0 {
            Form::Inline { .. } => None,
            Form::Shared(bytes) => Some(bytes),
        }
    }

    /// The payload as shared bytes; those in place are copied.
    pub fn to_bytes(&self) -> Bytes {
        self.as_shared().map_or_else(|| Bytes::copy_from_slice(self), Bytes::clone)
    }
}

/// Payload of a packet that is handled while its input is there: borrowed from that, so that it is copied once, by its
/// message. A packet that is moved with a [`Payload`] in place waits for the bytes each time.
#[derive(Debug)]
pub(crate) enum PayloadSlice<'a> {
    Input(&'a [u8]),
    Shared(Bytes),
}

impl PayloadSlice<'_> {
    /// The payload without the input.
    pub(crate) fn detached(self) -> PayloadSlice<'static> {
        PayloadSlice::Shared(match self {
            Self::Input(bytes) => Bytes::copy_from_slice(bytes),
            Self::Shared(bytes) => bytes,
        })
    }
}

impl Deref for PayloadSlice<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Input(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}

impl From<Bytes> for PayloadSlice<'_> {
    fn from(bytes: Bytes) -> Self {
        Self::Shared(bytes)
    }
}

impl From<PayloadSlice<'_>> for Payload {
    fn from(slice: PayloadSlice<'_>) -> Self {
        match slice {
            PayloadSlice::Input(bytes) => Self::copy_of(bytes),
            PayloadSlice::Shared(bytes) => bytes.into(),
        }
    }
}

impl Default for Payload {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl Deref for Payload {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Form::Inline { len, bytes } => &bytes[..usize::from(*len)],
            Form::Shared(bytes) => bytes,
        }
    }
}

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Self {
        Self::inline(&bytes).unwrap_or(Self(Form::Shared(bytes)))
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl From<&'static [u8]> for Payload {
    fn from(bytes: &'static [u8]) -> Self {
        Bytes::from_static(bytes).into()
    }
}

impl From<&'static str> for Payload {
    fn from(text: &'static str) -> Self {
        text.as_bytes().into()
    }
}

/// The bytes are compared, wherever they are.
impl<T: AsRef<[u8]> + ?Sized> PartialEq<T> for Payload {
    fn eq(&self, other: &T) -> bool {
        **self == *other.as_ref()
    }
}

impl Eq for Payload {}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_payloads_are_in_place_and_longer_ones_are_shared() {
        for len in [0, 1, INLINE, INLINE + 1, 1000] {
            let bytes = Bytes::from(vec![7; len]);
            let payload = Payload::from(bytes.clone());
            assert_eq!(payload, bytes);
            assert_eq!(payload.clone().to_bytes(), bytes);
            assert_eq!(payload.as_shared().is_some(), len > INLINE, "{len} bytes");
            assert_eq!(payload.as_ptr() == bytes.as_ptr(), len > INLINE, "{len} bytes");
        }
        assert_ne!(Payload::from("abc"), Payload::from("abd"));
        assert_eq!(format!("{:?}", Payload::from("a\n")), r#"b"a\n""#);
    }
}
