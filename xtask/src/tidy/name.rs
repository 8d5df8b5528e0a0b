//! Names of files, types and functions.

use syn::visit::{self, Visit};

use super::Violation;
use crate::source::{Source, functions, is_test};

/// Words without meaning in names of files and types.
const EMPTY_WORDS: &[&str] =
    &["common", "context", "data", "helper", "helpers", "info", "misc", "util", "utils"];
/// Names of types that end in such a word because MQTT uses it.
const WORDS_OF_THE_STANDARD: &[&str] = &["AuthenticationData", "CorrelationData"];
/// Prefixes without meaning in names of functions.
const EMPTY_VERBS: &[&str] = &["do_", "get_", "process_"];
/// Names with such a prefix that the standard library uses.
const VERBS_OF_STD: &[&str] = &["get_mut"];

/// Names of files, types and functions.
pub(super) fn check(sources: &[Source<'_>]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for source in sources {
        violations.extend(folder_layout(source));
        violations.extend(empty_file_name(source));
        let mut finder = ItemFinder { source, violations: Vec::new() };
        finder.visit_file(&source.ast);
        violations.extend(finder.violations);
        for function in functions(&source.ast) {
            let given = function.of_trait || VERBS_OF_STD.contains(&function.name.as_str());
            let empty = EMPTY_VERBS.iter().find(|verb| function.name.starts_with(*verb));
            if let Some(verb) = empty.filter(|_| !given && !source.is_test_line(function.first)) {
                let problem = format!("fn {} begins with `{verb}`", function.name);
                let remedy = "name what it does in the words of MQTT or QUIC; a getter is a noun";
                violations.push(Violation::new(source.path, function.first, "item-name", problem, remedy));
            }
        }
    }
    violations
}

/// Integration tests are one binary for each crate: linking is what costs on two cores.
fn folder_layout(source: &Source<'_>) -> Option<Violation> {
    let inside = source.path.strip_prefix(source.crate_folder())?.strip_prefix("/tests/")?;
    let problem = "an integration test outside `tests/it/`";
    let remedy = "make it a module of `tests/it/main.rs`";
    (!inside.starts_with("it/")).then(|| Violation::new(source.path, 0, "test-binary", problem, remedy))
}

fn empty_file_name(source: &Source<'_>) -> Option<Violation> {
    let inside = source.path.strip_prefix(source.crate_folder())?;
    let inside = inside.strip_suffix(".rs").unwrap_or(inside);
    let word = inside.split(['/', '_', '-']).find(|word| EMPTY_WORDS.contains(word))?;
    let problem = format!("`{word}` says nothing about what is inside");
    Some(Violation::new(source.path, 0, "file-name", problem, "name the file after the noun it holds"))
}

struct ItemFinder<'a> {
    source: &'a Source<'a>,
    violations: Vec<Violation>,
}

impl ItemFinder<'_> {
    fn look_at(&mut self, name: &syn::Ident) {
        let text = name.to_string();
        let last = text.rfind(char::is_uppercase).map_or(text.as_str(), |at| &text[at..]).to_lowercase();
        if EMPTY_WORDS.contains(&last.as_str()) && !WORDS_OF_THE_STANDARD.contains(&text.as_str()) {
            let problem = format!("{text} ends in `{last}`, which says nothing");
            let (line, remedy) = (name.span().start().line, "name the thing in the words of MQTT or QUIC");
            self.violations.push(Violation::new(self.source.path, line, "item-name", problem, remedy));
        }
    }
}

impl<'ast> Visit<'ast> for ItemFinder<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        match item {
            syn::Item::Struct(item) => self.look_at(&item.ident),
            syn::Item::Enum(item) => self.look_at(&item.ident),
            syn::Item::Trait(item) => self.look_at(&item.ident),
            syn::Item::Type(item) => self.look_at(&item.ident),
            // The name of a module in its own file is that of the file.
            syn::Item::Mod(item) if item.content.is_some() && !is_test(&item.attrs) => {
                self.look_at(&item.ident);
            }
            _ => {}
        }
        visit::visit_item(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::parse;
    use crate::tree::Tree;

    fn rules(path: &str, text: &str) -> Vec<(usize, &'static str)> {
        let tree = Tree::of(&[(path, text)]);
        let (sources, _) = parse(&tree, &["crates/"]);
        check(&sources).into_iter().map(|violation| (violation.line, violation.rule)).collect()
    }

    #[test]
    fn files_are_nouns() {
        for path in ["utils.rs", "session_helper.rs", "info/mod.rs", "common/packet.rs"] {
            assert_eq!(rules(&format!("crates/a/src/{path}"), ""), [(0, "file-name")], "{path}");
        }
        for path in ["session.rs", "session_manager.rs", "information.rs", "metadata.rs"] {
            assert_eq!(rules(&format!("crates/a/src/{path}"), ""), [], "{path}");
        }
    }

    #[test]
    fn types_are_named_after_the_thing() {
        let rule = [(1, "item-name")];
        for text in
            ["struct SessionHelper;", "enum PacketUtils {}", "trait Context {}", "type ClientInfo = ();"]
        {
            assert_eq!(rules("crates/a/src/x.rs", text), rule, "{text}");
        }
        assert_eq!(rules("crates/a/src/x.rs", "fn a() {}\nmod helpers { struct A; }"), [(2, "item-name")]);
        for text in ["struct CorrelationData;", "struct Information;", "struct DataStream;", "mod tests {}"] {
            assert_eq!(rules("crates/a/src/x.rs", text), [], "{text}");
        }
    }

    #[test]
    fn functions_say_what_they_do() {
        let rule = [(1, "item-name")];
        assert_eq!(rules("crates/a/src/x.rs", "fn process_packet() {}"), rule);
        assert_eq!(rules("crates/a/src/x.rs", "trait A { fn get_topic(&self); }"), rule);
        assert_eq!(rules("crates/a/src/x.rs", "impl A { fn do_it() {} }"), rule);
        assert_eq!(rules("crates/a/src/x.rs", "impl A { fn get_or_default(&mut self) {} }"), rule);
        assert_eq!(rules("crates/a/src/x.rs", "impl A { fn get_mut(&mut self) {} }"), []);
        assert_eq!(rules("crates/a/src/x.rs", "impl Slice for A { fn get_ref(&self) {} }"), []);
        assert_eq!(rules("crates/a/src/x.rs", "fn processed() {} fn done() {} fn get() {}"), []);
        assert_eq!(rules("crates/a/src/x.rs", "#[test]\nfn do_not_forward_twice() {}"), []);
    }

    #[test]
    fn a_crate_has_one_test_binary() {
        assert_eq!(rules("crates/a/tests/session.rs", ""), [(0, "test-binary")]);
        assert_eq!(rules("crates/a/tests/it/session.rs", ""), []);
    }
}
