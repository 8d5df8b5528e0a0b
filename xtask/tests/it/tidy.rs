use crate::{folder, xtask};

const TIDY: (&str, &str) = ("crates/braid-proto/src/lib.rs", "//! The core: it never opens a socket.\n");
const UNTIDY: (&str, &str) = ("crates/braid-router/src/utils.rs", "fn a() { tokio::spawn(b) }\n");

#[test]
fn a_tidy_tree_passes() {
    let root = folder(&[TIDY]);
    let (out, _, code) = xtask(root.path(), &["tidy"]);
    assert_eq!(code, Some(0), "{out}");
    assert!(out.ends_with("files: 1; violations: 0; exemptions: 0\n"), "{out}");
}

#[test]
fn each_violation_is_a_line_with_its_place_and_remedy() {
    let root = folder(&[TIDY, UNTIDY]);
    let (out, _, code) = xtask(root.path(), &["tidy"]);
    assert_eq!(code, Some(1), "{out}");
    let lines: Vec<_> = out.lines().take(2).collect();
    let path = "crates/braid-router/src/utils.rs";
    let expected = [
        format!(
            "{path}:1: `utils` says nothing about what is inside; name the file after the noun it holds (file-name)"
        ),
        format!(
            "{path}:1: names tokio; this code is pure: take time, randomness and bytes as arguments (forbidden-import)"
        ),
    ];
    assert_eq!(lines, expected);
}

#[test]
fn an_exemption_needs_a_need() {
    let exempt = |rule: &str| {
        format!(
            "[[exempt]]\npath = \"crates/braid-router/src/utils.rs\"\nrule = \"{rule}\"\nreason = \"a fixture\"\n"
        )
    };
    let both = exempt("file-name") + &exempt("forbidden-import");
    let root = folder(&[TIDY, UNTIDY, ("xtask/tidy.toml", &both)]);
    assert_eq!(xtask(root.path(), &["tidy"]).2, Some(0));
    let idle = both + &exempt("file-size");
    let root = folder(&[TIDY, UNTIDY, ("xtask/tidy.toml", &idle)]);
    let (out, _, code) = xtask(root.path(), &["tidy"]);
    assert_eq!(code, Some(1));
    assert!(
        out.starts_with(
            "xtask/tidy.toml:1: `file-size` for crates/braid-router/src/utils.rs exempts nothing"
        ),
        "{out}"
    );
}

#[test]
fn a_folder_that_is_not_there_is_told() {
    let root = folder(&[]);
    let (_, error, code) = xtask(&root.path().join("nowhere"), &["tidy"]);
    assert_eq!(code, Some(2));
    assert!(error.starts_with("tidy: cannot list "), "{error}");
}
