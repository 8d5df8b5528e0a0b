//! Rules for the priority of messages whose subscriber asked for none. [BQ-52]

use std::fmt;

use braid_proto::session::Subscription;
use braid_proto::stream::Priority;
use braid_proto::topic::{TopicFilter, TopicName};
use braid_router::{Matches, Router};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A priority for all topics that a filter matches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PriorityRule {
    /// The topics. Not a shared subscription: a rule has no members.
    #[serde(serialize_with = "write_filter", deserialize_with = "read_filter")]
    pub filter: TopicFilter,
    /// Priority of their messages, 0..=65535; higher is sent sooner.
    #[serde(serialize_with = "write_priority", deserialize_with = "read_priority")]
    pub priority: Priority,
}

/// Index of the rules, which finds the first that matches without trying each of them.
///
/// Used when a route is resolved. The result is cached with the route.
pub(crate) struct Rules {
    /// Keyed by the index in the configuration.
    router: Router<usize>,
    is_empty: bool,
}

impl Rules {
    pub(crate) fn new(rules: &[PriorityRule]) -> Self {
        let mut router = Router::new();
        for (place, rule) in rules.iter().enumerate() {
            let subscription = Subscription { priority: Some(rule.priority), ..Subscription::default() };
            router.subscribe(place, &rule.filter, subscription);
        }
        Self { router, is_empty: rules.is_empty() }
    }

    /// The priority that the first matching rule gives.
    pub(crate) fn priority_of(&self, topic: &TopicName) -> Option<Priority> {
        if self.is_empty {
            return None;
        }
        let mut matches = Matches::default();
        self.router.matches(topic, &mut matches);
        matches.direct.first()?.subscription.priority // They are sorted by key.
    }
}

fn write_filter<S: Serializer>(filter: &TopicFilter, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(filter.as_str())
}

fn read_filter<'de, D: Deserializer<'de>>(from: D) -> Result<TopicFilter, D::Error> {
    let text = String::deserialize(from)?;
    let filter =
        TopicFilter::parse(&text).map_err(|error| de::Error::custom(format_args!("{text:?}: {error}")))?;
    if filter.is_shared() {
        let pattern = filter.pattern();
        return Err(de::Error::custom(format_args!(
            "{text:?} is a shared subscription, which a rule cannot have; write {pattern:?}"
        )));
    }
    Ok(filter)
}

fn write_priority<S: Serializer>(priority: &Priority, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u16(priority.value())
}

fn read_priority<'de, D: Deserializer<'de>>(from: D) -> Result<Priority, D::Error> {
    struct Number;

    impl de::Visitor<'_> for Number {
        type Value = Priority;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a priority from 0 to 65535")
        }

        fn visit_i64<E: de::Error>(self, number: i64) -> Result<Priority, E> {
            let out_of_range = || E::invalid_value(de::Unexpected::Signed(number), &self);
            u16::try_from(number).map(Priority::new).map_err(|_| out_of_range())
        }

        fn visit_u64<E: de::Error>(self, number: u64) -> Result<Priority, E> {
            let out_of_range = || E::invalid_value(de::Unexpected::Unsigned(number), &self);
            u16::try_from(number).map(Priority::new).map_err(|_| out_of_range())
        }
    }

    from.deserialize_u64(Number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(all: &[(&str, u16)]) -> Rules {
        let rule = |(filter, priority): &(&str, u16)| PriorityRule {
            filter: TopicFilter::parse(filter).expect("a filter"),
            priority: Priority::new(*priority),
        };
        Rules::new(&all.iter().map(rule).collect::<Vec<_>>())
    }

    fn priority_of(rules: &Rules, topic: &str) -> Option<u16> {
        rules.priority_of(&TopicName::parse(topic).expect("a topic")).map(Priority::value)
    }

    /// [BQ-52]
    #[test]
    fn the_first_rule_that_matches_decides() {
        let rules = rules(&[("a/b", 5), ("a/+", 9), ("a/#", 1), ("a/+", 7), ("+/b", 65_535)]);
        assert_eq!(priority_of(&rules, "a/b"), Some(5));
        assert_eq!(priority_of(&rules, "a/c"), Some(9));
        assert_eq!(priority_of(&rules, "a"), Some(1));
        assert_eq!(priority_of(&rules, "a/b/c"), Some(1));
        assert_eq!(priority_of(&rules, "x/b"), Some(65_535));
        assert_eq!(priority_of(&rules, "x"), None);
    }

    #[test]
    fn the_order_of_rules_decides_and_not_how_exact_they_are() {
        let rules = rules(&[("#", 3), ("alarms/fire", 65_535)]);
        assert_eq!(priority_of(&rules, "alarms/fire"), Some(3));
        assert_eq!(priority_of(&rules, "$SYS/broker/uptime"), None, "'#' does not match it");
    }

    #[test]
    fn without_rules_there_is_no_priority() {
        assert_eq!(priority_of(&rules(&[]), "a"), None);
    }
}
