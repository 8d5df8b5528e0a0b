//! Parsed Rust sources, with their test lines and their functions.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::tree::{TextFile, Tree};

/// One parsed Rust file.
pub(crate) struct Source<'a> {
    pub(crate) path: &'a str,
    pub(crate) text: &'a str,
    pub(crate) ast: syn::File,
    /// The whole file is test code: under `tests/`, or a module declared `#[cfg(test)] mod name;`.
    pub(crate) all_test: bool,
    test_lines: Vec<RangeInclusive<usize>>,
}

/// File that does not parse as Rust.
#[derive(Debug)]
pub(crate) struct Unparsed {
    pub(crate) path: String,
    pub(crate) line: usize,
    pub(crate) message: String,
}

impl Source<'_> {
    /// Lines are counted from 1.
    pub(crate) fn is_test_line(&self, line: usize) -> bool {
        self.all_test || self.test_lines.iter().any(|lines| lines.contains(&line))
    }

    /// Number of lines of the file: (code, test).
    pub(crate) fn line_counts(&self) -> (usize, usize) {
        let lines = self.text.lines().count();
        let tests = (1..=lines).filter(|line| self.is_test_line(*line)).count();
        (lines - tests, tests)
    }

    /// The folder of the file's crate, such as `crates/braid-proto` or `xtask`.
    pub(crate) fn crate_folder(&self) -> &str {
        crate_folder(self.path)
    }

    /// The file's name without `.rs`.
    pub(crate) fn stem(&self) -> &str {
        let name = self.path.rsplit_once('/').map_or(self.path, |(_, name)| name);
        name.strip_suffix(".rs").unwrap_or(name)
    }
}

/// `crates/braid-proto/src/lib.rs` lies in `crates/braid-proto`, `xtask/src/main.rs` in `xtask`.
pub(crate) fn crate_folder(path: &str) -> &str {
    let depth = if path.starts_with("crates/") { 2 } else { 1 };
    path.match_indices('/').nth(depth - 1).map_or(path, |(at, _)| &path[..at])
}

/// Parses every Rust file under `prefixes`.
pub(crate) fn parse<'a>(tree: &'a Tree, prefixes: &'a [&'a str]) -> (Vec<Source<'a>>, Vec<Unparsed>) {
    let mut sources = Vec::new();
    let mut unparsed = Vec::new();
    for file in tree.under(prefixes, "rs") {
        match parse_one(file) {
            Ok(source) => sources.push(source),
            Err(failed) => unparsed.push(failed),
        }
    }
    let test_modules: BTreeSet<String> = sources.iter().flat_map(test_module_paths).collect();
    for source in &mut sources {
        source.all_test |= test_modules.iter().any(|module| {
            source
                .path
                .strip_prefix(module.as_str())
                .is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        });
    }
    (sources, unparsed)
}

fn parse_one(file: &TextFile) -> Result<Source<'_>, Unparsed> {
    let ast = syn::parse_file(&file.text).map_err(|error| Unparsed {
        path: file.path.clone(),
        line: error.span().start().line,
        message: error.to_string(),
    })?;
    let mut finder = TestFinder { lines: Vec::new() };
    finder.visit_file(&ast);
    let all_test = file.path.contains("/tests/") || file.path.contains("/benches/");
    Ok(Source { path: &file.path, text: &file.text, ast, all_test, test_lines: finder.lines })
}

/// The paths, without `.rs`, of the modules that a file declares as `#[cfg(test)] mod name;`.
fn test_module_paths(source: &Source<'_>) -> Vec<String> {
    let folder = source.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let folder = match source.stem() {
        "lib" | "main" | "mod" => folder.to_owned(),
        stem => format!("{folder}/{stem}"),
    };
    let declared = source.ast.items.iter().filter_map(|item| match item {
        syn::Item::Mod(module) if module.content.is_none() && is_test(&module.attrs) => Some(&module.ident),
        _ => None,
    });
    declared.map(|name| format!("{folder}/{name}")).collect()
}

