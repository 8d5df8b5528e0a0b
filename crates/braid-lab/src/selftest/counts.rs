//! Cells of the selftest about counts: random impairments, rates and the policer.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use super::bench::{Bench, CellError, Datagram, Findings, collect};
use super::validity::{chi_square, is_plausible};
use crate::testbed::LinkEnd;
use crate::wire::sys;
use braid_emulator::PathCounters;

// === Loss, duplication, corruption ===

const SHARE: f64 = 0.1;
/// 1000 packets per second on each of three links.
const CHANCE_SPACING: Duration = Duration::from_millis(1);
const CHANCE_PAYLOAD: usize = 1000;
/// Name and text of each link.
const CHANCE_LINKS: [(&str, &str); 3] =
    [("loss", "up: loss=10%"), ("dup", "up: dup=10%"), ("corrupt", "up: corrupt=10%")];

pub(super) fn chance(bench: &Bench<'_>, findings: &mut Findings) -> Result<(), CellError> {
    let lab = bench.lay(&CHANCE_LINKS)?;
    let mut sockets = Vec::new();
    for number in 0..3 {
        sockets.push(lab.udp(number)?);
    }
    let measured = thread::scope(|scope| {
        let threads: Vec<_> =
            sockets.iter().map(|ends| scope.spawn(|| measure_chance(bench, ends))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect::<io::Result<Vec<_>>>()
    })?;
    let links = lab.stop();
    for ((sent, received), link) in measured.into_iter().zip(&links) {
        check_chance(link, sent, &received, findings);
    }
    findings.check_links(&links, Duration::ZERO);
    Ok(())
}

/// Payload of packet `number`.
fn payload(number: u32) -> Vec<u8> {
    let mut payload = vec![0x5a; CHANCE_PAYLOAD];
    payload[..4].copy_from_slice(&number.to_be_bytes());
    payload
}

fn measure_chance(bench: &Bench<'_>, [left, right]: &[UdpSocket; 2]) -> io::Result<(u32, Vec<Datagram>)> {
    // With a checksum the kernel would drop corrupted packets before this program sees them.
    sys::set(left.as_fd(), sys::OMIT_CHECKSUMS, 1)?;
    let mut sent = 0;
    let received = collect(right, || {
        sent = bench.pace(bench.cell(), CHANCE_SPACING, |number| left.send(&payload(number)).map(drop))?;
        Ok(())
    })?;
    Ok((sent, received))
}

/// Compares arrivals with the counters of the emulator, which must be equal, and with the configured probability.
fn check_chance(link: &LinkEnd, sent: u32, received: &[Datagram], findings: &mut Findings) {
    let PathCounters { offered, lost, duplicated, corrupted, .. } = link.stopped.up.counters;
    let whole = |datagram: &Datagram| {
        let number = datagram.bytes.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))?;
        (number < sent && datagram.bytes == payload(number)).then_some(number)
    };
    let mut numbers: Vec<u32> = received.iter().filter_map(whole).collect();
    let intact = numbers.len() as u64;
    numbers.sort_unstable();
    numbers.dedup();
    let distinct = numbers.len() as u64;
    let name = link.name.as_str();
    let sent = u64::from(sent);
    // A corrupted packet arrives unless the flipped bit is in its headers.
    let (by_emulator, by_arrival) = match name {
        "loss" => (lost.packets, sent - distinct),
        "dup" => (duplicated.packets, intact - distinct),
        _ => (corrupted.packets, sent - intact),
    };
    findings.figure(&format!("{name}_percent"), by_arrival as f64 * 100.0 / sent.max(1) as f64);
    findings.figure(&format!("{name}_chi_square"), chi_square(by_arrival, sent, SHARE));
    findings.expect(offered.packets == sent, || {
        format!("{sent} packets were sent to the link {name}, and it saw {}", offered.packets)
    });
    findings.expect(by_emulator == by_arrival, || {
        format!("{name}: {by_emulator} packets by the emulator, {by_arrival} by what arrived")
    });
    findings.expect(is_plausible(by_arrival, sent, SHARE), || {
        format!("{name}: {by_arrival} of {sent} packets are not 10 %")
    });
}

// === Rates ===

/// Tolerated error of a rate.
const TOLERANCE_PERCENT: f64 = 1.0;
const PACKETS_PER_SECOND: u32 = 200;
const BITS_PER_SECOND: u32 = 8_000_000;
/// 10,000 bits with headers.
const RATE_PAYLOAD: usize = 1250 - 28;
const BITS_PER_PACKET: u32 = 10_000;
const POLICER_RATE: f64 = 29.0;
const POLICER_BURST: f64 = 5.0;
const POLICED_SPACING: Duration = Duration::from_millis(2);
const RATE_LINKS: [(&str, &str); 3] = [
    ("rate_pps", "up: rate=200pps limit=100000p"),
    ("rate_mbit", "up: rate=8mbit limit=100000p"),
    ("policer", "up: policer=29pps/5"),
];

