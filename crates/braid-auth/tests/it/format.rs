//! Errors of files that are no access control list.

use braid_auth::acl::{Acl, MAX_FILE_BYTES, MAX_LINE_BYTES, MAX_RULES};

use crate::generator::parse;

fn error(text: &[u8]) -> String {
    Acl::parse(text, "acl").expect_err(&text.escape_ascii().to_string()).to_string()
}

/// Each row: lines behind a valid one, and the error.
const BAD_LINES: &[(&[u8], &str)] = &[
    (b"a\0b\n", "acl:2: the line contains a NUL byte; save the file as plain text"),
    (b"# a\rb\n", "acl:2: the line contains a CR that is not before its LF; end lines with LF or CRLF"),
    (b"# a\r\r\n", "acl:2: the line contains a CR that is not before its LF; end lines with LF or CRLF"),
    (b"# \xFF\n", "acl:2: the line is not UTF-8; save the file as UTF-8"),
    (
        b"# cut",
        "acl:2: the last line has no end, so that the file may be cut off; complete it and end it with a newline",
    ),
    (b"permit all topic a\n", "acl:2: unknown word `permit`; begin the line with `allow`, `deny` or `group`"),
    (b"Allow all topic a\n", "acl:2: unknown word `Allow`; begin the line with `allow`, `deny` or `group`"),
    (
        b"\xEF\xBB\xBFallow\n",
        "acl:2: unknown word `\\u{feff}allow`; begin the line with `allow`, `deny` or `group`",
    ),
    (
        b"allow\n",
        "acl:2: no action; write `all`, or some of `publish,subscribe,receive,prioritize`, and then `topic FILTER`",
    ),
    (
        b"allow read topic a\n",
        "acl:2: unknown action `read`; write `all`, or some of `publish,subscribe,receive,prioritize` without blanks",
    ),
    (
        b"allow publish, receive topic a\n",
        "acl:2: unknown action ``; write `all`, or some of `publish,subscribe,receive,prioritize` without blanks",
    ),
    (
        b"allow publish,all topic a\n",
        "acl:2: unknown action `all`; write `all`, or some of `publish,subscribe,receive,prioritize` without blanks",
    ),
    (b"allow publish,publish topic a\n", "acl:2: the action `publish` stands twice; write it once"),
    (
        b"allow all name a topic a\n",
        "acl:2: unknown word `name`; write `user NAME`, `client ID`, `group NAME`, `listener TAG`, `address NETWORK`, \
         `anonymous`, `names KIND`, `topic FILTER` or `any-topic`",
    ),
    (b"allow all user a user b topic a\n", "acl:2: `user` stands twice; write a rule for each value"),
    (
        b"deny all anonymous anonymous topic a\n",
        "acl:2: `anonymous` stands twice; write a rule for each value",
    ),
    (b"deny all names plain topic a\n", "acl:2: unknown kind of names `plain`; write `literal` or `level`"),
    (
        b"deny all names level names level topic a\n",
        "acl:2: `names` stands twice; write a rule for each value",
    ),
    (
        b"allow all address 10.0.0.0/8 address 11.0.0.0/8 topic a\n",
        "acl:2: `address` stands twice; write a rule for each value",
    ),
    (
        b"allow all anonymous user a topic a\n",
        "acl:2: `user` and `anonymous` exclude each other; remove one of them",
    ),
    (
        b"allow all address 10.0.0/8 topic a\n",
        "acl:2: `10.0.0/8` is no network; write an address with or without a prefix length, such as `10.0.0.0/8`",
    ),
    (
        b"allow all address ::1/129 topic a\n",
        "acl:2: `::1/129` is no network; write an address with or without a prefix length, such as `10.0.0.0/8`",
    ),
    (
        b"allow all address 10.0.0.1/8 topic a\n",
        "acl:2: the network `10.0.0.1/8` has bits behind its prefix; write `10.0.0.0/8`, or a longer prefix",
    ),
    (
        b"allow all address ::ffff:10.0.0.1 topic a\n",
        "acl:2: the network `::ffff:10.0.0.1` is IPv4 in IPv6; write it as IPv4, such as `10.0.0.0/8`",
    ),
    (b"group\n", "acl:2: nothing follows `group`; write a value"),
    (b"group a\n", "acl:2: no `=` behind the name of the group; write `group NAME = USER USER`"),
    (b"group a=b\n", "acl:2: no `=` behind the name of the group; write `group NAME = USER USER`"),
    (b"group a =\n", "acl:2: nothing follows `=`; write a value"),
    (b"group a = \"\"\n", "acl:2: the value of `=` is empty; write at least one character"),
    (
        b"group a = b, c\n",
        "acl:2: the name `b,` contains a comma; separate users by blanks, or quote the name",
    ),
    (
        b"group a = b\n",
        "acl:2: the group stands below a rule; move it above the first rule, so that no cut file lacks it",
    ),
    (b"groups a = b\n", "acl:2: unknown word `groups`; begin the line with `allow`, `deny` or `group`"),
    (b"allow all client\n", "acl:2: nothing follows `client`; write a value"),
    (b"allow all group \"\" topic a\n", "acl:2: the value of `group` is empty; write at least one character"),
    (b"allow all topic \"\"\n", "acl:2: the value of `topic` is empty; write at least one character"),
    (b"allow all listener l\n", "acl:2: no topic; end the rule with `topic FILTER`"),
    (b"allow all\n", "acl:2: no topic; end the rule with `topic FILTER`"),
    (b"allow all topic\n", "acl:2: nothing follows `topic`; write a value"),
    (
        b"allow all topic a/#/b\n",
        "acl:2: invalid filter `a/#/b`: '#' must stand alone in the last level of a topic filter; \
         write a topic filter of MQTT",
    ),
    (
        b"allow all topic a+\n",
        "acl:2: invalid filter `a+`: '+' must stand alone in its level of a topic filter; write a topic filter of MQTT",
    ),
    (
        b"allow all topic $share/g/a\n",
        "acl:2: the filter `$share/g/a` is a shared subscription; write it without `$share/NAME/`",
    ),
    (
        b"allow all topic a/x%u\n",
        "acl:2: %u or %c is a part of a level of `a/x%u`; write it as a whole level, such as `a/%u/b`",
    ),
    (
        b"allow all topic %c%c\n",
        "acl:2: %u or %c is a part of a level of `%c%c`; write it as a whole level, such as `a/%u/b`",
    ),
    (
        b"allow all topic a # all\n",
        "acl:2: unexpected `#` behind the filter; quote a filter with blanks, write a comment on a line of its own",
    ),
    (b"allow all user \"a\n", "acl:2: the quote is not closed; write `\"` at the end of the value"),
    (b"allow all user \"a\\\n", "acl:2: the quote is not closed; write `\"` at the end of the value"),
    (
        b"allow all user a\"b topic a\n",
        "acl:2: a quote inside of `a\\\"b`; quote the whole value, and write `\\\"` for a quote in it",
    ),
    (
        b"allow all user \"a\"b topic a\n",
        "acl:2: no blank behind a closing quote; write one, or `\\\"` for a quote in the value",
    ),
    (
        b"allow all user \"a\\n\" topic a\n",
        "acl:2: unknown escape in quotes; write `\\\"` for a quote and `\\\\` for a backslash",
    ),
    (
        b"a-word-that-is-longer-than-an-error-should-be\n",
        "acl:2: unknown word `a-word-that-is-longer-than-an-error-shou...`; begin the line with `allow`, `deny` or `group`",
    ),
];

