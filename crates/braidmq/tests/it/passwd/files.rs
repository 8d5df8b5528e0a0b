//! Files that `braidmq passwd` edits: other lines, permissions, owners, links, and other runs at the same time.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Stdio;

use super::{MOSQUITTO, add, fed, passwd, result, verify};

fn mode(file: &Path) -> u32 {
    fs::metadata(file).unwrap().mode() & 0o7777
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn other_lines_of_a_file_of_mosquitto_stay_as_they_are() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("users");
    fs::write(&file, format!("# ours\r\nalice:{MOSQUITTO}\r\n\nbob:{MOSQUITTO}\n#end\r\n")).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    assert_eq!([verify(&file, "alice", "pencil"), verify(&file, "alice", "paper")], [0, 1]);
    add(&file, "bob", "paper");
    add(&file, "carol", "paper");
    assert_eq!(fed(&mut passwd(&["remove", "alice"], &file), b"").0, 0);
    let text = fs::read_to_string(&file).unwrap();
    let (bob, carol) = (text.find("bob:$argon2id$").unwrap(), text.find("carol:$argon2id$").unwrap());
    assert_eq!(&text[..bob], "# ours\r\n\n");
    assert!(text[bob..carol].ends_with("\n#end\r\n") && text.ends_with("\r\n"), "{text}");
    assert_eq!(text.lines().count(), 5);
}

#[test]
fn a_new_file_is_for_its_owner_only_and_nothing_else_is_left() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("users");
    add(&file, "alice", "pencil");
    assert_eq!(mode(&file), 0o600);
    add(&file, "bob", "pencil");
    assert_eq!(names(directory.path()), ["users"]);
}

#[test]
fn permissions_and_links_are_kept_and_readers_are_warned_of() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("users");
    let link = directory.path().join("link");
    symlink("users", &link).unwrap();
    add(&file, "alice", "pencil");
    fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
    add(&link, "bob", "pencil");
    assert_eq!((mode(&file), fs::read_link(&link).unwrap().to_str()), (0o640, Some("users")));
    assert_eq!(verify(&file, "bob", "pencil"), 0);
    fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    let runs: [&[&str]; 4] =
        [&["list"], &["verify", "bob", "--stdin"], &["add", "bob", "--stdin"], &["remove", "bob"]];
    for arguments in runs {
        let (code, _, errors) = fed(&mut passwd(arguments, &file), b"pencil");
        let name = file.display();
        let expected = format!(
            "braidmq: warning: everyone on this machine can read {name} and guess passwords: run `chmod o-rwx {name}`\n"
        );
        assert_eq!((code, errors), (0, expected));
    }
    assert_eq!(mode(&file), 0o644);
}

/// Only root may give a file away, so that others see nothing of this.
#[test]
fn the_owner_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("users");
    add(&file, "alice", "pencil");
    if chown(&file, Some(12_345), Some(23_456)).is_ok() {
        add(&file, "bob", "pencil");
        let metadata = fs::metadata(&file).unwrap();
        assert_eq!((metadata.uid(), metadata.gid(), mode(&file)), (12_345, 23_456, 0o600));
    }
}

#[test]
fn runs_at_the_same_time_lose_no_user() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("users");
    let users: Vec<_> = (0..6).map(|number| format!("user-{number}")).collect();
    let start = |user: &String| {
        let mut command = passwd(&["add", user], &file);
        command
            .env("BRAIDMQ_PASSWORD", "pencil")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let children: Vec<_> = users.iter().map(start).collect();
    for child in children {
        let (code, _, errors) = result(&child.wait_with_output().unwrap());
        assert_eq!((code, &*errors), (0, ""));
    }
    let mut listed: Vec<_> = fed(&mut passwd(&["list"], &file), b"")
        .1
        .lines()
        .map(|line| line.split_once('\t').unwrap().0.to_owned())
        .collect();
    listed.sort();
    assert_eq!(listed, users);
}

/// Edits while another run holds the lock: it waits, and reads the file afterwards.
#[test]
fn a_run_waits_for_another_one() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("users");
    add(&file, "alice", "pencil");
    let folder = File::open(directory.path()).unwrap();
    folder.lock().unwrap();
    let inode = folder.metadata().unwrap().ino();
    let mut command = passwd(&["remove", "alice"], &file);
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    loop {
        let locks = fs::read_to_string("/proc/locks").unwrap();
        // A waiter is listed with an arrow, behind the owner.
        if locks.lines().any(|line| line.contains("->") && line.contains(&format!(":{inode} "))) {
            break;
        }
        assert!(child.try_wait().unwrap().is_none(), "it did not wait");
        std::thread::yield_now();
    }
    fs::write(&file, format!("alice:{MOSQUITTO}\nbob:{MOSQUITTO}\n")).unwrap();
    folder.unlock().unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(fs::read_to_string(&file).unwrap(), format!("bob:{MOSQUITTO}\n"));
}