/// Whether attributes say `#[test]`, `#[tokio::test]` or `#[cfg(test)]`.
pub(crate) fn is_test(attrs: &[syn::Attribute]) -> bool {
    attrs.iter().any(|attr| {
        let path = attr.path();
        if path.is_ident("cfg") {
            return attr.meta.require_list().is_ok_and(|list| names_test(&list.tokens));
        }
        path.segments.last().is_some_and(|last| last.ident == "test")
    })
}

/// Whether a `cfg` holds only in tests, in the forms that the project uses: `test`, `all(test, ..)`.
fn names_test(tokens: &proc_macro2::TokenStream) -> bool {
    let text = tokens.to_string();
    let mut words = text.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
    words.clone().any(|word| word == "test") && !words.any(|word| word == "not" || word == "any")
}

struct TestFinder {
    lines: Vec<RangeInclusive<usize>>,
}

impl TestFinder {
    fn note(&mut self, attrs: &[syn::Attribute], item: &impl Spanned) -> bool {
        let found = is_test(attrs);
        if found {
            let span = item.span();
            self.lines.push(span.start().line..=span.end().line);
        }
        found
    }
}

impl<'ast> Visit<'ast> for TestFinder {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attrs = match item {
            syn::Item::Mod(item) => &item.attrs,
            syn::Item::Fn(item) => &item.attrs,
            syn::Item::Impl(item) => &item.attrs,
            syn::Item::Use(item) => &item.attrs,
            syn::Item::Struct(item) => &item.attrs,
            _ => return,
        };
        if !self.note(attrs, item) {
            visit::visit_item(self, item);
        }
    }
    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.note(&item.attrs, item);
    }
}

/// Name that a `use` brings in.
pub(crate) struct UseName {
    /// Name in the file; `None` for a glob.
    pub(crate) local: Option<String>,
    /// Path that it stands for.
    pub(crate) path: Vec<String>,
    pub(crate) line: usize,
}

/// The names at the ends of a `use` tree.
pub(crate) fn use_names(tree: &syn::UseTree) -> Vec<UseName> {
    let mut names = Vec::new();
    add_use_names(tree, &[], &mut names);
    names
}

fn add_use_names(tree: &syn::UseTree, before: &[String], names: &mut Vec<UseName>) {
    let named = |name: &syn::Ident, local: &syn::Ident| {
        let mut path = before.to_vec();
        path.extend((name != "self").then(|| name.to_string()));
        let local = if local == "self" { path.last().cloned() } else { Some(local.to_string()) };
        UseName { local, path, line: name.span().start().line }
    };
    match tree {
        syn::UseTree::Path(path) => {
            add_use_names(&path.tree, &[before, &[path.ident.to_string()]].concat(), names);
        }
        syn::UseTree::Name(name) => names.push(named(&name.ident, &name.ident)),
        syn::UseTree::Rename(rename) => names.push(named(&rename.ident, &rename.rename)),
        syn::UseTree::Glob(glob) => {
            let line = glob.star_token.spans[0].start().line;
            names.push(UseName { local: None, path: before.to_vec(), line });
        }
        syn::UseTree::Group(group) => group.items.iter().for_each(|tree| add_use_names(tree, before, names)),
    }
}

/// A function, from its signature to the end of its body.
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) first: usize,
    pub(crate) last: usize,
    /// A trait prescribes its name.
    pub(crate) of_trait: bool,
}

/// Every function of a file, also those inside modules, impls, traits and other functions.
pub(crate) fn functions(ast: &syn::File) -> Vec<Function> {
    let mut finder = FunctionFinder { found: Vec::new(), in_trait_impl: false };
    finder.visit_file(ast);
    finder.found
}

struct FunctionFinder {
    found: Vec<Function>,
    in_trait_impl: bool,
}

