use std::collections::BTreeSet;

use super::Violation;
use super::mention::{Mention, mentions};
use crate::source::{Source, crate_folder};
use crate::tree::{TextFile, Tree};

/// Permission to import one of our crates: all of it, or one of its paths.
struct Import {
    name: &'static str,
    below: &'static str,
}

const fn whole(name: &'static str) -> Import {
    Import { name, below: name }
}

/// Allowed imports between our crates. A crate outside of the table is a violation.
const DEPENDENCIES: &[(&str, &[Import])] = &[
    ("braid-proto", &[]),
    ("braid-router", &[whole("braid_proto")]),
    ("braid-store", &[whole("braid_proto")]),
    ("braid-transport", &[Import { name: "braid_proto", below: "braid_proto::stream" }]),
    ("braid-client", &[whole("braid_proto"), whole("braid_transport")]),
    (
        "braid-broker",
        &[whole("braid_proto"), whole("braid_router"), whole("braid_store"), whole("braid_transport")],
    ),
    (
        "braid-http",
        &[
            Import { name: "braid_broker", below: "braid_broker::Handle" },
            Import { name: "braid_broker", below: "braid_broker::HealthMonitor" },
            whole("braid_transport"),
        ],
    ),
    ("braid-measure", &[]),
    (
        "braid-bench",
        &[whole("braid_proto"), whole("braid_client"), whole("braid_transport"), whole("braid_measure")],
    ),
    ("braid-lab", &[whole("braid_bench"), whole("braid_measure"), whole("braid_transport")]),
    (
        "braidmq",
        &[
            whole("braid_proto"),
            whole("braid_router"),
            whole("braid_store"),
            whole("braid_transport"),
            whole("braid_client"),
            whole("braid_broker"),
            whole("braid_http"),
            whole("braid_measure"),
            whole("braid_bench"),
            whole("braid_lab"),
        ],
    ),
    (
        "braid-torture",
        &[whole("braid_measure"), whole("braid_proto"), whole("braid_transport"), whole("braid_bench")],
    ),
    (
        "braid-suite",
        &[
            whole("braid_measure"),
            whole("braid_proto"),
            whole("braid_store"),
            whole("braid_transport"),
            whole("braid_client"),
            whole("braid_broker"),
            whole("braid_bench"),
        ],
    ),
    ("xtask", &[]),
];

/// Names that some folders must not use, with the remedy.
struct Ban {
    /// Folders to which it applies.
    within: &'static [&'static str],
    /// Folders inside them to which it does not apply.
    except: &'static [&'static str],
    names: &'static [&'static str],
    remedy: &'static str,
}

const BANS: &[Ban] = &[
    Ban {
        within: &[
            "crates/braid-proto/",
            "crates/braid-router/",
            "crates/braid-transport/src/quic/congestion/bbr_extensions",
            "crates/braid-transport/src/quic/congestion/path_model",
        ],
        except: &[],
        names: &[
            "tokio",
            "std::time::Instant::now",
            "std::time::SystemTime",
            "fastrand",
            "getrandom",
            "rand",
        ],
        remedy: "this code is pure: take time, randomness and bytes as arguments",
    },
    Ban {
        within: &["crates/braid-broker/"],
        except: &[],
        names: &["axum", "clap"],
        remedy: "HTTP lives in braid-http, arguments in braidmq",
    },
    Ban {
        within: &["crates/"],
        except: &["crates/braidmq/", "crates/braid-suite/", "crates/braid-torture/"],
        names: &["std::env"],
        remedy: "take a value: environment and arguments are read in the binaries alone",
    },
    Ban {
        within: &["crates/"],
        except: &["crates/braid-transport/"],
        names: &["noq", "rustls", "tokio_rustls", "tokio_tungstenite", "tungstenite"],
        remedy: "go through braid-transport, the only crate that names it",
    },
];

/// Imports between our crates, and of libraries that are bound to one crate.
pub(super) fn check(tree: &Tree, sources: &[Source<'_>]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in tree.under(super::SOURCES, "toml").filter(|file| file.path.ends_with("/Cargo.toml")) {
        violations.extend(manifest(file));
    }
    for source in sources.iter().filter(|source| source.path.contains("/src/")) {
        let mut told = BTreeSet::new();
        for mention in mentions(source) {
            let found = dependency(source.path, &mention).or_else(|| ban(source.path, &mention));
            violations.extend(found.filter(|found| told.insert((found.line, found.problem.clone()))));
        }
    }
    violations
}

