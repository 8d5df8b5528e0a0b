use sha2::{Digest, Sha256};

/// Right body of a successful response; without fields any is right.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expectation {
    /// Length in bytes.
    pub bytes: Option<u64>,
    /// SHA-256 digest.
    pub sha256: Option<[u8; 32]>,
}

/// A digest that is no SHA-256.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a SHA-256 digest has 64 hexadecimal digits: write the first word that sha256sum prints")]
pub struct DigestError;

impl Expectation {
    /// Bytes of a digest in hexadecimal.
    ///
    /// # Errors
    /// The text has another length, or other characters.
    pub fn digest(text: &str) -> Result<[u8; 32], DigestError> {
        let digits: Option<Vec<u8>> =
            text.chars().map(|digit| digit.to_digit(16).and_then(|digit| u8::try_from(digit).ok())).collect();
        let bytes: Vec<u8> =
            digits.ok_or(DigestError)?.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
        // An odd digit at the end makes no byte, so that the length of the text is what counts.
        if text.len() == 64 { bytes.try_into().map_err(|_| DigestError) } else { Err(DigestError) }
    }

    /// True if bodies are compared at all.
    #[must_use]
    pub fn is_given(&self) -> bool {
        self.bytes.is_some() || self.sha256.is_some()
    }
}

/// Body that is being received: its length, and its digest if that is expected.
#[derive(Default)]
pub(super) struct ReceivedBody {
    len: u64,
    digest: Option<Sha256>,
}

impl ReceivedBody {
    pub(super) fn new(expectation: &Expectation) -> Self {
        Self { len: 0, digest: expectation.sha256.map(|_| Sha256::new()) }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.len += bytes.len() as u64;
        if let Some(digest) = &mut self.digest {
            digest.update(bytes);
        }
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// True if the whole body is as expected.
    pub(super) fn matches(self, expectation: &Expectation) -> bool {
        let digest = self.digest.map(|digest| <[u8; 32]>::from(digest.finalize()));
        expectation.bytes.is_none_or(|bytes| bytes == self.len) && digest == expectation.sha256
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // `printf abc | sha256sum`
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn bodies_are_compared_by_length_and_digest() {
        let digest = Expectation::digest(ABC).ok();
        let cases = [
            (None, None, "abd", true),
            (Some(3), None, "abd", true),
            (Some(3), None, "ab", false),
            (None, digest, "abc", true),
            (None, digest, "abd", false),
            (Some(4), digest, "abc", false),
        ];
        for (bytes, sha256, body, is_right) in cases {
            let expectation = Expectation { bytes, sha256 };
            let mut received = ReceivedBody::new(&expectation);
            body.as_bytes().chunks(2).for_each(|chunk| received.push(chunk));
            assert_eq!(received.len(), body.len() as u64);
            assert_eq!(received.matches(&expectation), is_right, "{bytes:?} {sha256:?} {body}");
        }
    }

    #[test]
    fn digests_have_64_digits() {
        assert_eq!(
            Expectation::digest(&ABC.to_uppercase()).map(|digest| digest[..2].to_vec()),
            Ok(vec![0xba, 0x78])
        );
        for wrong in
            ["", &ABC[1..], &format!("{ABC}0"), &format!("{}g", &ABC[1..]), &format!("é{}", &ABC[2..])]
        {
            assert_eq!(Expectation::digest(wrong), Err(DigestError), "{wrong}");
        }
    }
}
