//! Docs at crate and module roots, and exports of crate roots.

use syn::spanned::Spanned;

use super::Violation;
use crate::source::{Source, is_test, use_names};

/// The most names a crate's root may export.
const EXPORT_LIMIT: usize = 40;

/// Docs at crate and module roots, and exports of crate roots.
pub(super) fn check(sources: &[Source<'_>]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for source in sources.iter().filter(|source| !source.all_test) {
        violations.extend(missing_docs(source));
        violations.extend(globs(source));
        if is_crate_root(source) {
            violations.extend(too_many_exports(source));
        }
    }
    violations
}

fn is_crate_root(source: &Source<'_>) -> bool {
    source.path.strip_prefix(source.crate_folder()) == Some("/src/lib.rs")
}

fn missing_docs(source: &Source<'_>) -> Option<Violation> {
    let docs = inner_docs(&source.ast);
    let has_modules = source.ast.items.iter().any(|item| match item {
        syn::Item::Mod(module) => module.content.is_none() && !is_test(&module.attrs),
        _ => false,
    });
    let crate_root = is_crate_root(source);
    let violation = |rule, problem, remedy| Some(Violation::new(source.path, 1, rule, problem, remedy));
    if docs.is_empty() && (crate_root || has_modules || source.stem() == "mod") {
        let remedy = "say in its first lines what the module is";
        violation("module-docs", "a module root without `//!` docs", remedy)
    } else if crate_root && !docs.contains("never") {
        let problem = "the crate's docs do not say what it never does";
        violation("crate-docs", problem, "add a sentence with the word `never`")
    } else {
        None
    }
}

/// The text of a file's `//!` lines.
fn inner_docs(ast: &syn::File) -> String {
    let mut docs = String::new();
    for attr in ast.attrs.iter().filter(|attr| attr.path().is_ident("doc")) {
        if let Ok(syn::MetaNameValue { value: syn::Expr::Lit(literal), .. }) = attr.meta.require_name_value()
            && let syn::Lit::Str(text) = &literal.lit
        {
            docs.push_str(&text.value());
            docs.push('\n');
        }
    }
    docs
}

fn globs(source: &Source<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for item in &source.ast.items {
        let syn::Item::Use(import) = item else { continue };
        let public = matches!(import.vis, syn::Visibility::Public(_));
        if public && use_names(&import.tree).iter().any(|name| name.local.is_none()) {
            let (line, problem) = (import.span().start().line, "exports with `*`");
            let remedy = "name what is exported";
            violations.push(Violation::new(source.path, line, "glob-export", problem, remedy));
        }
    }
    violations
}

fn too_many_exports(source: &Source<'_>) -> Option<Violation> {
    let names: usize = source.ast.items.iter().map(exports).sum();
    let problem = format!("exports {names} names, the limit is {EXPORT_LIMIT}");
    let remedy = "group them in modules, or stop exporting unused names";
    (names > EXPORT_LIMIT).then(|| Violation::new(source.path, 1, "exports", problem, remedy))
}

/// Number of names that an item of a crate root exports.
fn exports(item: &syn::Item) -> usize {
    let visibility = match item {
        syn::Item::Use(item) if matches!(item.vis, syn::Visibility::Public(_)) => {
            return use_names(&item.tree).len();
        }
        syn::Item::Const(item) => &item.vis,
        syn::Item::Enum(item) => &item.vis,
        syn::Item::Fn(item) => &item.vis,
        syn::Item::Mod(item) => &item.vis,
        syn::Item::Static(item) => &item.vis,
        syn::Item::Struct(item) => &item.vis,
        syn::Item::Trait(item) => &item.vis,
        syn::Item::Type(item) => &item.vis,
        _ => return 0,
    };
    usize::from(matches!(visibility, syn::Visibility::Public(_)))
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
    fn a_crate_root_says_what_the_crate_is_and_never_does() {
        assert_eq!(rules("crates/a/src/lib.rs", "pub struct A;\n"), [(1, "module-docs")]);
        assert_eq!(rules("crates/a/src/lib.rs", "//! All of it.\n"), [(1, "crate-docs")]);
        assert_eq!(rules("crates/a/src/lib.rs", "//! The core. It never opens a socket.\n"), []);
        assert_eq!(rules("crates/a/src/packet/lib.rs", "struct A;\n"), []);
    }

    #[test]
    fn a_module_root_has_docs_and_a_leaf_needs_none() {
        assert_eq!(rules("crates/a/src/packet/mod.rs", "struct A;\n"), [(1, "module-docs")]);
        assert_eq!(rules("crates/a/src/packet.rs", "mod connect;\n"), [(1, "module-docs")]);
        assert_eq!(rules("crates/a/src/packet.rs", "//! Packets.\nmod connect;\n"), []);
        assert_eq!(rules("crates/a/src/packet.rs", "#[cfg(test)]\nmod tests;\n"), []);
        assert_eq!(rules("crates/a/src/packet.rs", "struct A;\n"), []);
        assert_eq!(rules("crates/a/tests/it/main.rs", "mod a;\n"), []);
    }

    #[test]
    fn exports_are_named() {
        assert_eq!(rules("crates/a/src/b.rs", "\npub use a::{b, c::*};\n"), [(2, "glob-export")]);
        assert_eq!(rules("crates/a/src/b.rs", "pub use a::{b, c::d as e};\nuse f::*;\n"), []);
    }

    #[test]
    fn a_crate_root_exports_at_most_40_names() {
        let root = |leaves: usize| {
            let names: Vec<_> = (0..leaves).map(|n| format!("N{n}")).collect();
            format!(
                "//! It never.\npub mod a;\npub struct B;\nfn private() {{}}\npub use a::{{{}}};\n",
                names.join(", ")
            )
        };
        assert_eq!(rules("crates/a/src/lib.rs", &root(38)), []);
        assert_eq!(rules("crates/a/src/lib.rs", &root(39)), [(1, "exports")]);
    }
}