fn imports(path: &str) -> Option<&'static [Import]> {
    let folder = crate_folder(path);
    let name = folder.rsplit_once('/').map_or(folder, |(_, name)| name);
    DEPENDENCIES.iter().find(|(owner, _)| *owner == name).map(|(_, imports)| *imports)
}

/// Checks `[dependencies]`, those of single platforms included; dependencies of tests are free.
fn manifest(file: &TextFile) -> Vec<Violation> {
    let violation = |line, rule, problem: String, remedy: &str| Violation {
        path: file.path.clone(),
        line,
        rule,
        problem,
        remedy: remedy.into(),
    };
    if imports(&file.path).is_none() {
        let problem = format!("{} is not in the table of crates", crate_folder(&file.path));
        return vec![violation(
            0,
            "crate-dependency",
            problem,
            "add what it may import to DEPENDENCIES in xtask/src/tidy/dependency.rs",
        )];
    }
    let table: toml::Table = match file.text.parse() {
        Ok(table) => table,
        Err(error) => return vec![violation(0, "syntax", format!("is no TOML: {error}"), "make it valid")],
    };
    let mut names: Vec<&String> = dependencies(&table).collect();
    let platforms = table.get("target").and_then(toml::Value::as_table);
    for platform in platforms.into_iter().flatten().filter_map(|(_, table)| table.as_table()) {
        names.extend(dependencies(platform));
    }
    let mut violations = Vec::new();
    for name in names {
        let line = file.text.lines().position(|line| line.starts_with(name.as_str())).map_or(0, |at| at + 1);
        let mention = Mention { line, path: vec![name.replace('-', "_")] };
        let known = |import: &Import| mention.path[0] == import.name;
        if mention.path[0].starts_with("braid") && !imports(&file.path).unwrap_or(&[]).iter().any(known) {
            let problem = format!("depends on {name}");
            violations.push(violation(
                line,
                "crate-dependency",
                problem,
                "turn the dependency round, or move the code",
            ));
        }
        violations.extend(ban(&file.path, &mention));
    }
    violations
}

fn dependencies(table: &toml::Table) -> impl Iterator<Item = &String> {
    table.get("dependencies").and_then(toml::Value::as_table).into_iter().flatten().map(|(name, _)| name)
}

fn dependency(path: &str, mention: &Mention) -> Option<Violation> {
    let first = mention.path.first()?;
    let own = crate_folder(path).rsplit_once('/').map_or("xtask", |(_, name)| name).replace('-', "_");
    if !first.starts_with("braid_") || *first == own {
        return None;
    }
    let allowed = imports(path).unwrap_or(&[]).iter().filter(|import| import.name == first);
    let allowed: Vec<_> = allowed.map(|import| import.below).collect();
    if allowed.iter().any(|below| mention.is_within(below)) {
        return None;
    }
    let remedy = match &*allowed {
        [] => "turn the dependency round, or move the code".into(),
        allowed => format!("only {} may be imported here", allowed.join(" and ")),
    };
    let problem = format!("imports {}", mention.path.join("::"));
    Some(Violation { path: path.into(), line: mention.line, rule: "crate-dependency", problem, remedy })
}

