//! Topic Names and Topic Filters (MQTT 4.7, 4.8.2) as parsed values.
//!
//! A value of these types has passed every rule of the specification, so that no function behind the decoder checks a
//! topic again.

use std::sync::Arc;

use thiserror::Error;

/// Maximum number of levels of a Topic Name or Topic Filter.
///
/// MQTT sets no limit; matching costs grow with the number of levels, so brokers set one
/// (EMQX: 128, mosquitto: 200, the greater of which is ours). A filter of 65,535 slashes is refused, not executed.
pub const MAX_LEVELS: usize = 200;

/// First level of the Topic Filter of a shared subscription.
const SHARE_PREFIX: &str = "$share/";

/// Reason why a string is no Topic Name or Topic Filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TopicError {
    /// `[MQTT-4.7.3-1]`: at least one character.
    #[error("a topic must have at least one character")]
    Empty,
    /// `[MQTT-4.7.3-3]`: at most 65,535 bytes of UTF-8.
    #[error("a topic must not be longer than 65,535 bytes")]
    TooLong,
    /// `[MQTT-4.7.3-2]`: no U+0000.
    #[error("a topic must not contain U+0000")]
    Null,
    /// More than [`MAX_LEVELS`] levels.
    #[error("a topic must not have more than {MAX_LEVELS} levels")]
    TooManyLevels,
    /// `[MQTT-3.3.2-2]`: a Topic Name holds no wildcard.
    #[error("a topic name must not contain the wildcards '+' or '#'")]
    WildcardInName,
    /// `[MQTT-4.7.1-1]`: `#` stands alone in the last level.
    #[error("'#' must stand alone in the last level of a topic filter")]
    MultiLevelWildcard,
    /// `[MQTT-4.7.1-2]`: `+` stands alone in its level.
    #[error("'+' must stand alone in its level of a topic filter")]
    SingleLevelWildcard,
    /// `[MQTT-4.8.2-1]`, `[MQTT-4.8.2-2]`: `$share/{ShareName}/{filter}`.
    #[error("a shared subscription must read $share/NAME/FILTER, and NAME must not contain '+', '#' or '/'")]
    Share,
}

fn check_text(text: &str) -> Result<(), TopicError> {
    if text.is_empty() {
        return Err(TopicError::Empty); // [MQTT-4.7.3-1]
    }
    if text.len() > usize::from(u16::MAX) {
        return Err(TopicError::TooLong); // [MQTT-4.7.3-3]
    }
    let mut levels = 1;
    for byte in text.bytes() {
        match byte {
            0 => return Err(TopicError::Null), // [MQTT-4.7.3-2]
            b'/' => levels += 1,
            _ => {}
        }
    }
    if levels > MAX_LEVELS { Err(TopicError::TooManyLevels) } else { Ok(()) }
}

/// Topic Name of a PUBLISH. Cloning shares the text.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicName(Arc<str>);

impl TopicName {
    /// Parses a Topic Name.
    ///
    /// # Errors
    /// A [`TopicError`] for every rule of MQTT 4.7 that the text breaks.
    pub fn parse(text: &str) -> Result<Self, TopicError> {
        check_text(text)?;
        if text.bytes().any(|byte| matches!(byte, b'+' | b'#')) {
            return Err(TopicError::WildcardInName); // [MQTT-3.3.2-2], [MQTT-4.7.0-1]
        }
        Ok(Self(text.into()))
    }

    /// Text of the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the name begins with `$`, which wildcards in the first level do not match
    /// (`[MQTT-4.7.2-1]`).
    pub fn is_dollar(&self) -> bool {
        self.0.starts_with('$')
    }

    /// Whether both share one allocation: faster than a comparison of the texts. False says nothing.
    pub fn same_allocation(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Topic Filter of SUBSCRIBE and UNSUBSCRIBE, with its Share Name if it has one.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicFilter {
    text: Arc<str>,
    /// Start of the pattern in `text`: 0, or behind `$share/{ShareName}/`.
    pattern_at: usize,
}

impl TopicFilter {
    /// Parses a Topic Filter, shared (`$share/{ShareName}/{filter}`) or not.
    ///
    /// # Errors
    /// A [`TopicError`] for every rule of MQTT 4.7 and 4.8.2 that the text breaks.
    pub fn parse(text: &str) -> Result<Self, TopicError> {
        check_text(text)?;
        let pattern_at = match text.strip_prefix(SHARE_PREFIX) {
            None if text == "$share" => return Err(TopicError::Share),
            None => 0,
            Some(rest) => {
                let (name, pattern) = rest.split_once('/').ok_or(TopicError::Share)?; // [MQTT-4.8.2-2]
                if name.is_empty() || name.contains(['+', '#']) || pattern.is_empty() {
                    return Err(TopicError::Share); // [MQTT-4.8.2-1], [MQTT-4.8.2-2]
                }
                text.len() - pattern.len()
            }
        };
        let mut levels = text[pattern_at..].split('/').peekable();
        while let Some(level) = levels.next() {
            if level.contains('#') && (level.len() > 1 || levels.peek().is_some()) {
                return Err(TopicError::MultiLevelWildcard); // [MQTT-4.7.1-1]
            }
            if level.contains('+') && level.len() > 1 {
                return Err(TopicError::SingleLevelWildcard); // [MQTT-4.7.1-2]
            }
        }
        Ok(Self { text: text.into(), pattern_at })
    }

    /// Whole text, `$share/...` included, which identifies the subscription in its session.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Part that Topic Names are matched against.
    pub fn pattern(&self) -> &str {
        &self.text[self.pattern_at..]
    }

    /// Share Name of a shared subscription.
    pub fn share_name(&self) -> Option<&str> {
        self.is_shared().then(|| &self.text[SHARE_PREFIX.len()..self.pattern_at - 1])
    }

    /// Whether this is a shared subscription (MQTT 4.8.2).
    pub fn is_shared(&self) -> bool {
        self.pattern_at > 0
    }

    /// Whether the pattern holds a wildcard.
    pub fn has_wildcard(&self) -> bool {
        self.pattern().bytes().any(|byte| matches!(byte, b'+' | b'#'))
    }

    /// Number of levels of a pattern with a wildcard; 0 without one, which is found as a whole.
    pub fn wildcard_levels(&self) -> usize {
        if self.has_wildcard() { self.pattern().split('/').count() } else { 0 }
    }

    /// Whether `name` matches the pattern, level by level (MQTT 4.7). Definition for one filter; the router answers for
    /// many filters at once.
    pub fn matches(&self, name: &TopicName) -> bool {
        let mut pattern = self.pattern().split('/');
        let mut levels = name.as_str().split('/');
        if name.is_dollar() && self.pattern().starts_with(['+', '#']) {
            return false; // [MQTT-4.7.2-1]
        }
        loop {
            match (pattern.next(), levels.next()) {
                (Some("#"), _) | (None, None) => return true,
                (Some("+"), Some(_)) => {}
                (Some(want), Some(have)) if want == have => {} // [MQTT-4.7.3-4]
                _ => return false,
            }
        }
    }
}

format_as_text!(TopicName, TopicFilter);
