//! Filter of a rule, and its relation to a Topic Name or a Topic Filter.

use super::Subject;

/// Levels of a rule's filter.
#[derive(Debug)]
pub(crate) struct Pattern(Vec<Level>);

#[derive(Debug)]
pub(super) enum Level {
    Literal(Box<str>),
    /// `%u`.
    User,
    /// `%c`.
    Client,
    /// `+`.
    One,
    /// `#`.
    Rest,
    /// Every topic, also those that begin with `$`. The only level of its pattern.
    Any,
}

/// Relation of a rule's filter to another filter. For a Topic Name, which is a filter that matches one topic, it is
/// `Covers` or `Disjoint`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Relation {
    /// Every topic that the other filter matches is matched.
    Covers,
    /// Some of the topics that the other filter matches are matched.
    Overlaps,
    /// No topic is matched by both.
    Disjoint,
}

/// Levels in place of `%u` and `%c`; `None` if the subject has no value that can be a level.
pub(super) struct Substitutes<'a> {
    pub(super) user: Option<&'a str>,
    pub(super) client: Option<&'a str>,
}

impl<'a> Substitutes<'a> {
    pub(super) fn new(subject: &Subject<'a>) -> Self {
        let user = subject.user.filter(|user| is_level(user));
        Self { user, client: Some(subject.client_id).filter(|client| is_level(client)) }
    }
}

fn is_level(value: &str) -> bool {
    !value.is_empty() && !value.contains(['+', '#', '/', '\0'])
}

/// Requirement on the names of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NameKind {
    /// No wildcards.
    Literal,
    /// Fit for any level of a topic, the first one included.
    Level,
}

impl NameKind {
    pub(super) fn is_met(self, name: &str) -> bool {
        match self {
            Self::Literal => !name.contains(['+', '#']),
            Self::Level => is_level(name) && !name.starts_with('$'),
        }
    }
}

impl Pattern {
    /// Pattern of a valid Topic Filter.
    pub(super) fn new(filter: &str) -> Self {
        // Both match the same, and then a level decides alone whether a filter is covered.
        let filter = if filter == "+/#" { "#" } else { filter };
        let level = |level| match level {
            "%u" => Level::User,
            "%c" => Level::Client,
            "+" => Level::One,
            "#" => Level::Rest,
            literal => Level::Literal(literal.into()),
        };
        Self(filter.split('/').map(level).collect())
    }

    /// Pattern of `any-topic`.
    pub(super) fn any() -> Self {
        Self(vec![Level::Any])
    }

    pub(super) fn levels(&self) -> &[Level] {
        &self.0
    }

    /// Relation to the levels of a Topic Name, or of the pattern of a Topic Filter.
    pub(super) fn relation(&self, other: &[&str], substitutes: &Substitutes<'_>) -> Relation {
        if self.is_excluded_by_dollar(other, substitutes) {
            return Relation::Disjoint;
        }
        let mut others = other.iter().copied();
        let mut relation = Relation::Covers;
        for (depth, level) in self.0.iter().enumerate() {
            match (level, others.next()) {
                (Level::Rest | Level::Any, _) => return relation,
                (_, Some("#")) => {
                    let is_matchable = self.0[depth..].iter().all(|level| level.is_matchable(substitutes));
                    return if is_matchable { Relation::Overlaps } else { Relation::Disjoint };
                }
                (Level::One, Some(_)) => {}
                (level, Some("+")) if level.is_matchable(substitutes) => relation = Relation::Overlaps,
                (level, Some(other)) if level.literal(substitutes) == Some(other) => {}
                _ => return Relation::Disjoint,
            }
        }
        match others.next() {
            None => relation,
            Some("#") => Relation::Overlaps,
            Some(_) => Relation::Disjoint,
        }
    }

    /// Tests whether `$` at the start of one filter keeps a wildcard or a substitute of the other from matching it
    /// (`[MQTT-4.7.2-1]`).
    fn is_excluded_by_dollar(&self, other: &[&str], substitutes: &Substitutes<'_>) -> bool {
        let (Some(first), Some(other)) = (self.0.first(), other.first()) else { return false };
        let is_dollar = first.literal(substitutes).is_some_and(|literal| literal.starts_with('$'));
        match first {
            Level::One | Level::Rest => other.starts_with('$'),
            Level::Literal(_) => is_dollar && matches!(*other, "+" | "#"),
            Level::User | Level::Client => is_dollar,
            Level::Any => false,
        }
    }
}

impl Level {
    /// Text of a level that is no wildcard; `None` also for a substitute that the subject does not have.
    fn literal<'a>(&'a self, substitutes: &Substitutes<'a>) -> Option<&'a str> {
        match self {
            Self::Literal(literal) => Some(literal),
            Self::User => substitutes.user,
            Self::Client => substitutes.client,
            Self::One | Self::Rest | Self::Any => None,
        }
    }

    /// False for a substitute that the subject does not have.
    fn is_matchable(&self, substitutes: &Substitutes<'_>) -> bool {
        matches!(self, Self::One | Self::Rest | Self::Any) || self.literal(substitutes).is_some()
    }
}
