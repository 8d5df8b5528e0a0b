//! Connection IDs that name their server: QUIC-LB (draft-ietf-quic-load-balancers-21). Pure.
//!
//! A balancer reads the server from the Destination Connection ID of each datagram, and so keeps a client at its
//! server without state, whatever address the client moves to. An ID has a first octet, the server ID and a nonce;
//! with a key the latter two are encrypted. [`QuicLb`] makes the IDs of one server, [`QuicLbFormat`] reads those of
//! all.

mod cipher;
mod error;
mod header;
#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;

use aes::Aes128;
use aes::cipher::KeyInit;

pub use error::QuicLbError;
pub use header::QuicHeader;

/// Config ID that the draft reserves for connection IDs that name no server (3.2).
const UNROUTABLE: u8 = 0b111;

/// Bits of the length in the first octet (3.3); above them is the config ID.
const LENGTH_BITS: u32 = 5;

/// Longest server ID, bytes.
const MAX_SERVER_ID: usize = 15;

/// Shortest nonce, bytes (5.2).
const MIN_NONCE: usize = 4;

/// Longest server ID and nonce, bytes: a connection ID of QUIC version 1 has at most 20.
const MAX_BODY: usize = 19;

/// Longest nonce, bytes.
pub(super) const MAX_NONCE: usize = MAX_BODY - 1;

/// Bytes that name a server in connection IDs: 1 to 15, the same number for all servers of a configuration.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerId {
    length: u8,
    /// Zeros behind `length`.
    bytes: [u8; MAX_SERVER_ID],
}

impl ServerId {
    /// Takes these bytes as the ID.
    ///
    /// # Errors
    /// There is none, or there are more than 15.
    pub fn new(id: &[u8]) -> Result<Self, QuicLbError> {
        let length = u8::try_from(id.len()).unwrap_or(u8::MAX);
        let mut bytes = [0; MAX_SERVER_ID];
        match bytes.get_mut(..id.len()) {
            Some(start) if !id.is_empty() => start.copy_from_slice(id),
            _ => return Err(QuicLbError::ServerIdLength(id.len())),
        }
        Ok(Self { length, bytes })
    }

    /// Its bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl FromStr for ServerId {
    type Err = QuicLbError;

    /// Reads pairs of hexadecimal digits.
    fn from_str(text: &str) -> Result<Self, QuicLbError> {
        Self::new(&from_hex(text).ok_or(QuicLbError::ServerIdDigits)?)
    }
}

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerId({self})")
    }
}

/// Key that encrypts server ID and nonce, shared by all servers and balancers of a configuration.
#[derive(Clone)]
pub struct QuicLbKey {
    bytes: [u8; 16],
    cipher: Aes128,
}

impl From<[u8; 16]> for QuicLbKey {
    fn from(bytes: [u8; 16]) -> Self {
        Self { bytes, cipher: Aes128::new(&bytes.into()) }
    }
}

impl FromStr for QuicLbKey {
    type Err = QuicLbError;

    /// Reads 32 hexadecimal digits.
    fn from_str(text: &str) -> Result<Self, QuicLbError> {
        let bytes = from_hex(text).and_then(|bytes| <[u8; 16]>::try_from(bytes).ok());
        bytes.map(Self::from).ok_or(QuicLbError::Key)
    }
}

impl PartialEq for QuicLbKey {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for QuicLbKey {}

impl fmt::Debug for QuicLbKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("QuicLbKey(..)")
    }
}

/// Format of the connection IDs of all servers of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuicLbFormat {
    config_id: u8,
    server_id_length: usize,
    nonce_length: usize,
    key: Option<QuicLbKey>,
}

impl QuicLbFormat {
    /// Format of a configuration. `config_id`: 0 to 6; tells configurations apart while one replaces another.
    /// `server_id_length`: 1 to 15 bytes. `nonce_length`: at least 4 bytes, with the server ID at most 19. Without
    /// `key` the IDs show the server to all observers.
    ///
    /// # Errors
    /// A value is out of its range.
    pub fn new(
        config_id: u8,
        server_id_length: usize,
        nonce_length: usize,
        key: Option<QuicLbKey>,
    ) -> Result<Self, QuicLbError> {
        if config_id >= UNROUTABLE {
            return Err(QuicLbError::ConfigId(config_id));
        }
        if !(1..=MAX_SERVER_ID).contains(&server_id_length) {
            return Err(QuicLbError::ServerIdLength(server_id_length));
        }
        let most = MAX_BODY - server_id_length;
        if !(MIN_NONCE..=most).contains(&nonce_length) {
            return Err(QuicLbError::NonceLength { length: nonce_length, server_id_length, most });
        }
        Ok(Self { config_id, server_id_length, nonce_length, key })
    }

