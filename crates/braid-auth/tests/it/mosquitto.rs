//! Import of mosquitto's acl_file against a model of mosquitto's own check.

use braid_auth::acl::{Acl, Action, Subject};
use braid_auth::mosquitto::import;
use braid_proto::topic::{TopicFilter, TopicName};
use fastrand::Rng;

use crate::generator::{all_names, filter, for_each_seed, parse};

const NAMES: [&str; 8] = ["a", "b", "a b", "+", "a\"#", "a/b", "$s", ""];

/// Line that grants or denies, with the user whose line it is. `None` is an anonymous client.
#[derive(Debug)]
enum Line {
    Topic(Option<&'static str>, &'static str, String),
    Pattern(&'static str, String),
}

/// Lines and their text.
fn random_file(rng: &mut Rng) -> (Vec<Line>, String) {
    let (mut lines, mut text, mut user) = (Vec::new(), "# topic readwrite #\n".to_owned(), None);
    while lines.is_empty() || rng.u8(..8) > 0 {
        let access = ["read", "write", "readwrite", "deny"][rng.usize(..4)];
        let written = if access == "readwrite" && rng.bool() { "" } else { access };
        let end = ["\n", "\r\n", " \n", "\t\r\n"][rng.usize(..4)];
        match rng.u8(..4) {
            0 => {
                let name = NAMES[rng.usize(..7)];
                user = Some(name);
                text += &format!("user  {name}{end}\n");
            }
            1 => {
                let filter = filter(rng, &["%u", "%c"]);
                text += &format!("pattern {written} {filter}{end}");
                lines.push(Line::Pattern(access, filter));
            }
            _ => {
                let filter = filter(rng, &["a b"]);
                let written = if filter.contains(' ') { access } else { written };
                text += &format!(" topic {written}  {filter}{end}");
                lines.push(Line::Topic(user, access, filter));
            }
        }
    }
    (lines, text)
}

/// The check of mosquitto 2: the lines of the client, `deny` first, then the patterns, `deny` first.
fn mosquitto(lines: &[Line], subject: &Subject<'_>, needed: &str, topic: &TopicName) -> bool {
    let is_match = |filter: &str| TopicFilter::parse(filter).is_ok_and(|filter| filter.matches(topic));
    let decide = |lines: Vec<(&str, String)>| {
        let matching = || lines.iter().filter(|(_, filter)| is_match(filter));
        if matching().any(|(access, _)| *access == "deny") {
            return Some(false);
        }
        matching().any(|(access, _)| *access == needed || *access == "readwrite").then_some(true)
    };
    let own = lines.iter().filter_map(|line| match line {
        Line::Topic(user, access, filter) => (*user == subject.user).then(|| (*access, filter.clone())),
        Line::Pattern(..) => None,
    });
    if let Some(answer) = decide(own.collect()) {
        return answer;
    }
    if [subject.user, Some(subject.client_id)].into_iter().flatten().any(|name| name.contains(['+', '#'])) {
        return false;
    }
    let patterns = lines.iter().filter_map(|line| match line {
        Line::Pattern(_, filter) if filter.contains("%u") && subject.user.is_none() => None,
        Line::Pattern(access, filter) => {
            let user = subject.user.unwrap_or_default();
            Some((*access, filter.replace("%c", subject.client_id).replace("%u", user)))
        }
        Line::Topic(..) => None,
    });
    decide(patterns.collect()).unwrap_or(false)
}

#[test]
fn imported_rules_give_the_answers_of_mosquitto() {
    let names = all_names();
    let mut answers = [0, 0];
    for_each_seed(500, |rng| {
        let (lines, text) = random_file(rng);
        let acl = Acl::parse_mosquitto(text.as_bytes(), "acl").expect(&text);
        let imported = parse(&import(text.as_bytes(), "acl").expect(&text));
        for _ in 0..4 {
            let user = Some(NAMES[rng.usize(..8)]).filter(|_| rng.u8(..3) > 0);
            let client_id = NAMES[rng.usize(..8)];
            let subject = Subject { user, client_id, groups: &[], listener: None, address: None };
            let is_odd = |name: &str| name.is_empty() || name.contains('/') || name.starts_with('$');
            let may_be_stricter = is_odd(client_id) || user.is_some_and(is_odd);
            for _ in 0..50 {
                let name = &names[rng.usize(..names.len())];
                for (action, access) in [(Action::Publish, "write"), (Action::Receive, "read")] {
                    let allowed = acl.decide(&subject, action, name).allowed;
                    let expected = mosquitto(&lines, &subject, access, name);
                    let agrees = allowed == expected || may_be_stricter && !allowed;
                    assert!(agrees, "{subject:?} {action:?} {name}: {allowed}\n{text}");
                    assert_eq!(imported.decide(&subject, action, name).allowed, allowed, "{text}");
                    answers[usize::from(allowed)] += 1;
                }
                let [subscribe, receive, prioritize] =
                    [Action::Subscribe, Action::Receive, Action::Prioritize]
                        .map(|action| acl.decide(&subject, action, name).allowed);
                assert!(subscribe >= receive && !prioritize, "{subject:?} {name}\n{text}");
            }
        }
    });
    assert!(answers.into_iter().all(|count| count > 10_000), "{answers:?}");
}

const EXAMPLE: &str = "\
topic read $SYS/#
pattern write devices/%c/#
user jane \"j\" doe
topic readwrite home/my lamp
topic deny home/key
topic read home/#
pattern deny devices/+/key
";

#[test]
fn rules_are_in_the_order_in_which_mosquitto_asks() {
    let imported = import(EXAMPLE.as_bytes(), "old\nacl").expect(EXAMPLE);
    let expected = "\
# Rules of the acl_file `old\\nacl` of mosquitto, in the order in which mosquitto asks them.
# mosquitto grants every subscription. Here a rule has to cover it: if clients subscribe to more than
# they may read, put `allow subscribe topic #` in front.

# line 5
deny publish,receive user \"jane \\\"j\\\" doe\" topic home/key

# line 1
allow subscribe,receive anonymous topic $SYS/#

# line 4
allow publish,subscribe,receive user \"jane \\\"j\\\" doe\" topic \"home/my lamp\"

# line 6
allow subscribe,receive user \"jane \\\"j\\\" doe\" topic home/#

# line 7
deny publish,receive topic devices/+/key

# line 2
allow publish names literal topic devices/%c/#
";
    assert_eq!(imported, expected);
}

#[test]
fn decisions_name_lines_of_the_file() {
    let acl = Acl::parse_mosquitto(EXAMPLE.as_bytes(), "acl").expect(EXAMPLE);
    let jane = Subject {
        user: Some("jane \"j\" doe"),
        client_id: "c/1",
        groups: &[],
        listener: None,
        address: None,
    };
    let guest = Subject { user: None, ..jane };
    let decide = |subject: &Subject<'_>, action, topic| {
        let decision = acl.decide(subject, action, &TopicName::parse(topic).expect("a name"));
        (decision.allowed, decision.line.map(usize::from))
    };
    assert_eq!(decide(&jane, Action::Receive, "home/key"), (false, Some(5)));
    assert_eq!(decide(&jane, Action::Receive, "home/door"), (true, Some(6)));
    assert_eq!(decide(&jane, Action::Receive, "$SYS/broker"), (false, None));
    assert_eq!(decide(&guest, Action::Receive, "$SYS/broker"), (true, Some(1)));
    assert_eq!(decide(&guest, Action::Publish, "$SYS/broker"), (false, None));
    // A `deny` inside of a filter is asked for at each delivery.
    let filter = TopicFilter::parse("home/#").expect("a filter");
    assert!(acl.decide_filter(&jane, Action::Subscribe, &filter).allowed);
}

