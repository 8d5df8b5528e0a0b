//! Syntax of the messages (RFC 5802, section 7).

use std::borrow::Cow;

use base64ct::{Base64, Encoding};

use super::{MAX_MESSAGE_BYTES, ScramError};

/// Maximum length of one side's nonce.
pub const MAX_NONCE_BYTES: usize = 256;

/// Random part of one side of an exchange. Using it twice lets an observer replay the exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nonce(Box<str>);

impl Nonce {
    /// Number of random bytes in [`Self::new`].
    pub const RANDOM_BYTES: usize = 18;

    /// Encodes bytes of a cryptographic random number generator.
    pub fn new(random: [u8; Self::RANDOM_BYTES]) -> Self {
        Self(Base64::encode_string(&random).into())
    }

    /// Takes the text of a nonce.
    ///
    /// # Errors
    /// [`ScramError::Nonce`]
    pub fn parse(text: &str) -> Result<Self, ScramError> {
        let is_allowed = |byte: u8| byte.is_ascii_graphic() && byte != b',';
        if text.is_empty() || text.len() > MAX_NONCE_BYTES || !text.bytes().all(is_allowed) {
            return Err(ScramError::Nonce);
        }
        Ok(Self(text.into()))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

pub(super) fn text(message: &[u8]) -> Result<&str, ScramError> {
    if message.len() > MAX_MESSAGE_BYTES {
        return Err(ScramError::TooLong);
    }
    let text = str::from_utf8(message).map_err(|_| ScramError::NotText)?;
    if text.contains('\0') { Err(ScramError::NotText) } else { Ok(text) }
}

/// GS2 header of a client-first-message.
pub(super) struct Gs2<'a> {
    /// Header with its last comma.
    pub(super) header: &'a str,
    /// Escaped authorization identity.
    pub(super) authorization: Option<&'a str>,
    /// client-first-message-bare.
    pub(super) bare: &'a str,
}

pub(super) fn parse_gs2(message: &str) -> Result<Gs2<'_>, ScramError> {
    let (flag, rest) = message.split_once(',').ok_or(ScramError::Gs2Header)?;
    match flag {
        "n" | "y" => {}
        flag if flag.starts_with("p=") => return Err(ScramError::ChannelBinding),
        _ => return Err(ScramError::Gs2Header),
    }
    let (identity, bare) = rest.split_once(',').ok_or(ScramError::Gs2Header)?;
    let authorization = match identity {
        "" => None,
        identity => Some(identity.strip_prefix("a=").ok_or(ScramError::Gs2Header)?),
    };
    let header = message.strip_suffix(bare).ok_or(ScramError::Gs2Header)?;
    Ok(Gs2 { header, authorization, bare })
}

/// Attributes of a message, in order.
pub(super) struct Attributes<'a>(std::str::Split<'a, char>);

impl<'a> Attributes<'a> {
    /// Begins with the first attribute of a message, or of its part behind the GS2 header.
    ///
    /// # Errors
    /// The first one is a mandatory extension.
    pub(super) fn new(text: &'a str) -> Result<Self, ScramError> {
        if text.starts_with("m=") {
            return Err(ScramError::MandatoryExtension);
        }
        Ok(Self(text.split(',')))
    }

    /// Takes the value of the next attribute, which has this name.
    pub(super) fn value(&mut self, name: char) -> Result<&'a str, ScramError> {
        let value = self.0.next().and_then(|part| part.strip_prefix(name)?.strip_prefix('='));
        value.ok_or(ScramError::Attribute(name))
    }

    /// Ignores all that follow, which are extensions.
    pub(super) fn end(self) -> Result<(), ScramError> {
        for extension in self.0 {
            match extension.as_bytes() {
                [b'm', b'=', ..] => return Err(ScramError::MandatoryExtension),
                [name, b'=', _, ..] if name.is_ascii_alphabetic() => {}
                _ => return Err(ScramError::Extension),
            }
        }
        Ok(())
    }
}

/// Escapes a user name: `=2C` for a comma and `=3D` for `=`.
pub(super) fn escape_name(name: &str) -> String {
    name.replace('=', "=3D").replace(',', "=2C")
}

pub(super) fn unescape_name(text: &str) -> Result<Cow<'_, str>, ScramError> {
    let mut parts = text.split('=');
    let mut name = Cow::Borrowed(parts.next().unwrap_or_default());
    for part in parts {
        let (character, rest) = match (part.strip_prefix("2C"), part.strip_prefix("3D")) {
            (Some(rest), _) => (',', rest),
            (_, Some(rest)) => ('=', rest),
            (None, None) => return Err(ScramError::User),
        };
        let name = name.to_mut();
        name.push(character);
        name.push_str(rest);
    }
    Ok(name)
}
