//! Client side of the exchange.

use std::fmt;

use base64ct::{Base64, Encoding};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq;

use super::credential::{
    MAX_ITERATIONS, MIN_ITERATIONS, client_key, decode_digest, parse_number, salted_password, server_key,
};
use super::message::{Attributes, Nonce, escape_name, text};
use super::{Digest, MAX_MESSAGE_BYTES, ScramError, ServerErrorValue, hmac, prepare_user, xor};

/// Header that says: no channel binding, no authorization identity.
const GS2_HEADER: &str = "n,,";

/// Client that waits for a server-first-message.
pub struct ScramClient {
    password: Box<[u8]>,
    nonce: Nonce,
    /// client-first-message-bare.
    bare: String,
}

impl ScramClient {
    /// Begins an exchange, and returns the client-first-message. `nonce` is new for each exchange.
    ///
    /// # Errors
    /// [`ScramError::User`] if SASLprep prohibits the user name, [`ScramError::TooLong`] if it is too long.
    pub fn start(user: &str, password: &[u8], nonce: Nonce) -> Result<(Vec<u8>, Self), ScramError> {
        let user = prepare_user(user).ok_or(ScramError::User)?;
        let bare = format!("n={},r={}", escape_name(&user), nonce.as_str());
        let message = format!("{GS2_HEADER}{bare}").into_bytes();
        if message.len() > MAX_MESSAGE_BYTES {
            return Err(ScramError::TooLong);
        }
        Ok((message, Self { password: password.into(), nonce, bare }))
    }

    /// Takes the server-first-message, and returns the client-final-message. Takes as long as the iteration count of
    /// the server says: half a second or more for [`MAX_ITERATIONS`].
    ///
    /// # Errors
    /// The message is malformed, has the nonce of another exchange, or requires what is not supported.
    pub fn handle_first(self, message: &[u8]) -> Result<(Vec<u8>, ScramClientFinal), ScramError> {
        let first = text(message)?;
        refused(first)?;
        let mut attributes = Attributes::new(first)?;
        let nonce = attributes.value('r')?;
        let salt = attributes.value('s')?;
        let iterations = attributes.value('i')?;
        attributes.end()?;
        let added = nonce.strip_prefix(self.nonce.as_str()).ok_or(ScramError::NonceMismatch)?;
        Nonce::parse(added)?;
        let salt = Base64::decode_vec(salt).map_err(|_| ScramError::Base64('s'))?;
        if salt.is_empty() {
            return Err(ScramError::Base64('s'));
        }
        let iterations = parse_number(iterations)
            .filter(|count| (MIN_ITERATIONS..=MAX_ITERATIONS).contains(count))
            .ok_or(ScramError::Iterations)?;
        let salted = salted_password(&self.password, &salt, iterations);
        let without_proof = format!("c={},r={nonce}", Base64::encode_string(GS2_HEADER.as_bytes()));
        let auth_message = format!("{},{first},{without_proof}", self.bare);
        let client_key = client_key(&salted);
        let stored_key = Sha256::digest(client_key);
        let proof = xor(&client_key, &hmac(&stored_key, auth_message.as_bytes()));
        let message = format!("{without_proof},p={}", Base64::encode_string(&proof)).into_bytes();
        let signature = hmac(&server_key(&salted), auth_message.as_bytes());
        Ok((message, ScramClientFinal { signature }))
    }
}

impl fmt::Debug for ScramClient {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ScramClient").finish_non_exhaustive()
    }
}

/// Client that waits for a server-final-message.
pub struct ScramClientFinal {
    /// Signature that the server has to show.
    signature: Digest,
}

impl ScramClientFinal {
    /// Takes the server-final-message. The server is authenticated if there is no error.
    ///
    /// # Errors
    /// [`ScramError::RefusedByServer`], [`ScramError::ServerSignature`], or another one if the message is malformed.
    pub fn handle_final(self, message: &[u8]) -> Result<(), ScramError> {
        let message = text(message)?;
        refused(message)?;
        let mut attributes = Attributes::new(message)?;
        let signature = decode_digest(attributes.value('v')?).ok_or(ScramError::Base64('v'))?;
        attributes.end()?;
        if signature.ct_eq(&self.signature).into() { Ok(()) } else { Err(ScramError::ServerSignature) }
    }
}

impl fmt::Debug for ScramClientFinal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ScramClientFinal").finish_non_exhaustive()
    }
}

/// Fails with the error value of a server, if the message has one.
fn refused(message: &str) -> Result<(), ScramError> {
    let Some(value) = message.strip_prefix("e=") else { return Ok(()) };
    let value = value.split(',').next().unwrap_or_default();
    Err(ScramError::RefusedByServer(ServerErrorValue::new(value)))
}
