//! Files and directories for the broker's user alone: messages and keys are private.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

/// Options that create a file with mode 0600. The mode of a file that exists stays.
pub(crate) fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Creates a directory with mode 0700, and so the missing ones above it. The mode of one that exists stays.
pub(crate) fn create_directory(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// File or directory that more users can reach than the broker's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exposed {
    /// The file or directory.
    pub path: PathBuf,
    /// Its permission bits.
    pub mode: u32,
    /// The mode that a new one would have.
    pub wanted: u32,
}

/// Finds what an earlier version, a copy or another user has left open in a directory for data: files in it that others
/// may read or write, except the certificate, and the directory itself if others may make files in it. Symbolic links
/// and directories in it are not followed. What cannot be read is left out: the component that needs it reports that.
#[must_use]
pub fn exposed(directory: &Path) -> Vec<Exposed> {
    let mut found = Vec::new();
    if fs::metadata(directory).is_ok_and(|metadata| mode(&metadata) & 0o022 != 0) {
        found.extend(Exposed::of(directory, 0o700));
    }
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries.map(|entry| entry.path()).filter(|path| is_exposed(path)).collect();
    files.sort();
    found.extend(files.iter().filter_map(|path| Exposed::of(path, 0o600)));
    found
}

impl Exposed {
    fn of(path: &Path, wanted: u32) -> Option<Self> {
        Some(Self { path: path.to_owned(), mode: mode(&fs::metadata(path).ok()?), wanted })
    }
}

fn is_exposed(path: &Path) -> bool {
    let Ok(metadata) = path.symlink_metadata() else { return false };
    metadata.is_file() && mode(&metadata) & 0o077 != 0 && !is_certificate(path)
}

/// The certificate of the self-signed pair is public.
fn is_certificate(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == "cert.pem")
}

#[cfg(unix)]
fn mode(metadata: &fs::Metadata) -> u32 {
    std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o7777
}

#[cfg(not(unix))]
fn mode(_: &fs::Metadata) -> u32 {
    0
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn files_and_directories_that_others_reach_are_found() {
        let outer = tempfile::tempdir().unwrap();
        let directory = outer.path().join("data");
        create_directory(&directory.join("spool")).unwrap();
        let path = |name: &str| if name.is_empty() { directory.clone() } else { directory.join(name) };
        let set = |name: &str, mode| {
            fs::set_permissions(path(name), fs::Permissions::from_mode(mode)).unwrap();
        };
        for name in ["store.redb", "key.pem", "cert.pem", "spool/x"] {
            options().write(true).create_new(true).open(path(name)).unwrap();
        }
        symlink("/etc/passwd", path("link")).unwrap();
        assert_eq!(exposed(&directory), []);
        for (name, mode) in [("cert.pem", 0o644), ("spool/x", 0o666), ("spool", 0o777), ("", 0o755)] {
            set(name, mode);
        }
        assert_eq!(exposed(&directory), []);
        assert_eq!(exposed(&path("none")), []);
        for (name, mode, wanted) in [
            ("store.redb", 0o640, 0o600),
            ("key.pem", 0o604, 0o600),
            ("key.pem", 0o620, 0o600),
            ("", 0o730, 0o700),
            ("", 0o703, 0o700),
        ] {
            set(name, mode);
            assert_eq!(exposed(&directory), [Exposed { path: path(name), mode, wanted }], "{name}");
            set(name, wanted);
        }
    }

    /// Whatever the umask permits.
    #[test]
    fn new_files_and_directories_are_private() {
        let outer = tempfile::tempdir().unwrap();
        let directory = outer.path().join("a/b");
        create_directory(&directory).unwrap();
        let file = directory.join("file");
        options().write(true).create_new(true).open(&file).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(
            [&outer.path().join("a"), &directory, &file].map(|path| mode(path)),
            [0o700, 0o700, 0o600]
        );
    }
}
