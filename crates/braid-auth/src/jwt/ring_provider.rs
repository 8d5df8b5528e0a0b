//! Signature checks of jsonwebtoken by ring.
//!
//! The backends of the library are aws-lc, which is not allowed here, and RustCrypto, whose `rsa` crate has an open
//! advisory and which would be a second stack beside the one of TLS.

use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result, new_error};
use jsonwebtoken::signature::{Error, Verifier};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind};
use ring::rsa::PublicKeyComponents;
use ring::signature::{ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};
use ring::{error::Unspecified, hmac};

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| Err(new_error(ErrorKind::UnsupportedAlgorithm)),
    verifier_factory: |algorithm, key| Ok(Box::new(RingVerifier::new(*algorithm, key)?)),
    // The library uses them to write JSON Web Keys.
    key_utils: KeyUtils::new_unimplemented(),
};

/// Makes ring the provider of the process.
pub(super) fn install() {
    // An error says that it is installed already: no other code of the process installs one.
    let _ = PROVIDER.install_default();
}

/// Key with the only algorithm that it may be used for.
enum RingVerifier {
    Hs256(hmac::Key),
    Rs256(PublicKeyComponents<Vec<u8>>),
    /// ES256 and EdDSA.
    Other(Algorithm, UnparsedPublicKey<Vec<u8>>),
}

impl RingVerifier {
    fn new(algorithm: Algorithm, key: &DecodingKey) -> Result<Self> {
        match (algorithm, key.family(), key.kind()) {
            (Algorithm::HS256, AlgorithmFamily::Hmac, DecodingKeyKind::SecretOrDer(secret)) => {
                Ok(Self::Hs256(hmac::Key::new(hmac::HMAC_SHA256, secret)))
            }
            (Algorithm::RS256, AlgorithmFamily::Rsa, DecodingKeyKind::RsaModulusExponent { n, e }) => {
                Ok(Self::Rs256(PublicKeyComponents { n: n.clone(), e: e.clone() }))
            }
            (Algorithm::ES256, AlgorithmFamily::Ec, DecodingKeyKind::SecretOrDer(point)) => {
                Ok(Self::Other(algorithm, UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point.clone())))
            }
            (Algorithm::EdDSA, AlgorithmFamily::Ed, DecodingKeyKind::SecretOrDer(point)) => {
                Ok(Self::Other(algorithm, UnparsedPublicKey::new(&ED25519, point.clone())))
            }
            _ => Err(new_error(ErrorKind::InvalidAlgorithm)),
        }
    }
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> std::result::Result<(), Error> {
        let verified = match self {
            // Compares in constant time.
            Self::Hs256(key) => hmac::verify(key, message, signature),
            Self::Rs256(key) => key.verify(&RSA_PKCS1_2048_8192_SHA256, message, signature),
            Self::Other(_, key) => key.verify(message, signature),
        };
        verified.map_err(|Unspecified| Error::new())
    }
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        match self {
            Self::Hs256(_) => Algorithm::HS256,
            Self::Rs256(_) => Algorithm::RS256,
            Self::Other(algorithm, _) => *algorithm,
        }
    }
}
