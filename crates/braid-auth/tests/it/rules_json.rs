//! Rules in JSON: their lines, their errors, and texts that try to add rules.

use braid_auth::acl::{self, ACTIONS, Acl, Action, Subject};
use braid_auth::rules_json::{MAX_JSON_RULES, MAX_JSON_RULES_BYTES, rules_from_json};
use braid_proto::topic::{TopicFilter, TopicName};
use serde_json::{Value, json};

fn error(rules: &Value) -> String {
    let error = rules_from_json(rules).expect_err(&rules.to_string()).to_string();
    assert!(!error.contains('\n') && error.len() < 250, "{error}");
    error
}

#[test]
fn each_form_becomes_lines() {
    let rules = [
        (json!(["allow publish topic a/%c/#"]), "allow publish topic a/%c/#\n"),
        (
            json!([" deny\tall  topic \"a b\" ", {"topic": "a", "action": "all", "permission": "deny"}]),
            " deny\tall  topic \"a b\" \ndeny all topic \"a\"\n",
        ),
        (
            json!([
                {"permission": "allow", "action": "publish", "topic": "${username}/+/${clientid}"},
                {"permission": "deny", "action": "subscribe", "topic": "$SYS/#"},
                {"permission": "allow", "action": "pub", "topic": "a b"},
                {"permission": "allow", "action": "sub", "topic": "eq"},
            ]),
            "allow publish topic \"%u/+/%c\"\n\
             deny subscribe,receive topic \"$SYS/#\"\n\
             allow publish topic \"a b\"\n\
             allow subscribe,receive topic \"eq\"\n",
        ),
        (
            json!({"all": ["c"], "sub": ["b", "${clientid}"], "pub": ["a"]}),
            "allow publish topic \"a\"\n\
             allow subscribe,receive topic \"b\"\n\
             allow subscribe,receive topic \"%c\"\n\
             allow all topic \"c\"\n\
             deny all any-topic\n",
        ),
        (json!({"sub": ["b"], "pub": []}), "allow subscribe,receive topic \"b\"\ndeny all any-topic\n"),
    ];
    for (rules, lines) in rules {
        assert_eq!(&*rules_from_json(&rules).unwrap(), lines);
    }
}

fn placeholder(number: usize, text: &str) -> String {
    format!(
        "rule:{number}: unsupported placeholder in `{text}`; write ${{username}} or ${{clientid}} as a whole level, \
         such as `a/${{clientid}}/b`"
    )
}

fn check_errors(rows: &[(Value, &str)]) {
    for (rules, expected) in rows {
        assert_eq!(error(rules), *expected, "{rules}");
    }
}

/// Rules that are closed leave nothing to the broker's, whose rules are behind them.
#[test]
fn lists_decide_about_every_topic() {
    let many: String = (0..20).map(|number| format!("allow all topic $x/{number}\n")).collect();
    for (broker, filler) in [("allow all any-topic\n", ""), ("allow all any-topic\n", &*many)] {
        let broker = Acl::parse([filler, broker].concat().as_bytes(), "acl").unwrap();
        let topics: Vec<String> = (0..20).map(|number| format!("t/{number}")).collect();
        for own in [
            json!({"all": ["t/1"]}),
            json!({"all": topics}),
            json!(["allow all topic t/1", "deny all any-topic"]),
        ] {
            let own = Acl::parse_own(rules_from_json(&own).unwrap().as_bytes(), "own").unwrap();
            let subject = Subject { user: None, client_id: "c", groups: &[], listener: None, address: None };
            for (topic, is_own) in
                [("t/1", true), ("u", false), ("$SYS", false), ("$SYS/x", false), ("$x/1", false)]
            {
                let name = TopicName::parse(topic).unwrap();
                for action in ACTIONS {
                    let decision = acl::decide(&[&own, &broker], &subject, action, &name);
                    assert_eq!((decision.allowed, decision.list), (is_own, 0), "{topic}");
                    assert!(broker.decide(&subject, action, &name).allowed, "{topic}");
                }
            }
            for filter in ["#", "+", "$SYS/#", "$x/+", "/#", "t/+"] {
                let filter = TopicFilter::parse(filter).unwrap();
                let ask = |lists: &[&Acl]| acl::decide_filter(lists, &subject, Action::Subscribe, &filter);
                assert!(!ask(&[&own, &broker]).allowed, "{filter}");
                assert!(ask(&[&broker]).allowed, "{filter}");
            }
        }
    }
}

