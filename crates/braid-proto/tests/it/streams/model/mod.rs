//! Random model: two ends, streams that open and end from either side at any time, and lost connections, against the
//! guarantees of MQTT 4.3 and chapters 2 to 4 of the specification, for any order in which streams are read.

mod fates;
mod wires;
mod world;

use braid_proto::packet::ProtocolVersion;
use world::World;

// [BQ-14], [BQ-20], [BQ-21], [BQ-22], [BQ-30], [BQ-34], [BQ-35], [BQ-42], [BQ-54], [MQTT-4.3.2-1], [MQTT-4.3.3-1]
#[test]
fn random_operations_on_streams_keep_the_promises_of_each_qos() {
    let (mut messages, mut ended) = (0, 0);
    for seed in 0..2_500 {
        let version = if seed % 3 == 0 { ProtocolVersion::V311 } else { ProtocolVersion::V5 };
        // Printed only on failure.
        println!("seed {seed}, {version}");
        let mut world = World::new(seed, version);
        (0..250).for_each(|_| world.step());
        world.settle();
        messages += world.up.count() + world.down.count();
        ended += world.streams_ended;
    }
    assert!(messages > 50_000 && ended > 5_000, "too little happened: {messages} messages, {ended} ends");
}
