//! One level of the topic tree, from retained messages and from those published while clients ask.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use axum::extract::State;
use braid_broker::view::{RetainedQuery, RetainedRow};
use braid_proto::topic::{TopicFilter, TopicName};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::Api;
use super::budget::{ENTRIES, Query};
use super::extract::{Answer, Json, Params, Refused};
use super::last_messages::{LastMessage, Record};
use super::time::unix;

/// Topics of retained messages that one request visits, whether they match or not.
const MAX_VISITED: usize = 20_000;

/// Rows of a page.
const ROWS: usize = 1000;

/// Names of one level.
const MAX_LEVELS: usize = 5000;

/// Bytes of a payload that are shown.
const MAX_TEXT: usize = 4096;

/// Bytes of the payloads in an answer, as JSON.
const MAX_TEXTS: usize = 1 << 20;

/// Bytes of the names in an answer, as JSON, and of those that are counted in it.
const MAX_NAMES: usize = 4 << 20;

/// Level of the topic tree.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Topics {
    levels: Vec<Level>,
    /// Set if there are more than a request visits or an answer has: 5,000 names, 4 MiB of them, 1 MiB of payloads.
    truncated: bool,
    /// Time since which messages are recorded: that of the first question for topics. After 30 s without one it begins
    /// anew.
    since: f64,
    /// Messages since then that were not recorded: too many came at once, or their topics had no room.
    missed: u64,
}

/// Name of a level, with what is below it.
#[derive(Debug, Default, Serialize, ToSchema)]
struct Level {
    name: String,
    topic: String,
    /// Messages of the topic and those below that were published since the time that `since` says.
    messages: u64,
    /// Retained messages of the topic and those below.
    retained: u64,
    /// Last message of the topic itself since then, otherwise its retained message.
    last: Option<Last>,
    /// Names of the next level.
    children: usize,
}

/// Message.
#[derive(Debug, Serialize, ToSchema)]
struct Last {
    size_bytes: usize,
    qos: u8,
    /// Null if it was retained before the broker began.
    at: Option<f64>,
    /// Null if it is binary, or if 1 MiB of others is before it. Of a payload above 4 KiB the beginning, at most 4 KiB.
    text: Option<String>,
}

/// Position in the tree.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct TopicsParams {
    /// Topic above the level; none for the first level.
    prefix: Option<String>,
}

impl From<&RetainedRow> for Last {
    fn from(row: &RetainedRow) -> Self {
        Self {
            size_bytes: row.payload_len,
            qos: row.qos.bits(),
            at: row.since.map(unix),
            text: row.payload.as_ref().and_then(|payload| text(payload, row.payload_len)),
        }
    }
}

impl From<&LastMessage> for Last {
    fn from(last: &LastMessage) -> Self {
        Self {
            size_bytes: last.payload_len,
            qos: last.qos.bits(),
            at: Some(unix(last.at)),
            text: text(&last.payload, last.payload_len),
        }
    }
}

/// Beginning of a payload as text, from its first bytes and the length of all; `None` if it is binary.
fn text(payload: &[u8], payload_len: usize) -> Option<String> {
    let shown = &payload[..payload.len().min(MAX_TEXT)];
    let valid = match str::from_utf8(shown) {
        // The cut is inside of a character.
        Err(error) if error.error_len().is_none() && shown.len() < payload_len => error.valid_up_to(),
        Err(_) => return None,
        Ok(_) => shown.len(),
    };
    String::from_utf8(shown[..valid].to_vec()).ok()
}

/// Bytes of a text as JSON, without its quotation marks.
fn json_len(text: &str) -> usize {
    let len = |byte| match byte {
        b'"' | b'\\' | 8 | 9 | 10 | 12 | 13 => 2,
        0..0x20 => 6,
        _ => 1,
    };
    text.bytes().map(len).sum()
}

/// Levels below a prefix, built from messages in any order.
#[derive(Default)]
struct Tree {
    nodes: BTreeMap<String, Node>,
    /// Bytes of the names.
    name_bytes: usize,
    is_truncated: bool,
}

/// Level that is being built.
#[derive(Default)]
struct Node {
    level: Level,
    /// Names of the next level.
    children: BTreeSet<String>,
    /// Time of the last message; `None` if there is none, or it was retained before the broker began.
    last_at: Option<Instant>,
}

