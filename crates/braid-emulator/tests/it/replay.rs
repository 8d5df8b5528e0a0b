//! Replay of the first packets of each UDP flow.

use braid_emulator::Pipeline;

use crate::drive::{link, ms, numbers, serve, up};
use crate::packets::{answer, tcp, udp};

#[test]
fn first_packets_of_each_udp_flow_come_once_more() {
    for version in [4, 6] {
        let mut pipeline = up("delay=10ms replay=2p/3s", 1);
        let mut left = Vec::new();
        let packets = [
            udp(version, 5000, 14_567, b"a1"),
            tcp(version, 5000, 1883, 0x02, b""),
            udp(version, 5001, 14_567, b"b1"),
            udp(version, 5000, 14_567, b"a2"),
            udp(version, 5000, 14_567, b"a3"),
            // Another server is another flow.
            udp(version, 5000, 14_568, b"c1"),
        ];
        for (at, packet) in (0..).zip(&packets) {
            serve(&mut pipeline, ms(at), &mut left);
            pipeline.handle(ms(at), packet);
        }
        serve(&mut pipeline, ms(60_000), &mut left);
        let (once, again) = left.split_at(6);
        assert_eq!(numbers(once), [1, 2, 3, 4, 5, 6]);
        assert!(once.iter().all(|departure| !departure.copy));
        let found: Vec<_> = again.iter().map(|departure| (departure.index, departure.due)).collect();
        let due = [(1, 3010), (3, 3012), (4, 3013), (6, 3015)].map(|(number, at)| (number, ms(at)));
        assert_eq!(found, due);
        for departure in again {
            assert!(departure.copy);
            assert_eq!(departure.bytes, packets[usize::try_from(departure.index).unwrap() - 1]);
        }
        let counters = pipeline.counters();
        assert_eq!((counters.offered.packets, counters.duplicated.packets), (6, 4));
        assert_eq!((counters.sent.packets, counters.queued.packets), (10, 0));
    }
}

#[test]
fn a_replay_of_one_direction_leaves_the_other_alone() {
    let (mut up, mut down) = Pipeline::pair(&link("up: replay=1p/1s"), 1);
    let packet = udp(4, 5000, 14_567, b"hello");
    up.handle(ms(0), &packet);
    down.handle(ms(0), &answer(&packet));
    assert_eq!((up.counters().duplicated.packets, down.counters().duplicated.packets), (1, 0));
}

#[test]
fn lost_and_oversized_packets_are_not_recorded() {
    for text in ["loss=100% replay=1p/1s", "mtu=68 replay=1p/1s"] {
        let mut pipeline = up(text, 1);
        pipeline.handle(ms(0), &udp(4, 5000, 14_567, &[0; 100]));
        let mut left = Vec::new();
        serve(&mut pipeline, ms(60_000), &mut left);
        assert!(left.is_empty(), "{text}");
        assert_eq!(pipeline.counters().duplicated.packets, 0, "{text}");
    }
}
