//! Rates in packets and in bits, and the policer.

use std::io;
use std::net::UdpSocket;
use std::thread;
use std::time::{Duration, Instant};

use super::bench::{Bench, Came, CellError, collect};
use super::findings::Findings;
use crate::house::LinkEnd;

/// How far a rate may be off.
const TOLERANCE_PERCENT: f64 = 1.0;
const PACKETS_PER_SECOND: u32 = 200;
const BITS_PER_SECOND: u32 = 8_000_000;
/// 10,000 bits with its headers.
const PAYLOAD: usize = 1250 - 28;
const BITS_PER_PACKET: u32 = 10_000;
const POLICER_RATE: f64 = 29.0;
const POLICER_BURST: f64 = 5.0;
const POLICED_SPACING: Duration = Duration::from_millis(2);
const LINKS: [(&str, &str); 3] = [
    ("rate_pps", "up: rate=200pps limit=100000p"),
    ("rate_mbit", "up: rate=8mbit limit=100000p"),
    ("policer", "up: policer=29pps/5"),
];

/// What was sent and what came.
struct Traffic {
    sent: u32,
    /// From the first to the last that was sent.
    took: Duration,
    came: Vec<Came>,
}

pub(super) fn run(bench: &Bench<'_>, findings: &mut Findings) -> Result<(), CellError> {
    let lab = bench.lay(&LINKS)?;
    let [packets, bits, policer] = [lab.udp(0)?, lab.udp(1)?, lab.udp(2)?];
    let cell = bench.cell();
    // All at once: the link must stretch them over the time of the cell.
    let by_packets = share(cell, PACKETS_PER_SECOND);
    let by_bits = share(cell, BITS_PER_SECOND / BITS_PER_PACKET);
    let [packets, bits, policer] = thread::scope(|scope| {
        let threads = [
            scope.spawn(|| measure(bench, &packets, cell, |send| burst(by_packets, send))),
            scope.spawn(|| measure(bench, &bits, cell, |send| burst(by_bits, send))),
            scope.spawn(|| {
                measure(bench, &policer, Duration::ZERO, |send| bench.pace(cell, POLICED_SPACING, send))
            }),
        ];
        threads.map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    let links = lab.stop();
    judge_rate("rate_pps", &packets?, f64::from(PACKETS_PER_SECOND), findings);
    judge_rate("rate_mbit", &bits?, f64::from(BITS_PER_SECOND / BITS_PER_PACKET), findings);
    judge_policer(&policer?, &links, findings);
    findings.judge(&links, Duration::ZERO);
    Ok(())
}

/// How many of `per_second` come in `cell`.
fn share(cell: Duration, per_second: u32) -> u32 {
    u32::try_from(cell.as_millis() * u128::from(per_second) / 1000).unwrap_or(u32::MAX)
}

type Send<'a> = &'a mut dyn FnMut(u32) -> io::Result<()>;

fn burst(count: u32, send: Send<'_>) -> io::Result<u32> {
    (0..count).try_for_each(send)?;
    Ok(count)
}

/// Lets `offer` send, then waits for what may take as long as `after`.
fn measure(
    bench: &Bench<'_>,
    [left, right]: &[UdpSocket; 2],
    after: Duration,
    offer: impl FnOnce(Send<'_>) -> io::Result<u32>,
) -> io::Result<Traffic> {
    let payload = [0; PAYLOAD];
    let (mut sent, mut took) = (0, Duration::ZERO);
    let came = collect(right, || {
        let start = Instant::now();
        sent = offer(&mut |_| {
            took = start.elapsed();
            left.send(&payload).map(drop)
        })?;
        bench.sleep(after.saturating_sub(start.elapsed()));
        Ok(())
    })?;
    Ok(Traffic { sent, took, came })
}

fn judge_rate(name: &str, traffic: &Traffic, expected: f64, findings: &mut Findings) {
    let Traffic { sent, came, .. } = traffic;
    let arrived = came.len();
    findings.expect(arrived as u64 == u64::from(*sent), || {
        format!("{name}: of {sent} packets {arrived} arrived")
    });
    let (Some(first), Some(last)) = (came.first(), came.last().filter(|_| arrived > 1)) else { return };
    let rate = (arrived - 1) as f64 / last.at.duration_since(first.at).as_secs_f64();
    let error = (rate / expected - 1.0) * 100.0;
    findings.figure(&format!("{name}_error_percent"), error);
    findings.expect(error.abs() <= TOLERANCE_PERCENT, || {
        format!("{name}: {rate:.1} packets per second instead of {expected:.1}")
    });
}

/// A burst, and then the rate: not one packet more or less, but for the two ends of the time.
fn judge_policer(traffic: &Traffic, links: &[LinkEnd], findings: &mut Findings) {
    let arrived = traffic.came.len() as f64;
    let expected = POLICER_BURST + POLICER_RATE * traffic.took.as_secs_f64();
    findings.figure("policer_accepted_packets", arrived);
    findings.figure("policer_expected_packets", expected.floor());
    findings.expect((arrived - expected).abs() <= 2.0, || {
        format!("the policer accepted {arrived} packets, {expected:.1} were expected")
    });
    let policed =
        links.iter().find(|link| link.name == "policer").map(|link| link.stopped.up.counters.policed);
    let policed = policed.unwrap_or_default().packets;
    findings.expect(policed + traffic.came.len() as u64 == u64::from(traffic.sent), || {
        format!("of {} packets {arrived} arrived and {policed} were policed", traffic.sent)
    });
}
