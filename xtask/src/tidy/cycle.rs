//! Cycles of imports between the files of a crate.

use std::collections::{BTreeMap, BTreeSet};

use super::Violation;
use crate::source::{Source, is_test, use_names};

/// The most import cycles inside single folders, over all crates.
const CYCLE_LIMIT: usize = 6;
/// The most consecutive re-exports that are followed to the file that defines a name.
const REEXPORT_LIMIT: usize = 8;

/// Cycles of imports between the files of a crate: none may cross a folder, and few may stay inside one.
pub(super) fn check(sources: &[Source<'_>]) -> Vec<Violation> {
    let mut crates: BTreeMap<&str, Vec<&Source<'_>>> = BTreeMap::new();
    for source in sources.iter().filter(|source| !source.all_test && source.path.contains("/src/")) {
        crates.entry(source.crate_folder()).or_default().push(source);
    }
    let cycles: Vec<Vec<String>> =
        crates.values().flat_map(|sources| ImportGraph::of(sources).cycles()).collect();
    let (inside, crossing): (Vec<_>, Vec<_>) = cycles.iter().partition(|cycle| is_inside_one_folder(cycle));
    let violation = |cycle: &[String], problem: String, remedy: &str| {
        Violation::new(&cycle[0], 0, "import-cycle", problem, remedy)
    };
    let mut violations: Vec<_> = crossing
        .into_iter()
        .map(|cycle| {
            let problem = format!("a cycle of imports crosses folders: {}", cycle.join(", "));
            violation(cycle, problem, "move what both sides need below them")
        })
        .collect();
    if inside.len() > CYCLE_LIMIT {
        violations.extend(inside.iter().map(|cycle| {
            let problem = format!(
                "a cycle of imports, one of {} inside folders, the limit is {CYCLE_LIMIT}: {}",
                inside.len(),
                cycle.join(", ")
            );
            violation(cycle, problem, "let one direction go, or merge files that are one thing")
        }));
    }
    violations
}

/// `a/b.rs` belongs to the folder `a/b` where its submodules stand in it.
fn is_inside_one_folder(cycle: &[String]) -> bool {
    let folders: BTreeSet<&str> = cycle
        .iter()
        .map(|path| {
            let stem = path.strip_suffix(".rs").unwrap_or(path);
            let is_root =
                cycle.iter().any(|other| other.strip_prefix(stem).is_some_and(|rest| rest.starts_with('/')));
            if is_root { stem } else { path.rsplit_once('/').map_or("", |(folder, _)| folder) }
        })
        .collect();
    folders.len() == 1
}

/// The files of one crate, and which of them each imports.
pub(super) struct ImportGraph<'a> {
    /// File paths by module path; the crate root has an empty one.
    files: BTreeMap<Vec<String>, &'a str>,
    /// Names that a module brings in by `use`, with the paths that they stand for.
    imports: BTreeMap<Vec<String>, BTreeMap<String, Vec<String>>>,
    edges: BTreeMap<&'a str, BTreeSet<&'a str>>,
}

impl<'a> ImportGraph<'a> {
    pub(super) fn of(sources: &[&'a Source<'a>]) -> Self {
        let files = sources.iter().map(|source| (module_path(source.path), source.path)).collect();
        let mut graph = Self { files, imports: BTreeMap::new(), edges: BTreeMap::new() };
        for source in sources {
            let mut names = BTreeMap::new();
            for item in &source.ast.items {
                if let syn::Item::Use(item) = item
                    && !is_test(&item.attrs)
                {
                    let named = use_names(&item.tree).into_iter();
                    names.extend(named.filter_map(|name| Some((name.local?, name.path))));
                }
            }
            graph.imports.insert(module_path(source.path), names);
        }
        for source in sources {
            let module = module_path(source.path);
            let targets = graph.imports[&module]
                .values()
                .filter_map(|path| graph.resolve(&module, path, REEXPORT_LIMIT))
                // A module root presents its submodules, which may use what it defines.
                .filter(|target| !module_path(target).starts_with(&module))
                .collect();
            graph.edges.insert(source.path, targets);
        }
        graph
    }