    /// Config ID: 0 to 6.
    #[must_use]
    pub fn config_id(&self) -> u8 {
        self.config_id
    }

    /// Length of each server ID, bytes.
    #[must_use]
    pub fn server_id_length(&self) -> usize {
        self.server_id_length
    }

    /// Length of each connection ID, bytes: 6 to 20.
    #[must_use]
    pub fn id_length(&self) -> usize {
        1 + self.body_length()
    }

    /// Bytes behind the first octet.
    fn body_length(&self) -> usize {
        self.server_id_length + self.nonce_length
    }

    /// Config ID, and number of bytes that follow.
    fn first_octet(&self) -> u8 {
        // The body has at most 19 bytes.
        self.config_id << LENGTH_BITS | u8::try_from(self.body_length()).unwrap_or(0)
    }

    /// Server that a connection ID names. `None` if the ID is not of this format, as those that clients choose for
    /// their first packets mostly are not.
    #[must_use]
    pub fn server_id(&self, connection_id: &[u8]) -> Option<ServerId> {
        let (first, encrypted) = connection_id.split_first()?;
        if *first != self.first_octet() || encrypted.len() != self.body_length() {
            return None;
        }
        let mut body = [0; MAX_BODY];
        let body = body.get_mut(..encrypted.len())?;
        body.copy_from_slice(encrypted);
        if let Some(key) = &self.key {
            cipher::decrypt(&key.cipher, body);
        }
        ServerId::new(&body[..self.server_id_length]).ok()
    }

    /// Server that the Destination Connection ID of a packet names.
    #[must_use]
    pub fn server_of(&self, header: QuicHeader<'_>) -> Option<ServerId> {
        match header {
            QuicHeader::Long { destination } => self.server_id(destination),
            QuicHeader::Short { rest } => self.server_id(rest.get(..self.id_length())?),
        }
    }
}

/// Connection IDs of one server: the option of its listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuicLb {
    format: QuicLbFormat,
    server_id: ServerId,
}

impl QuicLb {
    /// IDs of the server `server_id`, in the format that its length and the other values make: see
    /// [`QuicLbFormat::new`].
    ///
    /// # Errors
    /// A value is out of its range.
    pub fn new(
        config_id: u8,
        server_id: ServerId,
        nonce_length: usize,
        key: Option<QuicLbKey>,
    ) -> Result<Self, QuicLbError> {
        let format = QuicLbFormat::new(config_id, server_id.as_bytes().len(), nonce_length, key)?;
        Ok(Self { format, server_id })
    }

    /// Format of its IDs, which balancers need.
    #[must_use]
    pub fn format(&self) -> &QuicLbFormat {
        &self.format
    }

    /// Server that its IDs name.
    #[must_use]
    pub fn server_id(&self) -> ServerId {
        self.server_id
    }

    /// Length of the nonces, bytes.
    pub(super) fn nonce_length(&self) -> usize {
        self.format.nonce_length
    }

    /// Key of the IDs.
    pub(super) fn key(&self) -> Option<&[u8; 16]> {
        self.format.key.as_ref().map(|key| &key.bytes)
    }

    /// True if the nonces are encrypted. Otherwise no observer may be able to link one to the next.
    pub(super) fn is_encrypted(&self) -> bool {
        self.format.key.is_some()
    }

    /// Connection ID with this nonce, whose first bytes count; none must be used twice. Writes it to the front of `id`
    /// and returns its length.
    pub(super) fn encode(&self, nonce: &[u8; MAX_NONCE], id: &mut [u8; MAX_BODY + 1]) -> usize {
        let (length, format) = (self.format.id_length(), &self.format);
        let (first, body) = id.split_at_mut(1);
        first.fill(format.first_octet());
        let body = &mut body[..format.body_length()];
        let (server_id, rest) = body.split_at_mut(format.server_id_length);
        server_id.copy_from_slice(self.server_id.as_bytes());
        rest.copy_from_slice(&nonce[..format.nonce_length]);
        if let Some(key) = &format.key {
            cipher::encrypt(&key.cipher, body);
        }
        length
    }
}

/// Bytes of pairs of hexadecimal digits.
fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|digit| digit.to_digit(16).and_then(|digit| u8::try_from(digit).ok())).collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
    Some(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}
