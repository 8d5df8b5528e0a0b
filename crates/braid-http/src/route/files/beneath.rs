//! Files below a directory, whatever is in their paths.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;

/// Tries of an open that a rename disturbs.
const TRIES: usize = 4;

/// Without blocking: a named pipe may have no writer.
const FLAGS: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// Opens the file or directory `name`, of plain segments, below `directory`; `None` if there is none that may be read.
/// Symbolic links are followed as long as they stay below.
pub(super) fn open(directory: &OwnedFd, name: &str) -> io::Result<Option<File>> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let mut tries = TRIES;
    let opened = loop {
        tries -= 1;
        match openat2(directory, name, FLAGS, Mode::empty(), resolve) {
            Err(Errno::AGAIN) if tries > 0 => {}
            // Kernels before 5.6, and valgrind.
            Err(Errno::NOSYS) => break without_links(directory, name),
            opened => break opened,
        }
    };
    match opened {
        Ok(file) => Ok(Some(File::from(file))),
        Err(
            Errno::NOENT
            | Errno::NOTDIR
            | Errno::ACCESS
            | Errno::XDEV
            | Errno::LOOP
            | Errno::NAMETOOLONG
            | Errno::NXIO,
        ) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Opens segment by segment, and follows no link.
fn without_links(directory: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    let flags = FLAGS | OFlags::NOFOLLOW;
    let mut segments = name.split('/');
    let first = segments.next().unwrap_or_default();
    let first = openat(directory, first, flags, Mode::empty());
    segments.try_fold(first?, |parent, segment| openat(parent, segment, flags, Mode::empty()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// Links out of the directory are refused by both; inside of it only `openat2` follows them.
    #[test]
    fn nothing_outside_of_the_directory_is_opened() {
        let home = tempfile::tempdir().unwrap();
        let root = home.path().join("root");
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(home.path().join("secret"), "").unwrap();
        fs::write(root.join("a/b/file"), "").unwrap();
        symlink(home.path().join("secret"), root.join("out")).unwrap();
        symlink(home.path(), root.join("a/up")).unwrap();
        symlink("../../secret", root.join("a/relative")).unwrap();
        symlink("a", root.join("inside")).unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(&root, flags, Mode::empty()).unwrap();
        for (name, by_kernel, by_segment) in [
            ("a/b/file", true, true),
            (".", true, true),
            ("a/b", true, true),
            ("inside/b/file", true, false),
            ("out", false, false),
            ("a/up/secret", false, false),
            ("a/relative", false, false),
            ("a/b/file/c", false, false),
            ("missing", false, false),
        ] {
            assert_eq!(open(&directory, name).unwrap().is_some(), by_kernel, "{name}");
            assert_eq!(without_links(&directory, name).is_ok(), by_segment, "{name}");
        }
    }
}
