//! Writes a report into a folder.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::plot::is_picture;
use super::{Report, html, overview, plots, table};

/// Where the parts of a report are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// For people: `report.html`.
    pub html: PathBuf,
    /// For machines: `report.json`.
    pub json: PathBuf,
    /// For terminals: `table.txt`.
    pub table: PathBuf,
    /// The pictures: `plots/*.svg`.
    pub plots: Vec<PathBuf>,
}

/// A part that could not be written, or an old one that could not be removed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {deed} {}: {source}", path.display())]
pub struct WriteError {
    deed: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl WriteError {
    fn write(path: &Path, source: io::Error) -> Self {
        Self { deed: "write", path: path.to_owned(), source }
    }
}

/// Writes `report.html`, `report.json`, `table.txt` and `plots/*.svg` into `dir`, which is made if it is missing. Each
/// file is whole or as it was before. Pictures that another report left in `plots` are removed, whatever else is there
/// stays.
///
/// JSON knows no infinity and no NaN: metrics and points that are none of its numbers are left out, others become 0.
///
/// # Errors
///
/// One line that names the path that could not be written or removed.
pub fn write(report: &Report, dir: &Path) -> Result<Written, WriteError> {
    let folder = dir.join("plots");
    fs::create_dir_all(&folder).map_err(|source| WriteError::write(&folder, source))?;
    let mut written = Written {
        html: dir.join("report.html"),
        json: dir.join("report.json"),
        table: dir.join("table.txt"),
        plots: Vec::new(),
    };
    // First what cannot be made again.
    let mut json = serde_json::to_vec_pretty(&finite(report))
        .map_err(|error| WriteError::write(&written.json, error.into()))?;
    json.push(b'\n');
    replace(&written.json, &json)?;
    replace(&written.table, table(report).as_bytes())?;
    for plot in overview(report).into_iter().chain(plots(report)) {
        let path = folder.join(&plot.file);
        replace(&path, plot.svg.as_bytes())?;
        written.plots.push(path);
    }
    replace(&written.html, html(report).as_bytes())?;
    remove_old_pictures(&folder, &written.plots)?;
    Ok(written)
}

/// Removes what was drawn for another report: nobody could tell it from the pictures of this one.
fn remove_old_pictures(folder: &Path, new: &[PathBuf]) -> Result<(), WriteError> {
    let unread = |source| WriteError { deed: "read", path: folder.to_owned(), source };
    for entry in fs::read_dir(folder).map_err(unread)? {
        let entry = entry.map_err(unread)?;
        let path = entry.path();
        let is_picture = entry.file_name().to_str().is_some_and(is_picture);
        if is_picture && !new.contains(&path) && entry.file_type().map_err(unread)?.is_file() {
            fs::remove_file(&path).map_err(|source| WriteError { deed: "remove", path, source })?;
        }
    }
    Ok(())
}

/// Puts `content` into `path` in one step, by way of a file beside it.
fn replace(path: &Path, content: &[u8]) -> Result<(), WriteError> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".part");
    let beside = PathBuf::from(beside);
    fs::write(&beside, content).and_then(|()| fs::rename(&beside, path)).map_err(|source| {
        // What is left of it must not be taken for a report; the first error is the one that tells.
        let _ = fs::remove_file(&beside);
        WriteError::write(path, source)
    })
}

/// `report` without numbers that JSON cannot hold.
fn finite(report: &Report) -> Report {
    let mut report = report.clone();
    report.machine.load.iter_mut().chain([&mut report.duration]).for_each(zero_unless_finite);
    if let Some(selftest) = &mut report.selftest {
        selftest.figures.retain(|_, value| value.is_finite());
    }
    for of_metric in report.published.values_mut().flat_map(|of_variant| of_variant.values_mut()) {
        of_metric.retain(|_, value| value.is_finite());
    }
    for reference in &mut report.references {
        reference.values.retain(|_, value| value.is_finite());
    }
    for check in &mut report.checks {
        check.measured = check.measured.filter(|value| value.is_finite());
    }
    for run in &mut report.runs {
        run.metrics.retain(|_, value| value.is_finite());
        for cdf in &mut run.cdfs {
            cdf.points.retain(|(ms, share)| ms.is_finite() && share.is_finite());
        }
        for gate in &mut run.gates {
            let lists = [
                &mut gate.packets_per_second,
                &mut gate.bytes_per_second,
                &mut gate.tokens,
                &mut gate.reserve_tokens,
                &mut gate.wait_ms,
                &mut gate.aim_ms,
            ];
            for value in lists.into_iter().flatten() {
                *value = value.filter(|value| value.is_finite());
            }
            gate.at.iter_mut().for_each(zero_unless_finite);
        }
        let series = run.series.iter_mut().flat_map(|series| {
            [&mut series.start, &mut series.step].into_iter().chain(series.values.iter_mut())
        });
        let paths = run
            .links
            .iter_mut()
            .flat_map(|link| [&mut link.up, &mut link.down])
            .flat_map(|path| path.lateness_us.iter_mut().chain([&mut path.cpu_us_per_packet]));
        let programs = run.programs.iter_mut().map(|program| &mut program.cpu_seconds);
        let events = run.events.iter_mut().map(|event| &mut event.at);
        series
            .chain(paths)
            .chain(programs)
            .chain(events)
            .chain([&mut run.seconds])
            .for_each(zero_unless_finite);
    }
    report
}

fn zero_unless_finite(value: &mut f64) {
    if !value.is_finite() {
        *value = 0.0;
    }
}
