//! Debian package of the binary, its service and its documents, made by `dpkg-deb`.
//!
//! Builds are reproducible: owners, modes and order do not depend on the machine, and times are those of the changelog.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use super::output;

/// Version of the package, which is that of the workspace.
const VERSION: &str = env!("CARGO_PKG_VERSION");

const CHANGELOG: &str = "packaging/debian/changelog";

/// Source in the repository, and path in the package. A path that ends in `.gz` is compressed. All have mode 0644.
///
/// Documents keep their places relative to one another, for their links. Pages for developers, decisions and
/// screenshots are in the repository only.
const FILES: &[(&str, &str)] = &[
    ("packaging/braidmq.toml", "etc/braidmq/braidmq.toml"),
    ("packaging/braidmq.service", "usr/lib/systemd/system/braidmq.service"),
    ("packaging/braidmq.1", "usr/share/man/man1/braidmq.1.gz"),
    ("packaging/debian/copyright", "usr/share/doc/braidmq/copyright"),
    (CHANGELOG, "usr/share/doc/braidmq/changelog.gz"),
    ("docs/advisories.md", "usr/share/doc/braidmq/advisories.md"),
    ("docs/api.md", "usr/share/doc/braidmq/api.md"),
    ("docs/auto.md", "usr/share/doc/braidmq/auto.md"),
    ("docs/bench-http.md", "usr/share/doc/braidmq/bench-http.md"),
    ("docs/bench.md", "usr/share/doc/braidmq/bench.md"),
    ("docs/benchmarks.md", "usr/share/doc/braidmq/benchmarks.md"),
    ("docs/clients.md", "usr/share/doc/braidmq/clients.md"),
    ("docs/cluster-balancer.md", "usr/share/doc/braidmq/cluster-balancer.md"),
    ("docs/cluster.md", "usr/share/doc/braidmq/cluster.md"),
    ("docs/configuration.md", "usr/share/doc/braidmq/configuration.md"),
    ("docs/dashboard.md", "usr/share/doc/braidmq/dashboard.md"),
    ("docs/glossary.md", "usr/share/doc/braidmq/glossary.md"),
    ("docs/http-hook.md", "usr/share/doc/braidmq/http-hook.md"),
    ("docs/lab.md", "usr/share/doc/braidmq/lab.md"),
    ("docs/limits.md", "usr/share/doc/braidmq/limits.md"),
    ("docs/openapi.json", "usr/share/doc/braidmq/openapi.json"),
    ("docs/passwords.md", "usr/share/doc/braidmq/passwords.md"),
    ("docs/permissions.md", "usr/share/doc/braidmq/permissions.md"),
    ("docs/pictures/urgent-ahead-of-bulk.svg", "usr/share/doc/braidmq/pictures/urgent-ahead-of-bulk.svg"),
    ("docs/security.md", "usr/share/doc/braidmq/security.md"),
    ("docs/spec/mqtt-over-quic.md", "usr/share/doc/braidmq/spec/mqtt-over-quic.md"),
    ("docs/store.md", "usr/share/doc/braidmq/store.md"),
    ("docs/streams.md", "usr/share/doc/braidmq/streams.md"),
    ("docs/tenants.md", "usr/share/doc/braidmq/tenants.md"),
    ("docs/tokens.md", "usr/share/doc/braidmq/tokens.md"),
];

const NOTICES: &str = "usr/share/doc/braidmq/third-party-licences.gz";

/// Files that dpkg does not overwrite if an administrator has changed them.
const CONFFILES: &str = "/etc/braidmq/braidmq.toml\n";

/// Maintainer scripts, in `packaging/debian`.
const SCRIPTS: &[&str] = &["postinst", "postrm", "prerm"];

/// Writes the package of `binary` into `folder` and returns its path.
///
/// # Errors
/// The changelog is of another version, a file is missing, or a tool failed.
pub(super) fn build(root: &Path, binary: &Path, notices: &str, folder: &Path) -> Result<PathBuf, String> {
    let changelog = |field| {
        let command = ["-l", CHANGELOG, "-S", field];
        Ok::<_, String>(
            output(Command::new("dpkg-parsechangelog").current_dir(root).args(command))?.trim().to_owned(),
        )
    };
    let (version, time) = (changelog("Version")?, changelog("Timestamp")?);
    if version != VERSION {
        return Err(format!("{CHANGELOG}:1: version {version}, but Cargo.toml has {VERSION}: add an entry"));
    }
    let stage = tempfile::tempdir_in(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let stage = Stage { root, path: stage.path() };
    stage.copy(binary, "usr/bin/braidmq", 0o755)?;
    for (from, to) in FILES {
        stage.copy(&root.join(from), to, 0o644)?;
    }
    stage.write(NOTICES, notices.as_bytes(), 0o644)?;
    let size = stage.installed_kib()?;
    stage.write("DEBIAN/md5sums", stage.md5sums()?.as_bytes(), 0o644)?;
    stage.write("DEBIAN/conffiles", CONFFILES.as_bytes(), 0o644)?;
    for script in SCRIPTS {
        stage.copy(&root.join("packaging/debian").join(script), &format!("DEBIAN/{script}"), 0o755)?;
    }
    let architecture = output(Command::new("dpkg").arg("--print-architecture"))?.trim().to_owned();
    let control = stage.read("packaging/debian/control")?;
    let control = fill(&control, &architecture, size, &shared_libraries(binary)?)?;
    stage.write("DEBIAN/control", control.as_bytes(), 0o644)?;
    let seconds = time.parse().map_err(|error| format!("{CHANGELOG}: its time {time:?}: {error}"))?;
    stage.normalise(stage.path, SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))?;
    let package = folder.join(format!("braidmq_{VERSION}_{architecture}.deb"));
    let options = ["--root-owner-group", "-Zxz", "--build"];
    output(
        Command::new("dpkg-deb").env("SOURCE_DATE_EPOCH", time).args(options).arg(stage.path).arg(&package),
    )?;
    Ok(package)
}

