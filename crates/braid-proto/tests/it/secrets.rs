//! Secrets of packets are not in their `Debug`, which logs and panics print.

use braid_proto::packet::{
    Auth, Connack, ConnackProperties, Connect, ConnectProperties, Packet, ProtocolVersion, UserProperties,
};
use braid_proto::reason::ReasonCode;
use bytes::Bytes;

#[test]
fn debug_shows_no_secret_and_all_else() {
    let secret = || Some(Bytes::from_static(b"s3cret"));
    let method: Option<Box<str>> = Some("SCRAM-SHA-256".into());
    let mut connect = Connect::new(ProtocolVersion::V5, "pump-7");
    connect.user_name = Some("anna".into());
    connect.password = secret();
    connect.properties = ConnectProperties {
        authentication_method: method.clone(),
        authentication_data: secret(),
        ..ConnectProperties::default()
    };
    let properties = ConnackProperties {
        authentication_method: method.clone(),
        authentication_data: secret(),
        ..ConnackProperties::default()
    };
    let connack = Connack { session_present: false, reason: ReasonCode::Success, properties };
    let auth = Auth {
        reason: ReasonCode::Success,
        method,
        authentication_data: secret(),
        reason_string: None,
        user: UserProperties::new(),
    };
    let packets: [(Packet, usize); 3] = [
        (Packet::Connect(Box::new(connect)), 2),
        (Packet::Connack(Box::new(connack)), 1),
        (Packet::Auth(Box::new(auth)), 1),
    ];
    for (packet, hidden) in packets {
        for text in [format!("{packet:?}"), format!("{packet:#?}")] {
            // As text, and as the list of its bytes.
            assert!(!text.contains("s3cret") && !text.contains("115, 51"), "{text}");
            assert_eq!(text.matches("[hidden]").count(), hidden, "{text}");
            assert!(text.contains("SCRAM-SHA"), "{text}");
        }
    }
    let without = format!("{:?}", Connect::new(ProtocolVersion::V5, "pump-7"));
    assert!(without.contains("password: None") && without.contains("keep_alive: 60"), "{without}");
}
