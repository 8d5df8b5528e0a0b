//! How exact a delay is.

use std::time::{Duration, Instant};

use super::bench::{Bench, CellError, collect};
use super::doubt::Doubt;
use super::findings::Findings;
use super::statistics::quantile;

const DELAY: Duration = Duration::from_millis(10);
const SPACING: Duration = Duration::from_millis(2);

pub(super) fn run(bench: &Bench<'_>, findings: &mut Findings) -> Result<(), CellError> {
    let lab = bench.lay(&[("delay", "up: delay=10ms")])?;
    let [left, right] = lab.udp(0)?;
    let start = Instant::now();
    let mut sent = 0;
    let came = collect(&right, || {
        let send = |_| left.send(&nanos(start.elapsed()).to_be_bytes()).map(drop);
        sent = bench.pace(bench.cell(), SPACING, send)?;
        Ok(())
    })?;
    let links = lab.stop();
    let error = |datagram: &super::bench::Came| {
        let left_at = Duration::from_nanos(u64::from_be_bytes(datagram.bytes[..].try_into().ok()?));
        Some((datagram.at.duration_since(start).as_secs_f64() - (left_at + DELAY).as_secs_f64()) * 1e6)
    };
    let mut errors: Vec<f64> = came.iter().filter_map(error).collect();
    errors.sort_by(f64::total_cmp);
    let [p50, p99] = [0.5, 0.99].map(|share| quantile(&errors, share));
    findings.figure("delay_error_p50_us", p50);
    findings.figure("delay_error_p99_us", p99);
    for link in &links {
        findings.figure("lateness_p50_us", link.stopped.up.lateness.p50_us);
        findings.figure("lateness_p99_us", link.stopped.up.lateness.p99_us);
    }
    let arrived = errors.len();
    findings
        .expect(arrived as u64 == u64::from(sent), || format!("of {sent} delayed packets {arrived} arrived"));
    let early = quantile(&errors, 0.0);
    findings.expect(early >= 0.0, || format!("a packet came {:.0} us before its time", -early));
    if let Some(doubt) = too_late([p50, p99], findings.bound(DELAY)) {
        findings.refuse(doubt);
    }
    findings.judge(&links, DELAY);
    Ok(())
}

/// Why packets that came this late, half of them and 99 % (us), are no measure.
fn too_late([p50, p99]: [f64; 2], bound: Duration) -> Option<Doubt> {
    let bound = bound.as_secs_f64() * 1e6;
    let (share, late) = match (p50 > bound, p99 > bound) {
        (true, _) => ("half", p50),
        (false, true) => ("1 %", p99),
        (false, false) => return None,
    };
    Some(Doubt::busy(format!(
        "{share} of the packets came more than {late:.0} us late, and {bound:.0} are borne"
    )))
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_packets_and_99_percent_are_held_to_the_bound() {
        let bound = Duration::from_millis(1);
        assert_eq!(too_late([900.0, 1000.0], bound), None);
        let doubt = too_late([50.0, 1001.0], bound).unwrap();
        assert_eq!(
            doubt.what,
            "1 % of the packets came more than 1001 us late, and 1000 are borne: the machine is too busy"
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
