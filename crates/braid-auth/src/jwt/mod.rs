//! JSON Web Tokens (RFC 7519) as credentials of clients.
//!
//! A [`Verifier`] decides on a token in these steps, and the first that fails decides:
//!
//! 1. Three parts, and a header that is a JSON object with an algorithm: everything else is [`Verdict::NotAJwt`], and
//!    another authenticator may know it.
//! 2. Length, supported algorithm, no critical header parameters.
//! 3. Signature, by the keys of that algorithm ([`Keys`]).
//! 4. Claims: required ones, times, issuer, audience, equality with values of CONNECT ([`JwtOptions`]).
//! 5. Conversion of the claims that the broker uses to [`Claims`]. One that is malformed refuses the token.
//!
//! Encrypted tokens and nested ones are not supported.

mod claim_check;
mod jwks;
mod keys;
mod options;
mod pem;
mod refusal;
mod ring_provider;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};

pub use claim_check::MAX_GROUPS;
pub use keys::{
    KeyAlgorithm, KeyFingerprint, Keys, KeysError, MAX_KEY_FILE_BYTES, MAX_KEYS, MAX_TRIED_KEYS,
    MIN_SECRET_BYTES,
};
pub use options::{ClaimCheck, ConnectValue, JwtOptions, MAX_LEEWAY_SECS, OptionsError};
pub use refusal::Refusal;

use crate::claims::Claims;

/// Maximum length of a token.
pub const MAX_TOKEN_BYTES: usize = 16 << 10;

/// Names that a client gave in CONNECT.
#[derive(Clone, Copy, Debug)]
pub struct ConnectNames<'a> {
    /// User name; `None` if CONNECT has none.
    pub user: Option<&'a str>,
    /// Client Identifier; empty if the server assigns it.
    pub client_id: &'a str,
}

/// Result of a verification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The credential has not the form of a token.
    NotAJwt,
    /// The token is not accepted.
    Refused(Refusal),
    /// The token is valid. [`Claims::expires_at`] is the time of `exp` with the leeway: from then on the token is
    /// refused.
    Accepted(Claims),
}

/// Tests whether a credential has the form of a token. Without it, the verdict is [`Verdict::NotAJwt`].
pub fn has_form(credential: &[u8]) -> bool {
    Header::parse(credential).is_some()
}

/// Verifier of tokens.
#[derive(Clone, Debug)]
pub struct Verifier {
    keys: Keys,
    options: JwtOptions,
}

impl Verifier {
    /// Verifier with keys and options.
    ///
    /// # Errors
    /// An [`OptionsError`] if the options cannot be met.
    pub fn new(keys: Keys, options: JwtOptions) -> Result<Self, OptionsError> {
        options.check()?;
        Ok(Self { keys, options })
    }

    /// Verifies a token at `now`, in seconds since the Unix epoch.
    pub fn verify(&self, token: &[u8], connect: &ConnectNames<'_>, now: u64) -> Verdict {
        self.verify_keyed(token, connect, now).0
    }

    /// Verifies a token like [`Verifier::verify`]; also returns the key of its signature, if that is valid.
    pub fn verify_keyed(
        &self,
        token: &[u8],
        connect: &ConnectNames<'_>,
        now: u64,
    ) -> (Verdict, Option<KeyFingerprint>) {
        let Some(header) = Header::parse(token) else { return (Verdict::NotAJwt, None) };
        let (claims, key) = match self.signed_claims(token, &header) {
            Ok((claims, key)) => (claims, key),
            Err(refusal) => return (Verdict::Refused(refusal), None),
        };
        match claim_check::check(&claims, &self.options, connect, now) {
            Ok(claims) => (Verdict::Accepted(claims), Some(key)),
            Err(refusal) => (Verdict::Refused(refusal), Some(key)),
        }
    }

    /// Tests whether a token may have been refused because its key is not here yet: no key is for its algorithm or has
    /// its `kid`, or keys were tried that are not named so, because the token or the keys have no `kid`.
    pub fn may_lack_key(&self, token: &[u8], refusal: &Refusal) -> bool {
        match refusal {
            Refusal::NoKey(_) | Refusal::UnknownKey => true,
            Refusal::Signature => Header::parse(token).is_some_and(|header| {
                let kid = header.kid().ok().flatten();
                kid.is_none_or(|kid| !self.keys.has_kid(kid))
            }),
            _ => false,
        }
    }

    /// Tests whether a key is among those that verify tokens.
    pub fn has_key(&self, key: KeyFingerprint) -> bool {
        self.keys.contains(key)
    }

    /// Claims of a token with a valid signature, and the key of that.
    fn signed_claims(
        &self,
        token: &[u8],
        header: &Header,
    ) -> Result<(Map<String, Value>, KeyFingerprint), Refusal> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(Refusal::TooLong);
        }
        let algorithm = header.algorithm()?;
        let keys = self.keys.candidates(algorithm, header.kid()?)?;
        let mut claims = keys.into_iter().map(|key| Ok((key.verify(token)?, key.fingerprint)));
        // The next key may be the right one only if the signature is wrong.
        let is_right = |claims: &Result<_, _>| !matches!(claims, Err(Refusal::Signature));
        claims.find(is_right).unwrap_or(Err(Refusal::Signature))
    }
}

/// Header of a token in compact serialization (RFC 7515, 3.1).
struct Header(Map<String, Value>);

impl Header {
    /// Parses the header of a token; `None` if the credential has not the form of one.
    fn parse(token: &[u8]) -> Option<Self> {
        let mut parts = token.split(|byte| *byte == b'.');
        let header = parts.next()?;
        // Two parts follow. Longer headers than a whole token are not worth a decoder.
        if parts.count() != 2 || header.len() > MAX_TOKEN_BYTES {
            return None;
        }
        let header: Map<_, _> = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(header).ok()?).ok()?;
        header.get("alg").is_some_and(Value::is_string).then_some(Self(header))
    }

    fn algorithm(&self) -> Result<KeyAlgorithm, Refusal> {
        if self.0.contains_key("crit") {
            return Err(Refusal::Critical);
        }
        self.0.get("alg").and_then(Value::as_str).and_then(KeyAlgorithm::from_name).ok_or(Refusal::Algorithm)
    }

    fn kid(&self) -> Result<Option<&str>, Refusal> {
        self.0.get("kid").map(|kid| kid.as_str().ok_or(Refusal::Malformed)).transpose()
    }
}
