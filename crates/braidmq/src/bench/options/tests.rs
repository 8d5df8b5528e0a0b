use std::path::Path;
use std::time::Duration;

use braid_bench::generator::PlannedEnd;
use braid_client::{Congestion, Priority, ProtocolVersion, QoS};
use braid_transport::Transport;
use clap::{ArgAction, CommandFactory, FromArgMatches, Parser, Subcommand, error::ErrorKind};

use super::*;

#[derive(Parser)]
struct Line {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Pub(Box<PubOptions>),
    Sub(Box<SubOptions>),
    Conn(Box<ConnOptions>),
}

fn parse(line: &str) -> Result<What, clap::Error> {
    let words = ["bench"].into_iter().chain(line.split_whitespace());
    let matches = Line::command().try_get_matches_from(words)?;
    Ok(Line::from_arg_matches(&matches)?.what)
}

fn publisher(line: &str) -> PubOptions {
    match parse(&format!("pub {line}")).unwrap() {
        What::Pub(options) => *options,
        _ => unreachable!("it is pub"),
    }
}

fn subscriber(line: &str) -> SubOptions {
    match parse(&format!("sub {line}")).unwrap() {
        What::Sub(options) => *options,
        _ => unreachable!("it is sub"),
    }
}

fn notes(line: &str) -> Vec<String> {
    let options = publisher(line);
    options.notes(options.transport().unwrap())
}

#[test]
fn the_table_of_options_is_sound() {
    Line::command().debug_assert();
}

#[test]
fn defaults_are_those_of_emqtt_bench() {
    let options = publisher("-t a");
    let CommonOptions { connection, clients, session, output, .. } = &options.common;
    assert_eq!(options.transport().unwrap(), Transport::Tcp);
    assert_eq!(connection.hosts().collect::<Vec<_>>(), ["localhost"]);
    assert_eq!((clients.count, clients.connrate, clients.startnumber), (200, 0, 0));
    assert_eq!((clients.interval(), clients.duration), (Duration::from_millis(10), None));
    assert_eq!((clients.num_retry_connect, clients.reconnect), (0, 0));
    assert_eq!((session.version, session.keepalive, session.clean), (ProtocolVersion::V5, 300, true));
    assert_eq!(session.session_expiry, 0);
    assert_eq!((output.log_to, &output.json, output.metrics()), (LogTo::Console, &None, None));
    assert_eq!((options.interval(), options.payload()), (Duration::from_secs(1), PayloadSource::Size(256)));
    assert_eq!((options.qos, options.retain, options.limit), (QoS::AtMostOnce, false, 0));
    assert_eq!((options.inflight, options.first_wait()), (1, (Duration::ZERO, Duration::ZERO)));
    assert_eq!((options.wait_before_publishing, options.keep_connected), (false, false));
    assert!(options.payload_hdrs.is_empty() && options.notes(Transport::Tcp).is_empty());
}

#[test]
fn the_command_lines_of_the_article_are_taken() {
    let base = "--topics-payload ./topic_spec.json -c 1 -h 192.168.200.1 -F 1000 -k 60";
    for (more, transport, port) in [
        ("-S -p 8883", Transport::Tls, 8883),
        ("--quic -p 14567", Transport::Quic, 14567),
        ("", Transport::Tcp, 1883),
    ] {
        let options = publisher(&format!("{base} {more}"));
        let common = &options.common;
        assert_eq!(options.transport().unwrap(), transport);
        assert_eq!(common.connection.port(transport), port);
        assert_eq!(options.subject().unwrap(), Subject::File(Path::new("./topic_spec.json")));
        assert_eq!((common.clients.count, common.session.keepalive, options.inflight), (1, 60, 1000));
        assert_eq!(common.connection.hosts().collect::<Vec<_>>(), ["192.168.200.1"]);
    }
    let subscriptions = subscriber("-c 1 -t Topic1");
    let subscriptions = subscriptions.subscriptions().unwrap();
    assert_eq!(subscriptions, [Subscription { filter: "Topic1", stream: None, priority: None }]);
}

