//! `braidmq acl`: answers with the line that decides, checks and imports, and refusals.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use crate::broker::braidmq;

const RULES: &str = "\
# Devices write below their own id.
group operators = jane \"John Doe\"
deny all topic sensors/+/key
allow publish topic sensors/%c/#
allow subscribe,receive group operators topic sensors/#
allow prioritize address 10.0.0.0/8 topic alarms/#
allow subscribe topic plan
allow subscribe topic plan/+/#
allow all topic $SYS/#
allow all listener internal topic home/+
";

const MOSQUITTO: &str =
    "topic read news/#\npattern write devices/%c\nuser jane\ntopic deny home/key\ntopic home/#\n";

/// Directory with the lists and configurations of a test.
fn directory() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("rules", RULES),
        ("old", MOSQUITTO),
        ("own", "deny receive topic sensors/secret\nallow publish topic extra"),
        ("bad", "allow all topic a\nallow all topic a/#/b\n"),
        ("foreign", "allow all user jane topic a\n"),
        ("braidmq.toml", "[log]\nlevel = \"info\"\n[acl]\nfile = \"rules\"\n"),
        ("old.toml", "[acl]\nfile = \"old\"\nformat = \"mosquitto\"\n"),
        ("none.toml", "[log]\nlevel = \"info\"\n"),
        ("unknown.toml", "[acl]\nfile = \"old\"\nformat = \"xml\"\n"),
    ] {
        fs::write(directory.path().join(name), text).unwrap();
    }
    directory
}