#[test]
fn each_bad_line_has_its_error() {
    for (line, expected) in BAD_LINES {
        let text = [b"allow all topic a\n", *line].concat();
        assert_eq!(error(&text), *expected);
        let followed = [&text, &b"\ndeny all topic b\n"[..]].concat();
        assert!(
            Acl::parse(&followed, "acl").is_err() || *line == b"# cut",
            "a valid line behind it saves nothing"
        );
    }
}

#[test]
fn a_file_without_rules_is_refused() {
    let expected = "acl:1: there is no rule; write at least one (`deny all any-topic` permits nothing)";
    for text in ["", "\n", "\r\n", "# allow all topic #\n", " \t\n\n  # x\n"] {
        assert_eq!(error(text.as_bytes()), expected, "{text:?}");
    }
}

#[test]
fn a_byte_order_mark_is_refused() {
    let expected = "acl:1: the file begins with a byte order mark; save it as UTF-8 without one";
    assert_eq!(error(b"\xEF\xBB\xBFallow all topic a\n"), expected);
    assert_eq!(error(b"\xFF\xFEa\0"), "acl:1: the line is not UTF-8; save the file as UTF-8");
}

#[test]
fn long_lines_are_refused() {
    let comment = |length: usize| format!("#{}\r\nallow all topic a\n", "x".repeat(length - 1));
    parse(&comment(MAX_LINE_BYTES));
    let expected = "acl:1: the line is longer than 65536 bytes; shorten it";
    assert_eq!(error(comment(MAX_LINE_BYTES + 1).as_bytes()), expected);
    assert_eq!(error(&vec![0xFF; MAX_LINE_BYTES + 1]), expected);
}