#[test]
fn every_option_has_its_forms() {
    let options = publisher(
        "--host a,[::1] --port 1 --version 4 --count 3 --connrate 50 --interval 7 --ifaddr 10.0.0.1,::1 --prefix P \
         --shortids true --startnumber 9 --num-retry-connect 1 --reconnect 2 --ssl --ssl-version tlsv1.3 --cacertfile c \
         --certfile d --keyfile e --quic false --ws false --username u --password -p --keepalive 0 --clean false \
         --session-expiry 5 --qoe --prometheus --restapi 8081 --log_to null --json out.json --interval_of_msg 0 \
         --topic t --payload-hdrs cnt64,ts --size 1 --message -x --qos 2 --retain --limit 10 --inflight 0 \
         --wait-before-publishing --max-random-wait 20 --min-random-wait 10 --keep-connected --tcp-cc bbr \
         --duration 1m30s --plain --quiet",
    );
    let CommonOptions { connection, clients, session, output, tls, .. } = &options.common;
    assert_eq!(connection.hosts().collect::<Vec<_>>(), ["a", "::1"]);
    assert_eq!((connection.local().len(), connection.tcp_cc.as_deref()), (2, Some("bbr")));
    assert_eq!(
        (clients.interval(), clients.duration),
        (Duration::from_millis(7), Some(Duration::from_secs(90)))
    );
    assert_eq!((clients.prefix.as_deref(), options.shortids, clients.startnumber), (Some("P"), true, 9));
    assert_eq!((clients.connrate, clients.num_retry_connect, clients.reconnect), (50, 1, 2));
    assert_eq!((session.username.as_deref(), session.password.as_deref()), (Some("u"), Some("-p")));
    assert_eq!((session.keepalive, session.clean, session.session_expiry), (0, false, 5));
    assert_eq!(output.metrics(), Some(([0, 0, 0, 0], 8081).into()));
    assert_eq!((output.log_to, output.json.as_deref()), (LogTo::Null, Some(Path::new("out.json"))));
    assert!(output.plain && output.quiet && options.retain && options.wait_before_publishing);
    assert_eq!((options.payload(), options.qos), (PayloadSource::Text("-x"), QoS::ExactlyOnce));
    assert_eq!((options.limit, options.inflight, options.interval()), (10, 0, Duration::ZERO));
    assert_eq!(options.first_wait(), (Duration::from_millis(10), Duration::from_millis(20)));
    let client = tls.client();
    assert_eq!((client.insecure, client.ca_files.len(), client.identity.is_some()), (false, 1, true));
    assert_eq!(options.transport().unwrap(), Transport::Tls);
    assert_eq!(
        options.notes(Transport::Tls),
        [
            "-x has no effect without -V 5: session expiry is MQTT 5's",
            "--ssl-version is not forced: a server without TLS 1.3 gets TLS 1.2"
        ]
    );
}

#[test]
fn a_switch_takes_a_word_or_none() {
    for (line, retain) in [
        ("-r", true),
        ("-r true", true),
        ("-r false", false),
        ("-rfalse", false),
        ("-r 0", false),
        ("-r ON", true),
    ] {
        assert_eq!(publisher(&format!("{line} -t a")).retain, retain, "{line}");
    }
    assert!(publisher("-C -t a").common.session.clean);
    assert!(!publisher("-C false -t a").common.session.clean);
    assert_eq!(publisher("--quic true -t a").transport().unwrap(), Transport::Quic);
    assert!(subscriber("-s -t a").shortids && subscriber("-s true -t a").shortids);
    assert_eq!(publisher("-s 7 -t a").payload(), PayloadSource::Size(7));
}

#[test]
fn ports_follow_the_transport() {
    for (line, port) in
        [("--quic", 14567), ("-S", 8883), ("--ws", 8083), ("--ws -S", 8084), ("-p 1 --quic", 1)]
    {
        let options = publisher(&format!("{line} -t a"));
        assert_eq!(options.common.connection.port(options.transport().unwrap()), port, "{line}");
    }
}

