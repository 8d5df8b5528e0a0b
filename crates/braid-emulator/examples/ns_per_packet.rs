//! Prints what the pure pipeline costs per packet: `cargo run --release --example ns_per_packet`.

use std::time::{Duration, Instant};

use braid_emulator::{LinkSpec, Pipeline};

const PACKETS: u32 = 2_000_000;
const WARM_UP: u32 = 200_000;
/// Time between two packets: 100,000 packets/s.
const SPACING: Duration = Duration::from_micros(10);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("{:>7} {:>7}  link, packets of 1400 bytes at 100,000/s", "ns", "sent");
    for text in [
        "",
        "policer=29pps/5",
        "delay=1ms",
        "delay=20ms jitter=5ms loss=1%",
        "delay=20ms jitter=5ms dist=normal loss=gemodel:1%,10% dup=2% corrupt=0.1% reorder=5%",
        "rate=2gbit limit=1000p delay=10ms order=line",
        "delay=5ms nat=rebind:1s",
        "match=udp:14567 delay=5ms",
    ] {
        let link: LinkSpec = text.parse()?;
        let mut pipeline = Pipeline::pair(&link, 1).0;
        run(&mut pipeline, 0, WARM_UP);
        let start = Instant::now();
        let sent = run(&mut pipeline, WARM_UP, PACKETS);
        let nanos = start.elapsed().as_nanos() / u128::from(PACKETS);
        println!("{nanos:>7} {:>6.1}%  {text}", f64::from(sent) / f64::from(PACKETS) * 100.0);
    }
    Ok(())
}

/// Sends `count` packets through and returns how many left.
fn run(pipeline: &mut Pipeline, first: u32, count: u32) -> u32 {
    let mut packet = [0; 1400];
    packet[0] = 0x45;
    packet[9] = 17;
    packet[20..24].copy_from_slice(&[0xc0, 0x01, 0x38, 0xe7]);
    let mut sent = 0;
    for n in first..first + count {
        let now = SPACING * n;
        pipeline.handle(now, &packet);
        while let Some(departure) = pipeline.take_due(now) {
            sent += 1;
            pipeline.recycle(departure.bytes);
        }
        while pipeline.take_verdict().is_some() {}
    }
    sent
}
