//! Imports between the crates of the workspace, and names that folders must not use.

use std::collections::BTreeSet;

use super::Violation;
use super::mention::{Mention, mentions};
use crate::source::{Source, crate_folder};
use crate::tree::{TextFile, Tree};

/// Allowed imports between our crates, all without `braid-`: a whole crate, or one of its paths. A crate outside of the
/// table is a violation.
const DEPENDENCIES: &[(&str, &[&str])] = &[
    ("proto", &[]),
    ("router", &["proto"]),
    ("auth", &["proto"]),
    ("store", &["proto"]),
    ("emulator", &[]),
    ("transport", &["proto::stream", "emulator", "select::reading"]),
    ("client", &["proto", "auth::scram", "transport", "select"]),
    ("broker", &["proto", "router", "auth", "store", "transport"]),
    ("access", &["proto", "auth", "transport", "broker"]),
    ("http", &["proto", "transport", "broker", "select"]),
    ("cluster", &["proto", "auth", "store", "broker", "access::http"]),
    ("balancer", &["transport"]),
    ("select", &[]),
    ("measure", &[]),
    ("bench", &["proto", "client", "transport", "measure"]),
    ("lab", &["bench", "emulator", "measure", "transport"]),
    ("torture", &["measure", "proto", "transport", "bench"]),
    ("hostile", &["measure", "proto::stream", "transport", "client", "torture"]),
    ("suite", &["emulator", "measure", "proto", "store", "transport", "client", "broker", "bench"]),
    (
        "braidmq",
        &[
            "proto",
            "router",
            "auth",
            "store",
            "transport",
            "client",
            "broker",
            "access",
            "http",
            "cluster",
            "balancer",
            "emulator",
            "measure",
            "bench",
            "lab",
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
            "crates/braid-auth/",
            "crates/braid-emulator/",
            "crates/braid-select/src/",
            "crates/braid-transport/src/quic/congestion/bbr_extensions",
            "crates/braid-transport/src/quic/congestion/path_model",
            "crates/braid-transport/src/quic/quic_lb/",
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
        except: &["crates/braidmq/", "crates/braid-suite/", "crates/braid-torture/", "crates/braid-hostile/"],
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

/// Name of a file's crate without `braid-`.
fn crate_name(path: &str) -> &str {
    let folder = crate_folder(path);
    let name = folder.rsplit_once('/').map_or(folder, |(_, name)| name);
    name.strip_prefix("braid-").unwrap_or(name)
}

/// Full paths of the allowed imports of a file's crate.
fn imports(path: &str) -> Option<Vec<String>> {
    let (_, imports) = DEPENDENCIES.iter().find(|(owner, _)| *owner == crate_name(path))?;
    Some(imports.iter().map(|import| format!("braid_{import}")).collect())
}

/// Checks `[dependencies]`, those of single platforms included; dependencies of tests are free.
fn manifest(file: &TextFile) -> Vec<Violation> {
    let Some(allowed) = imports(&file.path) else {
        let problem = format!("{} is not in the table of crates", crate_folder(&file.path));
        let remedy = "add what it may import to DEPENDENCIES in xtask/src/tidy/dependency.rs";
        return vec![Violation::new(&file.path, 0, "crate-dependency", problem, remedy)];
    };
    let table: toml::Table = match file.text.parse() {
        Ok(table) => table,
        Err(error) => {
            let problem = format!("is no TOML: {error}");
            return vec![Violation::new(&file.path, 0, "syntax", problem, "make it valid")];
        }
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
        let is_allowed =
            allowed.iter().any(|import| import.split("::").next() == Some(mention.path[0].as_str()));
        if mention.path[0].starts_with("braid") && !is_allowed {
            let problem = format!("depends on {name}");
            violations.push(Violation::new(&file.path, line, "crate-dependency", problem, TURN_ROUND));
        }
        violations.extend(ban(&file.path, &mention));
    }
    violations
}

const TURN_ROUND: &str = "turn the dependency round, or move the code";

fn dependencies(table: &toml::Table) -> impl Iterator<Item = &String> {
    table.get("dependencies").and_then(toml::Value::as_table).into_iter().flatten().map(|(name, _)| name)
}

fn dependency(path: &str, mention: &Mention) -> Option<Violation> {
    let first = mention.path.first()?;
    if first.strip_prefix("braid_")? == crate_name(path) {
        return None;
    }
    let mut allowed = imports(path).unwrap_or_default();
    allowed.retain(|import| import.split("::").next() == Some(first.as_str()));
    if allowed.iter().any(|import| mention.is_within(import)) {
        return None;
    }
    let remedy = match &*allowed {
        [] => TURN_ROUND.into(),
        allowed => format!("only {} may be imported here", allowed.join(" and ")),
    };
    let problem = format!("imports {}", mention.path.join("::"));
    Some(Violation::new(path, mention.line, "crate-dependency", problem, remedy))
}

fn ban(path: &str, mention: &Mention) -> Option<Violation> {
    let holds = |ban: &&Ban| {
        ban.within.iter().any(|folder| path.starts_with(folder))
            && !ban.except.iter().any(|folder| path.starts_with(folder))
    };
    BANS.iter().filter(holds).find_map(|ban| {
        let name = ban.names.iter().find(|name| mention.is_within(name))?;
        Some(Violation::new(path, mention.line, "forbidden-import", format!("names {name}"), ban.remedy))
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
        assert_eq!(rules(http, "use braid_store::Store;"), rule("braid_store::Store"));
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
