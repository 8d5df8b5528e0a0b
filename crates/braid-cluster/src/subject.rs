//! Topics and Client Identifiers as subjects of NATS.
//!
//! A subject is a list of tokens with dots between them, `*` matches a token and `>` the rest. Levels of a topic become
//! tokens: characters that NATS does not take are percent-encoded, an empty level is `%`, and `~` follows the last
//! level, so that one filter of MQTT is one of NATS: `a/#` is `a.>`, which matches `a.~` too. The first token tells
//! topics that begin with `$` from the others, which wildcards in the first level do not match. [MQTT-4.7.2-1]

use std::fmt::Write;

use braid_proto::packet::ClientId;
use braid_proto::topic::{TopicFilter, TopicName};

/// Longest subject, in bytes. A line of the protocol of NATS has at most 4096, among them a subject for the answer.
pub const SUBJECT_MAX: usize = 3840;

const ORDINARY: &str = "t";
const DOLLAR: &str = "d";
const EMPTY_LEVEL: &str = "%";
const END: &str = "~";

/// Characters that are percent-encoded, besides controls.
const ENCODED: &[char] = &['%', '.', '*', '>', ' ', char::REPLACEMENT_CHARACTER];

/// Tests whether a topic fits into a subject.
#[must_use]
pub fn takes_topic(topic: &TopicName) -> bool {
    let mut subject = String::new();
    push_topic(&mut subject, topic);
    subject.len() <= SUBJECT_MAX
}

/// Tests whether a Client Identifier fits into a subject.
#[must_use]
pub fn takes_client(client_id: &ClientId) -> bool {
    let mut subject = String::new();
    push_text(&mut subject, client_id.as_str());
    subject.len() <= SUBJECT_MAX
}

/// Appends the tokens of a topic to a subject.
pub fn push_topic(subject: &mut String, topic: &TopicName) {
    push_token(subject, if topic.is_dollar() { DOLLAR } else { ORDINARY });
    for level in topic.as_str().split('/') {
        push_text(subject, level);
    }
    push_token(subject, END);
}

/// Appends the tokens that match the topics of a filter, without its Share Name.
pub fn push_filter(subject: &mut String, filter: &TopicFilter) {
    let pattern = filter.pattern();
    push_token(subject, if pattern.starts_with('$') { DOLLAR } else { ORDINARY });
    for level in pattern.split('/') {
        match level {
            "#" => return push_token(subject, ">"),
            "+" => push_token(subject, "*"),
            level => push_text(subject, level),
        }
    }
    push_token(subject, END);
}

/// The topic of tokens that [`push_topic`] made; `None` for all others.
pub fn parse_topic(tokens: &str) -> Option<TopicName> {
    let (first, levels) = tokens.strip_suffix(END)?.strip_suffix('.')?.split_once('.')?;
    let mut text = String::with_capacity(levels.len());
    for (index, token) in levels.split('.').enumerate() {
        if index > 0 {
            text.push('/');
        }
        text.push_str(&parse_token(token)?);
    }
    let topic = TopicName::parse(&text).ok()?;
    (first == if topic.is_dollar() { DOLLAR } else { ORDINARY }).then_some(topic)
}

/// Appends a text as one token.
pub fn push_text(subject: &mut String, text: &str) {
    push_token(subject, "");
    if text.is_empty() {
        subject.push_str(EMPTY_LEVEL);
    }
    for part in text.split_inclusive(is_encoded) {
        let Some(last) = part.chars().next_back().filter(|last| is_encoded(*last)) else {
            subject.push_str(part);
            continue;
        };
        subject.push_str(&part[..part.len() - last.len_utf8()]);
        for byte in last.encode_utf8(&mut [0; 4]).bytes() {
            // Writing to a string cannot fail.
            let _ = write!(subject, "%{byte:02X}");
        }
    }
}

/// The text of a token that [`push_text`] made; `None` for all others.
pub fn parse_token(token: &str) -> Option<String> {
    if token == EMPTY_LEVEL {
        return Some(String::new());
    }
    let mut bytes = Vec::with_capacity(token.len());
    let mut parts = token.split('%');
    bytes.extend_from_slice(parts.next()?.as_bytes());
    for part in parts {
        let (hex, rest) = part.split_at_checked(2).filter(|(hex, _)| is_hex(hex))?;
        bytes.push(u8::from_str_radix(hex, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).ok().filter(|text| !text.is_empty())
}

/// Tests for the digits that [`push_text`] writes: another sign would be a second token for the same text.
fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'A'..=b'F'))
}

fn is_encoded(character: char) -> bool {
    character.is_ascii_control() || ENCODED.contains(&character)
}

