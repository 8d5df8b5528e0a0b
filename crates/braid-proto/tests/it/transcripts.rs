//! Conversations with a server, as text: `transcripts/*.txt`.
//!
//! ```text
//! C> 10 0D ... "MQTT"    the client's bytes, in one read
//! S< 20 02 00 00         all bytes that the server has to send now; nothing behind the arrow: none
//! E= PUBLISH a hello     the next event of the server but CONNECT, SUBSCRIBE and UNSUBSCRIBE
//! == CLOSED text         the connection has ended: its cause, then WILL topic or NO WILL
//! !! command             other actions: see `Conversation::command`
//! ```
//!
//! The driver of a transcript accepts each CONNECT, resumes the session that it kept, grants each SUBSCRIBE, and
//! declares everything durable at once unless a command holds it. It knows one Authentication Method, `TEST`: data
//! `more` is answered with a challenge, `no` is refused, anything else is right.

use std::collections::VecDeque;
use std::fs;
use std::path::Path;
use std::time::Duration;

use braid_proto::connection::{Acceptance, Event, Sent, Token};
use braid_proto::packet::QoS;
use braid_proto::reason::ReasonCode;
use braid_proto::session::{Session, SessionExpiry};

use crate::hex;
use crate::rig::{Rig, delivery, options};

struct Conversation {
    rig: Rig,
    kept: Option<Session>,
    holding: bool,
    held: Vec<Token>,
    refusing: Option<ReasonCode>,
    log: VecDeque<String>,
}

impl Conversation {
    fn new() -> Self {
        let rig = Rig::before_connect(options());
        Self { rig, kept: None, holding: false, held: Vec::new(), refusing: None, log: VecDeque::new() }
    }

    fn line(&mut self, line: &str) {
        let (mark, rest) = line.split_at(2);
        let rest = rest.trim();
        match mark {
            "C>" => {
                self.rig.read(&hex::bytes(rest));
                self.answer();
            }
            "S<" => assert_eq!(hex::text(&self.rig.sent()), hex::text(&hex::bytes(rest))),
            "E=" => assert_eq!(self.log.pop_front().unwrap_or_default(), rest),
            "==" => self.end(rest),
            "!!" => self.command(&rest.split_whitespace().collect::<Vec<_>>()),
            _ => panic!("unknown mark {mark:?}"),
        }
    }

    fn command(&mut self, words: &[&str]) {
        match *words {
            // Holds durability until `persist`.
            ["hold"] => self.holding = true,
            ["persist"] => {
                for token in self.held.drain(..) {
                    self.rig.server.handle_persisted(token);
                }
            }
            ["persist-one"] => self.rig.server.handle_persisted(self.held.remove(0)),
            // Messages are answered with this reason code.
            ["refuse", code] => self.refusing = Some(reason(code)),
            ["deliver", qos, topic, payload] => {
                let delivery = delivery(topic, payload.as_bytes().to_vec(), qos_of(qos));
                let sent = self.rig.server.deliver(delivery, self.rig.now);
                assert!(matches!(sent, Sent::Out(_)), "{sent:?}");
            }
            ["blocked", qos] => {
                let sent = self.rig.server.deliver(delivery("t", "m", qos_of(qos)), self.rig.now);
                assert!(matches!(sent, Sent::Blocked(_)), "{sent:?}");
            }
            ["disconnect", code] => self.rig.server.disconnect(reason(code)),
            ["wait", seconds] => self.rig.wait(Duration::from_secs_f64(seconds.parse().unwrap())),
            ["lose"] => self.rig.server.handle_link_closed(),
            // A new connection after the end of the last.
            ["again"] => {
                let now = self.rig.now;
                self.rig = Rig::before_connect(options());
                self.rig.now = now.max(self.rig.now);
                self.held.clear();
            }
            _ => panic!("unknown command {words:?}"),
        }
    }

