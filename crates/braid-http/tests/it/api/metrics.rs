//! Metrics, by a strict parser of the text format.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use braid_http::{Route, RouteTarget};

use super::support::{Setup, TestApi};

/// Family of metrics.
#[derive(Debug, Default)]
struct Family {
    kind: String,
    help: String,
    /// Labels and value of each sample.
    samples: Vec<(BTreeMap<String, String>, f64)>,
}

fn is_name(name: &str) -> bool {
    let is_first = |c: char| c.is_ascii_alphabetic() || c == '_';
    name.starts_with(is_first) && name.chars().all(|c| is_first(c) || c.is_ascii_digit())
}

/// Labels, and the rest behind their brace.
fn labels(mut text: &str) -> (BTreeMap<String, String>, &str) {
    let mut labels = BTreeMap::new();
    loop {
        if let Some(rest) = text.strip_prefix('}') {
            return (labels, rest);
        }
        let (name, rest) = text.split_once("=\"").unwrap();
        assert!(is_name(name), "{name}");
        let (mut value, mut end, mut letters) = (String::new(), None, rest.char_indices());
        while let Some((at, letter)) = letters.next() {
            match letter {
                '"' => {
                    end = Some(at + 1);
                    break;
                }
                '\\' => value.push(match letters.next().unwrap().1 {
                    'n' => '\n',
                    c @ ('\\' | '"') => c,
                    other => panic!("escaped {other}"),
                }),
                letter => value.push(letter),
            }
        }
        assert!(labels.insert(name.to_owned(), value).is_none(), "{name} is there twice");
        text = rest[end.unwrap()..].trim_start_matches(',');
    }
}

/// Families, with all that the format demands: `HELP` and `TYPE` once and before samples, samples of a family together.
fn parse(text: &str) -> BTreeMap<String, Family> {
    assert!(text.ends_with('\n'));
    let mut families = BTreeMap::<String, Family>::new();
    let mut present = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            let (word, rest) = rest.split_once(' ').unwrap();
            let (name, rest) = rest.split_once(' ').unwrap();
            assert!(is_name(name), "{line}");
            if name != present {
                assert!(
                    families.insert(name.to_owned(), Family::default()).is_none(),
                    "{name} is there twice"
                );
                name.clone_into(&mut present);
            }
            let family = families.get_mut(name).unwrap();
            assert!(family.samples.is_empty(), "{line}: samples are before it");
            let field = match word {
                "HELP" => &mut family.help,
                "TYPE" => &mut family.kind,
                _ => panic!("{line}"),
            };
            assert!(field.is_empty(), "{line} is there twice");
            rest.clone_into(field);
            continue;
        }
        let end = line.find(['{', ' ']).unwrap();
        let (name, rest) = line.split_at(end);
        let of_histogram = |suffix: &&str| name.strip_suffix(*suffix) == Some(present.as_str());
        let part = ["_bucket", "_sum", "_count"].into_iter().find(of_histogram);
        assert!(name == present || part.is_some(), "{line}: another family");
        let (mut labels, rest) = rest.strip_prefix('{').map_or((BTreeMap::new(), rest), labels);
        labels.extend(part.map(|part| ("part".to_owned(), part.to_owned())));
        let value = rest.strip_prefix(' ').unwrap().parse().unwrap();
        let family = families.get_mut(&present).unwrap();
        assert_eq!(part.is_some(), family.kind == "histogram", "{line}");
        let samples = &mut family.samples;
        assert!(samples.iter().all(|(others, _)| *others != labels), "{line} is there twice");
        samples.push((labels, value));
    }
    families
}

#[test]
fn what_the_front_serves_is_counted() {
    let dead = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let target = RouteTarget::Upstream(format!("http://{dead}").parse().unwrap());
    let api = TestApi::with(Setup { routes: vec![Route::new("/app", target)], ..Setup::default() });
    for (path, status) in [("/live", 200), ("/health/live", 200), ("/app", 502), ("/nothing", 404)] {
        assert_eq!(api.ask("GET", path).status, status, "{path}");
    }
    let families = parse(&api.ask("GET", "/metrics").body);
    let of = |name: &str, label: &str, wanted: &str| -> f64 {
        let samples = families[name].samples.iter();
        samples
            .filter(|(labels, _)| labels.get(label).is_some_and(|label| label == wanted))
            .map(|(_, n)| n)
            .sum()
    };
    let requests =
        ["2xx", "4xx", "5xx", "3xx"].map(|class| of("braidmq_http_requests_total", "status", class));
    assert_eq!(requests, [2.0, 1.0, 1.0, 0.0]);
    assert_eq!(of("braidmq_http_requests_total", "version", "1.1"), 4.0);
    assert_eq!(of("braidmq_http_connections", "version", "2"), 0.0);
    assert!(of("braidmq_http_sent_bytes_total", "version", "1.1") > 500.0);
    assert_eq!(of("braidmq_http_upstream_errors_total", "reason", "failed"), 1.0);
    let duration = |part| of("braidmq_http_request_duration_seconds", "part", part);
    assert_eq!(duration("_count"), 4.0);
    assert!(duration("_sum") > 0.0);
    assert_eq!(of("braidmq_http_request_duration_seconds", "le", "+Inf"), 4.0);
}

