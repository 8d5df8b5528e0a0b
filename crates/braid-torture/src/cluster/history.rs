//! Writers of histories: JSON lines, one file for each client and one for the faults.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// Event of a history.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Event<'a> {
    /// CONNECT is about to be sent.
    Connect {
        client: &'a str,
        conn: u64,
        node: &'a str,
        clean: bool,
        /// Session Expiry Interval, seconds.
        expiry: u32,
    },
    /// CONNACK has arrived.
    Connack { client: &'a str, conn: u64, node: &'a str, present: bool, reason: u8 },
    /// The connection has ended; with the reason of the server's DISCONNECT.
    Closed { client: &'a str, conn: u64, node: &'a str, reason: Option<u8> },
    /// PUBLISH is about to be sent, or CONNECT with this Will.
    Publish {
        client: &'a str,
        conn: u64,
        topic: &'a str,
        qos: u8,
        id: &'a str,
        /// 0 for a Will.
        pid: u16,
        dup: bool,
        retain: bool,
        will: bool,
    },
    /// PUBREC without an error has arrived.
    Pubrec { client: &'a str, conn: u64, id: &'a str },
    /// PUBACK, PUBCOMP, or PUBREC with an error has arrived; or a connection has ended for which a Will is due.
    Acked { client: &'a str, conn: u64, id: &'a str, reason: u8 },
    /// SUBSCRIBE is about to be sent.
    Subscribe { client: &'a str, conn: u64, filter: &'a str, qos: u8 },
    /// SUBACK has arrived.
    Subscribed { client: &'a str, conn: u64, filter: &'a str, reason: u8 },
    /// A message was delivered to the application. A PUBLISH of QoS 2 whose packet identifier awaits PUBREL is none.
    Delivered {
        client: &'a str,
        conn: u64,
        node: &'a str,
        topic: &'a str,
        qos: u8,
        id: &'a str,
        pid: u16,
        dup: bool,
        retain: bool,
        filter: &'a str,
    },
    /// PUBACK was sent, or PUBREL has arrived.
    DeliveryDone { client: &'a str, conn: u64, id: &'a str },
    /// A fault begins or has ended.
    Fault { name: &'a str, on: &'a str, phase: FaultPhase },
    /// All faults are healed, all clients connected, and everything had time to arrive.
    End {},
}

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FaultPhase {
    Begin,
    End,
}

#[derive(Serialize)]
struct Line<'a> {
    /// `CLOCK_MONOTONIC`, nanoseconds.
    t: u64,
    #[serde(flatten)]
    event: Event<'a>,
}

/// Writer of one file.
#[derive(Debug)]
pub(crate) struct History {
    file: File,
}

impl History {
    /// Creates the history of a client below `dir`.
    pub(crate) fn create(dir: &Path, name: &str) -> Result<Self, String> {
        let wrong = |error| format!("{}: {error}", dir.display());
        fs::create_dir_all(dir).map_err(wrong)?;
        let file = File::options().create_new(true).append(true).open(dir.join(format!("{name}.jsonl")));
        Ok(Self { file: file.map_err(wrong)? })
    }

    /// Appends an event with the time of now; each line is one write to the file.
    ///
    /// # Errors
    /// The file takes no more.
    pub(crate) fn write(&mut self, event: Event<'_>) -> Result<(), String> {
        let line = Line { t: monotonic(), event };
        let mut bytes = serde_json::to_vec(&line).map_err(|error| error.to_string())?;
        bytes.push(b'\n');
        self.file.write_all(&bytes).map_err(|error| format!("the history cannot be written: {error}"))
    }
}

/// `CLOCK_MONOTONIC`, nanoseconds.
fn monotonic() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let part = |part: i64| u64::try_from(part).unwrap_or(0);
    part(now.tv_sec) * 1_000_000_000 + part(now.tv_nsec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_event_is_a_line_with_its_time_and_its_kind() {
        let dir = tempfile::tempdir().unwrap();
        let mut history = History::create(dir.path(), "x").unwrap();
        history.write(Event::Acked { client: "x", conn: 7, id: "x:1", reason: 0 }).unwrap();
        history.write(Event::Closed { client: "x", conn: 7, node: "a", reason: None }).unwrap();
        history.write(Event::Fault { name: "full", on: "nats-b", phase: FaultPhase::Begin }).unwrap();
        history.write(Event::End {}).unwrap();
        let text = fs::read_to_string(dir.path().join("x.jsonl")).unwrap();
        let (mut times, mut lines) = (Vec::new(), Vec::new());
        for line in text.lines() {
            let (time, rest) = line.split_once(',').unwrap();
            times.push(time.strip_prefix("{\"t\":").unwrap().parse::<u64>().unwrap());
            lines.push(rest);
        }
        assert!(times.is_sorted() && times[0] > 0, "{times:?}");
        assert_eq!(
            lines,
            [
                r#""kind":"acked","client":"x","conn":7,"id":"x:1","reason":0}"#,
                r#""kind":"closed","client":"x","conn":7,"node":"a","reason":null}"#,
                r#""kind":"fault","name":"full","on":"nats-b","phase":"begin"}"#,
                r#""kind":"end"}"#,
            ]
        );
        assert!(History::create(dir.path(), "x").is_err(), "no two clients of one name");
    }
}