impl Node {
    /// Sets the last message, if it is none that is older.
    fn set_last(&mut self, at: Option<Instant>, last: impl Into<Last>) {
        if self.level.last.is_none() || at >= self.last_at {
            self.level.last = Some(last.into());
            self.last_at = at;
        }
    }
}

impl Tree {
    /// Adds a retained message whose topic is below `prefix`, which ends with a slash or is empty.
    fn add_retained(&mut self, prefix: &str, row: &RetainedRow) {
        let Some((node, is_own)) = self.node(prefix, row.topic.as_str()) else { return };
        node.level.retained += 1;
        if is_own {
            node.set_last(row.since, row);
        }
    }

    /// Adds the messages of a record below `prefix`, and returns the number of their topics.
    fn add_record(&mut self, prefix: &str, record: &Record) -> usize {
        let mut visited = 0;
        for (topic, last) in record.below(prefix) {
            visited += 1;
            // As wildcards do. [MQTT-4.7.2-1]
            if prefix.is_empty() && topic.starts_with('$') {
                continue;
            }
            let Some((node, is_own)) = self.node(prefix, topic) else { continue };
            node.level.messages += last.count;
            if is_own {
                node.set_last(Some(last.at), last);
            }
        }
        visited
    }

    /// Node below `prefix` that a topic belongs to, and whether it is that of the topic itself; `None` if the topic is
    /// not below the prefix, or there is no room.
    fn node(&mut self, prefix: &str, topic: &str) -> Option<(&mut Node, bool)> {
        // A filter `a/#` matches the topic `a` too.
        let rest = topic.strip_prefix(prefix)?;
        let (name, below) = rest.split_once('/').map_or((rest, None), |(name, below)| (name, Some(below)));
        if !self.nodes.contains_key(name) {
            let topic = format!("{prefix}{name}");
            let has_room = self.nodes.len() < MAX_LEVELS && self.reserve(json_len(name) + json_len(&topic));
            if !has_room {
                self.is_truncated = true;
                return None;
            }
            let level = Level { name: name.to_owned(), topic, ..Level::default() };
            self.nodes.insert(name.to_owned(), Node { level, ..Node::default() });
        }
        if let Some(child) = below.and_then(|below| below.split('/').next())
            && !self.nodes.get(name)?.children.contains(child)
        {
            if self.reserve(child.len()) {
                self.nodes.get_mut(name)?.children.insert(child.to_owned());
            } else {
                self.is_truncated = true;
            }
        }
        Some((self.nodes.get_mut(name)?, below.is_none()))
    }

    /// Counts the bytes of a name, if there is room for it.
    fn reserve(&mut self, bytes: usize) -> bool {
        let sum = self.name_bytes + bytes;
        let has_room = sum <= MAX_NAMES;
        if has_room {
            self.name_bytes = sum;
        }
        has_room
    }

    fn finish(self, since: Instant, missed: u64) -> Topics {
        let (mut truncated, mut room) = (self.is_truncated, MAX_TEXTS);
        let finish = |Node { mut level, children, .. }: Node| {
            level.children = children.len();
            let shown = level.last.as_mut().map(|last| &mut last.text);
            if let Some(text) = shown
                && let Some(len) = text.as_deref().map(json_len)
            {
                if len <= room {
                    room -= len;
                } else {
                    *text = None;
                    truncated = true;
                }
            }
            level
        };
        let levels = self.nodes.into_values().map(finish).collect();
        Topics { levels, truncated, since: unix(since), missed }
    }
}