#[test]
fn each_malformed_list_and_line_has_its_error() {
    const NOT_RULES: &str =
        "rules: neither a list of rules nor an object with the lists `pub`, `sub` and `all`";
    const NO_RULE: &str = "rules: there is no rule; leave the rules out, or write at least one";
    const CONTROL: &str =
        "rule:1: a CR, LF or NUL character; write each rule on its own, and no control characters";
    let selector = |word: &str| {
        format!(
            "rule:1: `{word}` instead of `topic`; write no selectors, the rule is about its client already, \
             such as `allow publish topic a/b`"
        )
    };
    let rows: &[(Value, &str)] = &[
        (json!(null), NOT_RULES),
        (json!("allow all topic #"), NOT_RULES),
        (json!(true), NOT_RULES),
        (json!(1), NOT_RULES),
        (json!([]), NO_RULE),
        (json!({}), NO_RULE),
        (json!({"pub": [], "sub": []}), NO_RULE),
        (
            json!({"pub": ["a"], "publish": ["b"]}),
            "rules: unknown list `publish`; write `pub`, `sub` and `all`",
        ),
        (json!({"pub": "a"}), "rules: `pub` is not a list of topics"),
        (json!({"sub": null}), "rules: `sub` is not a list of topics"),
        (json!({"all": ["a", 1]}), "rules: `all` is not a list of topics"),
        (json!([["allow all topic a"]]), "rule:1: neither a text nor an object"),
        (json!(["allow all topic a", null]), "rule:2: neither a text nor an object"),
        (json!([""]), "rule:1: a blank line or a comment; write a rule"),
        (json!([" \t"]), "rule:1: a blank line or a comment; write a rule"),
        (json!([" # all topic a"]), "rule:1: a blank line or a comment; write a rule"),
        (
            json!(["permit all topic a"]),
            "rule:1: unknown word `permit`; begin the line with `allow`, `deny` or `group`",
        ),
        (json!(["allow all user u topic a"]), &selector("user")),
        (json!(["allow all client c topic a"]), &selector("client")),
        (json!(["deny all\tgroup g topic a"]), &selector("group")),
        (json!(["allow all listener l topic a"]), &selector("listener")),
        (
            json!(["allow all topic a user u"]),
            "rule:1: unexpected `user` behind the filter; quote a filter with blanks, write a comment on a line of its own",
        ),
        (
            json!(["allow all any-topic #"]),
            "rule:1: unexpected `#` behind the filter; quote a filter with blanks, write a comment on a line of its own",
        ),
        (json!(["allow all"]), "rule:1: no topic; end the rule with `topic FILTER`"),
        (json!(["allow publish topic a\nallow all topic #"]), CONTROL),
        (json!(["allow publish topic a\r"]), CONTROL),
        (json!([{"permission": "allow", "action": "all", "topic": "a\"\nallow all topic #"}]), CONTROL),
        (json!({"pub": ["a\0"]}), CONTROL),
        (json!(["allow publish topic a/${clientid}"]), &placeholder(1, "allow publish topic a/${clientid}")),
    ];
    check_errors(rows);
}

