use crate::source;
use crate::tree::{TextFile, Tree};

/// Folders whose Rust sources carry tags: code enforces, tests show.
const SOURCES: &[&str] = &["crates/"];
/// Folders that hold nothing but tests, in any language.
const TESTS: &[&str] = &["fuzz/", "peers/", "xtask/peers/", "xtask/src/peers"];

/// What a tag stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Enforced,
    Tested,
}

/// One tag in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tag {
    /// What stands between the brackets, such as `MQTT-3.3.2-2` or `MQTT3-3.1.2-22`.
    pub(super) id: String,
    pub(super) path: String,
    /// Counted from 1.
    pub(super) line: usize,
    pub(super) place: Place,
}

/// Every tag in the sources, tests, peers and fuzz targets.
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
        for (line, id) in tags_of(&file.text) {
            tags.push(Tag { id, path: file.path.clone(), line, place: Place::Tested });
        }
    }
    tags
}

/// Every `[MQTT-3...]` and `[MQTT3-3...]` with its line. What is inside is judged later, so that a typo is seen.
fn tags_of(text: &str) -> Vec<(usize, String)> {
    let mut tags = Vec::new();
    for (at, line) in text.lines().enumerate() {
        for (start, _) in line.match_indices("[MQTT") {
            let inside = line[start + 1..].split(']').next().unwrap_or_default();
            let number = inside.strip_prefix("MQTT-").or_else(|| inside.strip_prefix("MQTT3-"));
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
        assert_eq!(found("[MQTT-3.3.2-2"), ["MQTT-3.3.2-2"], "an open bracket is judged by what it holds");
        assert_eq!(found("[MQTT] MQTT-3.3.2-2 [MQTT-x.y.z-n] [MQTT5-1.1.1-1]"), [""; 0]);
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
        ]);
        let places: Vec<_> = read(&tree).into_iter().map(|tag| (tag.path, tag.line, tag.place)).collect();
        let expected = [
            ("crates/a/src/lib.rs", 1, Place::Enforced),
            ("crates/a/src/lib.rs", 4, Place::Tested),
            ("crates/a/tests/it/main.rs", 1, Place::Tested),
            ("peers/paho/resume.py", 1, Place::Tested),
            ("fuzz/fuzz_targets/decode.rs", 1, Place::Tested),
        ];
        assert_eq!(places, expected.map(|(path, line, place)| (path.to_owned(), line, place)));
    }
}
