//! Independence of the result from the boundaries at which the link cuts the client's bytes.

use braid_proto::connection::{Acceptance, Event};
use braid_proto::packet::ProtocolVersion;
use braid_proto::reason::ReasonCode;
use braid_proto::session::{Session, SessionExpiry};

use crate::hex;
use crate::rig::{Rig, connect, options, packets};

const MQTT_3: &str = r#"
    10 10 0004 "MQTT" 04 02 003C 0004 "part"
    82 0F 0001 0003 "a/+" 01 0004 "b/#c" 02
    30 06 0001 "a" "one"  32 08 0001 "a" 0002 "two"  34 0A 0001 "a" 0003 "three"
    62 02 0003  62 02 0004  C0 00  A2 07 0005 0003 "a/+""#;

const MQTT_5: &str = r#"
    10 17 0004 "MQTT" 05 02 003C 08 11 00000064 21 0003 0002 "p5"
    82 10 0001 02 0B 07 0003 "a/+" 0D 0002 "b#" 02
    30 0A 0001 "a" 03 23 0001 "one" 32 0B 0000 0002 03 23 0001 "two"
    34 12 0001 "a" 0003 0A 26 0002 "kk" 0003 "vvv" "th"
    62 03 0003 92 C0 00 A2 08 0005 00 0003 "a/+""#;

/// Events, sent packets and the end. The packets are sorted: one that needs no answer of the driver, such as
/// PINGRESP, may overtake one that does if both came in one read.
fn outcome(pieces: &[&[u8]], version: ProtocolVersion) -> (Vec<String>, Vec<String>, String) {
    let mut rig = Rig::before_connect(options());
    let (mut events, mut sent) = (Vec::new(), Vec::new());
    // Nothing is answered behind DISCONNECT: it comes alone.
    for piece in pieces.iter().copied().chain([&[0xE0, 0x00][..]]) {
        rig.read(piece);
        while let Some(event) = rig.server.poll_event() {
            events.push(format!("{event:?}"));
            let token = match event {
                Event::Connect(_) => {
                    let session = Session::new("part".into(), SessionExpiry::NEVER);
                    rig.server.accept(session, &Acceptance::default(), rig.now, |_| true);
                    None
                }
                Event::Publish(_, token) => token,
                Event::Release(token) => Some(token),
                Event::Subscribe(on, subscribe) => rig.server.suback(
                    on,
                    subscribe.packet_id,
                    vec![ReasonCode::Success; subscribe.entries.len()],
                ),
                Event::Unsubscribe(on, unsubscribe) => {
                    rig.server.unsuback(on, unsubscribe.packet_id, vec![ReasonCode::Success])
                }
                Event::Auth(_)
                | Event::Complete(..)
                | Event::OffsetRefused(..)
                | Event::StreamViolated(..)
                | Event::StreamEnded(_) => None,
            };
            if let Some(token) = token {
                rig.server.handle_persisted(token);
            }
        }
        sent.extend(rig.sent());
    }
    let mut sent: Vec<_> = packets(&sent, version).into_iter().map(|packet| format!("{packet:?}")).collect();
    sent.sort();
    (events, sent, format!("{:?}", rig.end()))
}

#[test]
fn a_conversation_may_be_cut_anywhere() {
    for (text, version) in [(MQTT_3, ProtocolVersion::V311), (MQTT_5, ProtocolVersion::V5)] {
        let bytes = hex::bytes(&text.replace('\n', " "));
        let whole = outcome(&[&bytes], version);
        assert!(whole.2.contains("Disconnected(Success)"), "{}", whole.2);
        assert!(whole.0.len() >= 7, "{:?}", whole.0);
        for at in 0..bytes.len() {
            let (head, tail) = bytes.split_at(at);
            assert_eq!(outcome(&[head, tail], version), whole, "cut at {at}");
        }
        let single: Vec<_> = bytes.chunks(1).collect();
        assert_eq!(outcome(&single, version), whole, "byte by byte");
    }
}

#[test]
fn random_bytes_never_panic() {
    let mut random = fastrand::Rng::with_seed(0xB4A1D);
    for version in [None, Some(ProtocolVersion::V311), Some(ProtocolVersion::V5)] {
        for _ in 0..20_000 {
            let mut rig = match version {
                None => Rig::before_connect(options()),
                Some(version) => Rig::connected(options(), connect(version)),
            };
            let mut bytes = vec![0; random.usize(1..40)];
            random.fill(&mut bytes);
            if random.bool() {
                // A plausible header lets the bytes reach deeper.
                bytes[0] = random
                    .choice([0x10, 0x30, 0x32, 0x34, 0x40, 0x50, 0x62, 0x70, 0x82, 0xA2, 0xE0, 0xF0])
                    .unwrap();
                if let Some(len) = bytes.len().checked_sub(2) {
                    bytes[1] = u8::try_from(len).unwrap();
                }
            }
            rig.read(&bytes);
            rig.events();
            let closed = rig.server.is_closed();
            assert_eq!(rig.end().is_some(), closed);
        }
    }
}