#[test]
fn h_is_the_host_and_help_is_spelled_out() {
    assert_eq!(publisher("-h broker -t a").common.connection.hosts().collect::<Vec<_>>(), ["broker"]);
    for what in ["pub", "sub", "conn"] {
        let help = parse(&format!("{what} --help")).err().unwrap();
        assert_eq!(help.kind(), ErrorKind::DisplayHelp);
        let help = help.to_string();
        for part in
            ["-h, --host <HOST>", "Connection:", "Clients:", "MQTT:", "TLS:", "QUIC:", "Output:", "Examples:"]
        {
            assert!(help.contains(part), "{what} has no {part}");
        }
    }
}

#[test]
fn options_of_erlang_are_accepted_with_a_note() {
    assert_eq!(
        notes("-l -t a --force-major-gc-interval 5 -d --load-qst= --log_to console -Q"),
        [
            "--dist has no effect: it tunes Erlang",
            "--lowmem has no effect: it tunes Erlang",
            "--force-major-gc-interval has no effect: it tunes Erlang",
        ]
    );
    assert_eq!(
        notes("-t a --retry-interval 3 --prometheus --topics-payload f"),
        [
            "--prometheus alone serves nothing: give it a port, or add --restapi PORT",
            "--retry-interval has no effect with -V 5: MQTT 5 forbids to send again while connected",
            "-t has no effect with --topics-payload: the file names the topics",
        ]
    );
}

#[test]
fn a_password_alone_is_told() {
    assert_eq!(notes("-t a -P p"), ["the password has no effect without a user name: add -u"]);
    assert!(notes("-t a -u u -P p").is_empty());
}

#[test]
fn an_unchecked_certificate_is_told_and_a_ca_checks_it() {
    let unchecked = notes("-t a -S");
    assert!(
        matches!(&unchecked[..], [note] if note.contains("is not checked: give --cacertfile")),
        "{unchecked:?}"
    );
    assert_eq!(notes("-t a --quic").len(), 1);
    for line in ["-S --insecure", "-S --cafile c", "--quic --tls-use-os-certs"] {
        assert!(notes(&format!("-t a {line}")).is_empty(), "{line}");
    }
    let insecure = |line: &str| publisher(&format!("-t a {line}")).common.tls.client().insecure;
    assert!(insecure("-S") && insecure("-S --cacertfile c --insecure"));
    assert!(!insecure("-S --cacertfile c") && !insecure("-S --tls-use-os-certs"));
}