#[test]
fn large_files_are_refused() {
    let line = format!("#{}\n", "x".repeat(62));
    let mut text = line.repeat(MAX_FILE_BYTES / line.len() - 1) + &"\n".repeat(line.len() - 18);
    text.push_str("allow all topic a\n");
    parse(&text);
    text.push('\n');
    let expected = "acl:1: the file is larger than 67108864 bytes; remove rules, or replace them by groups";
    assert_eq!(error(text.as_bytes()), expected);
}

#[test]
fn groups_are_counted_once() {
    let acl = parse("group a = b c\ngroup a = d\ngroup \"b c\" = \"x,y\"\nallow all topic a\n");
    assert_eq!((acl.groups(), acl.rules()), (2, 1));
}

/// The rules of a client are for it alone.
#[test]
fn own_rules_have_no_groups_and_selectors() {
    let own = |text: &str| Acl::parse_own(text.as_bytes(), "token").map(|acl| acl.rules());
    assert_eq!(own("allow publish topic a/%c\ndeny all topic #"), Ok(2));
    for kind in ["user", "client", "group", "listener", "address", "anonymous", "names"] {
        let error = own(&format!("allow all topic a\nallow all {kind} a topic a\n")).expect_err(kind);
        let expected =
            format!("token:2: `{kind}` in the rules of one client, which apply to it alone; remove it");
        assert_eq!(error.to_string(), expected);
    }
    let error = own("group a = b\nallow all topic a\n").expect_err("a group");
    assert_eq!(
        error.to_string(),
        "token:1: `group` in the rules of one client, which apply to it alone; remove it"
    );
    assert!(own("").is_err() && own("allow all topic a\nallow").is_err());
}

#[test]
fn too_many_rules_are_refused() {
    let mut text = "allow all topic a\n".repeat(MAX_RULES);
    parse(&text);
    text.push_str("# the last one\nallow all topic a\n");
    let expected = "acl:100002: there are more than 100000 rules; \
                    replace rules for single names by groups, wildcards, %u or %c";
    assert_eq!(error(text.as_bytes()), expected);
}

/// Every error is one line, whatever bytes are in the file.
#[test]
fn files_with_damaged_bytes_never_panic() {
    let text = b"group g = a \"b,c\"\ndeny all user \"a \\\"b\" group g address ::1 topic a/%u/+/#\r\n# comment\nallow receive\tclient c topic \"a b\"\n";
    for position in 0..text.len() {
        for byte in 0..=u8::MAX {
            let mut damaged = text.to_vec();
            damaged[position] = byte;
            if let Err(error) = Acl::parse(&damaged, "acl") {
                let error = error.to_string();
                assert!(error.starts_with("acl:") && !error.contains(char::is_control), "{error}");
            }
        }
    }
}
