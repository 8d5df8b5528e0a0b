//! NAT: ports that change, flows that are forgotten, checksums that stay right.

use std::collections::HashSet;
use std::time::Duration;

use braid_emulator::{PacketView, Pipeline};
use proptest::prelude::*;

use crate::drive::{link, ms};
use crate::packets::{answer, hosts, is_sealed, ports, seal, tcp, udp};

const S: u64 = 1000;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

fn through(pipeline: &mut Pipeline, at: Duration, packet: &[u8]) -> Option<Vec<u8>> {
    pipeline.handle(at, packet);
    pipeline.take_due(at).map(|departure| departure.bytes)
}

#[test]
fn udp_gets_a_new_port_and_answers_find_back() {
    for version in [4, 6] {
        let (mut up, mut down) = Pipeline::pair(&link("nat=rebind:30s"), 1);
        let packet = udp(version, 5000, 14_567, b"hello");
        let before = through(&mut up, ms(S), &packet).unwrap();
        assert_eq!(before, packet, "before the first rebind nothing changes");
        assert_eq!(through(&mut down, ms(S), &answer(&before)), Some(answer(&packet)));

        let after = through(&mut up, ms(31 * S), &packet).unwrap();
        assert_ne!(ports(&after).0, 5000);
        assert_eq!((ports(&after).1, hosts(&after)), (14_567, (1, 2)));
        assert!(is_sealed(&after));
        assert_eq!(through(&mut up, ms(32 * S), &packet), Some(after.clone()), "it stays");
        assert_eq!(through(&mut down, ms(32 * S), &answer(&after)), Some(answer(&packet)));
        assert_eq!(through(&mut down, ms(32 * S), &answer(&before)), None, "the old port is forgotten");
        assert_eq!(down.counters().forgotten.packets, 1);
        let later = through(&mut up, ms(61 * S), &packet).unwrap();
        assert_ne!(ports(&later).0, ports(&after).0);
        assert_eq!(up.take_reply().or(down.take_reply()), None);
    }
}

#[test]
fn flows_never_share_a_port() {
    let (mut up, mut down) = Pipeline::pair(&link("nat=rebind@1s"), 3);
    let mut seen = HashSet::new();
    for source in 1024..31_024 {
        let packet = udp(4, source, 53, b"");
        let sent = through(&mut up, ms(2 * S), &packet).unwrap();
        assert!(seen.insert(ports(&sent).0), "{} twice", ports(&sent).0);
        assert_eq!(through(&mut down, ms(2 * S), &answer(&sent)), Some(answer(&packet)));
    }
}

#[test]
fn a_rebind_silences_tcp_until_a_syn() {
    let (mut up, mut down) = Pipeline::pair(&link("nat=rebind:30s"), 1);
    let segment = tcp(4, 5000, 1883, ACK, b"publish");
    assert_eq!(through(&mut up, ms(S), &segment), Some(segment.clone()), "a connection older than the link");
    assert_eq!(through(&mut up, ms(31 * S), &segment), None);
    assert_eq!(through(&mut down, ms(31 * S), &answer(&segment)), None);
    assert_eq!((up.take_reply(), down.take_reply()), (None, None));
    let syn = through(&mut up, ms(32 * S), &tcp(4, 5000, 1883, SYN, b"")).unwrap();
    assert!(ports(&syn).0 != 5000 && is_sealed(&syn));
    let next = through(&mut up, ms(33 * S), &segment).unwrap();
    assert_eq!(ports(&next), ports(&syn));
    assert_eq!(through(&mut down, ms(33 * S), &answer(&next)), Some(answer(&segment)));
}

#[test]
fn a_cut_ends_flows_silently_and_lets_new_ones_pass() {
    for version in [4, 6] {
        let (mut up, mut down) = Pipeline::pair(&link("nat=cut:30s"), 1);
        let old = [udp(version, 5000, 14_567, b"hello"), tcp(version, 5001, 1883, ACK, b"publish")];
        for packet in &old {
            assert_eq!(through(&mut up, ms(S), packet).as_ref(), Some(packet));
        }
        for at in [31, 61] {
            for packet in &old {
                assert_eq!(through(&mut up, ms(at * S), packet), None);
                assert_eq!(through(&mut down, ms(at * S), &answer(packet)), None);
            }
        }
        assert_eq!((up.take_reply(), down.take_reply()), (None, None));
        for new in [udp(version, 5002, 14_567, b"hello"), tcp(version, 5001, 1883, SYN, b"")] {
            let sent = through(&mut up, ms(62 * S), &new).unwrap();
            assert_eq!(through(&mut down, ms(62 * S), &answer(&sent)), Some(answer(&new)));
        }
    }
}

