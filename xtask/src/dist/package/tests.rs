//! Tests of the package with a program of the system in place of the binary.

use super::*;
use crate::tree;

/// Builds the package in a folder of its own.
fn package() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let package = build(&tree::root(), Path::new("/usr/bin/true"), "Notices.\n", folder.path()).unwrap();
    (folder, package)
}

fn dpkg_deb(option: &str, package: &Path, more: &[&str]) -> String {
    output(Command::new("dpkg-deb").arg(option).arg(package).args(more)).unwrap()
}

/// Modes, owners and paths as `dpkg-deb --contents` lists them, without sizes and times.
const CONTENTS: &str = "\
drwxr-xr-x root/root ./
drwxr-xr-x root/root ./etc/
drwxr-xr-x root/root ./etc/braidmq/
-rw-r--r-- root/root ./etc/braidmq/braidmq.toml
drwxr-xr-x root/root ./usr/
drwxr-xr-x root/root ./usr/bin/
-rwxr-xr-x root/root ./usr/bin/braidmq
drwxr-xr-x root/root ./usr/lib/
drwxr-xr-x root/root ./usr/lib/systemd/
drwxr-xr-x root/root ./usr/lib/systemd/system/
-rw-r--r-- root/root ./usr/lib/systemd/system/braidmq.service
drwxr-xr-x root/root ./usr/share/
drwxr-xr-x root/root ./usr/share/doc/
drwxr-xr-x root/root ./usr/share/doc/braidmq/
-rw-r--r-- root/root ./usr/share/doc/braidmq/advisories.md
-rw-r--r-- root/root ./usr/share/doc/braidmq/api.md
-rw-r--r-- root/root ./usr/share/doc/braidmq/auto.md
-rw-r--r-- root/root ./usr/share/doc/braidmq/bench-http.md
-rw-r--r-- root/root ./usr/share/doc/braidmq/bench.md
-rw-r--r-- root/root ./usr/share/doc/braidmq/benchmarks.md
-rw-r--r-- root/root ./usr/share/doc/braidmq/changelog.gz
-rw-r--r-- root/root ./usr/share/doc/braidmq/clients.md
-rw-r--r-- root/root ./usr/share/doc/braidmq/cluster-balancer.md
-rw-r--r-- root/root ./usr/share/doc/braidmq/cluster.md
-rw-r--r-- root/root ./usr/share/doc/braidmq/configuration.md
-rw-r--r-- root/root ./usr/share/doc/braidmq/copyright
-rw-r--r-- root/root ./usr/share/doc/braidmq/dashboard.md
-rw-r--r-- root/root ./usr/share/doc/braidmq/glossary.md
-rw-r--r-- root/root ./usr/share/doc/braidmq/http-hook.md
-rw-r--r-- root/root ./usr/share/doc/braidmq/lab.md
-rw-r--r-- root/root ./usr/share/doc/braidmq/limits.md
-rw-r--r-- root/root ./usr/share/doc/braidmq/openapi.json
-rw-r--r-- root/root ./usr/share/doc/braidmq/passwords.md
-rw-r--r-- root/root ./usr/share/doc/braidmq/permissions.md
drwxr-xr-x root/root ./usr/share/doc/braidmq/pictures/
-rw-r--r-- root/root ./usr/share/doc/braidmq/pictures/urgent-ahead-of-bulk.svg
-rw-r--r-- root/root ./usr/share/doc/braidmq/security.md
drwxr-xr-x root/root ./usr/share/doc/braidmq/spec/
-rw-r--r-- root/root ./usr/share/doc/braidmq/spec/mqtt-over-quic.md
-rw-r--r-- root/root ./usr/share/doc/braidmq/store.md
-rw-r--r-- root/root ./usr/share/doc/braidmq/streams.md
-rw-r--r-- root/root ./usr/share/doc/braidmq/tenants.md
-rw-r--r-- root/root ./usr/share/doc/braidmq/third-party-licences.gz
-rw-r--r-- root/root ./usr/share/doc/braidmq/tokens.md
drwxr-xr-x root/root ./usr/share/man/
drwxr-xr-x root/root ./usr/share/man/man1/
-rw-r--r-- root/root ./usr/share/man/man1/braidmq.1.gz
";