#[utoipa::path(
    get, path = "/api/v1/topics", tag = "retained", params(TopicsParams),
    description = "Shows one level of the tree of topics: those with retained messages, and those of messages that were \
                   published since the first question for topics. The broker keeps no record of messages while there \
                   is none: 30 s after the last question all are forgotten. Of 5,000 topics the last message is kept, \
                   with the first 4 KiB of its payload.",
    responses((status = 200, description = "Success", body = Topics)),
)]
pub(super) async fn list(
    State(api): State<Api>,
    Params(params): Params<TopicsParams>,
    budget: Query,
) -> Answer<Topics> {
    let handle = api.handle()?;
    let prefix = match params.prefix.as_deref() {
        None => String::new(),
        // The empty first level, of topics such as `/a`.
        Some("") => "/".to_owned(),
        Some(prefix) => {
            let topic = TopicName::parse(prefix).map_err(|error| Refused::bad(format!("prefix: {error}")))?;
            format!("{}/", topic.as_str())
        }
    };
    let filter = TopicFilter::parse(&format!("{prefix}#"));
    let filter = filter.map_err(|error| Refused::bad(format!("prefix: {error}")))?;
    api.0.last_messages.look(&handle);
    let query = RetainedQuery { filter, with_payload: true };
    let (mut tree, mut after, mut visited) = (Tree::default(), None, 0);
    loop {
        let page = handle.retained(&query, after, ROWS).await;
        budget.charge(page.visited, ENTRIES);
        visited += page.visited;
        for row in &page.rows {
            tree.add_retained(&prefix, row);
        }
        after = page.next;
        if after.is_none() {
            break;
        }
        if visited >= MAX_VISITED {
            tree.is_truncated = true;
            break;
        }
    }
    let recorded = api.0.last_messages.read(|record| {
        budget.charge(tree.add_record(&prefix, record), ENTRIES);
        (record.began, record.missed)
    });
    // Forgotten meanwhile only if the broker stops.
    let (since, missed) = recorded.unwrap_or_else(|| (Instant::now(), 0));
    Ok(Json(tree.finish(since, missed)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_later_message_is_the_last_one_of_a_topic() {
        let (mut node, early) = (Node::default(), Instant::now());
        let late = early + Duration::from_secs(1);
        for (at, size_bytes, expected) in
            [(None, 1, 1), (Some(late), 2, 2), (Some(early), 3, 2), (None, 4, 2), (Some(late), 5, 5)]
        {
            node.set_last(at, Last { size_bytes, qos: 0, at: None, text: None });
            assert_eq!(node.level.last.as_ref().unwrap().size_bytes, expected);
        }
    }

    #[test]
    fn the_texts_of_an_answer_are_limited() {
        let mut tree = Tree::default();
        for number in 0..MAX_LEVELS {
            let (node, _) = tree.node("", &format!("t{number}")).unwrap();
            // Six bytes of JSON each.
            let text = Some("\u{1}".repeat(MAX_TEXT));
            node.set_last(None, Last { size_bytes: MAX_TEXT, qos: 0, at: None, text });
        }
        assert!(tree.node("", "another").is_none());
        let topics = tree.finish(Instant::now(), 0);
        let is_shown = |level: &&Level| level.last.as_ref().unwrap().text.is_some();
        let shown = topics.levels.iter().filter(is_shown).count();
        assert_eq!((shown, topics.levels.len()), (MAX_TEXTS / (6 * MAX_TEXT), MAX_LEVELS));
        assert!(topics.truncated);
        let size = serde_json::to_vec(&topics).unwrap().len();
        assert!(size < MAX_TEXTS + 200 * MAX_LEVELS, "{size} bytes");
    }

    #[test]
    fn the_names_of_an_answer_are_limited() {
        let (mut tree, long) = (Tree::default(), "\"".repeat(10_000));
        let there =
            (10..1000).take_while(|number| tree.node("", &format!("{number}{long}")).is_some()).count();
        // Name and topic.
        assert_eq!(there, MAX_NAMES / (2 * (2 * long.len() + 2)));
        assert!(tree.is_truncated);
        let mut tree = Tree::default();
        for number in 10..1000 {
            assert!(
                tree.node("", &format!("a/{number}{long}/b")).is_some(),
                "only the names below have no room"
            );
        }
        let children = tree.nodes["a"].children.len();
        assert_eq!(children, MAX_NAMES / (long.len() + 2));
        assert!(tree.is_truncated);
    }

    #[test]
    fn the_beginning_of_a_payload_is_text_unless_it_is_binary() {
        let long = "a".repeat(MAX_TEXT - 1) + "\u{e4}b";
        for (payload, payload_len, expected) in [
            (&b""[..], 0, Some("")),
            (b"21.5", 4, Some("21.5")),
            (b"\xff", 1, None),
            // A part of a character is an error at the end of the payload, and none at the cut.
            (b"a\xc3", 2, None),
            (b"a\xc3", 3, Some("a")),
            (b"\xff\xc3", 3, None),
            (long.as_bytes(), long.len(), Some(&long[..MAX_TEXT - 1])),
            (&[b'x'; MAX_TEXT], MAX_TEXT, Some(&"x".repeat(MAX_TEXT))),
        ] {
            assert_eq!(text(payload, payload_len).as_deref(), expected, "{payload_len}");
        }
    }
}
