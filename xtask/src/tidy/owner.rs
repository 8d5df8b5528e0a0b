//! Limits of the types that own connections and sessions: fields of a struct or variant, and files with an `impl`.

use std::collections::BTreeSet;

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

use super::Violation;
use super::cycle::ImportGraph;
use crate::source::{Source, is_test};

/// The most fields of a type.
const FIELD_LIMIT: usize = 12;
/// The most files that may hold an `impl` of one type.
const IMPL_LIMIT: usize = 3;
/// The crates whose types own connections and sessions.
const CRATES: &[&str] = &["crates/braid-broker", "crates/braid-client"];

/// Types that own few fields, in few files.
pub(super) fn check(sources: &[Source<'_>]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for folder in CRATES {
        let sources: Vec<_> =
            sources.iter().filter(|source| source.crate_folder() == *folder && !source.all_test).collect();
        let mut finder = TypeFinder::default();
        for source in &sources {
            finder.path = source.path;
            finder.visit_file(&source.ast);
        }
        violations.extend(finder.in_macros.iter().map(|(path, line)| {
            let problem = "a macro declares a type, whose fields are not counted";
            let remedy = "write the type out, or use an array that an enum indexes";
            Violation::new(*path, *line, "type-in-macro", problem, remedy)
        }));
        violations.extend(finder.fields.iter().filter(|found| found.count > FIELD_LIMIT).map(|found| {
            let problem = format!("{} has {} fields, the limit is {FIELD_LIMIT}", found.name, found.count);
            let remedy = "give what belongs together an owner of its own";
            Violation::new(found.path, found.line, "type-fields", problem, remedy)
        }));
        let imports = ImportGraph::of(&sources);
        for declared in &finder.types {
            let files = finder.impl_files(declared, &imports).len();
            if files > IMPL_LIMIT {
                let problem =
                    format!("{} has `impl` in {files} files, the limit is {IMPL_LIMIT}", declared.name);
                let remedy = "make parts of it that have their own state";
                violations.push(Violation::new(declared.path, declared.line, "type-impls", problem, remedy));
            }
        }
    }
    violations
}

/// Fields of one struct or of one variant of an enum.
struct Fields<'a> {
    path: &'a str,
    line: usize,
    /// Name of the struct, or `Enum::Variant`.
    name: String,
    count: usize,
}

/// Declaration of a struct or enum.
struct Declared<'a> {
    path: &'a str,
    line: usize,
    name: String,
}

/// One `impl` block.
struct Impl<'a> {
    path: &'a str,
    /// Segments of the path that names the type.
    of: Vec<String>,
}

#[derive(Default)]
struct TypeFinder<'a> {
    path: &'a str,
    types: Vec<Declared<'a>>,
    fields: Vec<Fields<'a>>,
    impls: Vec<Impl<'a>>,
    /// Files and lines of macros that declare types.
    in_macros: Vec<(&'a str, usize)>,
}

impl<'a> TypeFinder<'a> {
    fn note_type(&mut self, ident: &syn::Ident) {
        let (line, name) = (ident.span().start().line, ident.to_string());
        self.types.push(Declared { path: self.path, line, name });
    }

    fn note_fields(&mut self, ident: &syn::Ident, name: String, fields: &syn::Fields) {
        let line = ident.span().start().line;
        self.fields.push(Fields { path: self.path, line, name, count: fields.len() });
    }

    /// The files with an `impl` of a type. One whose type cannot be told from others of the same name counts for each
    /// of them.
    fn impl_files(&self, declared: &Declared<'_>, imports: &ImportGraph<'_>) -> BTreeSet<&'a str> {
        let named: BTreeSet<_> =
            self.types.iter().filter(|other| other.name == declared.name).map(|other| other.path).collect();
        let is_of_declared = |found: &&Impl<'_>| {
            found.of.last() == Some(&declared.name)
                && (named.len() == 1
                    || imports
                        .definition(found.path, &found.of)
                        .filter(|path| named.contains(path))
                        .is_none_or(|path| path == declared.path))
        };
        self.impls.iter().filter(is_of_declared).map(|found| found.path).collect()
    }
}

impl<'ast> Visit<'ast> for TypeFinder<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        if !is_test(&item.attrs) {
            self.note_type(&item.ident);
            self.note_fields(&item.ident, item.ident.to_string(), &item.fields);
        }
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        if !is_test(&item.attrs) {
            self.note_type(&item.ident);
            for variant in &item.variants {
                let name = format!("{}::{}", item.ident, variant.ident);
                self.note_fields(&variant.ident, name, &variant.fields);
            }
        }
    }

    fn visit_item_macro(&mut self, item: &'ast syn::ItemMacro) {
        if !is_test(&item.attrs)
            && let Some(line) = type_line(item.mac.tokens.clone())
        {
            self.in_macros.push((self.path, line));
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if let (syn::Type::Path(of), false) = (&*item.self_ty, is_test(&item.attrs)) {
            let of = of.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.impls.push(Impl { path: self.path, of });
        }
    }
}