#[test]
fn options_that_do_not_go_together_are_one_line() {
    for (line, expected) in [
        ("", "nothing to publish: give -t TOPIC, or --topics-payload FILE"),
        ("-t a/#", "-t \"a/#\" is not a Topic Name: write one or more characters, none of them + or #"),
        ("-t a -h ,", "-h names no server: give a name or an address"),
        ("-t a --ws --quic", "--ws and --quic are two transports: leave one of them out"),
        ("-t a --quic --tcp-cc bbr", "--tcp-cc is for TCP: with --quic use --quic-cc"),
        ("-t a --quic-cc bbr3", "--quic-cc is for QUIC: add --quic, or use --tcp-cc"),
        ("-t a --poisson", "--poisson needs a rate: add -R, or leave it out"),
        (
            "-t a --lifetime 1s",
            "--lifetime and --drop-at need --reconnect: say how often the clients come again",
        ),
        ("-t a --zero-rtt -S", "--zero-rtt needs QUIC: add --quic, or leave it out"),
        ("-t a --link-rate 5", "--link-rate needs QUIC: add --quic, or leave it out"),
        ("-t a --no-gate", "--no-gate needs QUIC: add --quic, or leave it out"),
        ("-t a --gate-log g", "--gate-log needs QUIC: add --quic, or leave it out"),
        ("-t a --qlog-dir d", "--qlog-dir needs QUIC: add --quic, or leave it out"),
        ("-t a --insecure", "--insecure needs TLS: add -S or --quic, or leave it out"),
        ("-t a -S --certfile c", "a certificate needs its key: give --certfile and --keyfile together"),
        ("-t a --stream 1", "--stream needs QUIC, other transports have one stream: add --quic"),
        (
            "--topics-payload f --quic --stream 1",
            "--stream and --priority are for -t: a file of --topics-payload names those of each topic",
        ),
        ("-t a -h auto://h", "-h takes a name or an address: give a URL with --url"),
        ("-t a --url mqtt://u:p@h", "--url names only the server here: give the user with -u and -P"),
        ("-t a --url mqtt://h --quic-cc cubic", "--quic-cc is for QUIC: add --quic, or use --tcp-cc"),
        (
            "-t a --url auto://h --zero-rtt",
            "--zero-rtt sends before an answer, and auto:// waits for one to choose: use --url quic://HOST",
        ),
        (
            "-t a -q 1 --resume --reconnect 5",
            "--resume needs MQTT 5, a session and more than one connection: add -C false, -x and --reconnect",
        ),
        ("-t a --keep-connected", "--keep-connected is for what comes after -L: add -L, or leave it out"),
        (
            "-t a -V 4 --retry-interval 3",
            "--retry-interval is not possible here: only a new connection sends again; leave it out",
        ),
        ("-t a --qoelog f", "--qoelog is a log of Erlang's: use --json FILE for the figures"),
        ("-t a --load-qst f", "--load-qst reads a file of Erlang's: use --zero-rtt with --reconnect"),
        (
            "-t a -S --ciphers c",
            "--ciphers cannot be chosen here: TLS agrees on the best that both ends have; leave it out",
        ),
    ] {
        assert_eq!(publisher(line).transport().unwrap_err().to_string(), expected);
    }
    for (line, expected) in [
        ("-t a --stream 3", "--stream needs QUIC, other transports have one stream: add --quic"),
        ("-t a -V 4 --priority 3", "--priority needs MQTT 5: leave -V out, or leave --priority out"),
        (
            "-t a -t b -t c --quic --stream 3 --stream 4",
            "2 of --stream and 3 of -t: give one for all, or one for each",
        ),
    ] {
        assert_eq!(subscriber(line).transport().unwrap_err().to_string(), expected);
    }
}

#[test]
fn a_url_is_server_and_transport_at_once() {
    for (url, transport, port) in [
        ("mqtt://h", Transport::Tcp, 1883),
        ("mqtts://h:1", Transport::Tls, 1),
        ("wss://h", Transport::Wss, 8084),
        ("quic://h", Transport::Quic, 14_567),
    ] {
        let options = publisher(&format!("-t a --url {url}"));
        assert_eq!(options.transport().unwrap(), transport);
        let address = options.common.connection.address().unwrap().unwrap();
        assert_eq!((address.target.port, address.tls), (port, None), "{url}");
        assert!(!options.common.connection.is_auto());
    }
    // Options of both transports go together with a URL that leaves the choice open.
    let options =
        publisher("-t a --url auto://h?quic=1&tls=2 --quic-cc cubic --tcp-cc bbr --stream 3 --insecure");
    assert_eq!(options.transport().unwrap(), Transport::Quic);
    let address = options.common.connection.address().unwrap().unwrap();
    assert_eq!((address.target.port, address.tls.map(|tls| tls.port)), (1, Some(2)));
    assert!(options.common.connection.is_auto());
    for other in ["-h h", "-p 1", "-S", "--quic", "--ws"] {
        let error = parse(&format!("pub -t a --url auto://h {other}")).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::ArgumentConflict, "{other}");
    }
}