/// Exit code, standard output and standard error of `braidmq acl` in a directory.
fn run(directory: &Path, arguments: &str) -> (i32, String, String) {
    let arguments: Vec<_> = arguments.split_whitespace().map(|word| word.replace('~', " ")).collect();
    let mut command = braidmq(&["acl"]);
    let output =
        command.current_dir(directory).args(arguments).env_remove("BRAIDMQ_CONFIG").output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// Each row: arguments of `braidmq acl test`, exit code and output.
const ANSWERS: &[(&str, i32, &str)] = &[
    (
        "--acl rules --client c1 publish sensors/c1/heat",
        0,
        "allowed: publish sensors/c1/heat\nrules:4: allow publish topic sensors/%c/#\n",
    ),
    (
        "--acl rules --client c2 publish sensors/c1/heat",
        1,
        "denied: publish sensors/c1/heat\nrules: no rule of this client matches, which denies\n",
    ),
    (
        "--acl rules --client c1 publish sensors/c1/key",
        1,
        "denied: publish sensors/c1/key\nrules:3: deny all topic sensors/+/key\n",
    ),
    (
        "--acl rules --client c --user John~Doe receive sensors/a",
        0,
        "allowed: receive sensors/a\n\
             rules:5: allow subscribe,receive group operators topic sensors/#\n",
    ),
    (
        "--acl rules --client c --group x --group operators subscribe sensors/a",
        0,
        "allowed: subscribe sensors/a\n\
             rules:5: allow subscribe,receive group operators topic sensors/#\n",
    ),
    (
        "--acl rules --client c --user jane subscribe sensors/#",
        1,
        "denied: subscribe sensors/#\nrules:3: deny all topic sensors/+/key\n\
             this rule denies topics that the filter matches\n",
    ),
    (
        "--acl rules --client c --user jane subscribe $share/g/+/a",
        1,
        "denied: subscribe $share/g/+/a\nrules: no rule of this client matches, which denies\n\
             not permitted, for example: other/a\n",
    ),
    (
        "--acl rules --client c subscribe plan/#",
        1,
        "denied: subscribe plan/#\nrules: no rule of this client matches, which denies\n\
             several rules permit parts of the filter: write one that permits all of it\n",
    ),
    (
        "--acl rules --client c --address 10.1.2.3 prioritize alarms/#",
        0,
        "allowed: prioritize alarms/#\nrules:6: allow prioritize address 10.0.0.0/8 topic alarms/#\n",
    ),
    (
        "--acl rules --client c --address 11.1.2.3 prioritize alarms/fire",
        1,
        "denied: prioritize alarms/fire\nrules: no rule of this client matches, which denies\n",
    ),
    (
        "--acl rules --client c publish $SYS/broker",
        1,
        "denied: publish $SYS/broker\n$SYS and topics below it are the broker's: no rule permits PUBLISH\n",
    ),
    (
        "--acl rules --client c publish $SYS",
        1,
        "denied: publish $SYS\n$SYS and topics below it are the broker's: no rule permits PUBLISH\n",
    ),
    (
        "--acl rules --client c receive $SYS/broker",
        0,
        "allowed: receive $SYS/broker\nrules:9: allow all topic $SYS/#\n",
    ),
    (
        "--acl rules --client c --listener internal subscribe home/#",
        1,
        "denied: subscribe home/#\nrules: no rule of this client matches, which denies\n\
             not permitted, for example: home/other/other\n",
    ),
    (
        "--acl rules --own-rules own --client c --user jane receive sensors/secret",
        1,
        "denied: receive sensors/secret\nown:1: deny receive topic sensors/secret\n",
    ),
    (
        "--acl rules --own-rules own --client c publish extra",
        0,
        "allowed: publish extra\nown:2: allow publish topic extra\n",
    ),
    (
        "--acl rules --own-rules own --client c publish none",
        1,
        "denied: publish none\nown, rules: no rule of this client matches, which denies\n",
    ),
    (
        "--acl old --format mosquitto --client c --user jane receive home/key",
        1,
        "denied: receive home/key\nold:4: topic deny home/key\n",
    ),
    (
        "--acl old --format mosquitto --client c publish devices/c",
        0,
        "allowed: publish devices/c\nold:2: pattern write devices/%c\n",
    ),
    (
        "--config braidmq.toml --client c1 publish sensors/c1/heat",
        0,
        "allowed: publish sensors/c1/heat\nrules:4: allow publish topic sensors/%c/#\n",
    ),
    (
        "--config old.toml --client c receive news/today",
        0,
        "allowed: receive news/today\nold:1: topic read news/#\n",
    ),
];

#[test]
fn answers_name_the_line_that_decides() {
    let directory = directory();
    for (arguments, code, expected) in ANSWERS {
        let answer = run(directory.path(), &format!("test {arguments}"));
        assert_eq!(answer, (*code, (*expected).to_owned(), String::new()), "{arguments}");
    }
}

#[test]
fn without_an_answer_one_line_names_the_remedy() {
    let directory = directory();
    let rows = [
        (
            "test --client c publish a",
            "no access control list: name it with --acl FILE, or the broker's --config FILE",
        ),
        (
            "test --config none.toml --client c publish a",
            "none.toml has no key `acl.file`: name the list with --acl FILE",
        ),
        (
            "test --config unknown.toml --client c publish a",
            "unknown.toml:3: unknown variant `xml`, expected `braidmq` or `mosquitto`",
        ),
        (
            "test --acl rules --client c publish a/#",
            "cannot publish a/#: a topic name must not contain the wildcards '+' or '#'",
        ),
        (
            "test --acl rules --client c subscribe a/#/b",
            "cannot subscribe a/#/b: '#' must stand alone in the last level of a topic filter",
        ),
        (
            "test --acl rules --own-rules foreign --client c publish a",
            "foreign:1: `user` in the rules of one client, which apply to it alone; remove it",
        ),
        (
            "check bad",
            "bad:2: invalid filter `a/#/b`: '#' must stand alone in the last level of a topic filter; \
             write a topic filter of MQTT",
        ),
        ("check old", "old:1: unknown word `topic`; begin the line with `allow`, `deny` or `group`"),
        ("import rules", "rules:2: unknown word `group`; begin the line with `topic`, `pattern` or `user`"),
    ];
    for (arguments, expected) in rows {
        let answer = run(directory.path(), arguments);
        assert_eq!(answer, (2, String::new(), format!("braidmq: {expected}\n")), "{arguments}");
    }
    for arguments in ["check missing", "import missing", "test --acl missing --client c publish a"] {
        let (code, output, error) = run(directory.path(), arguments);
        assert!(error.starts_with("braidmq: cannot read missing: ") && output.is_empty(), "{error}");
        assert_eq!((code, error.lines().count()), (2, 1));
    }
    for arguments in
        ["test --acl rules publish a", "test --config old.toml --format mosquitto --client c publish a"]
    {
        assert_eq!(run(directory.path(), arguments).0, 2, "{arguments}");
    }
}

/// Variables of the broker name the list in place of the configuration, or beside it.
#[test]
fn environment_variables_count_as_for_the_broker() {
    let directory = directory();
    let none = "no access control list: name it with --acl FILE, or the broker's --config FILE";
    for (variables, arguments, expected) in [
        (&[("FILE", "own-list")][..], "--config braidmq.toml", Ok("own-list:1")),
        (&[("FILE", "old"), ("FORMAT", "mosquitto")], "", Ok("old:1")),
        (&[("FILE", "old")], "--config old.toml", Ok("old:1")),
        (&[("FILE", "own-list")], "--acl rules", Ok("rules:")),
        (&[("FORMAT", "mosquitto")], "", Err(none)),
        (&[("FORMAT", "xml")], "", Err("BRAIDMQ_ACL__FORMAT: unknown variant `xml`")),
        (&[("FIEL", "old")], "", Err("BRAIDMQ_ACL__FIEL: unknown key `fiel`; did you mean `file`?")),
    ] {
        fs::write(directory.path().join("own-list"), "allow all topic news/#\n").unwrap();
        let mut command = braidmq(&["acl", "test", "--client", "c", "receive", "news/a"]);
        command.args(arguments.split_whitespace()).current_dir(directory.path()).env_remove("BRAIDMQ_CONFIG");
        command.envs(variables.iter().map(|(key, value)| (format!("BRAIDMQ_ACL__{key}"), value)));
        let output = command.output().unwrap();
        let [said, failed] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        match expected {
            Ok(line) => {
                assert!(said.contains(&format!("\n{line}")), "{variables:?} {arguments}: {said}{failed}")
            }
            Err(part) => {
                assert!(output.status.code() == Some(2) && failed.contains(part), "{variables:?}: {failed}");
                assert_eq!(failed.lines().count(), 1, "{failed}");
            }
        }
    }
}

#[test]
fn a_check_counts_rules_and_groups() {
    let directory = directory();
    for (arguments, expected) in [
        ("check rules", "rules: 8 rules, 1 group\n"),
        ("check --format mosquitto old", "old: 4 rules, 0 groups\n"),
    ] {
        let answer = run(directory.path(), arguments);
        assert_eq!(answer, (0, expected.to_owned(), String::new()), "{arguments}");
    }
}

/// The printed rules are a list with the same answers.
#[test]
fn an_import_is_a_list() {
    let directory = directory();
    let (code, imported, _) = run(directory.path(), "import old");
    assert_eq!(code, 0);
    assert!(imported.contains("\n# line 4\ndeny publish,receive user jane topic home/key\n"), "{imported}");
    fs::write(directory.path().join("new"), imported).unwrap();
    assert_eq!(run(directory.path(), "check new").1, "new: 4 rules, 0 groups\n");
    for (client, code) in [("--user jane", 1), ("--user john", 1), ("", 1)] {
        let answer = run(directory.path(), &format!("test --acl new --client c {client} receive home/key"));
        assert_eq!(answer.0, code);
    }
    assert_eq!(run(directory.path(), "test --acl new --client c --user jane receive home/door").0, 0);
}

/// The list in the help is one that the parser accepts.
#[test]
fn the_help_shows_a_valid_list() {
    let directory = directory();
    let (code, help, _) = run(directory.path(), "--help");
    assert_eq!(code, 0);
    let lines = help.lines().skip_while(|line| !line.starts_with("The file")).skip(1);
    let list: String =
        lines.take_while(|line| !line.is_empty()).map(|line| format!("{}\n", line.trim())).collect();
    fs::write(directory.path().join("help"), list).unwrap();
    assert_eq!(run(directory.path(), "check help").1, "help: 3 rules, 1 group\n");
}
