//! Instruction counts of a program under callgrind, which do not scatter as processor time does.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::brokers::installed;

/// Program and arguments that run another program under callgrind, which counts nothing yet.
pub(crate) fn wrapper(out: &Path) -> Vec<String> {
    let out = format!("--callgrind-out-file={}", out.display());
    ["valgrind", "--tool=callgrind", "--instr-atstart=no", &out].map(str::to_owned).to_vec()
}

/// Sends a command to a program under callgrind.
///
/// # Errors
/// valgrind is not installed, or the program has ended.
pub(crate) fn control(command: &str, pid: u32) -> Result<(), String> {
    let program = installed("callgrind_control", "apt-get install valgrind")?;
    let mut call = Command::new(program);
    call.args([command, &pid.to_string()]);
    let output = call.output().map_err(|error| format!("cannot start {call:?}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("{call:?} failed: {said}")) }
}

/// Sum of a file of callgrind.
///
/// # Errors
/// The file cannot be read, or has no sum.
pub(crate) fn sum(file: &Path) -> Result<f64, String> {
    let text =
        fs::read_to_string(file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    total(&text).ok_or_else(|| format!("{} has no sum", file.display()))
}

/// Newest of the dumps `OUT.1`, `OUT.2` and so on.
///
/// # Errors
/// There is none.
pub(crate) fn newest_dump(out: &Path) -> Result<PathBuf, String> {
    let dumps = (1..).map(|number| PathBuf::from(format!("{}.{number}", out.display())));
    let newest = dumps.take_while(|dump| dump.is_file()).last();
    newest.ok_or_else(|| format!("callgrind wrote no {}.1", out.display()))
}

/// Instructions of all parts of a file.
fn total(text: &str) -> Option<f64> {
    let counts = text.lines().filter_map(|line| line.strip_prefix("totals: "));
    let counts: Vec<f64> = counts.map(|count| count.trim().parse()).collect::<Result<_, _>>().ok()?;
    (!counts.is_empty()).then(|| counts.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_callgrind_are_added() {
        assert_eq!(total("events: Ir\ntotals: 5\nfn=(1)\n1 2\ntotals: 7\n"), Some(12.0));
        assert_eq!([total("events: Ir\n"), total("totals: x\n")], [None; 2]);
    }

    #[test]
    fn the_newest_dump_has_the_highest_number() {
        let directory = tempfile::tempdir().expect("a directory");
        let out = directory.path().join("counts");
        assert!(newest_dump(&out).is_err());
        for number in 1..=10 {
            fs::write(format!("{}.{number}", out.display()), format!("totals: {number}\n")).expect("written");
        }
        assert_eq!(newest_dump(&out).and_then(|dump| sum(&dump)), Ok(10.0));
    }
}
