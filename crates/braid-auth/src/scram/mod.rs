//! SCRAM-SHA-256 (RFC 5802, RFC 7677): both sides of the exchange, and the credentials of the server.
//!
//! ```text
//! client                                               server
//! ScramClient::start     -- client-first-message -->   ScramServer::handle_first
//! ScramClient::handle_first  <-- server-first-message --
//!                        -- client-final-message -->   ScramServerFinal::handle_final
//! ScramClientFinal::handle_final  <-- server-final-message --
//! ```
//!
//! Each state is consumed by its transition, so that a nonce serves one exchange. Messages are without framing: in MQTT
//! each one is the Authentication Data of a CONNECT, AUTH or CONNACK packet, under the Authentication Method
//! [`MECHANISM`].
//!
//! - Channel binding is not offered: `n` and `y` are accepted, `p` is refused.
//! - The authorization identity is absent or equal to the user name.
//! - Names and passwords are prepared with SASLprep (RFC 4013). A name that SASLprep prohibits is refused. A password
//!   that it prohibits, or that is not UTF-8, is used as it is, as in PostgreSQL.
//! - Unknown extensions are ignored, and mandatory ones (`m=`) are refused.
//! - An unknown user gets a salt and an iteration count as a known one does, and fails at the end with the same error
//!   as a wrong password.

mod client;
mod credential;
mod message;
mod server;

use std::borrow::Cow;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use thiserror::Error;

pub use client::{ScramClient, ScramClientFinal};
pub(crate) use credential::parse_number;
pub use credential::{
    CredentialError, DEFAULT_ITERATIONS, MAX_ITERATIONS, MAX_SALT_BYTES, MIN_ITERATIONS, MIN_SALT_BYTES,
    ScramCredential,
};
pub use message::{MAX_NONCE_BYTES, Nonce};
pub use server::{ScramLookup, ScramServer, ScramServerFinal, ScramSuccess};

/// Name of the mechanism in the registry of IANA.
pub const MECHANISM: &str = "SCRAM-SHA-256";

/// Maximum length of a message.
pub const MAX_MESSAGE_BYTES: usize = 4 << 10;

/// Reason why an exchange failed: one line of text, without secrets.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ScramError {
    /// A message exceeds [`MAX_MESSAGE_BYTES`].
    #[error("the SCRAM message is longer than {MAX_MESSAGE_BYTES} bytes")]
    TooLong,
    /// A message is not UTF-8, or contains NUL.
    #[error("the SCRAM message is not UTF-8 text")]
    NotText,
    /// The GS2 header is not `n` or `y`, an optional `a=`, and two commas.
    #[error("the SCRAM message does not begin with `n,,` or `y,,`")]
    Gs2Header,
    /// The client requires channel binding.
    #[error("the client requires channel binding, which is not offered; use SCRAM-SHA-256 without PLUS")]
    ChannelBinding,
    /// The final message does not repeat the GS2 header of the first one.
    #[error("the channel binding of the final SCRAM message differs from that of the first one")]
    ChannelBindingMismatch,
    /// The client wants to act as another user.
    #[error("the authorization identity differs from the user name")]
    AuthorizationIdentity,
    /// An attribute is missing or in the wrong place.
    #[error("the SCRAM message has no attribute `{0}=` where it belongs")]
    Attribute(char),
    /// An extension is not a letter, `=` and a value.
    #[error("a malformed extension of the SCRAM message")]
    Extension,
    /// The reserved attribute `m=`.
    #[error("the SCRAM message requires an extension that is not supported (`m=`)")]
    MandatoryExtension,
    /// The user name is empty, is badly escaped, or contains characters that SASLprep prohibits.
    #[error("the user name of the SCRAM message is empty, badly escaped, or prohibited by SASLprep")]
    User,
    /// A nonce is empty, longer than [`MAX_NONCE_BYTES`], or contains other characters than printable ASCII.
    #[error("the SCRAM nonce is empty, longer than {MAX_NONCE_BYTES} bytes, or not printable ASCII")]
    Nonce,
    /// A nonce does not continue or repeat the nonce of the exchange.
    #[error("the SCRAM nonce is not the one of this exchange")]
    NonceMismatch,
    /// The value of an attribute is not Base64, or has the wrong length.
    #[error("the value of `{0}=` in the SCRAM message is not Base64 of the right length")]
    Base64(char),
    /// The iteration count is no number between [`MIN_ITERATIONS`] and [`MAX_ITERATIONS`].
    #[error("the server asks for an iteration count outside of {MIN_ITERATIONS} to {MAX_ITERATIONS}")]
    Iterations,
    /// The proof is wrong, or the user is unknown.
    #[error("wrong user name or password")]
    Rejected,
    /// The server refused with a value of RFC 5802, for instance `invalid-proof`.
    #[error("the server refused the SCRAM exchange: {0}")]
    RefusedByServer(ServerErrorValue),
    /// The server did not prove that it knows the credential.
    #[error("the server did not prove that it knows the password: it may be an impostor")]
    ServerSignature,
}

/// Error value of a server: printable ASCII of at most 64 characters.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct ServerErrorValue(String);

impl ServerErrorValue {
    fn new(text: &str) -> Self {
        const MAX_CHARACTERS: usize = 64;
        let is_shown = |character: &char| character.is_ascii_graphic();
        Self(text.chars().filter(is_shown).take(MAX_CHARACTERS).collect())
    }
}

/// Prepares a user name; `None` if SASLprep prohibits it or nothing remains.
///
/// A server finds a user by this name only.
pub fn prepare_user(user: &str) -> Option<Cow<'_, str>> {
    stringprep::saslprep(user).ok().filter(|user| !user.is_empty())
}

/// Prepares a password, or returns it unchanged if SASLprep prohibits it or it is not UTF-8.
fn prepare_password(password: &[u8]) -> Cow<'_, [u8]> {
    let prepared = str::from_utf8(password).ok().and_then(|text| stringprep::saslprep(text).ok());
    match prepared {
        Some(Cow::Owned(text)) => Cow::Owned(text.into_bytes()),
        Some(Cow::Borrowed(_)) | None => Cow::Borrowed(password),
    }
}

/// Length of a SHA-256 digest, and of keys, signatures and proofs.
const DIGEST_BYTES: usize = 32;

type Digest = [u8; DIGEST_BYTES];

fn hmac(key: &[u8], message: &[u8]) -> Digest {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(message);
    mac.finalize().into_bytes().into()
}

fn xor(left: &Digest, right: &Digest) -> Digest {
    std::array::from_fn(|position| left[position] ^ right[position])
}
