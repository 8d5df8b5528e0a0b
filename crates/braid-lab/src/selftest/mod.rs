//! Whether this machine, now, does to packets what links say.
//!
//! [`run`] puts traffic on real links and compares what arrives with what was asked for. [`validity`] asks the same of a
//! run of an experiment, by what its links say of themselves.

mod bench;
mod bulk;
mod chance;
mod delay;
mod doubt;
mod findings;
mod floor;
mod rates;
mod statistics;
mod validity;

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::house::WireChoice;
use crate::report::SelftestResult;
use bench::{Bench, CellError, LOOK};
use findings::Findings;

pub use doubt::Doubt;
pub use validity::{lateness_bound, lateness_of, validity};

/// What to test, and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// How long each of the three long cells lasts; the short ones take a fourth of it.
    pub cell: Duration,
    /// The wire; `Auto` tests each that opens, and refuses because of the first alone, which experiments take.
    pub wire: WireChoice,
    /// Whether the first wire that opens is enough.
    pub first_only: bool,
    /// The seed of the links.
    pub seed: u64,
    /// How late 99 % of the packets may be, in place of the [`lateness_bound`].
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

/// Tests this machine, inside the house. Figures have the wire's name in front: `tun_delay_error_p99_us`. What cannot
/// be measured at all is a refusal too.
pub fn run(options: &Options) -> SelftestResult {
    run_until(options, &|| false)
}

/// As [`run`], until `stop` says so, which the calling thread asks about twenty times a second. What whole cells found by
/// then is in the result, and a refusal because it was stopped.
pub fn run_until(options: &Options, stop: &dyn Fn() -> bool) -> SelftestResult {
    let is_stopped = AtomicBool::new(stop());
    thread::scope(|scope| {
        let tests = scope.spawn(|| test_wires(options, &is_stopped));
        while !tests.is_finished() {
            thread::sleep(LOOK);
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

/// What a cell is: it lays links, sends over them and notes what it finds.
type Cell = fn(&Bench<'_>, &mut Findings) -> Result<(), CellError>;

/// All cells, one after the other: beside each other they would be late because of each other.
fn test(bench: &Bench<'_>) -> Findings {
    let cells: [(&str, Cell); 5] = [
        ("floor", floor::run),
        ("bulk", bulk::run),
        ("delay", delay::run),
        ("chance", chance::run),
        ("rates", rates::run),
    ];
    let mut findings = Findings { lateness: bench.options.lateness, ..Findings::default() };
    for (name, cell) in cells {
        let mut found = Findings { lateness: findings.lateness, ..Findings::default() };
        let outcome = cell(bench, &mut found);
        // Half a cell says nothing.
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