/// Clients whose names cannot replace `%u` and `%c` keep the other patterns, unless one of these denies.
#[test]
fn names_with_levels_keep_patterns_without_placeholders() {
    let client = Subject { user: None, client_id: "c/1", groups: &[], listener: None, address: None };
    let news = TopicName::parse("news").expect("a name");
    let receives = |text: &str, client_id| {
        let acl = Acl::parse_mosquitto(text.as_bytes(), "acl").expect(text);
        acl.decide(&Subject { client_id, ..client }, Action::Receive, &news).allowed
    };
    assert!(receives("pattern read news\n", "c/1") && !receives("pattern read news\n", "c+"));
    let denied = "pattern read news\npattern deny %c\n";
    assert!(receives(denied, "c") && !receives(denied, "news") && !receives(denied, "c/1"));
}

#[test]
fn each_bad_line_has_its_error() {
    let rows: &[(&[u8], &str)] = &[
        (b"topic\n", "acl:2: nothing follows `topic`; write a value"),
        (b"pattern \n", "acl:2: nothing follows `pattern`; write a value"),
        (b"user \n", "acl:2: nothing follows `user`; write a value"),
        (b"topic read\n", "acl:2: nothing follows `read`; write a value"),
        (b"topic write\n", "acl:2: nothing follows `write`; write a value"),
        (b"topic readwrite\n", "acl:2: nothing follows `readwrite`; write a value"),
        (b"pattern deny\n", "acl:2: nothing follows `deny`; write a value"),
        (
            b"topic none a\n",
            "acl:2: unknown access `none`; write `read`, `write`, `readwrite` or `deny` in front of the filter",
        ),
        (b"allow a\n", "acl:2: unknown word `allow`; begin the line with `topic`, `pattern` or `user`"),
        (
            b"topic\tread a\n",
            "acl:2: the line contains a tab, which mosquitto takes for a part of a word; write spaces",
        ),
        (
            b"\ttopic read a\n",
            "acl:2: the line contains a tab, which mosquitto takes for a part of a word; write spaces",
        ),
        (
            b"topic read a/%u\n",
            "acl:2: mosquitto takes %u and %c of a `topic` line literally: `a/%u`; write `pattern`, or remove the line",
        ),
        (
            b"pattern read a/x%c\n",
            "acl:2: %u or %c is a part of a level of `a/x%c`; write it as a whole level, such as `a/%u/b`",
        ),
        (
            b"topic read a/#/b\n",
            "acl:2: invalid filter `a/#/b`: '#' must stand alone in the last level of a topic filter; \
             write a topic filter of MQTT",
        ),
        (
            b"topic read $share/g/a\n",
            "acl:2: the filter `$share/g/a` is a shared subscription; write it without `$share/NAME/`",
        ),
        (
            b"topic read a",
            "acl:2: the last line has no end, so that the file may be cut off; complete it and end it with a newline",
        ),
        (b"# \xFF\n", "acl:2: the line is not UTF-8; save the file as UTF-8"),
        (b"topic a\0b\n", "acl:2: the line contains a NUL byte; save the file as plain text"),
    ];
    for (line, expected) in rows {
        let text = [b"topic a\n", *line].concat();
        let error = Acl::parse_mosquitto(&text, "acl").expect_err(&text.escape_ascii().to_string());
        assert_eq!(error.to_string(), *expected);
        assert_eq!(import(&text, "acl").expect_err("the same").to_string(), *expected);
    }
    for text in ["", "# x\n", "user a\n\n"] {
        let error = Acl::parse_mosquitto(text.as_bytes(), "acl").expect_err(text).to_string();
        assert_eq!(error, "acl:1: there is no rule; write at least one (`topic deny #` permits nothing)");
    }
    let error = Acl::parse_mosquitto(b"\xEF\xBB\xBFtopic a\n", "acl").expect_err("a mark").to_string();
    assert_eq!(error, "acl:1: the file begins with a byte order mark; save it as UTF-8 without one");
}
