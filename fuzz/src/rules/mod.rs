//! Bodies of the fuzz targets for access control lists. Each panics on a failure.

mod acl_file;
mod mosquitto_acl;

use braid_auth::acl::Subject;
use braid_proto::topic::{TopicFilter, TopicName};

pub use acl_file::acl_file;
pub use mosquitto_acl::mosquitto_acl;

/// Words of a file that are taken as names and topics.
const MAX_WORDS: usize = 12;

/// Subjects, topics and filters from the words of a file, so that rules match them.
struct Vocabulary<'a> {
    words: Vec<&'a str>,
    topics: Vec<TopicName>,
    filters: Vec<TopicFilter>,
}

impl<'a> Vocabulary<'a> {
    fn new(text: &'a str) -> Self {
        let separators = |character: char| character.is_whitespace() || matches!(character, '"' | ',' | '=');
        let mut words: Vec<_> = text.split(separators).filter(|word| !word.is_empty()).collect();
        words.sort_unstable();
        words.dedup();
        let step = words.len().div_ceil(MAX_WORDS).max(1);
        let words: Vec<_> = words.into_iter().step_by(step).collect();
        let filled = words.iter().flat_map(|word| ["a", "$SYS"].map(|level| fill(word, level)));
        let topics = filled.filter_map(|text| TopicName::parse(&text).ok()).collect();
        let filters = words.iter().filter_map(|word| TopicFilter::parse(word).ok()).collect();
        Self { words, topics, filters }
    }

    /// Subjects with neighbouring words as names.
    fn subjects(&self) -> impl Iterator<Item = Subject<'_>> {
        (0..self.words.len().min(4)).map(|at| {
            let word = |next: usize| self.words[(at + next) % self.words.len()];
            let address = ["10.0.0.1", "::1"].get(at).and_then(|text| text.parse().ok());
            let user = Some(word(0)).filter(|_| at > 0);
            let groups = &self.words[at..=at];
            Subject { user, client_id: word(1), groups, listener: Some(word(2)), address }
        })
    }
}

/// Topic of a filter: wildcards and placeholders become a level.
fn fill(filter: &str, level: &str) -> String {
    let levels =
        filter.split('/').map(|text| if matches!(text, "+" | "#" | "%u" | "%c") { level } else { text });
    levels.collect::<Vec<_>>().join("/")
}

/// Checks that an error is one line without control characters.
fn check_error(error: &str) {
    assert!(error.starts_with("acl:") && !error.contains(char::is_control), "{error:?}");
}