/// The upstream is not at fault where a client sends a body that is refused.
#[test]
fn a_body_that_is_refused_is_no_failure_of_the_upstream() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = RouteTarget::Upstream(format!("http://{}", listener.local_addr().unwrap()).parse().unwrap());
    let api = TestApi::with(Setup { routes: vec![Route::new("/app", target)], ..Setup::default() });
    thread::spawn(move || io::copy(&mut listener.accept().unwrap().0, &mut io::sink()));
    let mut stream = TcpStream::connect(api.http).unwrap();
    let size = 17 << 20;
    write!(stream, "POST /app HTTP/1.1\r\nHost: {}\r\nTransfer-Encoding: chunked\r\n\r\n", api.http).unwrap();
    // The server may close before it has read all.
    let _ = write!(stream, "{size:x}\r\n").and_then(|()| stream.write_all(&vec![0; size]));
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, *b"HTTP/1.1 413");
    let families = parse(&api.ask("GET", "/metrics").body);
    let failures = &families["braidmq_http_upstream_errors_total"].samples;
    assert!(!failures.is_empty() && failures.iter().all(|(_, count)| *count == 0.0), "{failures:?}");
}

#[test]
fn metrics_are_valid_and_count() {
    let api = TestApi::start();
    let (_one, _messages) = api.tcp("one");
    let (_two, _more) = api.quic("two");
    let answer = api.ask("GET", "/metrics");
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (200, "text/plain; version=0.0.4; charset=utf-8")
    );
    let families = parse(&answer.body);
    for (name, family) in &families {
        assert!(name.starts_with("braidmq_"), "{name}");
        assert!(!family.help.is_empty() && !family.samples.is_empty(), "{name}");
        assert!(["counter", "gauge", "histogram"].contains(&family.kind.as_str()), "{name}");
        assert_eq!(name.ends_with("_total"), family.kind == "counter", "{name}");
    }
    let helps: BTreeSet<_> = families.values().map(|family| &family.help).collect();
    assert_eq!(helps.len(), families.len(), "families have texts of their own: {families:#?}");
    let value = |name: &str| families[name].samples[0].1;
    assert_eq!(value("braidmq_clients_connected"), 2.0);
    assert_eq!(value("braidmq_connections_total"), 2.0);
    assert!(value("braidmq_received_bytes_total") > 0.0);
    assert!(!families["braidmq_build_info"].samples[0].0["version"].is_empty());
    let connections = &families["braidmq_listener_connections"].samples;
    let by_transport: BTreeSet<_> =
        connections.iter().map(|(labels, value)| (labels["transport"].as_str(), value.to_string())).collect();
    assert_eq!(
        by_transport,
        BTreeSet::from([
            ("http", "1".to_owned()),
            ("quic", "1".to_owned()),
            ("tcp", "1".to_owned()),
            ("ws", "0".to_owned())
        ])
    );
    assert_eq!(connections[0].0["address"], api.tcp.to_string());
    let refused = |text: &str, reason: &str| {
        let families = parse(text);
        let mut samples = families["braidmq_http_refused_total"].samples.iter();
        samples.find(|(labels, _)| labels["reason"] == reason).unwrap().1
    };
    assert_eq!(refused(&answer.body, "request"), 0.0);
    api.ask("TRACE", "/metrics").refusal(501);
    assert_eq!(refused(&api.ask("GET", "/metrics").body, "request"), 1.0);
    // Their number does not depend on clients.
    let clients: Vec<_> = (0..5).map(|number| api.tcp(&format!("client-{number}"))).collect();
    let lines = |text: &str| text.lines().count();
    assert_eq!(lines(&api.ask("GET", "/metrics").body), lines(&answer.body));
    drop(clients);
    api.ask("POST", "/metrics").refusal(405);
    api.ask("GET", "/metrics?x=1").refusal(400);
}