/// Line of the first `struct` or `enum` in the tokens of a macro.
fn type_line(tokens: TokenStream) -> Option<usize> {
    tokens.into_iter().find_map(|token| match token {
        TokenTree::Group(group) => type_line(group.stream()),
        TokenTree::Ident(ident) if ident == "struct" || ident == "enum" => Some(ident.span().start().line),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::parse;
    use crate::tree::Tree;

    fn rules(files: &[(&str, &str)]) -> Vec<(usize, &'static str)> {
        let tree = Tree::of(files);
        let (sources, unparsed) = parse(&tree, &["crates/"]);
        assert!(unparsed.is_empty(), "{unparsed:?}");
        check(&sources).into_iter().map(|violation| (violation.line, violation.rule)).collect()
    }

    fn fields(count: usize) -> String {
        let fields: Vec<_> = (0..count).map(|n| format!("f{n}: u8")).collect();
        fields.join(", ")
    }

    #[test]
    fn a_type_has_at_most_12_fields() {
        let path = "crates/braid-broker/src/x.rs";
        let of = |count| format!("struct A {{ {} }}", fields(count));
        assert_eq!(rules(&[(path, &of(12))]), []);
        assert_eq!(rules(&[(path, &of(13))]), [(1, "type-fields")]);
        assert_eq!(rules(&[("crates/braid-lab/src/x.rs", &of(13))]), []);
        assert_eq!(rules(&[(path, &format!("#[cfg(test)]\nmod tests {{ {} }}", of(13)))]), []);
    }

    #[test]
    fn a_variant_has_at_most_12_fields() {
        let path = "crates/braid-broker/src/x.rs";
        let of = |count| format!("enum A {{\nB(u8),\nC {{ {} }}\n}}", fields(count));
        assert_eq!(rules(&[(path, &of(12))]), []);
        assert_eq!(rules(&[(path, &of(13))]), [(3, "type-fields")]);
    }

    #[test]
    fn a_macro_hides_no_fields() {
        let path = "crates/braid-broker/src/x.rs";
        let definition = "macro_rules! of {\n($($name:ident),*) => {\nstruct A { $($name: u8,)* }\n};\n}";
        assert_eq!(rules(&[(path, definition)]), [(3, "type-in-macro")]);
        assert_eq!(rules(&[(path, "wrapped! {\nenum A { B { c: u8 } }\n}")]), [(2, "type-in-macro")]);
        assert_eq!(rules(&[(path, "macro_rules! of { ($name:ident) => { fn $name() {} }; }")]), []);
        assert_eq!(rules(&[(path, &format!("#[cfg(test)]\n{definition}"))]), []);
    }

    #[test]
    fn a_type_has_impls_in_at_most_3_files() {
        let of = |n: usize| (format!("crates/braid-client/src/f{n}.rs"), "impl super::A {}\n".to_owned());
        let files = |count: usize, declared: &str| {
            let mut files: Vec<_> = (1..count).map(of).collect();
            let text = format!("{declared}\nimpl Drop for A {{}}\n");
            files.push(("crates/braid-client/src/a.rs".into(), text));
            let borrowed: Vec<_> = files.iter().map(|(path, text)| (&**path, &**text)).collect();
            rules(&borrowed)
        };
        assert_eq!(files(3, "struct A;"), []);
        assert_eq!(files(4, "struct A;"), [(1, "type-impls")]);
        assert_eq!(files(4, "enum A {}"), [(1, "type-impls")]);
    }

    #[test]
    fn types_of_one_name_are_told_apart_by_their_module() {
        let path = |name: &str| format!("crates/braid-client/src/{name}.rs");
        let files = |impls: [&str; 4]| {
            let mut files = vec![(path("a"), "struct A;".to_owned()), (path("b"), "\nstruct A;".to_owned())];
            files.push((path("lib"), "mod a; mod b; pub use b::A;".to_owned()));
            files.extend(
                impls.iter().enumerate().map(|(n, text)| (path(&format!("f{n}")), (*text).to_owned())),
            );
            let borrowed: Vec<_> = files.iter().map(|(path, text)| (&**path, &**text)).collect();
            rules(&borrowed)
        };
        let (of_a, of_b) = ("impl crate::a::A {}", "use crate::A;\nimpl A {}");
        assert_eq!(files([of_a, of_a, of_b, of_b]), []);
        assert_eq!(files([of_a, of_a, of_a, "use super::a::A;\nimpl A {}"]), [(1, "type-impls")]);
        assert_eq!(files([of_b, of_b, of_b, "impl crate::b::A {}"]), [(2, "type-impls")]);
        let unknown = "use crate::other::*;\nimpl A {}";
        assert_eq!(files([of_a, of_a, of_b, unknown]), []);
        assert_eq!(files([of_a, of_a, of_a, unknown]), [(1, "type-impls")]);
    }
}
