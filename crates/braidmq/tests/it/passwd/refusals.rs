//! Exit code 2 and one line with the remedy.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};

use super::{MOSQUITTO, add, fed, passwd};

/// Each row: content of the file, arguments, standard input, and the line behind `braidmq: `.
type Case<'a> = (&'a str, &'a [&'a str], &'a [u8], &'a str);

#[test]
fn each_refusal_has_one_line_and_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("users");
    let name = file.display().to_string();
    let sound = format!("alice:{MOSQUITTO}\n");
    let long = vec![b'x'; (64 << 10) + 1];
    let cases: &[Case<'_>] = &[
        (
            &sound,
            &["add", "a:b", "--stdin"],
            b"x",
            "the user name `a:b` contains `:`, which ends the name in the file; choose another one",
        ),
        (&sound, &["add", "", "--stdin"], b"x", "the user name is empty; write at least one character"),
        (
            &sound,
            &["add", "\u{2168}", "--stdin", "--scram"],
            b"x",
            "the user `\u{2168}` cannot use SCRAM, because SASLprep changes or prohibits the name; choose another one, or hash the password by argon2id",
        ),
        (&sound, &["add", "bob", "--stdin"], b"", "the password is empty; choose at least one character"),
        (&sound, &["add", "bob", "--stdin"], b"\nx", "the password is empty; choose at least one character"),
        (
            &sound,
            &["add", "bob", "--stdin"],
            &long,
            "the password is longer than 65536 bytes; choose a shorter one",
        ),
        (
            &sound,
            &["add", "bob", "--stdin", "--scram"],
            b"\x07",
            "the password cannot be used with SCRAM: it contains control or other prohibited characters, or is not UTF-8",
        ),
        (
            &sound,
            &["add", "bob", "--password-file", "/nonexistent"],
            b"",
            "cannot read /nonexistent: No such file or directory (os error 2)",
        ),
        (
            "alice:hunter2\n",
            &["add", "bob", "--stdin"],
            b"x",
            "FILE:1: user `alice`: a plain-text password, or an unknown kind of hash; set a password with `braidmq passwd add`",
        ),
        (
            "alice:hunter2\n",
            &["remove", "alice"],
            b"",
            "FILE:1: user `alice`: a plain-text password, or an unknown kind of hash; set a password with `braidmq passwd add`",
        ),
        ("", &["list"], b"", "FILE:1: there is no user; add one with `braidmq passwd add`"),
        (
            "# x",
            &["verify", "alice", "--stdin"],
            b"x",
            "FILE:1: the last line has no end, so that the file may be cut off; complete it and end it with a newline",
        ),
    ];
    for (content, arguments, input, expected) in cases {
        fs::write(&file, content).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        let refusal = fed(&mut passwd(arguments, &file), input);
        let expected = format!("braidmq: {}\n", expected.replace("FILE", &name));
        assert_eq!(refusal, (2, String::new(), expected), "{arguments:?}");
        assert_eq!(fs::read_to_string(&file).unwrap(), *content);
    }
}

#[test]
fn paths_that_are_no_file_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let absent = path("absent");
    symlink("nowhere", path("link")).unwrap();
    let no_such_file = "No such file or directory (os error 2)";
    let folder = "is a folder, pipe or device: name a file";
    let cases = [
        (absent.clone(), "list", format!("cannot read {}: {no_such_file}", absent.display())),
        (absent.clone(), "remove", format!("cannot read {}: {no_such_file}", absent.display())),
        (absent.clone(), "verify", format!("cannot read {}: {no_such_file}", absent.display())),
        (absent.join("a"), "add", format!("cannot make {}: {no_such_file}", absent.join("a").display())),
        (path("link"), "add", format!("cannot read {}: {no_such_file}", path("link").display())),
        (directory.path().into(), "add", format!("{} {folder}", directory.path().display())),
        (directory.path().into(), "list", format!("{} {folder}", directory.path().display())),
        ("/dev/null".into(), "remove", format!("/dev/null {folder}")),
        ("/dev/zero".into(), "verify", format!("/dev/zero {folder}")),
    ];
    for (file, command, expected) in cases {
        let arguments: &[&str] = match command {
            "list" => &["list"],
            "remove" => &["remove", "alice"],
            command => &[command, "alice", "--stdin"],
        };
        let refusal = fed(&mut passwd(arguments, &file), b"x");
        assert_eq!(refusal, (2, String::new(), format!("braidmq: {expected}\n")), "{command}");
    }
    assert!(!absent.exists());
}

#[test]
fn a_password_is_never_an_argument() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("users");
    let bad: [&[&str]; 4] = [
        &["add", "alice", "hunter2"],
        &["add", "alice", "--password", "hunter2"],
        &["add", "alice", "--stdin", "--password-file", "x"],
        &["add", "alice", "--stdin", "--iterations", "5000"],
    ];
    for arguments in bad {
        assert_eq!(fed(&mut passwd(arguments, &file), b"x").0, 2, "{arguments:?}");
        assert!(!file.exists());
    }
    for iterations in ["4095", "1000001"] {
        let arguments = ["add", "alice", "--stdin", "--scram", "--iterations", iterations];
        assert_eq!(fed(&mut passwd(&arguments, &file), b"x").0, 2);
    }
}

/// Characters of a name that would command the terminal.
#[test]
fn names_are_escaped_in_output() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("users");
    add(&file, "a\u{202e}b", "x");
    let (_, said, _) = fed(&mut passwd(&["list"], &file), b"");
    assert_eq!(said, "a\\u{202e}b\targon2id m=19456,t=2,p=1\n");
    let (code, _, errors) = fed(&mut passwd(&["remove", "\u{1b}[2J"], &file), b"");
    assert_eq!(code, 1);
    assert!(errors.contains("\\u{1b}[2J") && !errors.contains('\u{1b}'), "{errors}");
}
