//! Loss, duplication and corruption of one packet in ten: what the emulator says, and what arrives.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use super::bench::{Bench, Came, CellError, collect};
use super::findings::Findings;
use super::statistics::{chi_square, is_plausible};
use crate::emulator::PathCounters;
use crate::house::LinkEnd;
use crate::wire::sys;

const SHARE: f64 = 0.1;
/// 1000 packets a second on each of three links.
const SPACING: Duration = Duration::from_millis(1);
const PAYLOAD: usize = 1000;
/// What is counted, and what does it.
const LINKS: [(&str, &str); 3] =
    [("loss", "up: loss=10%"), ("dup", "up: dup=10%"), ("corrupt", "up: corrupt=10%")];

pub(super) fn run(bench: &Bench<'_>, findings: &mut Findings) -> Result<(), CellError> {
    let lab = bench.lay(&LINKS)?;
    let mut sockets = Vec::new();
    for number in 0..3 {
        sockets.push(lab.udp(number)?);
    }
    let measured = thread::scope(|scope| {
        let threads: Vec<_> = sockets.iter().map(|ends| scope.spawn(|| measure(bench, ends))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect::<io::Result<Vec<_>>>()
    })?;
    let links = lab.stop();
    for ((sent, came), link) in measured.into_iter().zip(&links) {
        judge(link, sent, &came, findings);
    }
    findings.judge(&links, Duration::ZERO);
    Ok(())
}

/// The payload of packet `number`.
fn payload(number: u32) -> Vec<u8> {
    let mut payload = vec![0x5a; PAYLOAD];
    payload[..4].copy_from_slice(&number.to_be_bytes());
    payload
}

fn measure(bench: &Bench<'_>, [left, right]: &[UdpSocket; 2]) -> io::Result<(u32, Vec<Came>)> {
    // With a checksum the kernel would drop what is corrupted before we see it.
    sys::omit_checksums(left.as_fd())?;
    let mut sent = 0;
    let came = collect(right, || {
        sent = bench.pace(bench.cell(), SPACING, |number| left.send(&payload(number)).map(drop))?;
        Ok(())
    })?;
    Ok((sent, came))
}

/// Compares what arrived with what the emulator says, which must be the same, and that with chance.
fn judge(link: &LinkEnd, sent: u32, came: &[Came], findings: &mut Findings) {
    let PathCounters { offered, lost, duplicated, corrupted, .. } = link.stopped.up.counters;
    let whole = |datagram: &Came| {
        let number = datagram.bytes.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))?;
        (number < sent && datagram.bytes == payload(number)).then_some(number)
    };
    let mut numbers: Vec<u32> = came.iter().filter_map(whole).collect();
    let intact = numbers.len() as u64;
    numbers.sort_unstable();
    numbers.dedup();
    let distinct = numbers.len() as u64;
    let name = link.name.as_str();
    let sent = u64::from(sent);
    // Most corrupted packets arrive; those with a flipped bit in their headers do not.
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
