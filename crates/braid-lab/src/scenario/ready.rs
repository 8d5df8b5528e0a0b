//! When a program counts as started.

use std::str::FromStr;

use serde::Deserialize;

/// What a program has to do before the next one starts.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Ready {
    /// Print a line with this text: `line:listening`.
    Line(String),
    /// Accept TCP connections at this port: `port:1883`.
    Port(u16),
}

impl FromStr for Ready {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("ready = {text:?}: write line:TEXT or port:NUMBER");
        match text.split_once(':').ok_or_else(wrong)? {
            ("line", text) if !text.is_empty() => Ok(Self::Line(text.into())),
            ("port", number) => number.parse().map(Self::Port).map_err(|_| wrong()),
            _ => Err(wrong()),
        }
    }
}

impl TryFrom<String> for Ready {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}
