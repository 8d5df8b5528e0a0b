//! Coverage of statements: joins statements and tags.

use std::collections::BTreeMap;

use super::statement::{Binds, Edition, Standard, Statement, Tested};
use super::tag::{Place, Tag};

/// Coverage of one statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Enforced, and a test shows it.
    Covered,
    /// Enforced only.
    Untested,
    /// Unenforced, or untested where each must be tested, for a written reason.
    Exception,
    /// Unenforced.
    Missing,
    /// Rule that does not bind code.
    Free,
}

/// One statement with its places in the code.
pub(super) struct Row {
    /// The tag without its brackets.
    pub(super) tag: String,
    pub(super) binds: Binds,
    pub(super) summary: String,
    /// The tags of 5.0 that together cover it too.
    pub(super) same_as: Vec<String>,
    pub(super) exception: Option<String>,
    pub(super) state: State,
    /// The first place, as `path:line`.
    pub(super) enforced_at: Option<String>,
    pub(super) tested_at: Option<String>,
}

/// One standard, joined with the code.
pub(super) struct Coverage {
    pub(super) edition: Edition,
    pub(super) rows: Vec<Row>,
    /// Tags of this standard's form that no statement has.
    pub(super) unknown: Vec<Unknown>,
}

/// A tag that no statement has.
pub(super) struct Unknown {
    pub(super) found: Tag,
    /// The tag that was probably meant, if a number of 3.1.1 was written as one of 5.0.
    pub(super) meant: Option<String>,
}

impl Coverage {
    pub(super) fn count(&self, state: &State) -> usize {
        self.rows.iter().filter(|row| row.state == *state).count()
    }

    /// Number of statements that bind a server or a client, exceptions included.
    pub(super) fn binding(&self) -> usize {
        self.rows.len() - self.count(&State::Free)
    }
}

/// Joins the standards with the tags found. 5.0 comes before 3.1.1, which refers to it.
pub(super) fn join(standards: &[Standard], tags: &[Tag]) -> Vec<Coverage> {
    let mut five: BTreeMap<&str, Kept> = BTreeMap::new();
    let mut coverages = Vec::new();
    for standard in standards {
        let mut rows = Vec::new();
        for statement in &standard.statements {
            let tag = tag_of(standard, statement);
            let kept = Kept::of(statement, &tag, tags, &five);
            rows.push(kept.row(standard, statement, tag));
            if standard.edition.tag_prefix == "MQTT-" {
                five.insert(&statement.id, kept);
            }
        }
        let unknown = tags.iter().filter(|tag| {
            tag.id.starts_with(standard.edition.tag_prefix) && !rows.iter().any(|row| row.tag == tag.id)
        });
        let unknown =
            unknown.map(|tag| Unknown { found: tag.clone(), meant: meant(standards, tag) }).collect();
        coverages.push(Coverage { edition: standard.edition, rows, unknown });
    }
    coverages
}

/// The tag that `[MQTT-4.8.0-1]` should be: 5.0 has no such number, but 3.1.1 has.
fn meant(standards: &[Standard], tag: &Tag) -> Option<String> {
    let three = standards.iter().find(|standard| standard.edition.tag_prefix == "MQTT3-")?;
    three.statements.iter().any(|statement| statement.id == tag.id).then(|| tag.id.replace("MQTT-", "MQTT3-"))
}

fn tag_of(standard: &Standard, statement: &Statement) -> String {
    statement.id.replacen("MQTT-", standard.edition.tag_prefix, 1)
}

/// Places that enforce and test a statement, by its own tag or by all tags of equal statements.
struct Kept {
    enforced: Option<String>,
    tested: Option<String>,
    excepted: bool,
}

impl Kept {
    fn of(statement: &Statement, tag: &str, tags: &[Tag], five: &BTreeMap<&str, Self>) -> Self {
        let own = |place| {
            let found = tags.iter().find(|found| found.id == tag && found.place == place)?;
            Some(format!("{}:{}", found.path, found.line))
        };
        let same: Vec<&Self> =
            statement.same_as.ids().iter().filter_map(|id| five.get(id.as_str())).collect();
        let every = |place: fn(&Self) -> &Option<String>| {
            let all: Option<Vec<&String>> = same.iter().map(|kept| place(kept).as_ref()).collect();
            all?.first().map(|first| (*first).clone())
        };
        let enforced = own(Place::Enforced).or_else(|| every(|kept| &kept.enforced));
        let inherited = !same.is_empty() && same.iter().all(|kept| kept.excepted || kept.enforced.is_some());
        Self {
            tested: own(Place::Tested).or_else(|| every(|kept| &kept.tested)),
            excepted: statement.exception.is_some() || (enforced.is_none() && inherited),
            enforced,
        }
    }

    fn row(&self, standard: &Standard, statement: &Statement, tag: String) -> Row {
        let test_excused = standard.edition.tested == Tested::Each && statement.exception.is_some();
        let state = match (statement.binds, &self.enforced, &self.tested) {
            (Binds::None, ..) => State::Free,
            (_, Some(_), Some(_)) => State::Covered,
            (_, Some(_), None) if test_excused => State::Exception,
            (_, Some(_), None) => State::Untested,
            (_, None, _) if self.excepted => State::Exception,
            (_, None, _) => State::Missing,
        };
        Row {
            tag,
            binds: statement.binds,
            summary: statement.summary.clone(),
            same_as: statement.same_as.ids().to_vec(),
            exception: statement.exception.clone(),
            state,
            enforced_at: self.enforced.clone(),
            tested_at: self.tested.clone(),
        }
    }
}