#[test]
fn wrong_values_say_what_is_right() {
    for (line, part) in [
        ("pub -t a -V 6", "write 3 (MQTT 3.1), 4 (3.1.1) or 5"),
        ("pub -t a -q 3", "use 0, 1 or 2"),
        ("pub -t a -r maybe", "write true or false"),
        ("pub -t a -s 268435456", "268435456 is not in 0..=268435455"),
        ("pub -t a --quic opts.eterm", "write true, and use --quic-cc"),
        ("pub -t a --quic-cc bbr2", "use bbr3, cubic or newreno"),
        ("pub -t a -Q dump", "use --json FILE"),
        ("pub -t a --ssl-version tlsv1.1", "versions before 1.2 are not safe"),
        ("pub -t a --ssl-version tlsv1.2", "an old version cannot be forced"),
        ("pub -t a --restapi here", "write a port, such as 8081"),
        ("pub -t a --prometheus 99999", "write a port, such as 8081"),
        ("pub -t a --payload-hdrs x", "the headers are cnt64 and ts"),
        ("pub -t a --priority 65536", "use a number from 0 to 65535"),
        ("pub -t a -c 0", "0 is not in 1.."),
        ("pub -t a --ifaddr 10.0.0.1,eth0", "write addresses, such as 10.0.0.1"),
        ("pub -t a --duration 0s", "write a time above 0, such as 30s"),
        ("pub -t a --duration soon", "write a time above 0, such as 30s"),
        ("pub -t a --duration=-5s", "write a time above 0, such as 30s"),
        ("sub -t a --timestamp-field timestamp=h", "write --timestamp-field timestamp=us"),
        ("sub -t a --timestamp-field =ms", "write --timestamp-field timestamp=us"),
        ("sub -c 1", "--topic <FILTER>"),
        ("conn -t a", "unexpected argument '-t'"),
    ] {
        let error = parse(line).err().unwrap().to_string();
        assert!(error.contains(part), "{line}: {error}");
    }
}

/// As with emqtt_bench, whose scripts add to a command line before its end.
#[test]
fn the_first_of_repeated_options_counts_except_for_the_session_expiry() {
    let options = publisher(
        "-t a -t b -c 3 -c 5 -h one -h two -p 1 -p 2 -q 1 -q 0 -S -S false -C false -C -u x -u y -x 5 -x 7 -s 1 \
         -s 2 --ifaddr 10.0.0.1 --ifaddr 10.0.0.2,10.0.0.3 -L 1 -L 2 --plain --plain --quiet --quiet --duration 1s \
         --duration 2s --json a --json b -r false -r true --tcp-cc bbr --tcp-cc cubic --insecure --insecure",
    );
    let CommonOptions { connection, clients, session, output, .. } = &options.common;
    assert_eq!(options.transport().unwrap(), Transport::Tls);
    assert_eq!(options.subject().unwrap(), Subject::Topic("a"));
    assert_eq!((clients.count, clients.duration), (3, Some(Duration::from_secs(1))));
    assert_eq!((connection.hosts().collect::<Vec<_>>(), connection.port(Transport::Tls)), (vec!["one"], 1));
    assert_eq!(connection.local(), [std::net::IpAddr::from([10, 0, 0, 1])]);
    assert_eq!((options.qos, options.size, options.limit), (QoS::AtLeastOnce, 1, 1));
    assert_eq!((session.clean, session.username.as_deref(), session.session_expiry), (false, Some("x"), 7));
    assert_eq!((output.json.as_deref(), options.retain), (Some(Path::new("a")), false));
    assert_eq!((connection.tcp_cc.as_deref(), output.plain, output.quiet), (Some("bbr"), true, true));
}

#[test]
fn every_option_may_be_given_twice() {
    let all = Line::command();
    for load in ["pub", "sub", "conn"] {
        for option in all.find_subcommand(load).unwrap().get_arguments() {
            let itself = option.get_id();
            let is_repeatable = match option.get_action() {
                ArgAction::Append | ArgAction::Help => true,
                _ => {
                    let twice = format!("{load} -t a --{0} --{0}", option.get_long().unwrap());
                    load == "conn" || parse(&twice).is_ok()
                }
            };
            assert!(is_repeatable, "{load}: {itself}");
        }
    }
    assert!(parse("conn --plain --plain --tls-use-os-certs --tls-use-os-certs").is_ok());
}

#[test]
fn words_without_an_option_are_refused() {
    for line in ["pub -t a stray", "sub -t a -q 1 stray", "conn stray -c 1"] {
        let error = parse(line).err().unwrap().to_string();
        assert!(error.starts_with("error: unexpected argument 'stray' found"), "{line}: {error}");
    }
}