impl FunctionFinder {
    fn note(&mut self, signature: &syn::Signature, end: &impl Spanned, of_trait: bool) {
        self.found.push(Function {
            name: signature.ident.to_string(),
            first: signature.span().start().line,
            last: end.span().end().line,
            of_trait,
        });
    }
}

impl<'ast> Visit<'ast> for FunctionFinder {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.note(&item.sig, &item.block, false);
        visit::visit_item_fn(self, item);
    }
    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let outer = std::mem::replace(&mut self.in_trait_impl, item.trait_.is_some());
        visit::visit_item_impl(self, item);
        self.in_trait_impl = outer;
    }
    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.note(&item.sig, &item.block, self.in_trait_impl);
        visit::visit_impl_item_fn(self, item);
    }
    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.note(&item.sig, item, false);
        visit::visit_trait_item_fn(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(text: &str) -> (usize, usize) {
        let tree = Tree::of(&[("crates/a/src/lib.rs", text)]);
        let (sources, unparsed) = parse(&tree, &["crates/"]);
        assert!(unparsed.is_empty(), "{unparsed:?}");
        sources[0].line_counts()
    }

    #[test]
    fn test_modules_and_test_functions_are_test_lines() {
        assert_eq!(counts("fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\n"), (1, 4));
        assert_eq!(counts("fn a() {}\n\n#[tokio::test]\nasync fn b() {\n}\n"), (2, 3));
        assert_eq!(counts("#[cfg(all(test, unix))]\nmod tests {}\nfn a() {}\n"), (1, 2));
        assert_eq!(counts("#[cfg(not(test))]\nfn a() {}\n"), (2, 0));
        assert_eq!(counts("#[cfg(any(test, feature = \"sim\"))]\nfn a() {}\n"), (2, 0));
    }

    #[test]
    fn a_module_declared_for_tests_makes_its_file_test_code() {
        let tree = Tree::of(&[
            ("crates/a/src/lib.rs", "mod wire;\n"),
            ("crates/a/src/wire.rs", "#[cfg(test)]\nmod tests;\nmod read;\n"),
            ("crates/a/src/wire/read.rs", "fn a() {}\n"),
            ("crates/a/src/wire/tests.rs", "fn a() {}\n"),
            ("crates/a/src/wire/tests/deep.rs", "fn a() {}\n"),
            ("crates/a/tests/it/main.rs", "fn a() {}\n"),
        ]);
        let (sources, _) = parse(&tree, &["crates/"]);
        let tests: Vec<_> = sources.iter().map(|source| source.all_test).collect();
        assert_eq!(tests, [false, false, false, true, true, true]);
    }

    #[test]
    fn a_file_that_is_no_rust_is_told_with_its_line() {
        let tree = Tree::of(&[("crates/a/src/lib.rs", "fn a() {}\nfn }\n")]);
        let (sources, unparsed) = parse(&tree, &["crates/"]);
        assert!(sources.is_empty());
        assert_eq!((unparsed[0].path.as_str(), unparsed[0].line), ("crates/a/src/lib.rs", 2));
    }

    #[test]
    fn functions_are_found_wherever_they_stand() {
        let text = "impl Iterator for A {\n  fn next(&mut self) {\n    fn inner() {}\n  }\n}\ntrait T { fn t() {} }\n";
        let found = functions(&syn::parse_file(text).unwrap());
        let brief: Vec<_> = found.iter().map(|f| (f.name.as_str(), f.first, f.last, f.of_trait)).collect();
        assert_eq!(brief, [("next", 2, 4, true), ("inner", 3, 3, false), ("t", 6, 6, false)]);
    }

    #[test]
    fn crate_folders() {
        assert_eq!(crate_folder("crates/braid-proto/src/lib.rs"), "crates/braid-proto");
        assert_eq!(crate_folder("xtask/src/main.rs"), "xtask");
    }
}