fn push_token(subject: &mut String, token: &str) {
    if !subject.is_empty() {
        subject.push('.');
    }
    subject.push_str(token);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn topic_subject(topic: &str) -> String {
        let mut subject = String::new();
        push_topic(&mut subject, &TopicName::parse(topic).unwrap());
        subject
    }

    fn filter_subject(filter: &str) -> String {
        let mut subject = String::new();
        push_filter(&mut subject, &TopicFilter::parse(filter).unwrap());
        subject
    }

    #[test]
    fn levels_are_tokens() {
        for (topic, subject) in [
            ("a/b", "t.a.b.~"),
            ("a", "t.a.~"),
            ("/", "t.%.%.~"),
            ("a//b/", "t.a.%.b.%.~"),
            ("%/a.b", "t.%25.a%2Eb.~"),
            ("$SYS/x", "d.$SYS.x.~"),
            ("a b\t>*", "t.a%20b%09%3E%2A.~"),
            ("~/Zürich", "t.~.Zürich.~"),
            ("\u{7f}\u{fffd}", "t.%7F%EF%BF%BD.~"),
        ] {
            assert_eq!(topic_subject(topic), subject);
            assert_eq!(parse_topic(subject), Some(TopicName::parse(topic).unwrap()));
        }
    }

    #[test]
    fn a_filter_is_one_subject_with_wildcards() {
        for (filter, subject) in [
            ("#", "t.>"),
            ("+", "t.*.~"),
            ("a/#", "t.a.>"),
            ("+/b/+", "t.*.b.*.~"),
            ("$SYS/#", "d.$SYS.>"),
            ("$share/group/a/+", "t.a.*.~"),
            ("a//#", "t.a.%.>"),
        ] {
            assert_eq!(filter_subject(filter), subject);
        }
    }

    #[test]
    fn foreign_subjects_are_no_topics() {
        for tokens in [
            "", "t", "t.~", "t.a", "t..~", "x.a.~", "d.a.~", "t.$a.~", "t.%4.~", "t.%ZZ.~", "t.%FF.~",
            "t.a%.~", "t.%+1.~", "t.%2e.~",
        ] {
            assert_eq!(parse_topic(tokens), None, "{tokens}");
        }
    }

    /// Definition of NATS: `*` matches a token, a last `>` at least one.
    fn matches(filter: &str, subject: &str) -> bool {
        let (mut filter, mut tokens) = (filter.split('.'), subject.split('.'));
        loop {
            match (filter.next(), tokens.next()) {
                (None, None) | (Some(">"), Some(_)) => return true,
                (Some("*"), Some(_)) => {}
                (Some(want), Some(have)) if want == have => {}
                _ => return false,
            }
        }
    }

    fn level() -> impl Strategy<Value = String> {
        prop_oneof![4 => "[ab~%. $]{0,2}", 1 => "[^+#/\u{0}]{0,3}"]
    }

    fn levels() -> impl Strategy<Value = Vec<String>> {
        proptest::collection::vec(level(), 1..5)
    }

    proptest! {
        #[test]
        fn nats_matches_as_mqtt_does(topic in levels(), pattern in levels(), wild in any::<[u8; 5]>()) {
            let Ok(topic) = TopicName::parse(&topic.join("/")) else { return Ok(()) };
            // Like the topic in most levels, or nothing would match.
            let mut filter: Vec<String> = topic.as_str().split('/').map(str::to_owned).collect();
            for (index, level) in filter.iter_mut().enumerate() {
                match wild[index % 5] % 4 {
                    0 => *level = "+".to_owned(),
                    1 => level.clone_from(&pattern[index % pattern.len()]),
                    _ => {}
                }
            }
            if wild[4].is_multiple_of(3) {
                filter.truncate(usize::from(wild[3]) % (filter.len() + 1));
                filter.push("#".to_owned());
            }
            let Ok(filter) = TopicFilter::parse(&filter.join("/")) else { return Ok(()) };
            prop_assume!(!filter.is_shared());
            let (name, pattern) = (topic_subject(topic.as_str()), filter_subject(filter.as_str()));
            prop_assert_eq!(matches(&pattern, &name), filter.matches(&topic), "{} {}", pattern, name);
        }

        #[test]
        fn a_topic_comes_back_and_its_subject_is_valid(topic in levels()) {
            let Ok(topic) = TopicName::parse(&topic.join("/")) else { return Ok(()) };
            let subject = topic_subject(topic.as_str());
            prop_assert!(subject.split('.').all(|token| !token.is_empty() && token != "*" && token != ">"));
            let is_odd = subject.contains([' ', '\t', '\r', '\n', '\u{c}', '\u{7f}']);
            prop_assert!(!is_odd);
            prop_assert_eq!(parse_topic(&subject), Some(topic));
        }
    }
}
