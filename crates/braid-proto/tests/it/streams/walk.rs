//! A large message, an alarm and a PINGREQ at once, which do not wait for each other.

use braid_proto::connection::ServerOptions;

use super::{forge, granting, payloads};
use crate::rig::options;

const LARGE: usize = 5 * 1024 * 1024;

// [BQ-2], [BQ-14], [BQ-11]
#[test]
fn a_packet_of_5_mb_delays_nothing_else() {
    let mut rig = granting(ServerOptions { maximum_packet_size: 8 << 20, ..options() });
    let (bulk, alarm) = (rig.open(3), rig.open(2));
    // PUBLISH, QoS 2, identifier 7.
    let mut large = vec![0x34, 0x86, 0x80, 0xC0, 2, 0, 1, b'b', 0, 7, 0];
    large.resize(5 + 6 + LARGE, b'.');
    for (number, piece) in large.chunks(500_000).enumerate() {
        assert!(rig.server.is_reading(bulk));
        rig.read_on(bulk, piece);
        let id = u8::try_from(number).unwrap() + 1;
        // Also in parts.
        let packet = forge::publish(1, id, "fire");
        let (head, tail) = packet.split_at(number % packet.len());
        rig.read_on(alarm, head);
        rig.read(&forge::PINGREQ[..1]);
        rig.read_on(alarm, tail);
        rig.read(&forge::PINGREQ[1..]);
        assert_eq!(rig.sent(), forge::PINGRESP);
        let events = rig.events();
        rig.persist(&events);
        assert!(payloads(&events).iter().any(|payload| payload == "fire"));
        assert_eq!(rig.sent_on(alarm).unwrap(), forge::puback(id));
    }
    assert_eq!(rig.sent_on(bulk).unwrap(), forge::pubrec(7));
    assert!(rig.actions().is_empty() && !rig.server.is_closed());
}
