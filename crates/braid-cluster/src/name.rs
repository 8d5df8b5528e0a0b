//! Names of clusters and nodes.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use thiserror::Error;

/// Longest name, in bytes.
const NAME_MAX: usize = 48;

/// Name of a cluster or of a node: 1 to 48 letters, digits and hyphens of ASCII. It is part of names of streams and
/// subjects.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Arc<str>);

/// Text that is no [`Name`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} cannot be a name in a cluster: write 1 to {NAME_MAX} letters, digits and hyphens")]
pub struct NameError(Box<str>);

impl Name {
    /// `braidmq`, the name of a cluster that has been given none.
    #[must_use]
    pub fn of_braidmq() -> Self {
        Self("braidmq".into())
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if (1..=NAME_MAX).contains(&text.len()) && text.bytes().all(is_part) {
            Ok(Self(text.into()))
        } else {
            // A text that is far too long is not repeated.
            Err(NameError(text.chars().take(NAME_MAX + 1).collect::<String>().into()))
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_letters_digits_and_hyphens() {
        for text in ["a", "node-1", "EU", &"x".repeat(NAME_MAX)] {
            assert_eq!(text.parse::<Name>().unwrap().as_str(), text);
        }
        assert_eq!("braidmq".parse(), Ok(Name::of_braidmq()));
        for text in ["", "a.b", "a b", "a*", "ü", "a_b", &"x".repeat(NAME_MAX + 1)] {
            let error = text.parse::<Name>().unwrap_err().to_string();
            assert!(error.contains("letters, digits and hyphens"), "{error}");
        }
    }
}
