use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;

use super::TimestampUnit;

/// The payload that `-m` or `-s` gives: constant, or with values that change from message to message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageTemplate {
    text: Bytes,
    placeholders: Vec<(Range<usize>, Placeholder)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Placeholder {
    Time(TimestampUnit),
    Unique,
    Random,
}

const PLACEHOLDERS: [(&str, Placeholder); 6] = [
    ("%TIMESTAMP%", Placeholder::Time(TimestampUnit::Milliseconds)),
    ("%TIMESTAMPMS%", Placeholder::Time(TimestampUnit::Milliseconds)),
    ("%TIMESTAMPUS%", Placeholder::Time(TimestampUnit::Microseconds)),
    ("%TIMESTAMPNS%", Placeholder::Time(TimestampUnit::Nanoseconds)),
    ("%UNIQUE%", Placeholder::Unique),
    ("%RANDOM%", Placeholder::Random),
];

/// Source of the values of a template except the time.
pub trait Randomness {
    /// A number that no other message of the run has.
    fn unique(&mut self) -> u64;
    /// `len` random bytes, appended.
    fn append(&mut self, out: &mut Vec<u8>, len: usize);
}

impl MessageTemplate {
    /// Prefix of `-m` before the path of a file with placeholders.
    pub const FILE_PREFIX: &str = "template://";

    /// The payload of `-s`: so many bytes `a`.
    #[must_use]
    pub fn of_size(size: usize) -> Self {
        Self::literal(Bytes::from(vec![b'a'; size]))
    }

    /// The payload of `-m`, as given.
    #[must_use]
    pub fn literal(text: Bytes) -> Self {
        Self { text, placeholders: Vec::new() }
    }

    /// The content of a file of `-m template://FILE`. The placeholders are `%TIMESTAMP%` and `%TIMESTAMPMS%`
    /// (milliseconds since the Unix epoch), `%TIMESTAMPUS%`, `%TIMESTAMPNS%`, `%UNIQUE%` (a number) and `%RANDOM%`
    /// (as many random bytes as `-s` says); they may occur any number of times.
    #[must_use]
    pub fn file(content: Bytes) -> Self {
        let mut placeholders = Vec::new();
        let mut at = 0;
        while let Some(rest) = content.get(at..).filter(|rest| !rest.is_empty()) {
            let found = PLACEHOLDERS.iter().find(|(name, _)| rest.starts_with(name.as_bytes()));
            let len = found.map_or(1, |(name, _)| name.len());
            if let Some((_, placeholder)) = found {
                placeholders.push((at..at + len, *placeholder));
            }
            at += len;
        }
        Self { text: content, placeholders }
    }

    /// The payload of every message, if they are all the same. It is shared, not copied.
    #[must_use]
    pub fn constant(&self) -> Option<&Bytes> {
        self.placeholders.is_empty().then_some(&self.text)
    }

    /// One message's payload. `now` is since the Unix epoch, `size` that of `-s`.
    #[must_use]
    pub fn fill(&self, now: Duration, size: usize, random: &mut impl Randomness) -> Bytes {
        if let Some(constant) = self.constant() {
            return constant.clone();
        }
        let mut out = Vec::with_capacity(self.text.len());
        let mut at = 0;
        for (range, placeholder) in &self.placeholders {
            out.extend_from_slice(self.text.get(at..range.start).unwrap_or_default());
            match placeholder {
                Placeholder::Time(unit) => out.extend_from_slice(unit.count(now).to_string().as_bytes()),
                Placeholder::Unique => out.extend_from_slice(random.unique().to_string().as_bytes()),
                Placeholder::Random => random.append(&mut out, size),
            }
            at = range.end;
        }
        out.extend_from_slice(self.text.get(at..).unwrap_or_default());
        Bytes::from(out)
    }
}