/// Sent and received packets of a link.
struct Traffic {
    sent: u32,
    /// Time from the first to the last send.
    took: Duration,
    received: Vec<Datagram>,
}

pub(super) fn rates(bench: &Bench<'_>, findings: &mut Findings) -> Result<(), CellError> {
    let lab = bench.lay(&RATE_LINKS)?;
    let [packets, bits, policer] = [lab.udp(0)?, lab.udp(1)?, lab.udp(2)?];
    let cell = bench.cell();
    // Sent at once: the link must spread them over the cell.
    let by_packets = share(cell, PACKETS_PER_SECOND);
    let by_bits = share(cell, BITS_PER_SECOND / BITS_PER_PACKET);
    let [packets, bits, policer] = thread::scope(|scope| {
        let threads = [
            scope.spawn(|| measure_rate(bench, &packets, cell, |send| burst(by_packets, send))),
            scope.spawn(|| measure_rate(bench, &bits, cell, |send| burst(by_bits, send))),
            scope.spawn(|| {
                measure_rate(bench, &policer, Duration::ZERO, |send| bench.pace(cell, POLICED_SPACING, send))
            }),
        ];
        threads.map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    let links = lab.stop();
    check_rate("rate_pps", &packets?, f64::from(PACKETS_PER_SECOND), findings);
    check_rate("rate_mbit", &bits?, f64::from(BITS_PER_SECOND / BITS_PER_PACKET), findings);
    check_policer(&policer?, &links, findings);
    findings.check_links(&links, Duration::ZERO);
    Ok(())
}

/// Number of packets in `cell` at `per_second`.
fn share(cell: Duration, per_second: u32) -> u32 {
    u32::try_from(cell.as_millis() * u128::from(per_second) / 1000).unwrap_or(u32::MAX)
}

type Send<'a> = &'a mut dyn FnMut(u32) -> io::Result<()>;

fn burst(count: u32, send: Send<'_>) -> io::Result<u32> {
    (0..count).try_for_each(send)?;
    Ok(count)
}

/// Runs `offer`, then waits until `after` has passed since its start.
fn measure_rate(
    bench: &Bench<'_>,
    [left, right]: &[UdpSocket; 2],
    after: Duration,
    offer: impl FnOnce(Send<'_>) -> io::Result<u32>,
) -> io::Result<Traffic> {
    let payload = [0; RATE_PAYLOAD];
    let (mut sent, mut took) = (0, Duration::ZERO);
    let received = collect(right, || {
        let start = Instant::now();
        sent = offer(&mut |_| {
            took = start.elapsed();
            left.send(&payload).map(drop)
        })?;
        bench.sleep(after.saturating_sub(start.elapsed()));
        Ok(())
    })?;
    Ok(Traffic { sent, took, received })
}

fn check_rate(name: &str, traffic: &Traffic, expected: f64, findings: &mut Findings) {
    let Traffic { sent, received, .. } = traffic;
    let arrived = received.len();
    findings.expect(arrived as u64 == u64::from(*sent), || {
        format!("{name}: of {sent} packets {arrived} arrived")
    });
    let (Some(first), Some(last)) = (received.first(), received.last().filter(|_| arrived > 1)) else {
        return;
    };
    let rate = (arrived - 1) as f64 / last.at.duration_since(first.at).as_secs_f64();
    let error = (rate / expected - 1.0) * 100.0;
    findings.figure(&format!("{name}_error_percent"), error);
    findings.expect(error.abs() <= TOLERANCE_PERCENT, || {
        format!("{name}: {rate:.1} packets per second instead of {expected:.1}")
    });
}

/// Checks the policer: a burst, then the rate; the edges of the time allow two packets.
fn check_policer(traffic: &Traffic, links: &[LinkEnd], findings: &mut Findings) {
    let arrived = traffic.received.len() as f64;
    let expected = POLICER_BURST + POLICER_RATE * traffic.took.as_secs_f64();
    findings.figure("policer_accepted_packets", arrived);
    findings.figure("policer_expected_packets", expected.floor());
    findings.expect((arrived - expected).abs() <= 2.0, || {
        format!("the policer accepted {arrived} packets, {expected:.1} were expected")
    });
    let policed =
        links.iter().find(|link| link.name == "policer").map(|link| link.stopped.up.counters.policed);
    let policed = policed.unwrap_or_default().packets;
    findings.expect(policed + traffic.received.len() as u64 == u64::from(traffic.sent), || {
        format!("of {} packets {arrived} arrived and {policed} were policed", traffic.sent)
    });
}
