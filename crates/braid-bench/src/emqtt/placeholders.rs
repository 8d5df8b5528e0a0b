use std::fmt::{self, Write as _};

/// Client of the placeholders in topics and payloads.
#[derive(Debug, Clone, Copy)]
pub struct Identity<'a> {
    /// `%i`: the client's number, from 1 plus `--startnumber`.
    pub number: u64,
    /// `%c`: the Client Identifier.
    pub client_id: &'a str,
    /// `%u`: the User Name, if `-u` gives one.
    pub username: Option<&'a str>,
}

/// A topic with placeholders. Only a whole topic level is a placeholder: `a/%i` has one, `a-%i` has none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicTemplate {
    written: String,
    levels: Vec<Level>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Level {
    Text(String),
    Number,
    ClientId,
    Username,
    Sequence,
    Random(u64),
}

/// A placeholder that cannot be filled: the topic, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("topic {0:?}{1}")]
pub struct PlaceholderError(String, String);

impl TopicTemplate {
    /// Reads a topic. `has_username` tells whether `%u` can be filled.
    ///
    /// # Errors
    /// A level begins with `%rand_` and no number from 1 follows, or `%u` stands for nothing.
    pub fn parse(topic: &str, has_username: bool) -> Result<Self, PlaceholderError> {
        let error = |reason: String| Err(PlaceholderError(topic.to_owned(), reason));
        let level = |text: &str| match text {
            "%i" => Ok(Level::Number),
            "%c" => Ok(Level::ClientId),
            "%u" if has_username => Ok(Level::Username),
            "%u" => error(" has %u, which is the user name: give one with -u".to_owned()),
            "%s" => Ok(Level::Sequence),
            text => match text.strip_prefix("%rand_").map(str::parse) {
                None => Ok(Level::Text(text.to_owned())),
                Some(Ok(most)) if most > 0 => Ok(Level::Random(most)),
                Some(_) => error(format!(": {text} needs a number from 1, such as %rand_1000")),
            },
        };
        let levels = topic.split('/').map(level).collect::<Result<_, _>>()?;
        Ok(Self { written: topic.to_owned(), levels })
    }

    /// Whether the topic differs from message to message, so that it must be filled for each.
    #[must_use]
    pub fn changes_per_message(&self) -> bool {
        self.levels.iter().any(|level| matches!(level, Level::Sequence | Level::Random(_)))
    }

    /// The topic of one message.
    ///
    /// `sequence` is what `%s` shows: one more than the messages that all clients together have published.
    /// `random(n)` returns a number of `1..=n`, for `%rand_n`.
    #[must_use]
    pub fn fill(&self, identity: Identity<'_>, sequence: u64, mut random: impl FnMut(u64) -> u64) -> String {
        let mut topic = String::new();
        for (at, level) in self.levels.iter().enumerate() {
            if at > 0 {
                topic.push('/');
            }
            // Writing to a String does not fail.
            let _ = match level {
                Level::Text(text) => topic.write_str(text),
                Level::ClientId => topic.write_str(identity.client_id),
                Level::Username => topic.write_str(identity.username.unwrap_or("%u")),
                Level::Number => write!(topic, "{}", identity.number),
                Level::Sequence => write!(topic, "{sequence}"),
                Level::Random(most) => write!(topic, "{}", random(*most)),
            };
        }
        topic
    }
}

/// As it was written.
impl fmt::Display for TopicTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.written)
    }
}