    /// The file that defines what `path` names inside `file`, which is `file` itself for a name that it does not
    /// import.
    pub(super) fn definition(&self, file: &str, path: &[String]) -> Option<&'a str> {
        let module = module_path(file);
        let (first, rest) = path.split_first()?;
        match self.imports.get(&module).and_then(|names| names.get(first)) {
            Some(imported) => {
                let full: Vec<_> = imported.iter().chain(rest).cloned().collect();
                self.resolve(&module, &full, REEXPORT_LIMIT)
            }
            None if rest.is_empty() => self.files.get(&module).copied(),
            None => self.resolve(&module, path, REEXPORT_LIMIT),
        }
    }

    /// The file that defines what `path` names inside `module`; `None` for what other crates define.
    fn resolve(&self, module: &[String], path: &[String], left: usize) -> Option<&'a str> {
        let (first, mut rest) = path.split_first()?;
        let mut at = module.to_vec();
        match first.as_str() {
            "crate" => at.clear(),
            "self" => {}
            "super" => {
                at.pop();
                while let Some(("super", deeper)) =
                    rest.split_first().map(|(next, deeper)| (next.as_str(), deeper))
                {
                    at.pop();
                    rest = deeper;
                }
            }
            name => {
                at.push(name.to_owned());
                self.files.get(&at)?;
            }
        }
        while let Some((next, deeper)) = rest.split_first() {
            at.push(next.clone());
            if self.files.contains_key(&at) {
                rest = deeper;
                continue;
            }
            at.pop();
            let reexport = self.imports.get(&at).and_then(|names| names.get(next)).filter(|_| left > 0);
            if let Some(target) = reexport {
                let full: Vec<_> = target.iter().chain(deeper).cloned().collect();
                return self.resolve(&at, &full, left - 1);
            }
            break;
        }
        self.files.get(&at).copied()
    }

    /// The strongly connected components of more than one file, each sorted.
    fn cycles(&self) -> Vec<Vec<String>> {
        let reach: BTreeMap<&str, BTreeSet<&str>> =
            self.edges.keys().map(|file| (*file, self.reach(file))).collect();
        let mut cycles = BTreeSet::new();
        for (file, reached) in &reach {
            if reached.contains(file) {
                let members =
                    reached.iter().filter(|other| reach.get(*other).is_some_and(|back| back.contains(file)));
                cycles.insert(members.map(ToString::to_string).collect::<Vec<_>>());
            }
        }
        cycles.into_iter().collect()
    }

    /// Every file that imports lead to from `file`.
    fn reach(&self, file: &str) -> BTreeSet<&'a str> {
        let mut reached = BTreeSet::new();
        let mut open: Vec<&str> = vec![file];
        while let Some(next) = open.pop() {
            for target in self.edges.get(next).into_iter().flatten() {
                if reached.insert(*target) {
                    open.push(target);
                }
            }
        }
        reached
    }
}

/// `crates/x/src/a/mod.rs` and `crates/x/src/a.rs` are both the module `a`.
fn module_path(path: &str) -> Vec<String> {
    let inside = path.split_once("/src/").map_or(path, |(_, inside)| inside);
    let mut parts: Vec<String> = inside.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if parts.last().is_some_and(|last| matches!(last.as_str(), "lib" | "main" | "mod")) {
        parts.pop();
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::parse;
    use crate::tree::Tree;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let tree = Tree::of(files);
        let (sources, unparsed) = parse(&tree, &["crates/"]);
        assert!(unparsed.is_empty(), "{unparsed:?}");
        check(&sources).into_iter().map(|violation| violation.problem).collect()
    }

    const ROOT: (&str, &str) = ("crates/x/src/lib.rs", "mod a;\nmod b;\n");

    #[test]
    fn a_cycle_that_crosses_folders_is_a_violation() {
        let files = [
            ROOT,
            ("crates/x/src/a/mod.rs", "mod c;\npub(crate) use c::C;\n"),
            ("crates/x/src/a/c.rs", "use crate::b::B;\npub(crate) struct C(B);\n"),
            ("crates/x/src/b.rs", "use super::a::C;\npub(crate) struct B(Box<C>);\n"),
        ];
        let problem = "a cycle of imports crosses folders: crates/x/src/a/c.rs, crates/x/src/b.rs";
        assert_eq!(found(&files), [problem], "the re-export leads to the file that defines C");
        let mut cut = files;
        cut[3].1 = "pub(crate) struct B;\n";
        assert_eq!(found(&cut), [""; 0]);
    }

    #[test]
    fn cycles_inside_folders_are_counted() {
        let names: Vec<String> = (0..14).map(|n| format!("crates/x/src/f{n}.rs")).collect();
        let texts: Vec<String> = (0..14).map(|n| format!("use crate::f{};\n", n ^ 1)).collect();
        let mut files: Vec<(&str, &str)> =
            names.iter().zip(&texts).map(|(name, text)| (&**name, &**text)).collect();
        files.push(("crates/x/src/lib.rs", ""));
        assert_eq!(found(&files).len(), 7);
        files.swap_remove(0);
        assert_eq!(found(&files), [""; 0], "six are left");
    }

    #[test]
    fn a_module_root_presents_its_submodules() {
        let files = [
            ("crates/x/src/lib.rs", "mod a;\nmod d;\n"),
            ("crates/x/src/a.rs", "mod b;\nuse b::g;\npub(crate) struct A;\n"),
            ("crates/x/src/a/b.rs", "use super::A;\npub(super) fn g() -> A {}\n"),
            ("crates/x/src/d.rs", "use crate::a::A;\npub(crate) struct D(A);\n"),
        ];
        assert_eq!(found(&files), [""; 0]);
        let mut back = files;
        back[1].1 = "mod b;\nuse crate::d::D;\npub(crate) struct A(Box<D>);\n";
        assert_eq!(found(&back), [""; 0], "a and d are in one folder");
        back[2].1 = "use super::A;\nuse crate::d::D;\n";
        assert_eq!(found(&back), [""; 0], "nothing leads back to b");
        back[3].1 = "use crate::a::b::B;\npub(crate) struct D(B);\n";
        assert_eq!(found(&back).len(), 1, "b and d are in two");
    }

    #[test]
    fn tests_make_no_cycle() {
        let files = [
            ROOT,
            ("crates/x/src/a.rs", "use crate::b::B;\npub(crate) struct A(B);\n"),
            ("crates/x/src/b.rs", "pub(crate) struct B;\n#[cfg(test)]\nmod tests { use crate::a::A; }\n"),
        ];
        assert_eq!(found(&files), [""; 0]);
    }
}
