//! Lines that vary, stand still, aggregate, or follow a recording.

use std::io::Write;
use std::time::Duration;

use braid_emulator::Departure;

use crate::drive::{link, ms, numbers, offer, serve, up, us};

fn due(left: &[Departure]) -> Vec<Duration> {
    left.iter().map(|departure| departure.due).collect()
}

#[test]
fn a_rate_that_varies_keeps_its_mean_and_its_bounds() {
    let text = "rate=2mbit-30mbit/100ms order=line limit=100000p";
    let left = offer(&mut up(text, 1), 20_000, 1250, us(100));
    // 20,000 packets of 10,000 bits at a mean of 16 Mbit/s.
    let took = left.last().unwrap().due.as_secs_f64();
    assert!((11.0..14.0).contains(&took), "{took}");
    let gaps: Vec<_> = left.windows(2).map(|two| (two[1].due - two[0].due).as_secs_f64()).collect();
    // 10,000 bits take 0.333 ms at 30 Mbit/s and 5 ms at 2.
    assert!(gaps.iter().all(|gap| (0.000_333..0.005_001).contains(gap)));
    let steps: std::collections::BTreeSet<_> =
        left.iter().zip(&gaps).map(|(departure, _)| departure.due.as_millis() / 100).collect();
    assert!(steps.len() > 100);
    assert!(gaps.iter().any(|gap| *gap < 0.000_4) && gaps.iter().any(|gap| *gap > 0.003));
    // With the same seed it varies in the same way, whatever is sent.
    let again = offer(&mut up(text, 1), 20_000, 1250, us(50));
    assert_eq!(due(&again)[1000..], due(&left)[1000..]);
    assert_ne!(due(&offer(&mut up(text, 2), 20_000, 1250, us(100))), due(&left));
}

#[test]
fn a_line_stands_still_once_in_each_period() {
    // A packet each millisecond, which takes no time worth mention.
    let left = offer(&mut up("rate=1gbit order=line stall=30ms-300ms/2s", 1), 20_000, 100, ms(1));
    let waits: Vec<_> =
        left.iter().map(|d| d.due.saturating_sub(ms(1) * u32::try_from(d.index - 1).unwrap())).collect();
    let mut stalls = vec![Duration::ZERO; 10];
    for (departure, wait) in left.iter().zip(&waits) {
        let period = usize::try_from((departure.index - 1) / 2000).unwrap();
        stalls[period] = stalls[period].max(*wait);
    }
    assert!(stalls.iter().all(|stall| (ms(29)..=ms(301)).contains(stall)), "{stalls:?}");
    assert!(stalls.windows(2).any(|two| two[0] != two[1]));
    assert_eq!(numbers(&left), (1..=20_000).collect::<Vec<_>>());
    assert!(waits.iter().filter(|wait| **wait < us(10)).count() > 15_000);
}

#[test]
fn packets_that_are_aggregated_leave_together() {
    let left = offer(&mut up("rate=100mbit order=line aggregate=2ms-10ms", 1), 10_000, 1250, us(200));
    let mut ends = due(&left);
    ends.dedup();
    let lengths: Vec<_> = ends.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(lengths.iter().all(|length| (ms(2)..=ms(10)).contains(length)), "{lengths:?}");
    let mean = 2.0 / lengths.len() as f64;
    assert!((0.005..0.007).contains(&mean), "{mean}");
    assert!(ends.len() < 400);
}

#[test]
fn a_trace_is_followed_byte_by_byte_and_begins_again() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "10\n10\n20\n50").unwrap();
    let text = format!("trace={} order=line", file.path().display());
    // Two packets fit into the first opportunity. The third ends in the second, which the fourth fills.
    let mut pipeline = up(&text, 1);
    for size in [700, 700, 700, 900, 1500] {
        pipeline.handle(ms(1), &vec![0x45; size]);
    }
    let mut left = Vec::new();
    serve(&mut pipeline, ms(100), &mut left);
    assert_eq!(due(&left), [ms(10), ms(10), ms(10), ms(10), ms(20)]);
    // Opportunities that no packet uses are lost, and the end at 50 ms is the start of the next round.
    for (at, expected) in [(55, 60), (61, 70), (71, 100), (100, 110)] {
        pipeline.handle(ms(at), &[0x45; 1500]);
        let mut left = Vec::new();
        serve(&mut pipeline, ms(at + 49), &mut left);
        assert_eq!(due(&left), [ms(expected)], "at {at}");
    }
    // An opportunity at the very time of arrival is used.
    let mut pipeline = up(&text, 1);
    pipeline.handle(ms(50), &[0x45; 1500]);
    assert_eq!(pipeline.next_due(), Some(ms(50)));
}

#[test]
fn the_traces_of_the_program_carry_what_they_say() {
    for (name, rate) in [("lte-driving", 10.05), ("lte-walking", 11.66)] {
        let trace = link(&format!("trace={name}")).up.start.trace.unwrap();
        assert!((trace.mean_rate() / 1e6 - rate).abs() < 0.01, "{name}: {}", trace.mean_rate());
        let left =
            offer(&mut up(&format!("trace={name} order=line limit=1000000p"), 1), 100_000, 1500, us(10));
        let took = left.last().unwrap().due.as_secs_f64();
        assert!((100_000.0 * 12_000.0 / took / 1e6 - rate).abs() < 0.2, "{name}: {took} s");
    }
}

#[test]
fn a_rate_may_change_while_packets_wait_for_it() {
    let mut pipeline = up("rate=10mbit order=line ; t=2ms rate=20mbit", 1);
    let mut left = Vec::new();
    for n in 0..4 {
        serve(&mut pipeline, ms(n), &mut left);
        pipeline.handle(ms(n), &[0x45; 2500]);
    }
    serve(&mut pipeline, ms(100), &mut left);
    // The first two take 2 ms each; the others, which come after the change, one.
    assert_eq!(due(&left), [ms(2), ms(4), ms(5), ms(6)]);
}

#[test]
fn a_stall_holds_up_a_packet_that_is_on_the_line() {
    // 1500 bytes take 1 s each, and each second has a stall of 200 ms.
    let left = offer(&mut up("rate=12kbit order=line stall=200ms/1s", 1), 50, 1500, us(1));
    let took = left.last().unwrap().due.as_secs_f64();
    assert!((62.0..63.5).contains(&took), "{took}");
}

#[test]
fn a_rate_that_returns_finds_the_packets_that_were_there() {
    let mut pipeline = up("rate=1mbit order=line limit=1000p ; t=1s rate=none ; t=2s rate=1mbit", 1);
    let mut left = Vec::new();
    // 8 s of packets at once, and one that comes when the rate is back.
    (0..800).for_each(|_| pipeline.handle(ms(0), &[0x45; 1250]));
    serve(&mut pipeline, ms(3000), &mut left);
    pipeline.handle(ms(3000), &[0x45; 1250]);
    serve(&mut pipeline, ms(100_000), &mut left);
    assert_eq!(left.last().map(|last| (last.index, last.due)), Some((801, ms(8010))));
}

#[test]
fn after_a_long_silence_packets_are_aggregated_at_once() {
    let mut pipeline = up("rate=100mbit order=line aggregate=100us", 1);
    let mut left = Vec::new();
    for at in [0, 80_000] {
        let at = Duration::from_secs(at);
        pipeline.handle(at, &[0x45; 125]);
        serve(&mut pipeline, at + ms(1), &mut left);
        assert!(left.pop().unwrap().due - at <= us(110));
    }
}
