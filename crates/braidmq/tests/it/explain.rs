//! `braidmq explain`: numbers, charts and refusals.
//!
//! The samples are logs of clients that wrote 6000 bytes on stream 4 while 40,000 waited on stream 8: noq 1.4 with
//! priorities and without, and aioquic 1.7, which has none, with 5000 and 12,000 bytes.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::broker::braidmq;

/// A log in a directory of its own.
struct Log {
    _directory: TempDir,
    file: PathBuf,
}

impl Log {
    fn of(text: impl AsRef<[u8]>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("test.qlog");
        fs::write(&file, text).unwrap();
        Self { _directory: directory, file }
    }

    fn sample(name: &str) -> Self {
        let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/samples");
        Self::of(fs::read(samples.join(name)).unwrap())
    }

    fn explain(&self, arguments: &[&str]) -> Output {
        braidmq(&["explain", self.file.to_str().unwrap()]).args(arguments).output().unwrap()
    }

    /// Output for a log that can be explained.
    fn text(&self, arguments: &[&str]) -> String {
        let output = self.explain(arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn numbers(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.text(&[arguments, &["--json"]].concat())).unwrap()
    }

    /// Exit code and the one line that is said, of a log that is not.
    fn refusal(&self, arguments: &[&str]) -> (i32, String) {
        let output = self.explain(arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(output.stdout.is_empty() && !self.picture().exists());
        (output.status.code().unwrap(), said)
    }

    fn picture(&self) -> PathBuf {
        self.file.with_extension("svg")
    }

    fn svg(&self, arguments: &[&str]) -> String {
        self.text(arguments);
        fs::read_to_string(self.picture()).unwrap()
    }
}

/// The events as noq and the newest draft write them.
fn sequence(events: impl IntoIterator<Item = Value>) -> String {
    let heading = json!({"file_schema": "urn:ietf:params:qlog:file:sequential", "serialization_format": "JSON-SEQ",
        "trace": {"vantage_point": {"type": "client"}}});
    let records = std::iter::once(heading).chain(events);
    records.map(|record| format!("\u{1e}{record}\n")).collect()
}

fn event(time: f64, name: &str, details: impl Into<Value>) -> Value {
    let details = details.into();
    json!({"time": time, "name": format!("quic:{name}"), "data": details})
}

/// A packet with frames of stream, offset and length.
fn packet(time: f64, name: &str, number: u64, frames: &[(u64, u64, u64)]) -> Value {
    let length = 28 + frames.iter().map(|frame| frame.2).sum::<u64>();
    let frames: Vec<Value> = frames
        .iter()
        .map(|(stream, offset, length)| {
            json!({"frame_type": "stream", "stream_id": stream, "offset": offset, "raw": {"length": length}})
        })
        .collect();
    let header = json!({"packet_type": "1RTT", "packet_number": number, "length": length});
    event(time, name, json!({"header": header, "frames": frames}))
}

fn sent(time: f64, number: u64, frames: &[(u64, u64, u64)]) -> Value {
    packet(time, "packet_sent", number, frames)
}

/// An urgent message that was lost, and sent again behind two packets of bulk after a probe timeout.
fn lossy() -> String {
    sequence([
        sent(1.0, 0, &[(0, 0, 40)]),
        sent(10.0, 1, &[(4, 0, 100), (8, 0, 1070)]),
        sent(11.0, 2, &[(8, 1070, 1172)]),
        event(20.0, "packet_lost", json!({"header": {"packet_type": "1RTT", "packet_number": 1}})),
        event(
            20.0,
            "recovery_metrics_updated",
            json!({"pto_count": 1, "congestion_window": 2400, "bytes_in_flight": 1200}),
        ),
        sent(21.0, 3, &[(8, 2242, 1172)]),
        sent(22.0, 4, &[(8, 0, 1070)]),
        event(23.0, "recovery_metrics_updated", json!({"pto_count": 2})),
        sent(30.0, 5, &[(4, 0, 100), (8, 3414, 1070)]),
        packet(40.0, "packet_received", 0, &[(4, 0, 4)]),
        event(41.0, "recovery_metrics_updated", json!({"pto_count": 0, "bytes_in_flight": 0})),
    ])
}

fn stream(numbers: &Value, id: u64) -> Value {
    let streams = numbers["streams"].as_array().unwrap();
    streams.iter().find(|stream| stream["stream"] == id).unwrap().clone()
}

#[test]
fn a_log_of_noq_shows_what_priorities_do() {
    let log = Log::sample("noq-priority.sqlog");
    let numbers = log.numbers(&[]);
    assert_eq!(numbers["urgent"], json!([0, 4]));
    assert_eq!(numbers["vantage"], "client");
    assert_eq!(numbers["urgent_first"], json!({"share": 1.0, "urgent_bytes": 6040, "bulk_bytes_ahead": 0}));
    let equal = Log::sample("noq-equal.sqlog").numbers(&[]);
    assert_eq!(equal["urgent_first"]["urgent_bytes"], 6040);
    // Four packets of bulk in turn with the first four of five.
    assert_eq!(equal["urgent_first"]["bulk_bytes_ahead"], 5686);
    assert_eq!(equal["bursts"][1]["packets"], 5);
    for numbers in [numbers, equal] {
        assert_eq!([4, 8].map(|id| stream(&numbers, id)["bytes"].as_u64().unwrap()), [6000, 40_000]);
        assert_eq!(numbers["connection"]["lost"], 0);
        assert_eq!(numbers["connection"]["probe_timeouts"], 0);
    }
}

#[test]
fn a_document_with_times_of_day_is_read_as_well() {
    let log = Log::sample("aioquic.json");
    let numbers = log.numbers(&[]);
    assert_eq!([0, 4, 8].map(|id| stream(&numbers, id)["bytes"].as_u64().unwrap()), [40, 5000, 12_000]);
    assert!(numbers["to_ms"].as_f64().unwrap() < 1000.0, "from the first event on");
    assert!(numbers["urgent_first"]["share"].as_f64().unwrap() < 0.6, "one packet in turn each");
    assert_eq!(numbers["connection"]["probe_timeouts"], Value::Null, "it does not log them");
}

#[test]
fn the_text_tells_streams_measures_and_bursts() {
    let text = Log::of(lossy()).text(&[]);
    for line in [
        "6 packets (206.9 a second), 5962 bytes, 1 lost (16.7 %), 2 probe timeouts",
        "urgent: streams 0 and 4 (the control stream and the data stream with the fewest bytes; name others with --urgent)",
        "       4  client, bidi  urgent           100         2        10.000        30.000         100",
        "       8  client, bidi  bulk            4484         5        10.000        30.000        1070",
        "urgent first: 100 % (140 urgent bytes in 2 bursts, 2 of them of one packet; 0 bulk bytes ahead)",
        "after a loss: 4.2 % (losses of urgent bytes: 1, sent again: 1; 2242 bulk bytes ahead; \
         median wait 10.000 ms, longest 10.000 ms)",
        "      10.000         100         1         0.000 ms                 0",
    ] {
        assert!(text.lines().any(|said| said == line), "{line}\nis not in\n{text}");
    }
    assert!(text.ends_with("test.svg\n"), "{text}");
}

#[test]
fn the_numbers_tell_losses_and_repairs() {
    let numbers = Log::of(lossy()).numbers(&[]);
    let repair = json!({"lost_ms": 20.0, "bytes": 100, "bytes_again": 100, "again_after_ms": 10.0, "bulk_bytes_ahead": 2242});
    assert_eq!(numbers["repairs"], json!([repair]));
    assert_eq!(numbers["connection"]["lost"], 1);
    assert_eq!(numbers["urgent_is_chosen"], true);
}

#[test]
fn many_bursts_are_cut_to_the_worst() {
    let full = |time: f64, number| sent(time, number, &[(8, number * 1172, 1172)]);
    let bursts = (0..30_u64).flat_map(|burst| {
        let (time, number) = (100.0 * burst as f64, 10 * burst);
        let urgent = sent(time + 1.0, number + 1, &[(4, burst * 1272, 1172)]);
        let rest = sent(time + 3.0, number + 9, &[(4, burst * 1272 + 1172, 100), (8, 900_000 + burst, 1)]);
        let between = if burst == 17 { vec![full(time + 2.0, number + 2)] } else { vec![] };
        [full(time, number), urgent].into_iter().chain(between).chain([rest])
    });
    let text = Log::of(sequence(bursts)).text(&["--urgent", "4"]);
    let rows: Vec<&str> = text.lines().skip_while(|line| !line.contains("all left after")).collect();
    assert_eq!(
        rows[1].split_whitespace().collect::<Vec<_>>(),
        ["1701.000", "1272", "2", "2.000", "ms", "1172"]
    );
    assert_eq!(rows.len(), 1 + 20 + 2, "{text}");
    assert!(text.contains("the 20 bursts of 30 with the most bulk ahead"), "{text}");
}

#[test]
fn urgent_streams_side_and_window_are_chosen() {
    let log = Log::of(lossy());
    let bulk = log.numbers(&["--urgent", "8"]);
    assert_eq!(bulk["urgent"], json!([8]));
    assert_eq!((&stream(&bulk, 8)["urgent"], &stream(&bulk, 4)["urgent"]), (&json!(true), &json!(false)));
    assert_eq!(bulk["repairs"][0]["bytes"], 1070);
    let all = log.numbers(&["--urgent", "0,4,8"]);
    assert_eq!(all["urgent_first"]["share"], Value::Null, "there is nothing to be ahead of");
    let received = log.numbers(&["--side", "received"]);
    assert_eq!(
        (&received["connection"]["packets"], &received["connection"]["lost"]),
        (&json!(1), &Value::Null)
    );
    let late = log.numbers(&["--from", "21", "--to", "29"]);
    assert_eq!((&late["from_ms"], &late["to_ms"]), (&json!(21.0), &json!(22.0)));
    assert_eq!(
        (&late["connection"]["packets"], &late["connection"]["probe_timeouts"]),
        (&json!(2), &json!(1))
    );
    // Bytes sent before the window count as sent.
    assert_eq!(stream(&late, 8)["bytes_again"], 1070);
    assert_eq!(late["bursts"], json!([]));
}

#[test]
fn a_log_that_ends_in_the_middle_is_explained_as_far_as_it_goes() {
    let whole = lossy();
    let log = Log::of(&whole[..whole.len() - 20]);
    assert!(log.text(&[]).contains("the log ends in the middle of a record"));
    assert_eq!(log.numbers(&[])["connection"]["packets"], 6);
}

#[test]
fn a_file_with_several_connections_tells_that_there_are_more() {
    let trace = |frames: Value| {
        let packet = json!({"time": 1, "name": "transport:packet_sent", "data": {"frames": frames}});
        json!({"vantage_point": {"type": "server"}, "events": [packet]})
    };
    let frames = json!([{"frame_type": "stream", "stream_id": 4, "offset": 0, "length": 10}]);
    let traces = [trace(json!([])), trace(frames.clone()), trace(frames)];
    let log = Log::of(json!({"qlog_version": "0.3", "traces": traces}).to_string());
    assert_eq!(log.numbers(&[])["other_connections"], 1);
    assert!(log.text(&[]).contains("other connections in the file, not explained: 1"));
}

/// Every element is closed where it must be, and no text opens one.
fn assert_well_formed(svg: &str) {
    let mut open = Vec::new();
    for tag in svg.split('<').skip(1) {
        let (tag, text) = tag.split_once('>').unwrap();
        assert!(!text.contains('>'), "{text}");
        let name = tag.split_whitespace().next().unwrap();
        if let Some(closed) = name.strip_prefix('/') {
            assert_eq!(open.pop(), Some(closed));
        } else if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn few_packets_have_a_column_each() {
    let log = Log::of(lossy());
    let svg = log.svg(&[]);
    assert_well_formed(&svg);
    assert_eq!(svg.matches("class=\"column\"").count(), 6);
    let second = svg.split("class=\"column\"").nth(2).unwrap();
    let second = second.split("</g>").next().unwrap();
    assert!(
        second.contains("10.000 ms: packet 1\nstream 4 (urgent): 100 bytes\nstream 8 (bulk): 1070 bytes")
    );
    assert!(second.contains("\nlost<") && second.matches("fill-opacity").count() == 3, "{second}");
    // Lanes of the three streams, of bulk ahead and of losses.
    assert_eq!(svg.matches("class=\"lane\"").count(), 5);
    assert_eq!(svg.matches("bulk left while urgent bytes waited").count(), 2);
    for part in ["Stream bytes of each packet", "test.qlog", "bytes in flight", "urgent first: 100 %"] {
        assert!(svg.contains(part), "{part}");
    }
}

#[test]
fn many_packets_share_columns() {
    let count = 20_000_u64;
    let mut offset = 0;
    let packets = (0..count).map(|number| {
        let stream = if number % 10 == 0 { 4 } else { 8 + 4 * (number % 20) };
        offset += 1000;
        sent(number as f64 * 1.3, number, &[(stream, offset, 1000)])
    });
    let log = Log::of(sequence(packets));
    let svg = log.svg(&["--urgent", "4"]);
    assert_well_formed(&svg);
    let columns = svg.matches("class=\"column\"").count();
    assert!((200..=421).contains(&columns), "{columns}");
    assert!(svg.len() < 700_000, "{}", svg.len());
    assert!(svg.contains("bytes in each 100 ms"));
    assert!(svg.contains("more streams (bulk)"), "colours for all would not be told apart");
    let in_columns = svg.matches("stream 4 (urgent): ").count();
    assert_eq!(in_columns, columns, "urgent bytes left in every stretch of time");
}

#[test]
fn the_picture_goes_where_it_is_wanted_and_never_over_the_log() {
    let log = Log::of(lossy());
    let elsewhere = log.file.with_file_name("a<b>&.svg");
    log.text(&["-o", elsewhere.to_str().unwrap()]);
    assert!(elsewhere.exists() && !log.picture().exists());
    let (code, said) = log.refusal(&["-o", log.file.to_str().unwrap()]);
    assert_eq!(code, 2);
    assert!(said.contains("overwrite the log"), "{said}");
    assert_eq!(fs::read_to_string(&log.file).unwrap(), lossy());
    let (code, said) = log.refusal(&["-o", "/nowhere/x.svg"]);
    assert_eq!(code, 2);
    assert!(said.starts_with("braidmq: cannot write /nowhere/x.svg: "), "{said}");
    // A name cannot become markup.
    let renamed = log.file.with_file_name("a<b>&.qlog");
    fs::rename(&log.file, &renamed).unwrap();
    let log = Log { file: renamed, ..log };
    let svg = log.svg(&[]);
    assert_well_formed(&svg);
    assert!(svg.contains("a&lt;b&gt;&amp;.qlog"));
}

#[test]
fn an_unreadable_log_is_one_line_and_exit_code_2() {
    let only_received = sequence([packet(1.0, "packet_received", 0, &[(4, 0, 4)])]);
    let mut broken = lossy();
    broken.push_str("\u{1e}{time: 1}\n\u{1e}{}\n");
    let line = format!("test.qlog:{}: not JSON: key must be a string", broken.lines().count() - 1);
    for (text, arguments, part) in [
        ("", &[][..], "is not qlog: the file is empty or has no trace"),
        ("hello\n", &[], "test.qlog:1: not JSON: expected value"),
        ("{\"colour\": \"red\"}", &[], "is not qlog: it does not begin with the heading"),
        ("[1, 2]", &[], "is not qlog: it does not begin with the heading"),
        (
            "{\"qlog_version\": \"0.3\", \"traces\": []}",
            &[],
            "is not qlog: the file is empty or has no trace",
        ),
        (&sequence([]), &[], "is not qlog: the file is empty or has no trace"),
        (&broken, &[], &line),
        (&sequence([sent(1.0, 0, &[])]), &[], "test.qlog: no packet sent carries a STREAM frame\n"),
        (&only_received, &[], "no packet sent carries a STREAM frame; --side received has some"),
        (
            &lossy(),
            &["--urgent", "0,12"],
            "--urgent 12: no such stream in the log; it has streams 0, 4 and 8",
        ),
        (
            &lossy(),
            &["--from", "500"],
            "nothing lies between --from 500 and --to 30; the log goes from 1.000 to 30.000",
        ),
        (&lossy(), &["--from", "20", "--to", "3"], "nothing lies between --from 20 and --to 3"),
    ] {
        let (code, said) = Log::of(text).refusal(arguments);
        assert_eq!(code, 2, "{said}");
        assert!(said.starts_with("braidmq: ") && said.contains(part), "{said}");
    }
    let log = Log::of(lossy());
    fs::remove_file(&log.file).unwrap();
    let (code, said) = log.refusal(&[]);
    assert_eq!(code, 2);
    assert!(said.contains("cannot read") && said.contains("No such file"), "{said}");
}

#[test]
fn wrong_options_say_what_to_write() {
    let log = Log::of(lossy());
    for (arguments, part) in [
        (["--from", "soon"], "write for example 1500 or 0.25"),
        (["--to", "NaN"], "is no time in milliseconds"),
        (["--urgent", "4;8"], "invalid"),
        (["--side", "both"], "[possible values: sent, received]"),
    ] {
        let output = log.explain(&arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn hostile_numbers_end_in_numbers() {
    let frames =
        [json!(u64::MAX), json!("18446744073709551615"), json!(-1), json!(1e300), json!(null), json!([])];
    let mut text = String::new();
    for (index, odd) in frames.iter().enumerate() {
        let frame = json!({"frame_type": "stream", "stream_id": 4, "offset": odd, "length": odd, "fin": odd});
        let bulk = json!({"frame_type": "stream", "stream_id": 8, "offset": 0, "length": u64::MAX});
        let details = json!({"header": {"packet_number": odd, "length": odd}, "frames": [frame, bulk, odd]});
        let lost = json!({"header": {"packet_number": odd}});
        for record in [
            json!({"time": odd, "name": "quic:packet_sent", "data": details}),
            json!({"time": odd, "name": "quic:packet_lost", "data": lost}),
            json!({"time": index, "name": odd, "data": odd}),
            json!({"time": 1, "name": "quic:recovery_metrics_updated",
                "data": {"path_id": odd, "congestion_window": odd, "bytes_in_flight": odd, "pto_count": odd}}),
            odd.clone(),
        ] {
            writeln!(text, "\u{1e}{record}").unwrap();
        }
    }
    let log = Log::of(sequence([]) + &text);
    assert_eq!(log.numbers(&[])["connection"]["packets"], 6);
    let svg = log.svg(&[]);
    assert_well_formed(&svg);
    assert!(!svg.contains("NaN") && !svg.contains("inf\""), "{svg}");
}

#[test]
fn many_packets_at_one_late_moment_are_drawn() {
    let late = (1..=500).map(|number| sent(9e15, number, &[(4, number * 100, 100)]));
    let log = Log::of(sequence([sent(1.0, 0, &[(8, 0, 100)])].into_iter().chain(late)));
    let svg = log.svg(&["--from", "2"]);
    assert_well_formed(&svg);
    assert_eq!(svg.matches("class=\"column\"").count(), 1);
}