#[test]
fn each_malformed_object_has_its_error() {
    let rule = |key: &str, value: Value| {
        let mut rule = json!({"permission": "allow", "action": "publish", "topic": "a"});
        rule[key] = value;
        json!(["deny all topic b", rule])
    };
    let without = |key: &str| {
        let mut rules = rule("topic", json!("a"));
        rules[1].as_object_mut().unwrap().remove(key);
        rules
    };
    let key = |key: &str| {
        format!(
            "rule:2: unsupported key `{key}`; write `permission`, `action` and `topic`, other conditions do not exist"
        )
    };
    let rows: &[(Value, &str)] = &[
        (rule("topic", json!("a/x${clientid}")), &placeholder(2, "a/x${clientid}")),
        (rule("topic", json!("a/${client_attrs.x}")), &placeholder(2, "a/${client_attrs.x}")),
        (
            rule("topic", json!("a/%u%c")),
            "rule:2: %u or %c is a part of a level of `a/%u%c`; write it as a whole level, such as `a/%u/b`",
        ),
        (
            rule("topic", json!("a/#/b")),
            "rule:2: invalid filter `a/#/b`: '#' must stand alone in the last level of a topic filter; write a topic filter of MQTT",
        ),
        (
            rule("topic", json!("$share/g/a")),
            "rule:2: the filter `$share/g/a` is a shared subscription; write it without `$share/NAME/`",
        ),
        (rule("topic", json!("")), "rule:2: the value of `topic` is empty; write at least one character"),
        (
            rule("topic", json!("eq a/#")),
            "rule:2: a topic that begins with `eq ` is not supported; write a filter, `eq` is no part of it",
        ),
        (rule("topic", json!(["a"])), "rule:2: `topic` is missing or not a text"),
        (rule("action", json!(null)), "rule:2: `action` is missing or not a text"),
        (without("topic"), "rule:2: `topic` is missing or not a text"),
        (without("action"), "rule:2: `action` is missing or not a text"),
        (without("permission"), "rule:2: `permission` is missing or not a text"),
        (rule("permission", json!("Allow")), "rule:2: unknown permission `Allow`; write `allow` or `deny`"),
        (
            rule("action", json!("receive")),
            "rule:2: unknown action `receive`; write `publish`, `subscribe` or `all`",
        ),
        (rule("qos", json!([0, 1])), &key("qos")),
        (rule("retain", json!(false)), &key("retain")),
        (rule("topics", json!(["b"])), &key("topics")),
        (rule("ipaddr", json!("127.0.0.1")), &key("ipaddr")),
        (rule("a\n\u{1b}", json!(null)), &key("a\\n\\u{1b}")),
    ];
    check_errors(rows);
}

#[test]
fn number_and_size_have_a_limit() {
    let rules = |count| Value::from(vec!["deny all topic a"; count]);
    assert!(rules_from_json(&rules(MAX_JSON_RULES)).is_ok());
    assert_eq!(
        error(&rules(MAX_JSON_RULES + 1)),
        "rules: there are more than 1000; replace rules by wildcards, %u or %c"
    );
    assert!(rules_from_json(&json!({"pub": vec!["a"; MAX_JSON_RULES - 1]})).is_ok());
    assert_eq!(
        error(&json!({"pub": vec!["a"; MAX_JSON_RULES]})),
        "rules: there are more than 1000; replace rules by wildcards, %u or %c",
        "the last rule counts too"
    );

    let line = |length: usize| format!("deny all topic {:a<1$}", "", length - "deny all topic ".len() - 1);
    let half = MAX_JSON_RULES_BYTES / 2;
    assert_eq!(rules_from_json(&json!([line(half), line(half)])).unwrap().len(), MAX_JSON_RULES_BYTES);
    assert_eq!(
        error(&json!([line(half), line(half + 1)])),
        "rules: they are longer than 65536 bytes; replace rules by wildcards, %u or %c"
    );
}

/// Random topics of the characters that the format treats specially: each becomes one rule about that topic, or none.
#[test]
fn no_topic_can_add_or_widen_a_rule() {
    const PARTS: &[&str] = &[
        "\"",
        "\\",
        "\n",
        "\r",
        "\0",
        "#",
        "+",
        "/",
        " ",
        "\t",
        "a",
        "topic",
        "allow all topic #",
        "\u{85}",
        "\u{2028}",
        "\u{feff}",
        "%u",
        "%c",
        "${username}",
        "$",
    ];
    let mut random = fastrand::Rng::with_seed(11);
    let mut accepted = 0;
    for _ in 0..20_000 {
        let topic: String = (0..random.usize(1..6)).map(|_| PARTS[random.usize(..PARTS.len())]).collect();
        let rules = json!([{"permission": "allow", "action": "publish", "topic": topic}]);
        let Ok(lines) = rules_from_json(&rules) else { continue };
        accepted += 1;
        assert_eq!(lines.matches('\n').count(), 1, "{topic:?}");
        let acl = Acl::parse(lines.as_bytes(), "rule").unwrap();
        let subject = Subject { user: None, client_id: "c/", groups: &[], listener: None, address: None };
        let decide =
            |action, topic: &str| acl.decide(&subject, action, &TopicName::parse(topic).unwrap()).allowed;
        assert!(!decide(Action::Subscribe, "other"), "{topic:?}");
        if !topic.contains(['#', '+', '%', '$']) {
            assert!(decide(Action::Publish, &topic), "{topic:?}");
            assert!(!decide(Action::Publish, "other"), "{topic:?}");
        }
    }
    assert!(accepted > 1_000, "{accepted}");
}
