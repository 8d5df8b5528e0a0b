use super::Violation;
use crate::source::{Source, functions};

/// The most lines a file may have outside its tests.
const FILE_LIMIT: usize = 800;
/// The most lines the file in the middle may have, outside its tests.
const MEDIAN_LIMIT: usize = 200;
/// The most lines a function may have, from its signature to its closing brace.
const FUNCTION_LIMIT: usize = 100;

/// Files, their median, and functions within their budgets.
pub(super) fn check(sources: &[Source<'_>]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for source in sources {
        let (code, _) = source.line_counts();
        if code > FILE_LIMIT {
            violations.push(Violation {
                path: source.path.into(),
                line: 0,
                rule: "file-size",
                what: format!("{code} lines without tests, the limit is {FILE_LIMIT}"),
                remedy: "split it by the nouns it holds".into(),
            });
        }
        violations.extend(long_functions(source));
    }
    let median = median(sources);
    if median > MEDIAN_LIMIT {
        violations.push(Violation {
            path: "crates".into(),
            line: 0,
            rule: "file-median",
            what: format!("the median file has {median} lines without tests, the limit is {MEDIAN_LIMIT}"),
            remedy: "split the files that hold more than one noun".into(),
        });
    }
    violations
}

fn long_functions(source: &Source<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for function in functions(&source.ast) {
        let lines = function.last + 1 - function.first;
        if lines > FUNCTION_LIMIT {
            violations.push(Violation {
                path: source.path.into(),
                line: function.first,
                rule: "function-size",
                what: format!("fn {} has {lines} lines, the limit is {FUNCTION_LIMIT}", function.name),
                remedy: "give its steps names of their own".into(),
            });
        }
    }
    violations
}

/// The median number of lines outside tests, over the files that hold any; 0 without files.
pub(super) fn median(sources: &[Source<'_>]) -> usize {
    let mut lines: Vec<_> =
        sources.iter().map(|source| source.line_counts().0).filter(|code| *code > 0).collect();
    lines.sort_unstable();
    lines.get(lines.len() / 2).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::parse;
    use crate::tree::Tree;

    fn rules(files: &[(&str, &str)]) -> Vec<(usize, &'static str)> {
        let tree = Tree::of(files);
        let (sources, _) = parse(&tree, &["crates/"]);
        check(&sources).into_iter().map(|violation| (violation.line, violation.rule)).collect()
    }

    #[test]
    fn a_file_of_801_lines_is_too_long_and_tests_do_not_count() {
        let small = ("crates/a/src/small.rs", "struct A;\n");
        let code = "// line\n".repeat(800);
        let tests = format!("{code}#[cfg(test)]\nmod tests {{\n{code}}}\n");
        assert_eq!(rules(&[("crates/a/src/x.rs", &tests), small, small]), []);
        let over = format!("{code}// line\n");
        assert_eq!(rules(&[("crates/a/src/x.rs", &over), small, small]), [(0, "file-size")]);
    }

    #[test]
    fn a_function_of_101_lines_is_too_long() {
        let function = |lines: usize| format!("/// Doc.\nfn a() {{\n{}}}\n", "    a();\n".repeat(lines - 2));
        assert_eq!(rules(&[("crates/a/src/x.rs", &function(100))]), []);
        assert_eq!(rules(&[("crates/a/src/x.rs", &function(101))]), [(2, "function-size")]);
    }

    #[test]
    fn the_median_is_the_file_in_the_middle() {
        let (long, short) = ("// line\n".repeat(201), "// line\n");
        let file = |name, text| (name, text);
        let two_long = [
            file("crates/a/src/x.rs", &*long),
            file("crates/a/src/y.rs", &*long),
            ("crates/a/src/z.rs", short),
        ];
        assert_eq!(rules(&two_long), [(0, "file-median")]);
        let one_long = [two_long[0], ("crates/a/src/y.rs", short), two_long[2]];
        assert_eq!(rules(&one_long), []);
    }
}
