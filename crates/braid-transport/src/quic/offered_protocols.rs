//! Application protocols that a client offers (ALPN, RFC 7301), for the message when none of them is ours.
//!
//! They are looked for in a ClientHello that was refused only: to decrypt and read each one twice is a fiftieth of the
//! processor time of a handshake.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Type of the extension with the protocols (RFC 7301, 3.1).
const EXTENSION: u16 = 16;

/// Bytes of a ClientHello that are kept: those of a client with a large key share come in several pieces.
const MAX_HELLO: usize = 4 << 10;

/// Protocols of one client.
#[derive(Default)]
pub(super) struct OfferedProtocols(Mutex<Hello>);

#[derive(Default)]
struct Hello {
    /// Pieces before the last one.
    pieces: Vec<u8>,
    /// Names of the protocols, once the hello was refused.
    names: String,
}

impl OfferedProtocols {
    /// Notes a piece of the ClientHello.
    pub(super) fn handle_hello(&self, piece: &[u8], is_refused: bool) {
        let mut hello = self.lock();
        if !is_refused && hello.pieces.is_empty() && is_complete(piece) {
            return;
        }
        if hello.pieces.len() + piece.len() <= MAX_HELLO {
            hello.pieces.extend_from_slice(piece);
        }
        if is_refused {
            hello.names = protocols(&hello.pieces).unwrap_or_default().join(", ");
        }
    }

    /// The hello was accepted.
    pub(super) fn forget(&self) {
        self.lock().pieces = Vec::new();
    }

    /// The names, with commas between them, or `none`.
    pub(super) fn names(&self) -> String {
        let names = self.lock().names.clone();
        if names.is_empty() { "none".to_owned() } else { names }
    }

    fn lock(&self) -> MutexGuard<'_, Hello> {
        // Poisoning is harmless: names are for a message only.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Splits off a vector behind its length of `bytes` bytes. (RFC 8446, 3.4)
fn vector<'a>(rest: &mut &'a [u8], bytes: usize) -> Option<&'a [u8]> {
    let (length, after) = rest.split_at_checked(bytes)?;
    let length = length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
    let (vector, after) = after.split_at_checked(length)?;
    *rest = after;
    Some(vector)
}

/// Tests whether a handshake message is whole.
fn is_complete(message: &[u8]) -> bool {
    message.split_at_checked(1).is_some_and(|(_, mut rest)| vector(&mut rest, 3).is_some())
}

/// Names of the protocols in a ClientHello (RFC 8446, 4.1.2).
fn protocols(message: &[u8]) -> Option<Vec<String>> {
    let mut hello = vector(&mut message.get(1..)?, 3)?;
    // Version and random number; session, cipher suites and compression.
    hello = hello.get(34..)?;
    for bytes in [1, 2, 1] {
        vector(&mut hello, bytes)?;
    }
    let mut extensions = vector(&mut hello, 2)?;
    loop {
        let (kind, after) = extensions.split_first_chunk()?;
        extensions = after;
        let mut content = vector(&mut extensions, 2)?;
        if u16::from_be_bytes(*kind) == EXTENSION {
            let mut list = vector(&mut content, 2)?;
            let names = std::iter::from_fn(|| vector(&mut list, 1));
            return Some(names.map(|name| String::from_utf8_lossy(name).into_owned()).collect());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ClientHello with one other extension and these protocols.
    fn hello(names: &[&str]) -> Vec<u8> {
        let prefixed = |bytes: usize, content: &[u8]| {
            let length = content.len().to_be_bytes();
            [&length[length.len() - bytes..], content].concat()
        };
        let list: Vec<u8> = names.iter().flat_map(|name| prefixed(1, name.as_bytes())).collect();
        let alpn = [&[0, 16][..], &prefixed(2, &prefixed(2, &list))].concat();
        let extensions = [&[0, 43][..], &prefixed(2, &[2, 3, 4]), &alpn].concat();
        let body = [
            &[0; 34][..],
            &prefixed(1, &[1; 32]),
            &prefixed(2, &[0x13, 1]),
            &prefixed(1, &[0]),
            &prefixed(2, &extensions),
        ];
        [&[1][..], &prefixed(3, &body.concat())].concat()
    }

    #[test]
    fn protocols_of_a_refused_hello_are_named_in_pieces_or_whole() {
        let message = hello(&["h3", "hq-interop"]);
        for cut in [0, 1, 60, message.len() - 1] {
            let offered = OfferedProtocols::default();
            if cut > 0 {
                offered.handle_hello(&message[..cut], false);
            }
            offered.handle_hello(&message[cut..], true);
            assert_eq!(offered.names(), "h3, hq-interop");
        }
    }

    #[test]
    fn a_hello_without_protocols_or_cut_off_names_none() {
        let message = hello(&[]);
        for length in 0..=message.len() {
            let offered = OfferedProtocols::default();
            offered.handle_hello(&message[..length], true);
            assert_eq!(offered.names(), "none");
        }
    }
}
