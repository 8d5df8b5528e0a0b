use std::time::Duration;

use braid_bench::generator::{SelfMeasure, measure_self};
use braid_proto::packet::QoS;

/// Tests that it works; a build with optimizations tells its speed.
#[test]
fn the_generator_measures_itself() {
    let how = SelfMeasure { clients: 2, time: Duration::from_millis(200), ..SelfMeasure::default() };
    let measured = measure_self(how).expect("there is a loopback interface");
    assert!(measured.messages > 0 && measured.elapsed >= how.time, "{measured:?}");
    assert!(measured.cpu > Duration::ZERO && measured.per_cpu_second() > 0.0, "{measured:?}");
}

#[test]
fn acknowledged_and_paced_load_is_measured_too() {
    for interval in [0, 10] {
        let interval = Duration::from_millis(interval);
        let time = Duration::from_millis(200);
        let how = SelfMeasure { clients: 2, time, qos: QoS::AtLeastOnce, interval, ..SelfMeasure::default() };
        let measured = measure_self(how).expect("there is a loopback interface");
        assert!(measured.messages > 0 && measured.per_second() > 0.0, "{measured:?}");
        // Two clients, twenty times ten milliseconds.
        assert!(interval.is_zero() || measured.messages <= 40, "{measured:?}");
    }
}