#[test]
fn rst_answers_tcp_from_both_sides() {
    for version in [4, 6] {
        let (mut up, mut down) = Pipeline::pair(&link("nat=rst@30s"), 1);
        let segment = tcp(version, 5000, 1883, ACK, b"publish");
        through(&mut up, ms(S), &segment).unwrap();
        for (pipeline, packet) in [(&mut up, segment.clone()), (&mut down, answer(&segment))] {
            assert_eq!(through(pipeline, ms(31 * S), &packet), None);
            let reply = pipeline.take_reply().unwrap();
            let start = PacketView::parse(&reply).unwrap().transport;
            assert_eq!(ports(&reply), ports(&answer(&packet)), "back to the sender");
            assert_eq!(hosts(&reply), hosts(&answer(&packet)));
            assert_eq!(reply[start + 13], RST);
            assert_eq!(
                reply[start + 4..start + 8],
                2000_u32.to_be_bytes(),
                "at the number that was acknowledged"
            );
            assert!(is_sealed(&reply));
            assert_eq!(pipeline.take_reply(), None);
        }
        // A reset is never answered, and UDP goes on from a new port.
        assert_eq!(through(&mut up, ms(31 * S), &tcp(version, 5000, 1883, RST, b"")), None);
        assert_eq!(up.take_reply(), None);
        assert!(through(&mut up, ms(31 * S), &udp(version, 5000, 14_567, b"")).is_some());
    }
}

#[test]
fn without_ack_the_rst_acknowledges_what_came() {
    let (_, mut down) = Pipeline::pair(&link("nat=rst@30s"), 1);
    assert_eq!(through(&mut down, ms(31 * S), &tcp(4, 1883, 5000, SYN, b"four")), None);
    let reply = down.take_reply().unwrap();
    assert_eq!(reply[20 + 13], RST | ACK);
    assert_eq!(reply[20 + 4..20 + 12], [[0; 4], 1005_u32.to_be_bytes()].concat());
    assert!(is_sealed(&reply));
}

#[test]
fn replies_carry_the_link_header_back() {
    let (up, _) = Pipeline::pair(&link("nat=rst@30s"), 1);
    let mut up = up.with_link_header(14);
    let mut frame: Vec<u8> = (1..=12).chain([8, 0]).collect();
    frame.extend(tcp(4, 5000, 1883, ACK, b""));
    assert_eq!(through(&mut up, ms(31 * S), &frame), None);
    let reply = up.take_reply().unwrap();
    assert_eq!(reply[..14], [7, 8, 9, 10, 11, 12, 1, 2, 3, 4, 5, 6, 8, 0]);
    assert!(is_sealed(&reply[14..]));
}

#[test]
fn a_move_changes_the_address_too() {
    for version in [4, 6] {
        let (mut up, mut down) = Pipeline::pair(&link("nat=move@1s,2s"), 1);
        let packet = udp(version, 5000, 14_567, b"hello");
        assert_eq!(through(&mut up, ms(500), &packet), Some(packet.clone()));
        for (at, host) in [(1500, 1 ^ 0x41), (2500, 1 ^ 0x42)] {
            let moved = through(&mut up, ms(at), &packet).unwrap();
            assert_eq!(hosts(&moved), (host, 2));
            assert!(is_sealed(&moved));
            assert_eq!(through(&mut down, ms(at), &answer(&moved)), Some(answer(&packet)));
        }
    }
}

#[test]
fn the_time_of_leaving_decides() {
    let mut up = Pipeline::pair(&link("nat=rebind@1s delay=100ms"), 1).0;
    let packet = udp(4, 5000, 14_567, b"");
    for at in [850, 950] {
        up.handle(ms(at), &packet);
    }
    let left: Vec<bool> =
        std::iter::from_fn(|| up.take_due(ms(2 * S))).map(|d| ports(&d.bytes).0 == 5000).collect();
    assert_eq!(left, [true, false]);
}

#[test]
fn unknown_flows_are_dropped_and_other_protocols_pass() {
    let (_, mut down) = Pipeline::pair(&link("nat=rebind:30s"), 1);
    assert_eq!(through(&mut down, ms(S), &udp(4, 53, 5000, b"")), None);
    let mut icmp = udp(4, 0x0800, 0, b"ping");
    icmp[9] = 1;
    assert_eq!(through(&mut down, ms(S), &icmp), Some(icmp.clone()));
}

