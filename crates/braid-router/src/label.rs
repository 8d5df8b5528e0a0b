//! One level of a Topic Filter, stored without an allocation when it is short.

/// The longest level that is stored inline: a [`Label`] is then as large as a `Box<[u8]>` with its tag.
const INLINE: usize = 22;

/// The text of one level.
#[derive(Debug)]
pub(crate) enum Label {
    /// Up to [`INLINE`] bytes.
    Short { len: u8, bytes: [u8; INLINE] },
    /// Everything longer.
    Long(Box<[u8]>),
}

impl Label {
    pub(crate) fn new(level: &[u8]) -> Self {
        match u8::try_from(level.len()) {
            Ok(len) if level.len() <= INLINE => {
                let mut bytes = [0; INLINE];
                bytes[..level.len()].copy_from_slice(level);
                Self::Short { len, bytes }
            }
            _ => Self::Long(level.into()),
        }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Short { len, bytes } => &bytes[..usize::from(*len)],
            Self::Long(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_every_length() {
        for len in 0..=2 * INLINE {
            let level = vec![b'x'; len];
            assert_eq!(Label::new(&level).as_bytes(), level);
            assert_eq!(matches!(Label::new(&level), Label::Long(_)), len > INLINE);
        }
        assert_eq!(size_of::<Label>(), 24);
    }
}
