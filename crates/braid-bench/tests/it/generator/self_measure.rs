use std::time::Duration;

use braid_bench::generator::{SelfMeasure, measure_self};

/// That it works; how fast it is, a build with optimizations tells.
#[test]
fn the_generator_measures_itself() {
    let how = SelfMeasure { clients: 2, size: 64, time: Duration::from_millis(200) };
    let measured = measure_self(how).expect("there is a loopback interface");
    assert!(measured.messages > 0 && measured.elapsed >= how.time, "{measured:?}");
    assert!(measured.cpu > Duration::ZERO && measured.per_cpu_second() > 0.0, "{measured:?}");
}