fn ban(path: &str, mention: &Mention) -> Option<Violation> {
    let holds = |ban: &&Ban| {
        ban.within.iter().any(|folder| path.starts_with(folder))
            && !ban.except.iter().any(|folder| path.starts_with(folder))
    };
    BANS.iter().filter(holds).find_map(|ban| {
        let name = ban.names.iter().find(|name| mention.is_within(name))?;
        Some(Violation {
            path: path.into(),
            line: mention.line,
            rule: "forbidden-import",
            problem: format!("names {name}"),
            remedy: ban.remedy.into(),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::parse;

    fn rules(path: &str, text: &str) -> Vec<(usize, &'static str, String)> {
        let tree = Tree::of(&[(path, text)]);
        let (sources, unparsed) = parse(&tree, &["crates/"]);
        assert!(unparsed.is_empty(), "{unparsed:?}");
        let found = check(&tree, &sources);
        found.into_iter().map(|violation| (violation.line, violation.rule, violation.problem)).collect()
    }

    #[test]
    fn sources_keep_to_the_allowed_imports() {
        let rule = |problem: &str| vec![(1, "crate-dependency", format!("imports {problem}"))];
        let proto = "crates/braid-proto/src/x.rs";
        assert_eq!(rules(proto, "use braid_router::Trie;"), rule("braid_router::Trie"));
        assert_eq!(rules(proto, "fn a() { braid_store::open() }"), rule("braid_store::open"));
        let transport = "crates/braid-transport/src/x.rs";
        assert_eq!(rules(transport, "use braid_proto::stream::Priority;"), []);
        assert_eq!(rules(transport, "use braid_proto::{stream, topic};"), rule("braid_proto::topic"));
        let http = "crates/braid-http/src/x.rs";
        assert_eq!(rules(http, "use braid_broker::{Handle, HealthMonitor};"), []);
        assert_eq!(rules(http, "use braid_broker::Broker;"), rule("braid_broker::Broker"));
        assert_eq!(rules("crates/braid-broker/src/x.rs", "use braid_store::Store;"), []);
        assert_eq!(
            rules("crates/braid-broker/src/x.rs", "use braid_client::Client;"),
            rule("braid_client::Client")
        );
        assert_eq!(rules("crates/braid-broker/tests/it/x.rs", "use braid_client::Client;"), []);
    }

    #[test]
    fn manifests_keep_to_the_allowed_imports() {
        let dependency = vec![(2, "crate-dependency", "depends on braid-broker".to_owned())];
        assert_eq!(
            rules("crates/braid-client/Cargo.toml", "[dependencies]\nbraid-broker.workspace = true\n"),
            dependency
        );
        let platform = "[target.'cfg(unix)'.dependencies]\nbraid-broker.workspace = true\n";
        assert_eq!(rules("crates/braid-client/Cargo.toml", platform), dependency);
        let tests = "[dev-dependencies]\nbraid-broker.workspace = true\n";
        assert_eq!(rules("crates/braid-client/Cargo.toml", tests), []);
        let unlisted =
            vec![(0, "crate-dependency", "crates/braid-new is not in the table of crates".to_owned())];
        assert_eq!(rules("crates/braid-new/Cargo.toml", ""), unlisted);
        let ban = vec![(2, "forbidden-import", "names tokio".to_owned())];
        assert_eq!(rules("crates/braid-router/Cargo.toml", "[dependencies]\ntokio = \"1\"\n"), ban);
    }

    #[test]
    fn pure_code_takes_no_time_by_itself() {
        let rule = |line, problem: &str| vec![(line, "forbidden-import", format!("names {problem}"))];
        let clock = "use std::time::Instant;\nfn a(now: Instant) -> Instant { Instant::now() }";
        assert_eq!(rules("crates/braid-proto/src/x.rs", clock), rule(2, "std::time::Instant::now"));
        assert_eq!(
            rules("crates/braid-transport/src/quic/congestion/path_model/x.rs", clock),
            rule(2, "std::time::Instant::now")
        );
        assert_eq!(rules("crates/braid-transport/src/quic/stream.rs", clock), []);
        let runtime = "fn a() { tokio::spawn(b) }";
        assert_eq!(rules("crates/braid-router/src/x.rs", runtime), rule(1, "tokio"));
        let dice = "#[cfg(test)]\nmod tests { use fastrand::Rng; }\nuse std::time::Instant;";
        assert_eq!(rules("crates/braid-proto/src/x.rs", dice), []);
    }

    #[test]
    fn leaf_crates_keep_their_dependencies_to_themselves() {
        let rule = |problem: &str| vec![(1, "forbidden-import", format!("names {problem}"))];
        assert_eq!(rules("crates/braid-broker/src/x.rs", "use clap::Parser;"), rule("clap"));
        assert_eq!(rules("crates/braid-broker/src/x.rs", "use rustls::ServerConfig;"), rule("rustls"));
        assert_eq!(rules("crates/braidmq/src/x.rs", "use noq::Endpoint;"), rule("noq"));
        assert_eq!(rules("crates/braid-transport/src/x.rs", "use noq::Endpoint;"), []);
        assert_eq!(rules("crates/braid-client/src/x.rs", "fn a() { std::env::var(b); }"), rule("std::env"));
        assert_eq!(rules("crates/braidmq/src/x.rs", "fn a() { std::env::var(b); }"), []);
    }
}
