//! Files of topics, as used with emqtt_bench.

use std::fs;

use super::rig::{End, Load, Server, json, run, topic};

/// A published file of two topics on two streams, with its trailing commas.
const SEED: &str = include_str!("seed_multi_stream.json");

/// Smaller and faster variant: a message of 1,024,000 bytes every half second.
fn smaller() -> String {
    let text = SEED.replace("\"5000\"", "\"500\"").replace("%p25000", "%p250");
    assert_eq!((text.contains("\"500\""), text.contains("\"%p250\"")), (true, true));
    text
}

#[test]
fn a_published_file_runs_over_two_streams_of_quic() {
    let server = Server::start();
    let (file, published, received) =
        (server.path("topic_spec.json"), server.path("pub.json"), server.path("sub.json"));
    fs::write(&file, smaller()).unwrap();
    let find = server.find("quic");
    let subscribe =
        ["-c", "1", "-q", "1", "-t", "Topic1", "-t", "Topic2", "--timestamp-field", "timestamp=ms"];
    let streams = ["--stream", "1", "--priority", "200", "--stream", "2", "--priority", "8"];
    let to = ["--json", received.to_str().unwrap()];
    let subscriber = Load::start(&[&["sub"], &find[..], &subscribe, &streams, &to].concat());
    subscriber.wait_for_total("sub", 1);

    // One second: ten of the first and two of the second.
    let load = ["-c", "1", "-F", "1000", "-k", "60", "-L", "12", "--topics-payload", file.to_str().unwrap()];
    let end = run(&[&["pub"], &find[..], &load, &["--json", published.to_str().unwrap()]].concat());
    assert_eq!(end.code, Some(0), "{end:?}");
    subscriber.wait_for_total("recv", 12);
    let End { code, errors, .. } = subscriber.stop("-INT");
    assert_eq!(code, Some(0), "{errors}");

    for (path, counted) in [(&published, "acked"), (&received, "received")] {
        let summary = json(path);
        for (name, stream, priority, messages) in [("Topic1", 1, 200, 10), ("Topic2", 2, 8, 2)] {
            let topic = topic(&summary, name);
            assert_eq!((&topic["stream"], &topic["priority"]), (&stream.into(), &priority.into()), "{topic}");
            assert_eq!(topic[counted], messages, "{topic}");
            assert_eq!(topic["latency_us"]["count"], messages, "{topic}");
        }
        let bulk = topic(&summary, "Topic2")["bytes"].as_u64().unwrap();
        assert!(bulk > 2 * 1_024_000, "{bulk}");
        let streams = summary["streams"].as_array().unwrap();
        let stream = streams.iter().find(|stream| stream["stream"] == 2).unwrap();
        let carried: u64 =
            stream["bytes_per_second"].as_array().unwrap().iter().map(|bytes| bytes.as_u64().unwrap()).sum();
        assert!(carried > bulk, "{carried} of {bulk}");
    }
}

#[test]
fn streams_of_a_file_are_told_to_have_no_effect_without_quic() {
    let server = Server::start();
    let file = server.path("topic_spec.json");
    fs::write(&file, smaller()).unwrap();
    let load = ["pub", "-c", "1", "-L", "1", "--topics-payload", file.to_str().unwrap()];
    let end = run(&[&load[..], &server.find("mqtt")].concat());
    let said = &end.errors;
    assert_eq!(end.code, Some(0), "{said}");
    let note = format!(
        "Note: the streams in {} have no effect: only QUIC (--quic) has more than one",
        file.display()
    );
    assert!(said.lines().any(|line| line == note), "{said}");
}
