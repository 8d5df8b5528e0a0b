//! Reasons why a token is refused.

use braid_proto::topic::MountpointError;
use thiserror::Error;

use super::keys::{KeyAlgorithm, MAX_TRIED_KEYS};
use super::{ConnectValue, MAX_TOKEN_BYTES};
use crate::rules_json::RulesError;

/// Reason why a token is refused: one line of text, without the token.
///
/// Names of claims are those of the options.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// The token is longer than [`MAX_TOKEN_BYTES`].
    #[error("the token is longer than {MAX_TOKEN_BYTES} bytes; put less into it")]
    TooLong,
    /// A part is no Base64url, or the header or the claims are no JSON of the right types.
    #[error("a part of the token is malformed")]
    Malformed,
    /// The algorithm is none of [`KeyAlgorithm`]; `none` is such a one.
    #[error("the algorithm of the token is unsupported; sign it with HS256, RS256, ES256 or EdDSA")]
    Algorithm,
    /// The header has the parameter `crit` (RFC 7515, 4.1.11).
    #[error("the token has the critical header parameters of `crit`, which are unsupported")]
    Critical,
    /// No key is for the algorithm of the token.
    #[error("no key is for the algorithm {0} of the token")]
    NoKey(KeyAlgorithm),
    /// No key has the `kid` of the token. A key set that is fetched may be out of date.
    #[error("no key has the `kid` of the token")]
    UnknownKey,
    /// The `kid` of the token, or the lack of one, leaves more than [`MAX_TRIED_KEYS`] keys.
    #[error("more than {MAX_TRIED_KEYS} keys may have signed the token; give keys and tokens a `kid`")]
    TooManyKeys,
    /// The signature is of another key, or the token was changed.
    #[error("the signature of the token does not match")]
    Signature,
    /// A claim that has to be there is not.
    #[error("the claim `{0}` is missing")]
    Missing(Box<str>),
    /// A claim has a type or value that it cannot have.
    #[error("the claim `{0}` is not {1}")]
    Invalid(Box<str>, &'static str),
    /// The time of `exp` has passed.
    #[error("the token has expired")]
    Expired,
    /// The time of `nbf` is to come.
    #[error("the token is not yet valid")]
    NotYetValid,
    /// The time of `iat` is to come.
    #[error("the token was issued in the future; compare the clocks of issuer and broker")]
    IssuedInFuture,
    /// `iss` is another issuer.
    #[error("the token is of another issuer")]
    Issuer,
    /// `aud` does not name the broker.
    #[error("the token is for another audience")]
    Audience,
    /// `aud` is present, but the broker has no audience to compare it with (RFC 7519, 4.1.3).
    #[error("the token is for an audience, and the broker has none to compare it with; configure it")]
    UnknownAudience,
    /// A claim has not the value that the options demand.
    #[error("the claim `{0}` is not {1}")]
    Check(Box<str>, ConnectValue),
    /// The token names another Client Identifier than CONNECT.
    #[error("the token is for another Client Identifier than that of CONNECT")]
    ClientId,
    /// The claim is no mountpoint.
    #[error("the claim `{0}` is refused: {1}")]
    Mountpoint(Box<str>, MountpointError),
    /// The permissions are malformed.
    #[error("the permissions of the token are refused: {0}")]
    Permissions(#[from] RulesError),
}
