//! Server side of the exchange.

use std::fmt;

use base64ct::{Base64, Encoding};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq;

use super::credential::decode_digest;
use super::message::{Attributes, Nonce, parse_gs2, text, unescape_name};
use super::{DIGEST_BYTES, Digest, MAX_SALT_BYTES, ScramCredential, ScramError, hmac, prepare_user, xor};

/// Server that waits for a client-first-message.
pub struct ScramServer {
    nonce: Nonce,
    unknown_user_key: Digest,
}

/// Credential of a user, or the parameters that an unknown user is told.
#[derive(Clone, Debug)]
pub enum ScramLookup {
    /// Credential of a known user.
    Known(ScramCredential),
    /// No credential: the user is unknown, or may not use SCRAM. The parameters must be those of some known user, and
    /// the same at each attempt.
    Unknown {
        /// Iteration count.
        iterations: u32,
        /// Length of the salt, at most [`MAX_SALT_BYTES`].
        salt_bytes: usize,
    },
}

impl ScramServer {
    /// Begins an exchange.
    ///
    /// `nonce` is new for each exchange. Salts of unknown users are derived from `unknown_user_key`: a secret that
    /// should outlast restarts, because a salt that changes shows that there is no such user.
    pub fn new(nonce: Nonce, unknown_user_key: [u8; DIGEST_BYTES]) -> Self {
        Self { nonce, unknown_user_key }
    }

    /// Takes the client-first-message, and returns the server-first-message. `lookup` is asked once, for the prepared
    /// user name.
    ///
    /// # Errors
    /// The message is malformed, or requires what is not supported. Whether the user is known makes no difference.
    pub fn handle_first(
        self,
        message: &[u8],
        lookup: impl FnOnce(&str) -> ScramLookup,
    ) -> Result<(Vec<u8>, ScramServerFinal), ScramError> {
        let gs2 = parse_gs2(text(message)?)?;
        let mut attributes = Attributes::new(gs2.bare)?;
        let name = unescape_name(attributes.value('n')?)?;
        let user: Box<str> = prepare_user(&name).ok_or(ScramError::User)?.into();
        let client_nonce = Nonce::parse(attributes.value('r')?)?;
        attributes.end()?;
        if let Some(authorization) = gs2.authorization {
            let identity = unescape_name(authorization)?;
            if prepare_user(&identity).as_deref() != Some(&*user) {
                return Err(ScramError::AuthorizationIdentity);
            }
        }
        let credential = match lookup(&user) {
            ScramLookup::Known(credential) => credential,
            ScramLookup::Unknown { iterations, salt_bytes } => {
                self.credential_of_unknown(&user, iterations, salt_bytes)
            }
        };
        let nonce = [client_nonce.as_str(), self.nonce.as_str()].concat();
        let salt = Base64::encode_string(&credential.salt);
        let first = format!("r={nonce},s={salt},i={}", credential.iterations);
        let state = ScramServerFinal {
            user,
            credential,
            channel_binding: Base64::encode_string(gs2.header.as_bytes()),
            nonce,
            messages: format!("{},{first}", gs2.bare),
        };
        Ok((first.into_bytes(), state))
    }

    /// Derives a credential that no proof fits: its client key would be a preimage of a derived value.
    fn credential_of_unknown(&self, user: &str, iterations: u32, salt_bytes: usize) -> ScramCredential {
        let derive = |purpose: &str| hmac(&self.unknown_user_key, format!("{purpose}\0{user}").as_bytes());
        let mut salt = [derive("salt 0"), derive("salt 1")].concat();
        salt.truncate(salt_bytes.min(MAX_SALT_BYTES));
        let [stored_key, server_key] = ["stored key", "server key"].map(derive);
        ScramCredential { iterations, salt: salt.into(), stored_key, server_key }
    }
}

impl fmt::Debug for ScramServer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ScramServer").finish_non_exhaustive()
    }
}

/// Server that waits for a client-final-message.
pub struct ScramServerFinal {
    user: Box<str>,
    credential: ScramCredential,
    /// Expected value of `c=`.
    channel_binding: String,
    /// Nonces of both sides.
    nonce: String,
    /// AuthMessage without its last part.
    messages: String,
}

/// End of a successful exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScramSuccess {
    /// Prepared name of the authenticated user.
    pub user: Box<str>,
    /// The server-final-message, which the client needs to authenticate the server.
    pub message: Vec<u8>,
}

impl ScramServerFinal {
    /// Prepared user name that the client claims, not authenticated yet.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Takes the client-final-message, and returns the server-final-message.
    ///
    /// # Errors
    /// [`ScramError::Rejected`] if the user is unknown or the proof is wrong, or another one if the message is
    /// malformed or belongs to another exchange.
    pub fn handle_final(self, message: &[u8]) -> Result<ScramSuccess, ScramError> {
        let (without_proof, proof) = text(message)?.rsplit_once(",p=").ok_or(ScramError::Attribute('p'))?;
        let mut attributes = Attributes::new(without_proof)?;
        let channel_binding = attributes.value('c')?;
        let nonce = attributes.value('r')?;
        attributes.end()?;
        if channel_binding != self.channel_binding {
            return Err(ScramError::ChannelBindingMismatch);
        }
        if nonce != self.nonce {
            return Err(ScramError::NonceMismatch);
        }
        let proof = decode_digest(proof).ok_or(ScramError::Base64('p'))?;
        let auth_message = format!("{},{without_proof}", self.messages);
        let client_signature = hmac(&self.credential.stored_key, auth_message.as_bytes());
        let stored_key: Digest = Sha256::digest(xor(&proof, &client_signature)).into();
        if !bool::from(stored_key.ct_eq(&self.credential.stored_key)) {
            return Err(ScramError::Rejected);
        }
        let signature = hmac(&self.credential.server_key, auth_message.as_bytes());
        let message = format!("v={}", Base64::encode_string(&signature)).into_bytes();
        Ok(ScramSuccess { user: self.user, message })
    }
}

impl fmt::Debug for ScramServerFinal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ScramServerFinal").field("user", &self.user).finish_non_exhaustive()
    }
}
