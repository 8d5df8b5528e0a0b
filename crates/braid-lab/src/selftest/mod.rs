//! Selftest of the emulator on this machine.
//!
//! [`run`] sends packets over real links and compares arrivals with the configuration. [`validity`] checks a run of an
//! experiment by the counters of its links.

mod bench;
mod counts;
mod timing;
mod validity;

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::report::SelftestResult;
use crate::testbed::WireChoice;
use bench::{Bench, CellError, Findings, POLL_INTERVAL};

pub use validity::{Doubt, lateness_bound, lateness_of, validity};

/// Options of the selftest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Duration of each long cell; short cells take a fourth of it.
    pub cell: Duration,
    /// Wire to test. `Auto` tests each that opens; only the first, which experiments use, can refuse the machine.
    pub wire: WireChoice,
    /// Whether to test only the first wire that opens.
    pub first_only: bool,
    /// Seed of the links.
    pub seed: u64,
    /// Limit of the p99 lateness, in place of the [`lateness_bound`].
    pub lateness: Option<Duration>,
    /// As in [`wire::Options`](crate::wire::Options).
    pub realtime: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            cell: Duration::from_secs(2),
            wire: WireChoice::Auto,
            first_only: false,
            seed: 1,
            lateness: None,
            realtime: false,
        }
    }
}

/// Tests this machine; the testbed must be entered. Names of figures begin with the wire: `tun_delay_error_p99_us`. A
/// cell that cannot be run is a refusal.
pub fn run(options: &Options) -> SelftestResult {
    run_until(options, &|| false)
}

/// Variant of [`run`] that ends when `stop` returns true; it is called about twenty times a second. The result has the
/// figures of complete cells, and a refusal that says it was stopped.
pub fn run_until(options: &Options, stop: &dyn Fn() -> bool) -> SelftestResult {
    let is_stopped = AtomicBool::new(stop());
    thread::scope(|scope| {
        let tests = scope.spawn(|| test_wires(options, &is_stopped));
        while !tests.is_finished() {
            thread::sleep(POLL_INTERVAL);
            if stop() {
                is_stopped.store(true, Ordering::Release);
            }
        }
        tests.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

fn test_wires(options: &Options, stop: &AtomicBool) -> SelftestResult {
    let (tun, packet) = (("tun", WireChoice::Tun), ("packet", WireChoice::Packet));
    let wires = match options.wire {
        WireChoice::Auto => vec![tun, packet],
        WireChoice::Tun => vec![tun],
        WireChoice::Packet => vec![packet],
    };
    let mut result = SelftestResult::default();
    let (mut tested, mut closed) = (0, Vec::new());
    for (name, wire) in wires {
        if options.first_only && tested > 0 {
            break;
        }
        let bench = Bench { options: options.clone(), wire, stop };
        if let Err(error) = bench.opens() {
            if bench.is_stopped() {
                break;
            }
            closed.push(format!("{name}: {error}"));
            continue;
        }
        let Findings { refused, figures, .. } = test(&bench);
        result.figures.extend(figures.into_iter().map(|(figure, value)| (format!("{name}_{figure}"), value)));
        tested += 1;
        if tested == 1 {
            result.busy = refused.iter().any(|doubt| doubt.is_busy);
            result.refused = refused.into_iter().map(|doubt| format!("{name}: {doubt}")).collect();
        } else {
            result.figures.insert(format!("{name}_refusals"), refused.len() as f64);
        }
    }
    if stop.load(Ordering::Acquire) {
        result.refused.push("the selftest was stopped before its end".to_owned());
    } else if tested == 0 {
        result.refused = closed;
    }
    result
}

/// Test that creates links, sends over them and records findings.
type Cell = fn(&Bench<'_>, &mut Findings) -> Result<(), CellError>;

/// Runs all cells sequentially: in parallel they would delay each other.
fn test(bench: &Bench<'_>) -> Findings {
    let cells: [(&str, Cell); 5] = [
        ("floor", timing::floor),
        ("bulk", timing::bulk),
        ("delay", timing::delay),
        ("chance", counts::chance),
        ("rates", counts::rates),
    ];
    let mut findings = Findings { lateness: bench.options.lateness, ..Findings::default() };
    for (name, cell) in cells {
        let mut found = Findings { lateness: findings.lateness, ..Findings::default() };
        let outcome = cell(bench, &mut found);
        // An incomplete cell proves nothing.
        if bench.is_stopped() {
            break;
        }
        findings.refused.append(&mut found.refused);
        findings.figures.append(&mut found.figures);
        if let Err(error) = outcome {
            findings.refuse(format!("the cell \"{name}\" could not be run: {error}"));
        }
    }
    findings
}
