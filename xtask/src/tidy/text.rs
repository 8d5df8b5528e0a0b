//! Paths and hosts in texts, and sleeps in tests.

use std::ops::RangeInclusive;

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::Visit;

use super::Violation;
use crate::source::Source;
use crate::tree::Tree;

/// Prefixes of paths of single machines. Written in halves, because the rule applies to this file too.
const MACHINE_PATHS: &[&str] =
    &[concat!("/wo", "rk/"), concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/t", "mp/")];
/// Hosts of package registries: a mirror may stand in for each of them.
const REGISTRY_HOSTS: &[&str] = &[
    concat!("deb.deb", "ian.org"),
    concat!("files.python", "hosted.org"),
    concat!("index.crat", "es.io"),
    concat!("registry.npm", "js.org"),
    concat!("py", "pi.org"),
    concat!("static.crat", "es.io"),
];

/// Rules about texts: their names, what no text may name, and the remedies.
const NEEDLES: [(&str, &[&str], &str); 2] = [
    ("machine-path", MACHINE_PATHS, "use a path relative to the repository, or a temporary folder"),
    ("registry-host", REGISTRY_HOSTS, "name the package, not where it is fetched from"),
];

/// Paths and hosts in texts, and sleeps in tests.
pub(super) fn check(tree: &Tree, sources: &[Source<'_>]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in &tree.files {
        for (at, line) in file.text.lines().enumerate() {
            for (rule, needles, remedy) in NEEDLES {
                if let Some(needle) = needles.iter().find(|needle| names(line, needle)) {
                    violations.push(Violation::new(
                        &file.path,
                        at + 1,
                        rule,
                        format!("names {needle}"),
                        remedy,
                    ));
                }
            }
        }
    }
    violations.extend(sources.iter().flat_map(sleeps));
    violations
}

/// Whether `needle` stands in the line as the beginning of a path or host, not in the middle of another.
fn names(line: &str, needle: &str) -> bool {
    line.match_indices(needle).any(|(at, _)| {
        !line[..at]
            .ends_with(|before: char| before.is_alphanumeric() || matches!(before, '.' | '-' | '_' | '}'))
    })
}

/// Sleeps in tests, except on tokio's paused clock, where they cost no time.
fn sleeps(source: &Source<'_>) -> Vec<Violation> {
    let mut calls = Vec::new();
    if let Ok(tokens) = source.text.parse() {
        sleep_calls(tokens, &mut calls);
    }
    let mut paused = PausedFinder { lines: Vec::new() };
    paused.visit_file(&source.ast);
    let virtual_time =
        |call: &Sleep| !call.of_thread && paused.lines.iter().any(|lines| lines.contains(&call.line));
    let mut violations: Vec<_> = calls
        .iter()
        .filter(|call| source.is_test_line(call.line) && !virtual_time(call))
        .map(|call| {
            let remedy = "wait for the event, or use `#[tokio::test(start_paused = true)]`";
            Violation::new(source.path, call.line, "sleep-in-test", "a test sleeps", remedy)
        })
        .collect();
    violations.dedup();
    violations
}

/// One `sleep(..)`.
struct Sleep {
    line: usize,
    /// `thread::sleep`, which no paused clock shortens.
    of_thread: bool,
}

/// Finds every `sleep(..)`, macros included; comments and strings are no tokens of that kind.
fn sleep_calls(tokens: TokenStream, calls: &mut Vec<Sleep>) {
    let mut before = String::new();
    let mut after: Option<Sleep> = None;
    for token in tokens {
        if let TokenTree::Group(group) = &token {
            if group.delimiter() == Delimiter::Parenthesis {
                calls.extend(after.take());
            }
            sleep_calls(group.stream(), calls);
        }
        after = match &token {
            TokenTree::Ident(ident) if ident == "sleep" => {
                Some(Sleep { line: ident.span().start().line, of_thread: before == "thread" })
            }
            _ => None,
        };
        if let TokenTree::Ident(ident) = &token {
            before = ident.to_string();
        }
    }
}

/// The lines of the tests that run on a paused clock.
struct PausedFinder {
    lines: Vec<RangeInclusive<usize>>,
}

impl<'ast> Visit<'ast> for PausedFinder {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        let paused = |attr: &syn::Attribute| {
            let arguments = attr.meta.require_list().map(|list| list.tokens.to_string()).unwrap_or_default();
            arguments.replace(' ', "").contains("start_paused=true")
        };
        if item.attrs.iter().any(paused) {
            let span = item.span();
            self.lines.push(span.start().line..=span.end().line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::parse;

    fn rules(path: &str, text: &str) -> Vec<(usize, &'static str)> {
        let tree = Tree::of(&[(path, text)]);
        let (sources, _) = parse(&tree, &["crates/"]);
        check(&tree, &sources).into_iter().map(|violation| (violation.line, violation.rule)).collect()
    }

    #[test]
    fn tests_do_not_sleep() {
        let rule = [(2, "sleep-in-test")];
        assert_eq!(rules("crates/a/tests/it/x.rs", "fn a() {\n  std::thread::sleep(b);\n}"), rule);
        let select = "fn a() {\n  select! { _ = time::sleep(b) => {} }\n}";
        assert_eq!(rules("crates/a/tests/it/x.rs", select), rule);
        assert_eq!(rules("crates/a/src/x.rs", "#[cfg(test)]\nmod tests { fn a() { sleep(b).await } }"), rule);
        assert_eq!(rules("crates/a/src/x.rs", "fn a() {\n  sleep(b).await\n}"), []);
        assert_eq!(rules("crates/a/tests/it/x.rs", "// sleep(b)\nfn a() { no_sleep(\"sleep(b)\"); }"), []);
    }

    #[test]
    fn a_paused_clock_may_be_slept_on() {
        let test = |call: &str| {
            format!("#[tokio::test(start_paused = true)]\nasync fn a() {{\n  {call}(b).await;\n}}")
        };
        assert_eq!(rules("crates/a/tests/it/x.rs", &test("tokio::time::sleep")), []);
        assert_eq!(rules("crates/a/tests/it/x.rs", &test("std::thread::sleep")), [(3, "sleep-in-test")]);
    }

    #[test]
    fn no_text_names_a_machine_or_a_registry() {
        for needle in MACHINE_PATHS {
            assert_eq!(rules("docs/a.md", &format!("\nsee {needle}x")), [(2, "machine-path")]);
            assert_eq!(rules("docs/a.md", &format!("see docs{needle}x or ${{HOME}}{needle}")), []);
        }
        for needle in REGISTRY_HOSTS {
            assert_eq!(rules("deny.toml", &format!("url = \"https://{needle}/x\"")), [(1, "registry-host")]);
        }
        assert_eq!(rules("docs/a.md", "the homework/ and networks"), []);
    }
}
