//! Tests of JSON Web Tokens. Each token is signed here, by ring.

mod claims;
mod key_files;
mod signatures;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use braid_auth::claims::Claims;
use braid_auth::jwt::{ConnectNames, JwtOptions, Keys, Refusal, Verdict, Verifier};
use ring::rand::SystemRandom;
use ring::rsa::{KeyPair as RsaKeyPair, KeyPairComponents, PublicKeyComponents};
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, RSA_PKCS1_SHA256};
use ring::{hmac, signature};
use serde_json::{Value, json};

/// Second at which most tests verify.
const NOW: u64 = 1_800_000_000;

/// Leeway of the default options.
const LEEWAY: u64 = 30;

const CONNECT: ConnectNames<'_> = ConnectNames { user: Some("jane"), client_id: "sensor-1" };

/// Key of RFC 7515, A.2, with its private members.
const RSA_JWK: &str = include_str!("keys/rfc7515-a2.json");

const SECRET: &[u8] = b"a secret of thirty-two bytes: ok";

fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

fn decode(value: &Value) -> Vec<u8> {
    URL_SAFE_NO_PAD.decode(value.as_str().expect("it is valid")).expect("it is valid")
}

/// Private key of an issuer.
enum Issuer {
    Hs256(Vec<u8>),
    Rs256(Box<RsaKeyPair>),
    Es256(EcdsaKeyPair, rcgen::KeyPair),
    EdDsa(Ed25519KeyPair, rcgen::KeyPair),
}

impl Issuer {
    fn hs256() -> Self {
        Self::Hs256(SECRET.to_vec())
    }

    fn rs256() -> Self {
        let jwk: Value = serde_json::from_str(RSA_JWK).expect("it is valid");
        let member = |name| decode(&jwk[name]);
        let components = KeyPairComponents {
            public_key: PublicKeyComponents { n: member("n"), e: member("e") },
            d: member("d"),
            p: member("p"),
            q: member("q"),
            dP: member("dp"),
            dQ: member("dq"),
            qInv: member("qi"),
        };
        Self::Rs256(Box::new(RsaKeyPair::from_components(&components).expect("it is valid")))
    }

    fn es256() -> Self {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).expect("it is valid");
        let pkcs8 = key.serialize_der();
        let own = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &pkcs8, &SystemRandom::new())
            .expect("it is valid");
        Self::Es256(own, key)
    }

    fn eddsa() -> Self {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("it is valid");
        Self::EdDsa(
            Ed25519KeyPair::from_pkcs8_maybe_unchecked(&key.serialize_der()).expect("it is valid"),
            key,
        )
    }

    fn all() -> [Self; 4] {
        [Self::hs256(), Self::rs256(), Self::es256(), Self::eddsa()]
    }

    fn algorithm(&self) -> &'static str {
        match self {
            Self::Hs256(_) => "HS256",
            Self::Rs256(_) => "RS256",
            Self::Es256(..) => "ES256",
            Self::EdDsa(..) => "EdDSA",
        }
    }

    fn sign(&self, message: &[u8]) -> Vec<u8> {
        match self {
            Self::Hs256(secret) => {
                hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), message).as_ref().to_vec()
            }
            Self::Rs256(key) => {
                let mut signature = vec![0; key.public().modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message, &mut signature)
                    .expect("it is valid");
                signature
            }
            Self::Es256(key, _) => {
                key.sign(&SystemRandom::new(), message).expect("it is valid").as_ref().to_vec()
            }
            Self::EdDsa(key, _) => key.sign(message).as_ref().to_vec(),
        }
    }

    /// Token with any header and any payload.
    fn token(&self, header: &Value, payload: impl AsRef<[u8]>) -> String {
        let message = format!("{}.{}", encode(header.to_string()), encode(payload));
        format!("{message}.{}", encode(self.sign(message.as_bytes())))
    }

    /// Token with claims.
    fn issue(&self, claims: &Value) -> String {
        self.token(&json!({"alg": self.algorithm(), "typ": "JWT"}), claims.to_string())
    }

    /// JSON Web Key of the public key, or of the secret.
    fn jwk(&self) -> Value {
        match self {
            Self::Hs256(secret) => json!({"kty": "oct", "k": encode(secret)}),
            Self::Rs256(_) => {
                let jwk: Value = serde_json::from_str(RSA_JWK).expect("it is valid");
                json!({"kty": "RSA", "n": jwk["n"], "e": jwk["e"]})
            }
            Self::Es256(key, _) => {
                let (x, y) = signature::KeyPair::public_key(key).as_ref()[1..].split_at(32);
                json!({"kty": "EC", "crv": "P-256", "x": encode(x), "y": encode(y)})
            }
            Self::EdDsa(key, _) => {
                let x = signature::KeyPair::public_key(key).as_ref();
                json!({"kty": "OKP", "crv": "Ed25519", "x": encode(x)})
            }
        }
    }

    fn keys(&self) -> Keys {
        key_set(&[self.jwk()])
    }

    fn verifier(&self) -> Verifier {
        Verifier::new(self.keys(), JwtOptions::default()).expect("it is valid")
    }
}

fn key_set(keys: &[Value]) -> Keys {
    Keys::from_jwks(json!({"keys": keys}).to_string().as_bytes(), "jwks").expect("it is valid")
}

/// Smallest claims that the default options accept.
fn claims() -> Value {
    json!({"sub": "jane", "exp": NOW + 60})
}

fn with(mut claims: Value, name: &str, value: impl Into<Value>) -> Value {
    claims[name] = value.into();
    claims
}

fn accepted() -> Verdict {
    Verdict::Accepted(Claims {
        user: Some("jane".into()),
        expires_at: Some(NOW + 60 + LEEWAY),
        ..Claims::default()
    })
}

fn invalid(name: &str, text: &'static str) -> Verdict {
    Verdict::Refused(Refusal::Invalid(name.into(), text))
}

fn missing(name: &str) -> Verdict {
    Verdict::Refused(Refusal::Missing(name.into()))
}
