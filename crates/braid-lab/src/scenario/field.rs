//! Fields that scenarios write as text: time spans, readiness, packet rules, placeholders.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;

use braid_emulator::{duration_text, parse_duration};

/// Implements `TryFrom<String>`, by which serde reads a field, as `FromStr`.
macro_rules! from_text {
    ($($field:ty),*) => {
        $(impl TryFrom<String> for $field {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                text.parse()
            }
        })*
    };
}
pub(super) use from_text;

from_text!(Span, Ready, Rule);

/// Time span, written `150s`, `1.5s` or `200ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct Span(pub Duration);

impl Span {
    pub(crate) fn five_seconds() -> Self {
        Self(Duration::from_secs(5))
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse_duration(text).map(Self).map_err(|fault| format!("{text:?}: {fault}"))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&duration_text(self.0))
    }
}

/// Condition that a program must meet before the next one starts.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Ready {
    /// Prints a line with this text: `line:listening`.
    Line(String),
    /// Accepts TCP connections at this port: `port:1883`.
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

/// Limit of the kernel's packet filter at the right end of a link (iptables `-m limit`): `29/sec burst 5`; the rest is
/// dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Rule {
    /// Packets per second.
    pub per_second: u32,
    /// Burst in packets.
    pub burst: u32,
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once("/sec burst ").and_then(|(rate, burst)| {
            let [rate, burst] =
                [rate, burst].map(|number| number.parse::<u32>().ok().filter(|&number| number > 0));
            Some(Self { per_second: rate?, burst: burst? })
        });
        parsed.ok_or_else(|| format!("rule {text:?}: write for example \"29/sec burst 5\""))
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "iptables -m limit --limit {}/sec --limit-burst {}", self.per_second, self.burst)
    }
}

// === Placeholders ===

/// Values of placeholders `{NAME}` in command lines and files.
#[derive(Clone, Debug, Default)]
pub(crate) struct Placeholders(BTreeMap<String, String>);

impl Placeholders {
    pub(crate) fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.0.insert(name.into(), value.into());
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Replaces every `{name}` of a known name, also in inserted values. Other braces stay, since files contain them.
    pub(crate) fn fill(&self, text: &str) -> String {
        // Limit of placeholders in values of placeholders.
        const DEPTH: usize = 4;
        let mut text = text.to_owned();
        for _ in 0..DEPTH {
            let filled = self.fill_once(&text);
            if filled == text {
                break;
            }
            text = filled;
        }
        text
    }

    fn fill_once(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(open) = rest.find('{') {
            let (before, from) = rest.split_at(open);
            out.push_str(before);
            let value = from.find('}').and_then(|close| {
                let value = self.0.get(from.get(1..close)?)?;
                Some((value, from.get(close + 1..)?))
            });
            match value {
                Some((value, after)) => {
                    out.push_str(value);
                    rest = after;
                }
                None => {
                    out.push('{');
                    rest = from.get(1..).unwrap_or_default();
                }
            }
        }
        out.push_str(rest);
        out
    }

    /// First `{name}` in a filled command line, which is unknown.
    pub(crate) fn unknown(text: &str) -> Option<&str> {
        let open = text.find('{')?;
        let close = text.get(open..)?.find('}')? + open;
        text.get(open + 1..close)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_names_are_filled_and_other_braces_stay() {
        let mut placeholders = Placeholders::default();
        placeholders.set("broker", "192.168.200.1");
        placeholders.set("to", "-h {broker}");
        let filled = placeholders.fill(r#"{"a": {to}, "b": "{x}"} {"#);
        assert_eq!(filled, r#"{"a": -h 192.168.200.1, "b": "{x}"} {"#);
        assert_eq!(Placeholders::unknown("a {b} c"), Some("b"));
        assert_eq!(Placeholders::unknown("a c"), None);
    }

    #[test]
    fn recursive_placeholders_are_bounded() {
        let mut placeholders = Placeholders::default();
        placeholders.set("a", "{a}{a}");
        assert!(placeholders.fill("{a}").len() < 1000);
    }
}
