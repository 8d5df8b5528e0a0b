//! Sizes of files and functions.

use super::Violation;
use crate::source::{Source, functions};

/// The most lines a file may have outside its tests.
const FILE_LIMIT: usize = 800;
/// The most lines a function may have, from its signature to its closing brace.
const FUNCTION_LIMIT: usize = 100;

/// Sizes of files and functions.
pub(super) fn check(sources: &[Source<'_>]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for source in sources {
        let (code, _) = source.line_counts();
        if code > FILE_LIMIT {
            let problem = format!("{code} lines without tests, the limit is {FILE_LIMIT}");
            let remedy = "split it where it has two reasons to change";
            violations.push(Violation::new(source.path, 0, "file-size", problem, remedy));
        }
        for function in functions(&source.ast) {
            let lines = function.last + 1 - function.first;
            if lines > FUNCTION_LIMIT {
                let problem =
                    format!("fn {} has {lines} lines, the limit is {FUNCTION_LIMIT}", function.name);
                let remedy = "give its steps names of their own";
                violations.push(Violation::new(
                    source.path,
                    function.first,
                    "function-size",
                    problem,
                    remedy,
                ));
            }
        }
    }
    violations
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
        let code = "// line\n".repeat(800);
        let tests = format!("{code}#[cfg(test)]\nmod tests {{\n{code}}}\n");
        assert_eq!(rules(&[("crates/a/src/x.rs", &tests)]), []);
        let over = format!("{code}// line\n");
        assert_eq!(rules(&[("crates/a/src/x.rs", &over)]), [(0, "file-size")]);
    }

    #[test]
    fn a_function_of_101_lines_is_too_long() {
        let function = |lines: usize| format!("/// Doc.\nfn a() {{\n{}}}\n", "    a();\n".repeat(lines - 2));
        assert_eq!(rules(&[("crates/a/src/x.rs", &function(100))]), []);
        assert_eq!(rules(&[("crates/a/src/x.rs", &function(101))]), [(2, "function-size")]);
    }
}