    fn answer(&mut self) {
        while let Some(event) = self.rig.server.poll_event() {
            let token = match event {
                Event::Connect(connect) => {
                    let properties = &connect.properties;
                    let (method, data) = (&properties.authentication_method, &properties.authentication_data);
                    if method.as_deref().is_some_and(|method| method != "TEST") {
                        self.rig.server.reject(ReasonCode::BadAuthenticationMethod);
                        continue;
                    }
                    if method.is_some() && !self.is_authenticated(data.as_deref()) {
                        continue;
                    }
                    let kept = self.kept.take().filter(|_| !connect.clean_start);
                    let acceptance = Acceptance { session_present: kept.is_some(), ..Acceptance::default() };
                    let session =
                        kept.unwrap_or_else(|| Session::new("c".into(), SessionExpiry::WITH_CONNECTION));
                    self.rig.server.accept(session, &acceptance, self.rig.now, |_| true);
                    continue;
                }
                Event::Auth(auth) => {
                    if self.is_authenticated(auth.authentication_data.as_deref()) {
                        if self.rig.server.session().is_some() {
                            self.rig.server.finish_reauthentication(Some("ok".into()));
                        } else {
                            let session = Session::new("c".into(), SessionExpiry::WITH_CONNECTION);
                            let authentication_data = Some("ok".into());
                            let acceptance = Acceptance { authentication_data, ..Acceptance::default() };
                            self.rig.server.accept(session, &acceptance, self.rig.now, |_| true);
                        }
                    }
                    continue;
                }
                Event::Publish(message, token) => {
                    let payload = String::from_utf8_lossy(&message.payload);
                    self.log.push_back(format!("PUBLISH {} {payload}", message.topic));
                    if let (Some(token), Some(reason)) = (token, self.refusing) {
                        self.rig.server.set_reason(token, reason);
                    }
                    token
                }
                Event::Release(token) => {
                    self.log.push_back("RELEASE".into());
                    Some(token)
                }
                Event::Subscribe(on, subscribe) => {
                    let codes = subscribe.entries.iter().map(|entry| match entry.filter {
                        Ok(_) => entry.qos.into(),
                        Err(_) => ReasonCode::TopicFilterInvalid,
                    });
                    self.rig.server.suback(on, subscribe.packet_id, codes.collect())
                }
                Event::Unsubscribe(on, unsubscribe) => {
                    let codes = vec![ReasonCode::NoSubscriptionExisted; unsubscribe.filters.len()];
                    self.rig.server.unsuback(on, unsubscribe.packet_id, codes)
                }
                Event::Complete(id, reason) => {
                    self.log.push_back(format!("COMPLETE {id} {:02X}", reason.value()));
                    None
                }
                Event::StreamViolated(..) | Event::StreamEnded(_) => panic!("there is one stream: {event:?}"),
                Event::OffsetRefused(..) => panic!("no client continues messages: {event:?}"),
            };
            let Some(token) = token else { continue };
            if self.holding { self.held.push(token) } else { self.rig.server.handle_persisted(token) }
        }
    }

    /// Challenges or refuses the client, or tells that its data are right.
    fn is_authenticated(&mut self, data: Option<&[u8]>) -> bool {
        match data.unwrap_or_default() {
            b"more" => self.rig.server.challenge("?".into(), self.rig.now),
            b"no" => self.rig.server.disconnect(ReasonCode::NotAuthorized),
            _ => return true,
        }
        false
    }

    fn end(&mut self, expected: &str) {
        let end = self.rig.end().expect("the connection is open");
        let will = end.will.map_or("NO WILL".to_owned(), |will| format!("WILL {}", will.topic));
        assert_eq!(format!("CLOSED {}, {will}", end.cause), expected);
        self.kept = end.session.filter(|session| session.expiry.outlives_connection());
    }
}

fn reason(code: &str) -> ReasonCode {
    ReasonCode::from_u8(u8::from_str_radix(code, 16).unwrap()).unwrap()
}

fn qos_of(text: &str) -> QoS {
    QoS::from_bits(text.parse().unwrap()).unwrap()
}

