//! Tags of statements in sources, tests and documents.

use super::contract;
use crate::source;
use crate::tree::{TextFile, Tree};

/// Folders whose Rust sources carry tags: code enforces, tests show.
const SOURCES: &[&str] = &["crates/"];
/// Folders with tests only, in any language.
const TESTS: &[&str] = &["fuzz/", "peers/", "xtask/peers/", "xtask/src/peers"];

/// Meaning of a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Enforced,
    Tested,
    /// Reference of our contract to a statement, which has to exist.
    Cited,
}

/// One tag in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tag {
    /// Text between the brackets, such as `MQTT-3.3.2-2`, `MQTT3-3.1.2-22` or `BQ-31`.
    pub(super) id: String,
    pub(super) path: String,
    /// Counted from 1.
    pub(super) line: usize,
    pub(super) place: Place,
}

/// Every tag in the sources, tests, peers and fuzz targets, and those that our contract cites.
pub(super) fn read(tree: &Tree) -> Vec<Tag> {
    let mut tags = Vec::new();
    let (sources, unparsed) = source::parse(tree, SOURCES);
    for source in sources {
        for (line, id) in tags_of(source.text) {
            let place = if source.is_test_line(line) { Place::Tested } else { Place::Enforced };
            tags.push(Tag { id, path: source.path.into(), line, place });
        }
    }
    for failed in unparsed {
        eprintln!(
            "spec: {}:{}: skipped, for it does not parse: {}",
            failed.path, failed.line, failed.message
        );
    }
    let in_tests = |file: &&TextFile| {
        TESTS.iter().any(|folder| file.path.starts_with(folder))
            && [".rs", ".py", ".js", ".mjs"].iter().any(|end| file.path.ends_with(end))
    };
    for file in tree.files.iter().filter(in_tests) {
        tags.extend(every(file, Place::Tested));
    }
    tags.extend(tree.file(contract::FILE).into_iter().flat_map(|file| every(file, Place::Cited)));
    tags
}

fn every(file: &TextFile, place: Place) -> impl Iterator<Item = Tag> {
    tags_of(&file.text).into_iter().map(move |(line, id)| Tag { id, path: file.path.clone(), line, place })
}

/// Every `[MQTT-3...]`, `[MQTT3-3...]` and `[BQ-3...]` with its line. The text inside is validated later, so that a
/// typo is reported.
fn tags_of(text: &str) -> Vec<(usize, String)> {
    let mut tags = Vec::new();
    for (at, line) in text.lines().enumerate() {
        for (start, _) in line.match_indices('[') {
            let inside = line[start + 1..].split(']').next().unwrap_or_default();
            let number = ["MQTT-", "MQTT3-", "BQ-"].iter().find_map(|prefix| inside.strip_prefix(prefix));
            if number.is_some_and(|number| number.starts_with(|first: char| first.is_ascii_digit())) {
                tags.push((at + 1, inside.to_owned()));
            }
        }
    }
    tags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_a_number_in_brackets() {
        let found = |text| tags_of(text).into_iter().map(|(_, id)| id).collect::<Vec<_>>();
        assert_eq!(found("a // [MQTT-3.3.2-2], [MQTT3-3.1.2-22]"), ["MQTT-3.3.2-2", "MQTT3-3.1.2-22"]);
        assert_eq!(found("/// (`[BQ-31]`), [BQ-7 8]"), ["BQ-31", "BQ-7 8"]);
        assert_eq!(found("[MQTT-3.3.2-2"), ["MQTT-3.3.2-2"], "an open bracket counts by its content");
        assert_eq!(found("[MQTT] MQTT-3.3.2-2 [MQTT-x.y.z-n] [MQTT5-1.1.1-1] BQ-3 [BQ-n] [BQ]"), [""; 0]);
    }

    #[test]
    fn where_a_tag_stands_says_what_it_means() {
        let tag = "// [MQTT-1.1.1-1]\n";
        let tree = Tree::of(&[
            ("crates/a/src/lib.rs", "// [MQTT-1.1.1-1]\n#[cfg(test)]\nmod tests {\n// [MQTT-1.1.1-1]\n}\n"),
            ("crates/a/tests/it/main.rs", tag),
            ("peers/paho/resume.py", "# [MQTT-1.1.1-1]\n"),
            ("fuzz/fuzz_targets/decode.rs", tag),
            ("xtask/src/spec.rs", tag),
            ("docs/spec/notes.md", tag),
            (contract::FILE, tag),
        ]);
        let places: Vec<_> = read(&tree).into_iter().map(|tag| (tag.path, tag.line, tag.place)).collect();
        let expected = [
            ("crates/a/src/lib.rs", 1, Place::Enforced),
            ("crates/a/src/lib.rs", 4, Place::Tested),
            ("crates/a/tests/it/main.rs", 1, Place::Tested),
            ("peers/paho/resume.py", 1, Place::Tested),
            ("fuzz/fuzz_targets/decode.rs", 1, Place::Tested),
            (contract::FILE, 1, Place::Cited),
        ];
        assert_eq!(places, expected.map(|(path, line, place)| (path.to_owned(), line, place)));
    }
}
