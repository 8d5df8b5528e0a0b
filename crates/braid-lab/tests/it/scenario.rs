//! Scenarios: the built-in ones, and invalid ones.

use braid_lab::scenario::{Builtin, Field, Flow, LinkField, Scenario, Value, Way, builtin};

const SMALL: &str = r#"
name = "small"
title = "small"
about = "small"
duration = "2s"
quick = "1s"
ends = ["a", "b"]
[[link]]
name = "wire"
between = ["a", "b"]
[[profile]]
name = "plain"
title = "plain"
links = { wire = "delay=1ms" }
[[program]]
name = "ping"
at = "a"
run = "ping -c 1 {b} {more}"
[[variant]]
name = "one"
title = "one"
set = { more = "-q" }
[[metric]]
name = "lost"
value = "link:wire:up:dropped_share"
"#;

#[test]
fn built_in_scenarios_are_valid() {
    for one in builtin() {
        let scenario = Scenario::parse(one.file, one.text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(scenario.name, one.name);
        assert!(scenario.title.len() <= 100, "one line of a list: {}", scenario.title);
        assert!(!scenario.metrics.is_empty() && !scenario.bounds.is_empty());
    }
    assert!(Builtin::named("hol").is_some() && Builtin::named("nothing").is_none());
}

#[test]
fn errors_have_file_line_and_remedy() {
    let cases = [
        ("duration = \"2s\"", "duration = \"2 minutes\"", "x.toml:5: \"2 minutes\": unknown unit"),
        ("title = \"small\"\n", "title = \"small\"\ncolour = 1\n", "x.toml:4: unknown field `colour`"),
        ("about = \"small\"", "", "missing field `about`"),
        ("delay=1ms", "delay=50m", "write 50ms or 50s"),
        ("at = \"a\"", "at = \"c\"", "x.toml:17: there is no end \"c\"; there are a, b"),
        ("[\"a\", \"b\"]\n[[prof", "[\"a\", \"a\"]\n[[prof", "joins \"a\" with itself"),
        (
            "{more}",
            "{less}",
            "x.toml:18: program \"ping\" in variant \"one\": no value for {less}; there are",
        ),
        ("{more}", "'{more}", "a quote is not closed"),
        ("link:wire", "link:wires", "x.toml:25: there is no link \"wires\"; there are wire"),
        (
            "dropped_share",
            "dropped",
            "unknown field of a link: unknown variant `dropped`, expected one of `policed_share`",
        ),
        ("ends = [\"a\", \"b\"]", "ends = [\"a\", \"b\", \"a\"]", "end \"a\" is there twice"),
        ("ends = [\"a\", \"b\"]", "seeds = [1, 2, 1]\nends = [\"a\", \"b\"]", "seed \"1\" is there twice"),
        ("{b} {more}", "{c} {more}", "no value for {c}"),
        ("run =", "only = [\"two\"]\nrun =", "x.toml:18: there is no variant \"two\""),
        (
            "links = ",
            "control = true\noffloads = true\nlinks = ",
            "profile \"plain\" has offloads on: give it",
        ),
        ("links = { wire = \"delay=1ms\" }", "offloads = true", "profile \"plain\" has offloads on: give it"),
        ("[[variant]]", "[[variant]]\nname = \"two\"\ntitle = \"two\"\n[[variant]]", "no value for {more}"),
        (
            "name = \"small\"",
            "like = \"nothing\"\nname = \"small\"",
            "x.toml:2: like = \"nothing\": it names one of hol",
        ),
    ];
    assert!(Scenario::parse("x.toml", SMALL).is_ok());
    for (from, to, expected) in cases {
        let text = SMALL.replacen(from, to, 1);
        assert_ne!(text, SMALL, "{from}");
        let error = Scenario::parse("x.toml", &text).unwrap_err().to_string();
        assert!(error.contains(expected), "{to}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn a_bound_names_existing_variants_and_profiles() {
    let bound = |times: &str| {
        let text = format!("{SMALL}\n[[bound]]\nmetric = \"lost\"\nat_most = 1.0\ntimes = {times}\n");
        Scenario::parse("x.toml", &text).map(drop).map_err(|error| error.to_string())
    };
    assert!(bound("\"typo\"").unwrap_err().contains("there is no variant \"typo\""));
    assert!(bound("{ profile = \"typo\" }").unwrap_err().contains("there is no profile \"typo\""));
    assert_eq!(bound("{ profile = \"plain\" }"), Ok(()));
}

#[test]
fn windows_and_references_name_existing_items() {
    let with = |more: &str| {
        let text = format!("{SMALL}\n{more}\n");
        Scenario::parse("x.toml", &text).map(drop).map_err(|error| error.to_string())
    };
    let window = |name: &str, until: &str| {
        format!("[[window]]\nname = \"{name}\"\nfrom = \"1s\"\nuntil = \"{until}\"\n")
    };
    let metric = "[[metric]]\nname = \"m\"\nvalue = \"link:wire:up:dropped_share@early\"\n";
    assert_eq!(with(&(window("early", "2s") + metric)), Ok(()));
    assert!(with(&(window("late", "2s") + metric)).unwrap_err().contains("there is no window \"early\""));
    assert!(with(&window("early", "1s")).unwrap_err().contains("window \"early\" ends before it begins"));
    let reference = |profile: &str, metric: &str| {
        with(&format!(
            "[[reference]]\ntitle = \"r\"\nprofiles = [\"{profile}\"]\nvalues = {{ {metric} = 1 }}\n"
        ))
    };
    assert_eq!(reference("plain", "lost"), Ok(()));
    assert!(reference("typo", "lost").unwrap_err().contains("there is no profile \"typo\""));
    assert!(reference("plain", "typo").unwrap_err().contains("there is no metric \"typo\""));
}

#[test]
fn an_end_that_no_link_joins_has_no_address_to_fill_in() {
    let text = SMALL.replace("ends = [\"a\", \"b\"]", "ends = [\"a\", \"b\", \"c\"]").replace("{b}", "{c}");
    let error = Scenario::parse("x.toml", &text).unwrap_err().to_string();
    assert!(error.contains("no value for {c}; there are a, b,"), "{error}");
}

#[test]
fn like_inherits_all_other_keys() {
    let text = "like = \"hol\"\nname = \"mine\"\nduration = \"7s\"\n";
    let scenario = Scenario::parse("mine.toml", text).unwrap();
    let hol = Builtin::named("hol").map(|one| Scenario::parse(one.file, one.text).unwrap()).unwrap();
    assert_eq!((scenario.name.as_str(), scenario.duration.to_string().as_str()), ("mine", "7s"));
    assert_eq!(scenario.programs.len(), hol.programs.len());
    let error =
        Scenario::parse("mine.toml", "like = \"hol\"\nname = \"mine\"\nspeed = 3\n").unwrap_err().to_string();
    assert!(error.starts_with("mine.toml:3: unknown field `speed`"), "{error}");
}

#[test]
fn values_are_parsed_by_position() {
    let flow = |program: &str, topic: Option<&str>| Flow {
        program: program.into(),
        topic: topic.map(str::to_owned),
        stream: None,
    };
    let topic = |text: &str| match text.parse::<Value>() {
        Ok(Value::Topic(flow, field)) => (flow, field),
        other => panic!("{text}: {other:?}"),
    };
    assert_eq!(topic("sub:a/b:p99_ms"), (flow("sub", Some("a/b")), Field::Quantile(990)));
    assert_eq!(topic("sub:t:p95_ms").1, Field::Quantile(950));
    assert_eq!(topic("sub:*:within_250ms"), (flow("sub", None), Field::Within(250)));
    assert_eq!(topic("sub:t:seconds_below_9").1, Field::SecondsBelow(9));
    assert_eq!(topic("sub:t:rate_p5").1, Field::RateQuantile(50));
    let stream =
        |number, and_above| Value::Stream { program: "sub".into(), number, and_above, is_total: false };
    assert_eq!("sub:stream:2:rate".parse(), Ok(stream(2, false)));
    assert_eq!("sub:stream:2+:rate".parse(), Ok(stream(2, true)));
    assert_eq!("set:limit".parse(), Ok(Value::Set("limit".into())));
    let part = Value::In { value: Box::new(stream(2, false)), window: "steady".into() };
    assert_eq!("sub:stream:2:rate@steady".parse(), Ok(part));
    assert_eq!(topic("sub:t:settled_50ms").1, Field::Settled(50));
    assert_eq!(topic("sub:(subscribed):p95_ms"), (flow("sub", Some("(subscribed)")), Field::Quantile(950)));
    assert_eq!(topic("sub:t:longest_gap_ms").1, Field::LongestGapMs);
    let link = |way, field| Value::Link { link: "x".into(), way, field };
    assert_eq!("link:x:down:largest".parse(), Ok(link(Way::Down, LinkField::Largest)));
    assert_eq!("link:x:both:duplicated".parse(), Ok(link(Way::Both, LinkField::Duplicated)));
    for exists in ["sub::cpu_seconds@steady", "link:x:both:bytes@steady"] {
        assert!(exists.parse::<Value>().is_ok(), "{exists}");
    }
    for wrong in [
        "",
        "a",
        ":b",
        "a:b:c:d",
        "sub:t:p98_ms",
        "sub::speed",
        "link:x:sideways:bytes",
        "link:x",
        "sub:stream:two:rate",
        "sub:t:rate_min@steady",
        "sub::peak_mb@steady",
        "link:x:up:largest@steady",
        "link:x:both:dropped_share",
        "sub:t:longest_gap_ms@steady",
    ] {
        let error = wrong.parse::<Value>().unwrap_err();
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}
