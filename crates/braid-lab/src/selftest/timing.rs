//! Cells of the selftest about time: round trips, bulk, and the accuracy of delays.

use std::io::{self, Read, Write};
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use braid_measure::quantile;
use rustix::net::sockopt;

use super::bench::{Bench, CellError, Datagram, Findings, MTU, collect, is_timeout};
use super::validity::Doubt;
use crate::wire::sys;

// === A link that does nothing ===

/// Number of round trips.
const ROUND_TRIPS: usize = 500;
/// Segments in one send.
const SEGMENTS: usize = 10;
const SEGMENT: u16 = 1200;
const SENDS: usize = 20;
/// IP and UDP header, bytes.
const HEADERS: u64 = 28;

pub(super) fn floor(bench: &Bench<'_>, findings: &mut Findings) -> Result<(), CellError> {
    round_trips(bench, findings)?;
    segments(bench, findings)
}

fn round_trips(bench: &Bench<'_>, findings: &mut Findings) -> Result<(), CellError> {
    let lab = bench.lay(&[("floor", "")])?;
    let [left, right] = lab.udp(0)?;
    let is_over = AtomicBool::new(false);
    let mut times = thread::scope(|scope| {
        let echo = scope.spawn(|| -> io::Result<()> {
            while !is_over.load(Ordering::Acquire) {
                match right.recv(&mut [0]) {
                    Ok(_) => drop(right.send(&[1])?),
                    Err(error) if is_timeout(&error) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        });
        let times = ping(bench, &left);
        is_over.store(true, Ordering::Release);
        let echoed = echo.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        echoed.and(times)
    })?;
    times.sort_by(f64::total_cmp);
    findings.expect(!times.is_empty(), || "no packet came back over a link that does nothing".to_owned());
    findings.figure("round_trip_floor_us", quantile(&times, 0.0).unwrap_or(0.0));
    findings.figure("round_trip_p50_us", quantile(&times, 0.5).unwrap_or(0.0));
    findings.check_links(&lab.stop(), Duration::ZERO);
    Ok(())
}

/// Round-trip times in microseconds, at most as many as fit into a short cell.
fn ping(bench: &Bench<'_>, left: &UdpSocket) -> io::Result<Vec<f64>> {
    let end = Instant::now() + bench.short_cell();
    let mut times = Vec::new();
    while times.len() < ROUND_TRIPS && Instant::now() < end && !bench.is_stopped() {
        let start = Instant::now();
        left.send(&[1])?;
        if left.recv(&mut [0]).is_ok() {
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
    }
    Ok(times)
}

/// Sends segments with UDP_SEGMENT, as fast programs do, and checks that the link sees each as a packet.
fn segments(bench: &Bench<'_>, findings: &mut Findings) -> Result<(), CellError> {
    let lab = bench.lay(&[("segments", "")])?;
    for offload in lab.offloads() {
        findings.refuse(format!("an offload is on: {offload}"));
    }
    let [left, right] = lab.udp(0)?;
    sys::set(left.as_fd(), sys::SEGMENT_SENDS, SEGMENT)?;
    let large = vec![0; SEGMENTS * usize::from(SEGMENT)];
    let mut sent = 0;
    let received = collect(&right, || {
        for _ in 0..SENDS {
            match left.send(&large) {
                Ok(_) => sent += SEGMENTS as u64,
                // Some kernels refuse it without checksum offload; then no program can use it either.
                Err(error) if error.raw_os_error() == Some(libc::EIO) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    })?;
    let links = lab.stop();
    let counters = links.first().map(|link| link.stopped.up.counters).unwrap_or_default();
    findings.figure("segments_sent_packets", sent as f64);
    findings.figure("segments_seen_packets", counters.offered.packets as f64);
    findings.figure("largest_packet_bytes", counters.largest as f64);
    let arrived = received.len() as u64;
    findings.expect(counters.offered.packets == sent && arrived == sent, || {
        format!(
            "{sent} segments were sent, the link saw {} packets and {arrived} arrived: an offload joins them",
            counters.offered.packets
        )
    });
    let expected = if sent == 0 { 0 } else { u64::from(SEGMENT) + HEADERS };
    findings.expect(counters.largest == expected && expected <= MTU.into(), || {
        format!(
            "the largest packet had {} bytes instead of {expected}: an offload joins them",
            counters.largest
        )
    });
    findings.check_links(&links, Duration::ZERO);
    Ok(())
}

// === Bulk ===

pub(super) fn bulk(bench: &Bench<'_>, findings: &mut Findings) -> Result<(), CellError> {
    let lab = bench.lay(&[("bulk", "")])?;
    let [mut left, mut right] = lab.tcp()?;
    // Cubic fills a path best; without it the kernel's default is used.
    let _ = sockopt::set_tcp_congestion(&left, "cubic");
    let start = Instant::now();
    let is_over = AtomicBool::new(false);
    let received = thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let (mut buffer, mut received) = (vec![0; 1 << 17], 0);
            while !is_over.load(Ordering::Acquire) {
                received += right.read(&mut buffer).unwrap_or(0) as u64;
            }
            received
        });
        let chunk = vec![0; 1 << 16];
        let end = start + bench.short_cell();
        let mut outcome = Ok(());
        // A link that accepts no more data shows in the number of received bytes.
        while outcome.is_ok() && Instant::now() < end && !bench.is_stopped() {
            outcome = left
                .write(&chunk)
                .map(drop)
                .or_else(|error| if is_timeout(&error) { Ok(()) } else { Err(error) });
        }
        is_over.store(true, Ordering::Release);
        let received = receiver.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        outcome.map(|()| received)
    })?;
    let elapsed = start.elapsed();
    let links = lab.stop();
    for link in &links {
        let ends = [&link.stopped.up, &link.stopped.down];
        let packets: u64 = ends.iter().map(|end| end.counters.offered.packets).sum();
        let cpu: Duration = ends.iter().map(|end| end.cpu).sum();
        findings.figure("cpu_per_packet_us", cpu.as_secs_f64() * 1e6 / packets.max(1) as f64);
        findings.figure("bulk_packets", packets as f64);
        // Losses here only slow TCP down.
        findings.figure("bulk_missed_packets", ends.iter().map(|end| end.missed as f64).sum());
        let above: u64 = ends.iter().map(|end| end.above_mtu).sum();
        findings.expect(above == 0, || format!("TCP sent {above} packets above the MTU: an offload is on"));
    }
    findings.expect(received > 0, || "nothing arrived over TCP".to_owned());
    findings.figure("bulk_mbit", received as f64 * 8.0 / 1e6 / elapsed.as_secs_f64());
    Ok(())
}

// === Delay ===

const DELAY: Duration = Duration::from_millis(10);
const SPACING: Duration = Duration::from_millis(2);

/// Error of an arrival (us): the kernel notes it on the system's clock, which is read beside the monotonic one, one
/// after the other, and runs at its own rate.
const CLOCK_ERROR: f64 = 20.0;

pub(super) fn delay(bench: &Bench<'_>, findings: &mut Findings) -> Result<(), CellError> {
    let lab = bench.lay(&[("delay", "up: delay=10ms")])?;
    let [left, right] = lab.udp(0)?;
    let start = Instant::now();
    let mut sent = 0;
    let received = collect(&right, || {
        let send = |_| left.send(&nanos(start.elapsed()).to_be_bytes()).map(drop);
        sent = bench.pace(bench.cell(), SPACING, send)?;
        Ok(())
    })?;
    let links = lab.stop();
    let error = |datagram: &Datagram| {
        let left_at = Duration::from_nanos(u64::from_be_bytes(datagram.bytes[..].try_into().ok()?));
        Some((datagram.at.duration_since(start).as_secs_f64() - (left_at + DELAY).as_secs_f64()) * 1e6)
    };
    let mut errors: Vec<f64> = received.iter().filter_map(error).collect();
    errors.sort_by(f64::total_cmp);
    let [early, p50, p99] = [0.0, 0.5, 0.99].map(|share| quantile(&errors, share).unwrap_or(0.0));
    findings.figure("delay_error_p50_us", p50);
    findings.figure("delay_error_p99_us", p99);
    for link in &links {
        findings.figure("lateness_p50_us", link.stopped.up.lateness.p50_us);
        findings.figure("lateness_p99_us", link.stopped.up.lateness.p99_us);
    }
    let arrived = errors.len();
    findings
        .expect(arrived as u64 == u64::from(sent), || format!("of {sent} delayed packets {arrived} arrived"));
    findings.expect(early >= -CLOCK_ERROR, || format!("a packet came {:.0} us before its time", -early));
    if let Some(doubt) = too_late([p50, p99], findings.bound(DELAY)) {
        findings.refuse(doubt);
    }
    findings.check_links(&links, DELAY);
    Ok(())
}

/// Doubt about a median and p99 lateness (us) above `bound`.
fn too_late([p50, p99]: [f64; 2], bound: Duration) -> Option<Doubt> {
    let bound = bound.as_secs_f64() * 1e6;
    let (share, late) = match (p50 > bound, p99 > bound) {
        (true, _) => ("half", p50),
        (false, true) => ("1 %", p99),
        (false, false) => return None,
    };
    Some(Doubt::busy(format!(
        "{share} of the packets came more than {late:.0} us late, and {bound:.0} are tolerated"
    )))
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_p99_are_held_to_the_bound() {
        let bound = Duration::from_millis(1);
        assert_eq!(too_late([900.0, 1000.0], bound), None);
        let doubt = too_late([50.0, 1001.0], bound).unwrap();
        assert_eq!(
            doubt.what,
            "1 % of the packets came more than 1001 us late, and 1000 are tolerated: the machine is too busy"
        );
        assert!(
            too_late([1200.0, 3000.0], bound)
                .unwrap()
                .what
                .starts_with("half of the packets came more than 1200 us")
        );
        assert_eq!(too_late([1200.0, 3000.0], Duration::from_millis(5)), None);
    }
}
