//! What the emulator itself costs: a TCP connection as fast as it goes.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use super::bench::{Bench, CellError, is_timeout};
use super::findings::Findings;

pub(super) fn run(bench: &Bench<'_>, findings: &mut Findings) -> Result<(), CellError> {
    let lab = bench.lay(&[("bulk", "")])?;
    let [mut left, mut right] = lab.tcp()?;
    // Nothing else fills a path that well; without it the kernel's own choice does.
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
        // A link that takes nothing any more shows in what arrived.
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
        // Losses there slow TCP down and nothing else.
        findings.figure("bulk_missed_packets", ends.iter().map(|end| end.missed as f64).sum());
        let above: u64 = ends.iter().map(|end| end.above_mtu).sum();
        findings.expect(above == 0, || format!("TCP sent {above} packets above the MTU: an offload is on"));
    }
    findings.expect(received > 0, || "nothing arrived over TCP".to_owned());
    findings.figure("bulk_mbit", received as f64 * 8.0 / 1e6 / elapsed.as_secs_f64());
    Ok(())
}
