//! One level of the topic tree, from retained messages.

use std::collections::{BTreeMap, BTreeSet};

use axum::extract::State;
use braid_broker::view::{RetainedQuery, RetainedRow};
use braid_proto::topic::{TopicFilter, TopicName};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::Api;
use super::extract::{Answer, Json, Params, Refused};
use super::time::unix;

/// Retained messages that one request visits.
const MAX_VISITED: usize = 20_000;

/// Rows of a page.
const ROWS: usize = 1000;

/// Names of one level.
const MAX_LEVELS: usize = 5000;

/// Longest payload that is shown, in bytes.
const MAX_TEXT: usize = 4096;

/// Level of the topic tree.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Topics {
    levels: Vec<Level>,
    /// Set if there are more than a request visits.
    truncated: bool,
}

/// Name of a level, with what is below it.
#[derive(Debug, Default, Serialize, ToSchema)]
struct Level {
    name: String,
    topic: String,
    /// Retained messages of the topic and those below.
    messages: u64,
    /// Retained message of the topic itself.
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
    /// Null if it is binary, or longer than 4 KiB.
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
        let payload = row.payload.as_ref().filter(|payload| payload.len() <= MAX_TEXT);
        Self {
            size_bytes: row.payload_len,
            qos: row.qos.bits(),
            at: row.since.map(unix),
            text: payload.and_then(|payload| String::from_utf8(payload.to_vec()).ok()),
        }
    }
}

/// Levels below a prefix, built from retained messages in any order.
#[derive(Default)]
struct Tree {
    levels: BTreeMap<String, (Level, BTreeSet<String>)>,
    is_truncated: bool,
}

impl Tree {
    /// Adds a message whose topic is below `prefix`, which ends with a slash or is empty.
    fn add(&mut self, prefix: &str, row: &RetainedRow) {
        let topic = row.topic.as_str();
        // A filter `a/#` matches the topic `a` too.
        let Some(rest) = topic.strip_prefix(prefix) else { return };
        let (name, below) = rest.split_once('/').map_or((rest, None), |(name, below)| (name, Some(below)));
        if !self.levels.contains_key(name) && self.levels.len() == MAX_LEVELS {
            self.is_truncated = true;
            return;
        }
        let (level, children) = self.levels.entry(name.to_owned()).or_insert_with(|| {
            let level = Level { name: name.to_owned(), topic: format!("{prefix}{name}"), ..Level::default() };
            (level, BTreeSet::new())
        });
        level.messages += 1;
        match below {
            None => level.last = Some(Last::from(row)),
            Some(below) => {
                children.insert(below.split('/').next().unwrap_or_default().to_owned());
            }
        }
    }

    fn finish(self) -> Topics {
        let finish = |(mut level, children): (Level, BTreeSet<String>)| {
            level.children = children.len();
            level
        };
        Topics { levels: self.levels.into_values().map(finish).collect(), truncated: self.is_truncated }
    }
}

#[utoipa::path(
    get, path = "/api/v1/topics", tag = "retained", params(TopicsParams),
    description = "Shows one level of the tree of topics with retained messages. Other topics are not known: the broker \
                   keeps no record of messages that it has delivered.",
    responses((status = 200, description = "Success", body = Topics)),
)]
pub(super) async fn list(State(api): State<Api>, Params(params): Params<TopicsParams>) -> Answer<Topics> {
    let handle = api.handle()?;
    let prefix = match params.prefix.as_deref() {
        None | Some("") => String::new(),
        Some(prefix) => {
            let topic = TopicName::parse(prefix).map_err(|error| Refused::bad(format!("prefix: {error}")))?;
            format!("{}/", topic.as_str())
        }
    };
    let filter = TopicFilter::parse(&format!("{prefix}#"));
    let filter = filter.map_err(|error| Refused::bad(format!("prefix: {error}")))?;
    let query = RetainedQuery { filter, with_payload: true };
    let (mut tree, mut after, mut visited) = (Tree::default(), None, 0);
    loop {
        let page = handle.retained(&query, after, ROWS).await;
        visited += page.rows.len();
        for row in &page.rows {
            tree.add(&prefix, row);
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
    Ok(Json(tree.finish()))
}
