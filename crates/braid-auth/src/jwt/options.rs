//! Options of the check of claims.

use std::fmt;

use thiserror::Error;

/// Maximum of [`JwtOptions::leeway_secs`].
pub const MAX_LEEWAY_SECS: u64 = 3_600;

/// Demands on the claims of a token, and the names of the claims that are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwtOptions {
    /// Value of `iss`; `None` accepts every issuer whose key is known.
    pub issuer: Option<Box<str>>,
    /// Names of the broker, one of which `aud` has to contain. `None` accepts only tokens without `aud`.
    pub audience: Option<Vec<Box<str>>>,
    /// Tolerance of the comparisons with `exp`, `nbf` and `iat`, in seconds, at most [`MAX_LEEWAY_SECS`].
    pub leeway_secs: u64,
    /// False accepts tokens without `exp`.
    pub require_expiry: bool,
    /// Names of claims that have to be there, beside those that other options demand.
    pub required: Vec<Box<str>>,
    /// Claims that have to be a text of a certain value.
    pub checks: Vec<ClaimCheck>,
    /// Claim of the user name, which then has to be there; `None` leaves the user name of CONNECT, which the client
    /// chooses.
    pub user_claim: Option<Box<str>>,
    /// Claim of the Client Identifier that CONNECT then has to have; tokens without it leave the choice to the client.
    pub client_id_claim: Option<Box<str>>,
    /// Claim of the groups, a list of texts or one text; `None` for none.
    pub groups_claim: Option<Box<str>>,
    /// Claim of the permissions, as [`rules_json`](crate::rules_json) defines them; `None` for none.
    pub permissions_claim: Option<Box<str>>,
    /// Claim of the mountpoint of the client, instead of that of its listener; `None` for none.
    pub mountpoint_claim: Option<Box<str>>,
}

impl Default for JwtOptions {
    /// Requires `exp` with a leeway of 30 s and `sub`, the user name; takes `groups` and `acl` if they are there.
    fn default() -> Self {
        Self {
            issuer: None,
            audience: None,
            leeway_secs: 30,
            require_expiry: true,
            required: Vec::new(),
            checks: Vec::new(),
            user_claim: Some("sub".into()),
            // `client_id` would be a natural name, but is the application in tokens of OAuth 2 (RFC 9068).
            client_id_claim: None,
            groups_claim: Some("groups".into()),
            permissions_claim: Some("acl".into()),
            mountpoint_claim: None,
        }
    }
}

/// Demand that a claim has a certain value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimCheck {
    /// Name of the claim.
    pub claim: Box<str>,
    /// Value that the claim has to have.
    pub value: ConnectValue,
}

/// Value that a claim is compared with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectValue {
    /// The user name of CONNECT.
    User,
    /// The Client Identifier of CONNECT.
    ClientId,
    /// A certain text.
    Text(Box<str>),
}

impl ConnectValue {
    /// Parses a value as it stands in a configuration: `%u` or `${username}`, `%c` or `${clientid}`, or a text.
    ///
    /// # Errors
    /// The text contains a placeholder beside other characters, or an unknown one.
    pub fn parse(text: &str) -> Result<Self, OptionsError> {
        match text {
            "%u" | "${username}" => Ok(Self::User),
            "%c" | "${clientid}" => Ok(Self::ClientId),
            text if ["%u", "%c", "${"].iter().any(|placeholder| text.contains(placeholder)) => {
                Err(OptionsError::Placeholder)
            }
            text => Ok(Self::Text(text.into())),
        }
    }
}

impl fmt::Display for ConnectValue {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::User => "the user name of CONNECT",
            Self::ClientId => "the Client Identifier of CONNECT",
            Self::Text(_) => "the configured value",
        })
    }
}

/// Reason why options are refused: one line of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum OptionsError {
    /// The leeway is longer than [`MAX_LEEWAY_SECS`].
    #[error("the leeway is longer than {MAX_LEEWAY_SECS} s; expired tokens would be accepted for long")]
    Leeway,
    /// The list of audiences is empty, so that no token would be accepted.
    #[error("the list of audiences is empty; name the broker as the issuer does, or leave the list out")]
    Audience,
    /// The name of a claim, an audience, the issuer or a value is empty.
    #[error("an empty text as issuer, audience, claim or value; write it, or leave the option out")]
    Empty,
    /// A value contains a placeholder beside other characters, or an unknown one.
    #[error("a placeholder is a part of a value, or unknown; write %u or %c alone")]
    Placeholder,
}

impl JwtOptions {
    /// Checks that the options can be met.
    pub(super) fn check(&self) -> Result<(), OptionsError> {
        if self.leeway_secs > MAX_LEEWAY_SECS {
            return Err(OptionsError::Leeway);
        }
        if self.audience.as_ref().is_some_and(Vec::is_empty) {
            return Err(OptionsError::Audience);
        }
        let values = self.checks.iter().map(|check| match &check.value {
            ConnectValue::Text(text) => text,
            ConnectValue::User | ConnectValue::ClientId => &check.claim,
        });
        let names = [
            &self.issuer,
            &self.user_claim,
            &self.client_id_claim,
            &self.groups_claim,
            &self.permissions_claim,
            &self.mountpoint_claim,
        ];
        let mut texts = names
            .into_iter()
            .flatten()
            .chain(&self.required)
            .chain(self.audience.iter().flatten())
            .chain(self.checks.iter().map(|check| &check.claim))
            .chain(values);
        if texts.any(|text| text.is_empty()) { Err(OptionsError::Empty) } else { Ok(()) }
    }
}