#[test]
fn contents_have_their_paths_modes_owners_and_times() {
    let (_folder, package) = package();
    let listed = output(Command::new("dpkg-deb").env("TZ", "UTC").arg("--contents").arg(&package)).unwrap();
    let entry = ["-l", CHANGELOG, "-S", "Date"];
    let entry = output(Command::new("dpkg-parsechangelog").current_dir(tree::root()).args(entry)).unwrap();
    let time =
        output(Command::new("date").args(["--utc", "+%Y-%m-%d %H:%M", "--date", entry.trim()])).unwrap();
    let mut found = String::new();
    for line in listed.lines() {
        let columns: Vec<_> = line.split_whitespace().collect();
        assert_eq!(format!("{} {}", columns[3], columns[4]), time.trim(), "{line}");
        let _ = writeln!(found, "{} {} {}", columns[0], columns[1], columns[5]);
    }
    assert_eq!(found, CONTENTS);
}

#[test]
fn control_files_are_complete() {
    let (_folder, package) = package();
    let field = |name| dpkg_deb("--field", &package, &[name]).trim().to_owned();
    assert_eq!([field("Package"), field("Version")], ["braidmq", VERSION]);
    assert_eq!(
        package.file_name().unwrap(),
        format!("braidmq_{VERSION}_{}.deb", field("Architecture")).as_str()
    );
    assert!(field("Depends").starts_with("libc6 (>= "), "{}", field("Depends"));
    assert!(field("Depends").ends_with(", adduser"), "{}", field("Depends"));
    assert!(field("Installed-Size").parse::<u64>().unwrap() > 50);
    let folder = tempfile::tempdir().unwrap();
    dpkg_deb("--raw-extract", &package, &[folder.path().to_str().unwrap()]);
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    assert_eq!(read("DEBIAN/conffiles"), "/etc/braidmq/braidmq.toml\n");
    for script in ["DEBIAN/postinst", "DEBIAN/postrm", "DEBIAN/prerm"] {
        let mode = folder.path().join(script).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755, "{script}");
        output(Command::new("sh").arg("-n").arg(folder.path().join(script))).unwrap();
    }
    for path in FILES.iter().map(|(_, to)| *to).chain([NOTICES]).filter(|path| path.ends_with(".gz")) {
        let header = fs::read(folder.path().join(path)).unwrap();
        assert_eq!(header[3..8], [0; 5], "{path} holds a name or a time");
    }
    let sums = output(Command::new("md5sum").current_dir(folder.path()).args(["--check", "DEBIAN/md5sums"]));
    assert_eq!(sums.unwrap().lines().count(), FILES.len() + 1, "every file but the conffile");
}

#[test]
fn links_between_documents_lead_to_files_of_the_package() {
    const ELSEWHERE: [&str; 5] = ["http:", "https:", "../", "decisions/", "screenshots/"];
    for (page, _) in FILES.iter().filter(|(page, _)| page.starts_with("docs/") && page.ends_with(".md")) {
        let text = fs::read_to_string(tree::root().join(page)).unwrap();
        for link in text.split("](").skip(1) {
            let target = link.split([')', '#']).next().unwrap();
            if target.is_empty() || ELSEWHERE.iter().any(|start| target.starts_with(start)) {
                continue;
            }
            let path = Path::new(page).with_file_name(target);
            assert!(FILES.iter().any(|(from, _)| Path::new(from) == path), "{page} links {target}");
        }
    }
}

#[test]
fn the_same_sources_give_the_same_bytes() {
    let [(_a, first), (_b, second)] = [package(), package()];
    assert!(fs::read(first).unwrap() == fs::read(second).unwrap(), "the packages differ");
}

#[test]
fn a_changelog_of_another_version_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let stage = Stage { root: root.path(), path: root.path() };
    let text = stage_text(&tree::root()).replacen(VERSION, "99.0.0", 1);
    stage.write(CHANGELOG, text.as_bytes(), 0o644).unwrap();
    let error = build(root.path(), Path::new("/usr/bin/true"), "", root.path()).unwrap_err();
    let expected =
        format!("packaging/debian/changelog:1: version 99.0.0, but Cargo.toml has {VERSION}: add an entry");
    assert_eq!(error, expected);
}

fn stage_text(root: &Path) -> String {
    fs::read_to_string(root.join(CHANGELOG)).unwrap()
}

#[test]
fn a_control_file_without_depends_is_refused() {
    assert!(fill("Package: braidmq\n", "amd64", 1, "libc6").is_err());
}

#[test]
fn a_missing_binary_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let error = build(&tree::root(), Path::new("/no/braidmq"), "", folder.path()).unwrap_err();
    assert!(error.starts_with("/no/braidmq: "), "{error}");
}