#[test]
fn the_right_end_may_be_the_one_behind_the_nat() {
    let (mut up, mut down) = Pipeline::pair(&link("down: nat=rebind@1s"), 1);
    let packet = udp(4, 5000, 14_567, b"");
    let sent = through(&mut down, ms(2 * S), &packet).unwrap();
    assert_ne!(ports(&sent).0, 5000);
    assert_eq!(through(&mut up, ms(2 * S), &answer(&sent)), Some(answer(&packet)));
}

proptest! {
    #[test]
    fn rewritten_checksums_are_those_from_scratch(
        payload in prop::collection::vec(any::<u8>(), 0..300),
        source in 1_u16..,
        destination: u16,
        seed: u64,
        is_tcp: bool,
        version in prop::sample::select(vec![4_u8, 6]),
    ) {
        let (mut up, mut down) = Pipeline::pair(&link("nat=move@1s"), seed);
        let packet = match is_tcp {
            true => tcp(version, source, destination, SYN, &payload),
            false => udp(version, source, destination, &payload),
        };
        let sent = through(&mut up, ms(2 * S), &packet).unwrap();
        prop_assert!(is_sealed(&sent));
        prop_assert_ne!(&sent, &packet);
        let mut back = answer(&sent);
        seal(&mut back);
        prop_assert_eq!(through(&mut down, ms(2 * S), &back), Some(answer(&packet)));
    }

    #[test]
    fn a_wrong_checksum_stays_wrong(payload in prop::collection::vec(any::<u8>(), 2..50), bit in 0_usize..16) {
        let mut up = Pipeline::pair(&link("nat=rebind@1s"), 1).0;
        let mut packet = udp(4, 5000, 14_567, &payload);
        packet[28 + bit / 8] ^= 1 << (bit % 8);
        let sent = through(&mut up, ms(2 * S), &packet).unwrap();
        prop_assert!(!is_sealed(&sent));
    }

    #[test]
    fn garbage_never_panics(packet in prop::collection::vec(any::<u8>(), 0..120), first: u8, version in 4_u8..7) {
        let (mut up, mut down) = Pipeline::pair(&link("nat=rst@1s match=tcp,udp:7,icmp corrupt=50%"), 1);
        let mut packet = packet;
        if let Some(byte) = packet.first_mut() {
            *byte = version << 4 | first & 15;
        }
        for pipeline in [&mut up, &mut down] {
            pipeline.handle(ms(2 * S), &packet);
            while pipeline.take_due(ms(2 * S)).is_some() {}
            let _ = pipeline.take_reply();
            prop_assert_eq!(pipeline.counters().queued.packets, 0);
        }
    }
}

#[test]
fn a_udp_packet_without_checksum_keeps_none() {
    let mut up = Pipeline::pair(&link("nat=rebind@1s"), 1).0;
    let mut packet = udp(4, 5000, 14_567, b"x");
    packet[26..28].fill(0);
    let sent = through(&mut up, ms(2 * S), &packet).unwrap();
    assert_eq!(sent[26..28], [0, 0]);
}

#[test]
fn a_computed_checksum_of_0_is_sent_as_all_ones() {
    let mut up = Pipeline::pair(&link("nat=rebind@1s"), 1).0;
    let mut ones = 0;
    for word in 0..=u16::MAX {
        let packet = udp(4, 5000, 14_567, &word.to_be_bytes());
        let sent = through(&mut up, ms(2 * S), &packet).unwrap();
        assert!(is_sealed(&sent), "payload {word:#06x}");
        ones += u32::from(sent[26..28] == [0xff, 0xff]);
        while up.take_verdict().is_some() {}
    }
    assert_eq!(ones, 1);
}

#[test]
fn a_rebind_happens_at_its_nanosecond() {
    for text in ["nat=rebind@1s", "nat=rebind:1s"] {
        let mut up = Pipeline::pair(&link(text), 1).0;
        let packet = udp(4, 5000, 14_567, b"");
        let before = through(&mut up, ms(S) - Duration::from_nanos(1), &packet).unwrap();
        let after = through(&mut up, ms(S), &packet).unwrap();
        assert_eq!((ports(&before).0, ports(&after).0 == 5000), (5000, false), "{text}");
    }
}