/// Completes the control file: version, architecture, size in KiB, and the packages of the shared libraries.
fn fill(control: &str, architecture: &str, size: u64, libraries: &str) -> Result<String, String> {
    let mut out = String::new();
    for line in control.lines() {
        match line.strip_prefix("Depends: ") {
            Some(depends) => {
                let _ =
                    write!(out, "Version: {VERSION}\nArchitecture: {architecture}\nInstalled-Size: {size}\n");
                let _ = writeln!(out, "Depends: {libraries}, {depends}");
            }
            None => {
                let _ = writeln!(out, "{line}");
            }
        }
    }
    if out.contains("\nVersion: ") {
        Ok(out)
    } else {
        Err("packaging/debian/control has no Depends".to_owned())
    }
}

/// Packages of the libraries that the binary loads, with their oldest versions: `libc6 (>= 2.34), libgcc-s1 (>= 4.2)`.
fn shared_libraries(binary: &Path) -> Result<String, String> {
    let binary = binary.canonicalize().map_err(|error| format!("{}: {error}", binary.display()))?;
    // dpkg-shlibdeps reads debian/control of its working directory.
    let folder = tempfile::tempdir().map_err(|error| format!("a temporary folder: {error}"))?;
    let stage = Stage { root: folder.path(), path: folder.path() };
    stage.write("debian/control", b"Source: braidmq\n\nPackage: braidmq\nArchitecture: any\n", 0o644)?;
    let listed = output(Command::new("dpkg-shlibdeps").current_dir(folder.path()).arg("-O").arg(binary))?;
    let packages = listed.trim().strip_prefix("shlibs:Depends=");
    packages.map(str::to_owned).ok_or_else(|| format!("dpkg-shlibdeps named no packages: {listed:?}"))
}

/// Folder with the files of the package.
struct Stage<'a> {
    root: &'a Path,
    path: &'a Path,
}

impl Stage<'_> {
    fn read(&self, source: &str) -> Result<String, String> {
        fs::read_to_string(self.root.join(source)).map_err(|error| format!("{source}: {error}"))
    }

    fn copy(&self, from: &Path, to: &str, mode: u32) -> Result<(), String> {
        let bytes = fs::read(from).map_err(|error| format!("{}: {error}", from.display()))?;
        self.write(to, &bytes, mode)
    }

    /// Writes a file, compressed if its name ends in `.gz`.
    fn write(&self, to: &str, bytes: &[u8], mode: u32) -> Result<(), String> {
        let failed = |error| format!("{to}: {error}");
        let plain = self.path.join(to.strip_suffix(".gz").unwrap_or(to));
        fs::create_dir_all(plain.parent().unwrap_or(self.path)).map_err(failed)?;
        fs::write(&plain, bytes).map_err(failed)?;
        if to.ends_with(".gz") {
            output(Command::new("gzip").args(["--best", "--no-name"]).arg(&plain))?;
        }
        fs::set_permissions(self.path.join(to), fs::Permissions::from_mode(mode)).map_err(failed)
    }

    /// Paths in the package, sorted.
    fn paths(&self) -> Vec<&'static str> {
        let mut paths: Vec<_> = FILES.iter().map(|(_, to)| *to).chain([NOTICES, "usr/bin/braidmq"]).collect();
        paths.sort_unstable();
        paths
    }

    /// Checksums that `dpkg --verify` compares.
    fn md5sums(&self) -> Result<String, String> {
        let paths = self.paths().into_iter().filter(|path| !CONFFILES.contains(path));
        output(Command::new("md5sum").current_dir(self.path).args(paths))
    }

    fn installed_kib(&self) -> Result<u64, String> {
        let size = |path: &&str| {
            fs::metadata(self.path.join(path))
                .map(|data| data.len().div_ceil(1024))
                .map_err(|error| format!("{path}: {error}"))
        };
        self.paths().iter().map(size).sum()
    }

    /// Sets the time of every file, and the mode of every folder, which the umask has changed.
    fn normalise(&self, folder: &Path, time: SystemTime) -> Result<(), String> {
        let failed = |error| format!("{}: {error}", folder.display());
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).map_err(failed)?;
        for entry in fs::read_dir(folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.is_dir() {
                self.normalise(&path, time)?;
            } else {
                File::open(&path).and_then(|file| file.set_modified(time)).map_err(failed)?;
            }
        }
        File::open(folder).and_then(|folder| folder.set_modified(time)).map_err(failed)
    }
}

#[cfg(test)]
mod tests;
