use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};

use super::Violation;
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
        let mut finder = TypeFinder::default();
        for source in sources.iter().filter(|source| source.crate_folder() == *folder && !source.all_test) {
            finder.path = source.path;
            finder.visit_file(&source.ast);
        }
        for found in &finder.types {
            if found.fields > FIELD_LIMIT {
                let problem =
                    format!("{} has {} fields, the limit is {FIELD_LIMIT}", found.name, found.fields);
                let remedy = "give what belongs together an owner of its own";
                violations.push(Violation::new(found.path, found.line, "type-fields", problem, remedy));
            }
            let is_one = finder.types.iter().filter(|other| other.name == found.name).count() == 1;
            let files = finder.impls.get(&found.name).map_or(0, BTreeSet::len);
            if is_one && files > IMPL_LIMIT {
                let problem =
                    format!("{} has `impl` in {files} files, the limit is {IMPL_LIMIT}", found.name);
                let remedy = "make parts of it that have their own state";
                violations.push(Violation::new(found.path, found.line, "type-impls", problem, remedy));
            }
        }
    }
    violations
}

struct Found<'a> {
    path: &'a str,
    line: usize,
    name: String,
    fields: usize,
}

#[derive(Default)]
struct TypeFinder<'a> {
    path: &'a str,
    types: Vec<Found<'a>>,
    /// The files with an `impl` of a type, by its name.
    impls: BTreeMap<String, BTreeSet<&'a str>>,
}

impl<'ast> Visit<'ast> for TypeFinder<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        if !is_test(&item.attrs) {
            let (line, name) = (item.ident.span().start().line, item.ident.to_string());
            self.types.push(Found { path: self.path, line, name, fields: item.fields.len() });
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if let (syn::Type::Path(of), false) = (&*item.self_ty, is_test(&item.attrs))
            && let Some(last) = of.path.segments.last()
        {
            self.impls.entry(last.ident.to_string()).or_default().insert(self.path);
        }
    }
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
        format!("struct A {{ {} }}", fields.join(", "))
    }

    #[test]
    fn a_type_has_at_most_12_fields() {
        let path = "crates/braid-broker/src/x.rs";
        assert_eq!(rules(&[(path, &fields(12))]), []);
        assert_eq!(rules(&[(path, &fields(13))]), [(1, "type-fields")]);
        assert_eq!(rules(&[("crates/braid-lab/src/x.rs", &fields(13))]), []);
        assert_eq!(rules(&[(path, &format!("#[cfg(test)]\nmod tests {{ {} }}", fields(13)))]), []);
    }

    #[test]
    fn a_type_has_impls_in_at_most_3_files() {
        let of = |n: usize| (format!("crates/braid-client/src/f{n}.rs"), "impl super::A {}\n".to_owned());
        let files = |count: usize| {
            let mut files: Vec<_> = (1..count).map(of).collect();
            files.push(("crates/braid-client/src/a.rs".into(), "struct A;\nimpl Drop for A {}\n".into()));
            let borrowed: Vec<_> = files.iter().map(|(path, text)| (&**path, &**text)).collect();
            rules(&borrowed)
        };
        assert_eq!(files(3), []);
        assert_eq!(files(4), [(1, "type-impls")]);
    }
}
