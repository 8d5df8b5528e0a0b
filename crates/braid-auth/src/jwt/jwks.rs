//! JSON Web Key Sets (RFC 7517, RFC 7518 section 6, RFC 8037 section 2).

use std::collections::HashSet;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};

use super::keys::{Key, KeyProblem, MAX_KEYS, Problem};

/// Parses a key set, and counts the keys that are skipped.
pub(super) fn parse(text: &[u8]) -> Result<(Vec<Key>, usize), Problem> {
    if text.trim_ascii_start().starts_with(b"<") {
        return Err(Problem::Html);
    }
    let set: Value =
        serde_json::from_slice(text).map_err(|error| Problem::Json(error.line(), error.column()))?;
    let members = set.get("keys").and_then(Value::as_array).ok_or(Problem::NoKeySet)?;
    if members.len() > MAX_KEYS {
        return Err(Problem::TooManyKeys);
    }
    let mut kids = HashSet::new();
    let mut keys = Vec::new();
    for (index, member) in members.iter().enumerate() {
        let key = member.as_object().ok_or(KeyProblem::NotObject).and_then(|key| parse_key(&Jwk(key)));
        let Some(key) = key.map_err(|problem| Problem::Key(index + 1, problem))? else { continue };
        if let Some(kid) = &key.kid
            && !kids.insert(kid.clone())
        {
            return Err(Problem::DuplicateKid((&**kid).into()));
        }
        keys.push(key);
    }
    if keys.is_empty() {
        return Err(Problem::NoUsableKey(members.len()));
    }
    let skipped = members.len() - keys.len();
    Ok((keys, skipped))
}

/// Parses a key; `None` if it is of another kind or for another use.
fn parse_key(jwk: &Jwk<'_>) -> Result<Option<Key>, KeyProblem> {
    let curve = jwk.text("crv")?;
    let algorithms: &[&str] = match (jwk.text("kty")?.ok_or(KeyProblem::Member("kty"))?, curve) {
        ("oct", _) => &["HS256"],
        ("RSA", _) => &["RS256"],
        ("EC", Some("P-256")) => &["ES256"],
        // RFC 9864 has a second name.
        ("OKP", Some("Ed25519")) => &["EdDSA", "Ed25519"],
        ("EC" | "OKP", None) => return Err(KeyProblem::Member("crv")),
        _ => return Ok(None),
    };
    let is_verifier = jwk.operations()?.is_none_or(|operations| operations.contains(&"verify"));
    let is_algorithm = jwk.text("alg")?.is_none_or(|algorithm| algorithms.contains(&algorithm));
    if !is_verifier || !is_algorithm || jwk.text("use")?.is_some_and(|usage| usage != "sig") {
        return Ok(None);
    }
    if jwk.0.contains_key("d") {
        return Err(KeyProblem::Private);
    }
    let mut key = match algorithms {
        ["HS256"] => Key::secret(&jwk.bytes("k")?)?,
        ["RS256"] => Key::rsa(&jwk.bytes("n")?, &jwk.bytes("e")?)?,
        ["ES256"] => {
            let (x, y) = (jwk.bytes("x")?, jwk.bytes("y")?);
            // Coordinates have their full length (RFC 7518, 6.2.1.2).
            if x.len() != 32 || y.len() != 32 {
                return Err(KeyProblem::Point);
            }
            Key::p256(&[&[4], &*x, &*y].concat())?
        }
        _ => Key::ed25519(&jwk.bytes("x")?)?,
    };
    key.kid = jwk.text("kid")?.map(Into::into);
    Ok(Some(key))
}

/// Members of a JSON Web Key.
struct Jwk<'a>(&'a Map<String, Value>);

impl<'a> Jwk<'a> {
    fn text(&self, name: &'static str) -> Result<Option<&'a str>, KeyProblem> {
        let value = self.0.get(name);
        value.map(|value| value.as_str().ok_or(KeyProblem::Member(name))).transpose()
    }

    fn bytes(&self, name: &'static str) -> Result<Vec<u8>, KeyProblem> {
        let text = self.text(name)?.ok_or(KeyProblem::Member(name))?;
        URL_SAFE_NO_PAD.decode(text).map_err(|_| KeyProblem::Member(name))
    }

    fn operations(&self) -> Result<Option<Vec<&'a str>>, KeyProblem> {
        const NAME: &str = "key_ops";
        let Some(value) = self.0.get(NAME) else { return Ok(None) };
        let operations = value.as_array().ok_or(KeyProblem::Member(NAME))?.iter();
        operations
            .map(|operation| operation.as_str().ok_or(KeyProblem::Member(NAME)))
            .collect::<Result<_, _>>()
            .map(Some)
    }
}
