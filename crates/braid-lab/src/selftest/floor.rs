//! A link that does nothing: how fast it is, and whether packets are packets.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::bench::{Bench, CellError, MTU, collect, is_timeout};
use super::findings::Findings;
use super::statistics::quantile;
use crate::wire::sys;

/// Ways there and back.
const ROUND_TRIPS: usize = 500;
/// One send of segments.
const SEGMENTS: usize = 10;
const SEGMENT: u16 = 1200;
const SENDS: usize = 20;
/// IP and UDP header.
const HEADERS: u64 = 28;

pub(super) fn run(bench: &Bench<'_>, findings: &mut Findings) -> Result<(), CellError> {
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
    findings.figure("round_trip_floor_us", quantile(&times, 0.0));
    findings.figure("round_trip_p50_us", quantile(&times, 0.5));
    findings.judge(&lab.stop(), Duration::ZERO);
    Ok(())
}

/// Round trips in microseconds, as many as come in a short cell.
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

/// Sends segments the way that fast programs do, and looks whether the link sees each by itself.
fn segments(bench: &Bench<'_>, findings: &mut Findings) -> Result<(), CellError> {
    let lab = bench.lay(&[("segments", "")])?;
    for offload in lab.offloads() {
        findings.refuse(format!("an offload is on: {offload}"));
    }
    let [left, right] = lab.udp(0)?;
    sys::segment_sends(left.as_fd(), SEGMENT)?;
    let large = vec![0; SEGMENTS * usize::from(SEGMENT)];
    let mut sent = 0;
    let came = collect(&right, || {
        for _ in 0..SENDS {
            match left.send(&large) {
                Ok(_) => sent += SEGMENTS as u64,
                // Without checksums by the device some kernels refuse it, and then no program can.
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
    let arrived = came.len() as u64;
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
    findings.judge(&links, Duration::ZERO);
    Ok(())
}
