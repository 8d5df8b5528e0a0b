//! Body of the fuzz target for JSON Web Tokens: the verifier, the claims behind a valid signature, and key files.

use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use braid_auth::acl::Acl;
use braid_auth::jwt::{ConnectNames, JwtOptions, Keys, MAX_LEEWAY_SECS, Verdict, Verifier};
use ring::hmac;

const SECRET: &[u8] = b"a secret of thirty-two bytes: ok";
const NOW: u64 = 1_800_000_000;
const LEEWAY: u64 = 30;
const CONNECT: ConnectNames<'_> = ConnectNames { user: Some("jane"), client_id: "sensor-1" };

/// One key of each algorithm. Those of RSA, EC and Ed25519 are examples of RFC 7515 and RFC 8037.
const KEYS: &str = r#"{"keys": [
    {"kty": "oct", "k": "YSBzZWNyZXQgb2YgdGhpcnR5LXR3byBieXRlczogb2s"},
    {"kty": "RSA", "e": "AQAB", "n": "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ"},
    {"kty": "EC", "crv": "P-256", "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU", "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"},
    {"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}
]}"#;

static VERIFIER: LazyLock<Verifier> = LazyLock::new(|| {
    let options =
        JwtOptions { leeway_secs: LEEWAY, client_id_claim: Some("cid".into()), ..JwtOptions::default() };
    const { assert!(LEEWAY <= MAX_LEEWAY_SECS) };
    let keys = Keys::from_jwks(KEYS.as_bytes(), "keys").expect("the keys are valid");
    Verifier::new(keys, options).expect("the options can be met")
});

/// Takes the first byte as the kind of the rest: a token, claims, the header of a token with claims, a key set, or PEM.
pub fn jwt(data: &[u8]) {
    let Some((kind, data)) = data.split_first() else { return };
    match kind {
        b't' => unknown_token(data),
        b'c' => check(&VERIFIER.verify(&sign(br#"{"alg":"HS256"}"#, data), &CONNECT, NOW)),
        b'h' => {
            let claims = format!(r#"{{"sub":"jane","exp":{}}}"#, NOW + 1);
            check(&VERIFIER.verify(&sign(data, claims.as_bytes()), &CONNECT, NOW));
        }
        b's' => check_keys(Keys::from_jwks(data, "keys")),
        b'p' => check_keys(Keys::from_pem(data, "keys")),
        _ => check_keys(Keys::from_secret(data, "keys")),
    }
}

/// Token that the secret of the verifier signs.
fn sign(header: &[u8], claims: &[u8]) -> Vec<u8> {
    let mut token =
        format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims)).into_bytes();
    let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, SECRET), &token);
    token.extend(format!(".{}", URL_SAFE_NO_PAD.encode(signature)).into_bytes());
    token
}

/// Verifies a token that is accepted only if the secret has signed exactly its bytes.
fn unknown_token(token: &[u8]) {
    let verdict = VERIFIER.verify(token, &CONNECT, NOW);
    check(&verdict);
    if let Verdict::Accepted(_) = verdict {
        let parts: Vec<_> = token.split(|byte| *byte == b'.').collect();
        let decoded = |part: &[u8]| URL_SAFE_NO_PAD.decode(part).expect("an accepted part is Base64url");
        assert_eq!(sign(&decoded(parts[0]), &decoded(parts[1])), token);
    }
}

/// Properties of every verdict.
fn check(verdict: &Verdict) {
    match verdict {
        Verdict::NotAJwt => {}
        Verdict::Refused(refusal) => check_line(&refusal.to_string()),
        Verdict::Accepted(claims) => {
            assert!(claims.user.as_deref().is_some_and(|user| !user.is_empty() && !user.contains('\0')));
            assert!(claims.client_id.as_deref().is_none_or(|client_id| client_id == CONNECT.client_id));
            assert!(claims.expires_at.is_some_and(|time| time + LEEWAY > NOW));
            if let Some(rules) = &claims.rules {
                assert!(Acl::parse(rules.as_bytes(), "rules").is_ok());
                for word in ["user", "client", "group", "listener"] {
                    let is_selector = |line: &str| {
                        line.split([' ', '\t']).filter(|word| !word.is_empty()).nth(2) == Some(word)
                    };
                    assert!(!rules.lines().any(is_selector), "{rules}");
                }
            }
        }
    }
}

fn check_keys(keys: Result<Keys, braid_auth::jwt::KeysError>) {
    match keys {
        Ok(keys) => assert!(keys.len() > 0),
        Err(error) => check_line(&error.to_string()),
    }
}

/// Errors are one short line.
fn check_line(text: &str) {
    assert!(!text.contains(char::is_control) && text.len() < 600, "{text:?}");
}
