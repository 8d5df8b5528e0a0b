//! `braidmq passwd` from outside.

mod files;
mod refusals;
mod terminal;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::broker::braidmq;

/// Hash of the password `pencil` by mosquitto_passwd.
const MOSQUITTO: &str = "$7$101$JZgyKE10E0lOjZYe$/XoWiKuyC8k39VBkc1FKteceeihAFXy2fbcVXSAMVakshj/kwqAqOlIVx02E4CV3atAIkyFCysSvfmmCzw6u4g==";

fn passwd(arguments: &[&str], file: &Path) -> Command {
    let mut command = braidmq(&["passwd"]);
    let (command_name, rest) = arguments.split_first().unwrap();
    command.arg(command_name).arg(file).args(rest);
    command
}

/// Exit code, standard output and standard error.
fn result(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

/// Runs a command with `input` on standard input.
fn fed(command: &mut Command, input: &[u8]) -> (i32, String, String) {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The command need not read all of it.
    let _ = child.stdin.take().unwrap().write_all(input);
    result(&child.wait_with_output().unwrap())
}

/// Adds a user with this password, silently.
fn add(file: &Path, user: &str, password: &str) {
    let (code, _, errors) = fed(&mut passwd(&["add", user, "--stdin"], file), password.as_bytes());
    assert_eq!((code, &*errors), (0, ""));
}

/// Exit code of `verify`.
fn verify(file: &Path, user: &str, password: &str) -> i32 {
    fed(&mut passwd(&["verify", user, "--stdin"], file), password.as_bytes()).0
}

#[test]
fn users_are_added_verified_listed_and_removed() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("users");
    let name = file.display().to_string();
    let added = |text: &str| (0, format!("{text}\n"), String::new());
    let run = |arguments: &[&str], password: &str| fed(&mut passwd(arguments, &file), password.as_bytes());

    let said = run(&["add", "alice", "--stdin"], "pencil");
    assert_eq!(said, added(&format!("alice was added to {name}")));
    let said = run(&["add", "a b", "--stdin", "--scram"], "paper");
    assert_eq!(said, added(&format!("a b was added to {name}")));
    assert_eq!([verify(&file, "alice", "pencil"), verify(&file, "a b", "paper")], [0, 0]);
    let said = run(&["verify", "alice", "--stdin"], "paper");
    assert_eq!(
        said,
        (1, String::new(), format!("braidmq: the password of alice in {name} is another one\n"))
    );
    let said = run(&["verify", "bob", "--stdin"], "pencil");
    assert_eq!(said, (1, String::new(), format!("braidmq: there is no user bob in {name}\n")));
    let said = run(&["list"], "");
    let listed = "alice\targon2id m=19456,t=2,p=1\na b\tscram-sha-256 i=15000\n";
    assert_eq!(said, (0, listed.to_owned(), String::new()));

    let said = run(&["add", "alice", "--stdin", "--scram", "--iterations", "4096"], "other");
    assert_eq!(said, added(&format!("the password of alice in {name} was replaced")));
    assert_eq!([verify(&file, "alice", "pencil"), verify(&file, "alice", "other")], [1, 0]);
    assert_eq!(run(&["list"], "").1, "alice\tscram-sha-256 i=4096\na b\tscram-sha-256 i=15000\n");

    let said = run(&["remove", "a b"], "");
    assert_eq!(said, added(&format!("a b was removed from {name}")));
    let said = run(&["remove", "a b"], "");
    assert_eq!(said, (1, String::new(), format!("braidmq: there is no user a b in {name}\n")));
    // The broker would refuse the file, and keep the user.
    let before = fs::read(&file).unwrap();
    let (code, printed, errors) = run(&["remove", "alice"], "");
    assert_eq!((code, &*printed), (2, ""));
    let expected =
        format!("braidmq: alice is the last user of {name}, and the broker refuses a file without users: ");
    assert!(errors.starts_with(&expected) && errors.lines().count() == 1, "{errors}");
    assert_eq!(fs::read(&file).unwrap(), before);
    assert_eq!(verify(&file, "alice", "other"), 0);
}

/// Salts are random: equal passwords have different hashes.
#[test]
fn equal_passwords_have_different_hashes() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("users");
    add(&file, "a", "pencil");
    add(&file, "b", "pencil");
    let text = fs::read_to_string(&file).unwrap();
    let salts: Vec<_> = text.lines().map(|line| line.split('$').nth(4).unwrap()).collect();
    assert!(salts.len() == 2 && salts[0] != salts[1], "{text}");
}

#[test]
fn passwords_come_from_options_before_the_environment() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("users");
    let secret = directory.path().join("secret");
    fs::write(&secret, "of the file\r\nand more").unwrap();
    let secret = secret.to_str().unwrap();
    let cases: [(&[&str], &str, &str); 4] = [
        (&["add", "u"], "", "of the environment"),
        (&["add", "u", "--stdin"], "of standard input\nand more", "of standard input"),
        (&["add", "u", "--stdin"], "of standard input", "of standard input"),
        (&["add", "u", "--password-file", secret], "of standard input", "of the file"),
    ];
    for (arguments, input, expected) in cases {
        let mut command = passwd(arguments, &file);
        let (code, said, errors) =
            fed(command.env("BRAIDMQ_PASSWORD", "of the environment"), input.as_bytes());
        assert_eq!((code, &*errors), (0, ""));
        assert!(!said.contains(expected));
        assert_eq!(verify(&file, "u", expected), 0, "{arguments:?}");
    }
}
