//! Paths that a Rust source names, with `use` resolved: `Instant::now()` after `use std::time::Instant` is
//! `std::time::Instant::now`.

use std::collections::BTreeMap;

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

use crate::source::{Source, UseName, is_test, use_names};

/// A path named outside test code.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mention {
    pub(super) line: usize,
    pub(super) path: Vec<String>,
}

impl Mention {
    /// Whether the path is `wanted` (with `::`) or lies below it.
    pub(super) fn is_within(&self, wanted: &str) -> bool {
        let mut parts = self.path.iter();
        wanted.split("::").all(|part| parts.next().is_some_and(|own| own == part))
    }
}

/// Every path that the code of a file names, its tests aside.
pub(super) fn mentions(source: &Source<'_>) -> Vec<Mention> {
    let mut finder = Finder { imports: BTreeMap::new(), found: Vec::new() };
    finder.visit_file(&source.ast);
    let Finder { imports, found } = finder;
    let outside_tests = found.into_iter().filter(|mention| !source.is_test_line(mention.line));
    let mut mentions: Vec<Mention> = outside_tests
        .map(|mut mention| {
            if let Some(full) = mention.path.first().and_then(|first| imports.get(first)) {
                mention.path.splice(..1, full.iter().cloned());
            }
            mention
        })
        .collect();
    mentions.dedup();
    mentions
}

struct Finder {
    /// Full paths of names that `use` brings in.
    imports: BTreeMap<String, Vec<String>>,
    found: Vec<Mention>,
}

impl Finder {
    fn import(&mut self, tree: &syn::UseTree) {
        for UseName { local, path, line } in use_names(tree) {
            self.found.push(Mention { line, path: path.clone() });
            if let Some(local) = local.filter(|local| path.first() != Some(local)) {
                self.imports.insert(local, path);
            }
        }
    }

    /// The bodies of macros are tokens: every `a::b` in them counts.
    fn tokens(&mut self, stream: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut line = 0;
        let mut colons = 0;
        for token in stream {
            match token {
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Ident(ident) => {
                    if colons != 2 || path.is_empty() {
                        self.finish(&mut path, line);
                        line = ident.span().start().line;
                    }
                    path.push(ident.to_string());
                    colons = 0;
                }
                other => {
                    self.finish(&mut path, line);
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.tokens(group.stream());
                    }
                }
            }
        }
        self.finish(&mut path, line);
    }

    fn finish(&mut self, path: &mut Vec<String>, line: usize) {
        let path = std::mem::take(path);
        if path.len() > 1 {
            self.found.push(Mention { line, path });
        }
    }
}

impl<'ast> Visit<'ast> for Finder {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !is_test(&item.attrs) {
            self.import(&item.tree);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        // Imports of a test module do not apply to the code.
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let parts: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if let (Some(first), true) = (path.segments.first(), parts.len() > 1) {
            self.found.push(Mention { line: first.ident.span().start().line, path: parts });
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        visit::visit_macro(self, call);
        self.tokens(call.tokens.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::parse;
    use crate::tree::Tree;

    fn named(text: &str) -> Vec<String> {
        let tree = Tree::of(&[("crates/a/src/x.rs", text)]);
        let (sources, unparsed) = parse(&tree, &["crates/"]);
        assert!(unparsed.is_empty(), "{unparsed:?}");
        mentions(&sources[0])
            .iter()
            .map(|mention| format!("{}:{}", mention.line, mention.path.join("::")))
            .collect()
    }

    #[test]
    fn use_trees_are_flattened_and_names_resolved() {
        let text = "use std::time::{self, Instant as Clock};\nuse bytes;\nfn a() { Clock::now(); time::sleep(); x::y(); }";
        let expected = [
            "1:std::time",
            "1:std::time::Instant",
            "2:bytes",
            "3:std::time::Instant::now",
            "3:std::time::sleep",
            "3:x::y",
        ];
        assert_eq!(named(text), expected);
    }

    #[test]
    fn paths_in_types_attributes_and_macros_count() {
        let text = "#[tokio::main]\nasync fn a(b: &std::env::Args) {\n  tokio::select! { _ = c::d(e) => f(g::h::i) }\n}";
        assert_eq!(
            named(text),
            ["1:tokio::main", "2:std::env::Args", "3:tokio::select", "3:c::d", "3:g::h::i"]
        );
    }

    #[test]
    fn tests_do_not_count() {
        let module = "#[cfg(test)]\nmod tests { use tokio::time::Instant; fn a() { b::c(); } }\nfn a() {}";
        assert_eq!(named(module), [""; 0]);
        assert_eq!(named("fn a() { b::c(); }\n#[tokio::test]\nasync fn d() { e::f(); }"), ["1:b::c"]);
    }
}
