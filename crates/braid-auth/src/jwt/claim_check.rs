//! Check of the claims of a token whose signature is valid (RFC 7519, section 4.1).
//!
//! Every claim that is used is checked for its type: a claim of a wrong type is never taken for absent
//! (CVE-2026-25537).

use braid_proto::topic::Mountpoint;
use serde_json::{Map, Number, Value};

use super::{ConnectNames, ConnectValue, JwtOptions, Refusal};
use crate::claims::Claims;
use crate::rules_json::rules_from_json;

/// Maximum number of groups of a token.
pub const MAX_GROUPS: usize = 256;

/// Last second of the year 9999. Later times are refused: they are milliseconds by mistake.
const MAX_TIME: u64 = 253_402_300_799;

/// Checks the claims of a token at `now`, and returns those that the broker uses.
pub(super) fn check(
    claims: &Map<String, Value>,
    options: &JwtOptions,
    connect: &ConnectNames<'_>,
    now: u64,
) -> Result<Claims, Refusal> {
    let claims = TokenClaims(claims);
    for name in &options.required {
        claims.0.get(&**name).ok_or_else(|| Refusal::Missing(name.clone()))?;
    }
    let expires_at = claims.check_times(options, now)?;
    claims.check_issuer(options)?;
    claims.check_audience(options)?;
    for check in &options.checks {
        let expected = match &check.value {
            ConnectValue::User => connect.user,
            ConnectValue::ClientId => Some(connect.client_id),
            ConnectValue::Text(text) => Some(&**text),
        };
        let value = claims.text(&check.claim)?.ok_or_else(|| Refusal::Missing(check.claim.clone()))?;
        if expected != Some(value) {
            return Err(Refusal::Check(check.claim.clone(), check.value.clone()));
        }
    }
    let user = match &options.user_claim {
        Some(name) => Some(claims.name(name)?.ok_or_else(|| Refusal::Missing(name.clone()))?),
        None => None,
    };
    let client_id = options.client_id_claim.as_deref().map_or(Ok(None), |name| claims.name(name))?;
    if client_id.is_some_and(|client_id| client_id != connect.client_id) {
        return Err(Refusal::ClientId);
    }
    let permissions = options.permissions_claim.as_deref().and_then(|name| claims.0.get(name));
    Ok(Claims {
        user: user.map(Into::into),
        client_id: client_id.map(Into::into),
        groups: options.groups_claim.as_deref().map_or(Ok(Vec::new()), |name| claims.groups(name))?,
        rules: permissions.map(rules_from_json).transpose()?,
        mountpoint: options.mountpoint_claim.as_deref().map_or(Ok(None), |name| claims.mountpoint(name))?,
        expires_at,
    })
}

struct TokenClaims<'a>(&'a Map<String, Value>);

impl<'a> TokenClaims<'a> {
    /// Checks `exp`, `nbf` and `iat`, and returns the second from which on the token is refused.
    fn check_times(&self, options: &JwtOptions, now: u64) -> Result<Option<u64>, Refusal> {
        let latest = now.saturating_add(options.leeway_secs);
        let expires_at =
            self.seconds("exp", f64::floor)?.map(|time| time.saturating_add(options.leeway_secs));
        if expires_at.is_some_and(|time| now >= time) {
            return Err(Refusal::Expired);
        }
        if expires_at.is_none() && options.require_expiry {
            return Err(Refusal::Missing("exp".into()));
        }
        if self.seconds("nbf", f64::ceil)?.is_some_and(|time| time > latest) {
            return Err(Refusal::NotYetValid);
        }
        if self.seconds("iat", f64::ceil)?.is_some_and(|time| time > latest) {
            return Err(Refusal::IssuedInFuture);
        }
        Ok(expires_at)
    }

    fn check_issuer(&self, options: &JwtOptions) -> Result<(), Refusal> {
        let Some(expected) = options.issuer.as_deref() else { return Ok(()) };
        match self.text("iss")? {
            None => Err(Refusal::Missing("iss".into())),
            Some(issuer) if issuer == expected => Ok(()),
            Some(_) => Err(Refusal::Issuer),
        }
    }

    fn check_audience(&self, options: &JwtOptions) -> Result<(), Refusal> {
        let names = match self.0.get("aud") {
            None if options.audience.is_none() => return Ok(()),
            None => return Err(Refusal::Missing("aud".into())),
            Some(value) => texts("aud", value)?,
        };
        let Some(own) = &options.audience else { return Err(Refusal::UnknownAudience) };
        let is_own = own.iter().any(|own| names.contains(&&**own));
        if is_own { Ok(()) } else { Err(Refusal::Audience) }
    }

    fn text(&self, name: &str) -> Result<Option<&'a str>, Refusal> {
        let Some(value) = self.0.get(name) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| Refusal::Invalid(name.into(), "a text"))
    }

    /// Text that can be a user name or a Client Identifier of MQTT.
    fn name(&self, name: &str) -> Result<Option<&'a str>, Refusal> {
        let text = self.text(name)?;
        if text.is_none_or(is_name) { Ok(text) } else { Err(Refusal::Invalid(name.into(), NAME)) }
    }

    fn groups(&self, name: &str) -> Result<Vec<Box<str>>, Refusal> {
        let Some(value) = self.0.get(name) else { return Ok(Vec::new()) };
        let groups = texts(name, value)?;
        if groups.len() > MAX_GROUPS {
            return Err(Refusal::Invalid(name.into(), "a list of at most 256 groups"));
        }
        if !groups.iter().copied().all(is_name) {
            return Err(Refusal::Invalid(
                name.into(),
                "a list of texts with at least one character, and without NUL",
            ));
        }
        Ok(groups.into_iter().map(Into::into).collect())
    }

    /// Mountpoint, which is valid. A token without one leaves that of the listener.
    fn mountpoint(&self, name: &str) -> Result<Option<Box<str>>, Refusal> {
        let text = self.text(name)?;
        text.map(Mountpoint::parse).transpose().map_err(|error| Refusal::Mountpoint(name.into(), error))?;
        Ok(text.map(Into::into))
    }

    /// Seconds since the Unix epoch (`NumericDate`); `round` makes them whole.
    fn seconds(&self, name: &str, round: fn(f64) -> f64) -> Result<Option<u64>, Refusal> {
        let Some(value) = self.0.get(name) else { return Ok(None) };
        let seconds = value.as_number().and_then(|number| whole_seconds(number, round));
        let seconds = seconds.filter(|seconds| *seconds <= MAX_TIME);
        seconds
            .map(Some)
            .ok_or_else(|| Refusal::Invalid(name.into(), "a number of seconds from 1970 to 9999"))
    }
}

const NAME: &str = "a text with at least one character, and without NUL";

fn is_name(text: &str) -> bool {
    !text.is_empty() && !text.contains('\0')
}

/// A text, or a list of texts.
fn texts<'a>(name: &str, value: &'a Value) -> Result<Vec<&'a str>, Refusal> {
    let texts = match value {
        Value::String(text) => Some(vec![text.as_str()]),
        Value::Array(values) => values.iter().map(Value::as_str).collect(),
        _ => None,
    };
    texts.ok_or_else(|| Refusal::Invalid(name.into(), "a text or a list of texts"))
}

#[expect(clippy::cast_possible_truncation, reason = "the number is rounded and not negative")]
fn whole_seconds(number: &Number, round: fn(f64) -> f64) -> Option<u64> {
    let fraction = || number.as_f64().filter(|seconds| *seconds >= 0.0);
    // Numbers above the range saturate.
    number.as_u64().or_else(|| fraction().map(|seconds| round(seconds) as u64))
}