#[test]
fn times_are_seconds_or_have_units() {
    for (text, duration) in [
        ("30", Duration::from_secs(30)),
        ("30s", Duration::from_secs(30)),
        ("500ms", Duration::from_millis(500)),
        ("2m", Duration::from_secs(120)),
        ("1h30m", Duration::from_secs(5400)),
    ] {
        let options = publisher(&format!("-t a --duration {text}"));
        assert_eq!(options.common.clients.duration, Some(duration), "{text}");
    }
    assert_eq!(time("6.2ms"), Ok(Duration::from_micros(6200)));
    assert_eq!((time("0ms"), time("0")), (Ok(Duration::ZERO), Ok(Duration::ZERO)));
    for wrong in ["-1s", "6.2", "fast", ""] {
        assert_eq!(time(wrong), Err("write a time, such as 6.2ms, 30s or 1h30m".to_owned()), "{wrong:?}");
    }
}

#[test]
fn prometheus_has_a_port_of_its_own_or_that_of_the_rest_api() {
    let metrics = |line: &str| publisher(&format!("-t a {line}")).common.output.metrics();
    assert_eq!(metrics("--prometheus"), None);
    assert_eq!(metrics("--restapi disabled"), None);
    assert_eq!(metrics("--prometheus 9000"), Some(([0, 0, 0, 0], 9000).into()));
    assert_eq!(metrics("--prometheus --restapi 127.0.0.1:1"), Some(([127, 0, 0, 1], 1).into()));
}

#[test]
fn subscribers_choose_streams_for_each_filter_or_for_all() {
    let of = |line: &str| {
        let options = subscriber(line);
        assert_eq!(options.transport().unwrap(), Transport::Quic);
        let all = options.subscriptions().unwrap();
        let all =
            all.iter().map(|one| (one.filter.to_owned(), one.stream, one.priority.map(Priority::value)));
        all.collect::<Vec<_>>()
    };
    assert_eq!(
        of("-t a --stream 1 --priority 200 -t b/%i --stream 2 --priority 8 --quic"),
        [("a".to_owned(), Some(1), Some(200)), ("b/%i".to_owned(), Some(2), Some(8))]
    );
    assert_eq!(
        of("-t a -t b --stream 3 --quic"),
        [("a".to_owned(), Some(3), None), ("b".to_owned(), Some(3), None)]
    );
}

#[test]
fn options_beyond_emqtt_bench_are_accepted() {
    let options = publisher(
        "-t a --quic --quic-cc newreno --link-rate 33000 --no-gate --zero-rtt --qlog-dir d --stream 1",
    );
    let quic = &options.common.quic;
    assert_eq!((quic.quic_cc, quic.link_rate), (Some(Congestion::NewReno), Some(33_000)));
    assert!(quic.no_gate && quic.zero_rtt && quic.qlog_dir.is_some());
    assert_eq!(options.transport().unwrap(), Transport::Quic);
    let field = subscriber("-t a --timestamp-field a=b=us").timestamp_field;
    assert_eq!(field, Some("a=b=us".parse().unwrap()));
}

#[test]
fn connections_end_and_begin_as_planned() {
    let planned = |line: &str| {
        let options = publisher(&format!("-t a --reconnect 3 {line}"));
        options.transport().unwrap();
        options.common.clients.planned_end()
    };
    assert_eq!(planned(""), PlannedEnd::Never);
    assert_eq!(planned("--lifetime 500ms"), PlannedEnd::After(Duration::from_millis(500)));
    assert_eq!(planned("--drop-at 20s -R 5 --poisson"), PlannedEnd::At(Duration::from_secs(20)));
    assert!(parse("pub -t a --reconnect 3 --drop-at 1s --lifetime 1s").is_err(), "one of them");
    assert!(subscriber("-t a --pipeline").pipeline && !subscriber("-t a").pipeline);
    assert!(parse("sub -t a --pipeline --stream 1").is_err(), "SUBSCRIBE leaves on the control stream");
}