fn play(name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/transcripts").join(name);
    let text = fs::read_to_string(path).unwrap();
    let mut conversation = Conversation::new();
    for (number, line) in text.lines().enumerate() {
        // Printed only where a line fails.
        println!("{name}:{}: {line}", number + 1);
        if !line.trim().is_empty() && !line.starts_with('#') {
            conversation.line(line);
        }
    }
    assert!(conversation.log.is_empty(), "not expected: {:?}", conversation.log);
    assert!(conversation.rig.sent().is_empty(), "more was sent");
}

/// One test for each transcript, so that each has its name and its tags here.
macro_rules! transcripts {
    ($($(#[$attribute:meta])* $name:ident = $file:literal;)+) => {
        $($(#[$attribute])* #[test] fn $name() { play($file); })+

        #[test]
        fn every_transcript_is_played() {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/transcripts");
            let mut files: Vec<_> =
                fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            files.sort();
            assert_eq!(files, [$($file),+]);
        }
    };
}

transcripts! {
    // [MQTT-3.1.2-30], [MQTT-3.2.2-7], [MQTT-4.12.0-1], [MQTT-4.12.0-2], [MQTT-4.12.0-4], [MQTT-4.12.0-5],
    // [MQTT-4.12.0-6], [MQTT-4.12.1-2]
    authentication = "authentication.txt";
    disconnect = "disconnect.txt";
    // [MQTT-2.2.1-6], [MQTT-3.1.4-6], [MQTT-3.10.4-4], [MQTT-3.10.4-5], [MQTT-3.10.4-6], [MQTT-3.11.3-1],
    // [MQTT-3.2.0-1], [MQTT-3.8.4-1], [MQTT-3.8.4-2], [MQTT-3.8.4-5], [MQTT-3.8.4-6], [MQTT-3.9.3-1],
    // [MQTT3-3.1.4-5], [MQTT3-3.10.4-4], [MQTT3-3.10.4-5]
    held_bytes = "held-bytes.txt";
    // [MQTT-3.1.2-22], [MQTT-3.2.2-22]
    keep_alive = "keep-alive.txt";
    mqtt_3_1 = "mqtt-3.1.txt";
    // [MQTT-4.6.0-2], [MQTT-4.6.0-3]
    order = "order.txt";
    // [MQTT-2.2.1-4], [MQTT-2.2.1-5], [MQTT-3.1.4-5], [MQTT-3.12.4-1], [MQTT-3.3.1-3], [MQTT-4.3.2-1],
    // [MQTT-4.3.2-2], [MQTT-4.3.2-3], [MQTT-4.3.2-4], [MQTT-4.3.2-5], [MQTT-4.6.0-2]
    qos1 = "qos1.txt";
    // [MQTT-4.3.3-10], [MQTT-4.3.3-11], [MQTT-4.3.3-12], [MQTT-4.3.3-1], [MQTT-4.3.3-2], [MQTT-4.3.3-3],
    // [MQTT-4.3.3-4], [MQTT-4.3.3-5], [MQTT-4.3.3-8], [MQTT-4.3.3-9], [MQTT-4.4.0-2]
    qos2 = "qos2.txt";
    // [MQTT3-3.1.2-4], [MQTT3-3.1.2-6], [MQTT3-3.2.2-1], [MQTT3-3.2.2-2], [MQTT3-3.2.2-3]
    resume_3_1_1 = "resume-3.1.1.txt";
    // [MQTT-3.1.2-23], [MQTT-3.1.2-4], [MQTT-3.2.2-2], [MQTT-3.2.2-3], [MQTT-3.3.1-1], [MQTT-3.3.4-10],
    // [MQTT-4.3.3-6], [MQTT-4.4.0-1], [MQTT-4.6.0-1], [MQTT-4.6.0-4], [MQTT-4.9.0-3]
    resume = "resume.txt";
    // [MQTT-3.1.4-3], [MQTT-3.14.0-1], [MQTT-3.14.4-1], [MQTT3-3.1.4-2]
    takeover = "takeover.txt";
    // [MQTT-3.1.2-10], [MQTT-3.1.2-7], [MQTT-3.1.2-8], [MQTT-3.1.2-9], [MQTT-3.14.4-3]
    // [MQTT3-3.1.2-12]
    will = "will.txt";
}
