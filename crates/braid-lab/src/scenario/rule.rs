//! A limit that the kernel's own packet filter enforces.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

/// What the right end of a link accepts: `29/sec burst 5`, the rest is dropped. It is iptables' `-m limit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Rule {
    /// Packets a second.
    pub per_second: u32,
    /// Packets at once.
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

impl TryFrom<String> for Rule {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "iptables -m limit --limit {}/sec --limit-burst {}", self.per_second, self.burst)
    }
}
