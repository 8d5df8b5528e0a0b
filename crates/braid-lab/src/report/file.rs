//! Files of a report: `report.json`, `report.html`, `table.txt` and charts.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::plot::is_chart;
use super::{Report, SCHEMA, html, overview, plots, table};

/// Paths of the files of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// `report.html`, for people.
    pub html: PathBuf,
    /// `report.json`, for programs.
    pub json: PathBuf,
    /// `table.txt`, for terminals.
    pub table: PathBuf,
    /// Charts: `plots/*.svg`.
    pub plots: Vec<PathBuf>,
}

/// Report that cannot be written, loaded or compared: one line that says what to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ReportError(pub(super) String);

/// Error of an operation, such as `write`, on a file.
fn cannot(deed: &str, path: &Path) -> impl Fn(io::Error) -> ReportError {
    move |error| ReportError(format!("cannot {deed} {}: {error}", path.display()))
}

/// Writes `report.html`, `report.json`, `table.txt` and `plots/*.svg` into `dir`, which is created if missing. Each
/// file is replaced atomically. Charts of another report in `plots` are removed; other files stay.
///
/// JSON has neither infinity nor NaN: such metrics and points are omitted, other such numbers become 0.
///
/// # Errors
/// One line with the path that could not be written or removed.
pub fn write(report: &Report, dir: &Path) -> Result<Written, ReportError> {
    let folder = dir.join("plots");
    fs::create_dir_all(&folder).map_err(cannot("write", &folder))?;
    let mut written = Written {
        html: dir.join("report.html"),
        json: dir.join("report.json"),
        table: dir.join("table.txt"),
        plots: Vec::new(),
    };
    // First the file from which the others can be rendered again.
    let mut json = serde_json::to_vec_pretty(&finite(report))
        .map_err(|error| cannot("write", &written.json)(error.into()))?;
    json.push(b'\n');
    replace(&written.json, &json)?;
    replace(&written.table, table(report).as_bytes())?;
    for plot in overview(report).into_iter().chain(plots(report)) {
        let path = folder.join(&plot.file);
        replace(&path, plot.svg.as_bytes())?;
        written.plots.push(path);
    }
    replace(&written.html, html(report).as_bytes())?;
    remove_old_charts(&folder, &written.plots)?;
    Ok(written)
}

/// Removes charts of an earlier report, which would look like those of this one.
fn remove_old_charts(folder: &Path, new: &[PathBuf]) -> Result<(), ReportError> {
    let unread = cannot("read", folder);
    for entry in fs::read_dir(folder).map_err(&unread)? {
        let entry = entry.map_err(&unread)?;
        let path = entry.path();
        let is_chart = entry.file_name().to_str().is_some_and(is_chart);
        if is_chart && !new.contains(&path) && entry.file_type().map_err(&unread)?.is_file() {
            fs::remove_file(&path).map_err(cannot("remove", &path))?;
        }
    }
    Ok(())
}

/// Replaces the content of `path` atomically, by renaming a file beside it.
fn replace(path: &Path, content: &[u8]) -> Result<(), ReportError> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".part");
    let beside = PathBuf::from(beside);
    fs::write(&beside, content).and_then(|()| fs::rename(&beside, path)).map_err(|error| {
        // The partial file must not be taken for a report; the first error is the one to report.
        let _ = fs::remove_file(&beside);
        cannot("write", path)(error)
    })
}

/// Copy of `report` without numbers that JSON cannot represent.
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

// === Reading ===

/// First field of every report.
#[derive(Deserialize)]
struct Beginning {
    schema: Option<String>,
}

/// Loads a report that [`write`] wrote.
///
/// # Errors
/// One line with the path: the file cannot be read, is not a report, has another schema, or is damaged.
pub fn load(path: &Path) -> Result<Report, ReportError> {
    let name = path.display();
    let text = fs::read(path).map_err(cannot("read", path))?;
    let not_report = |what: String| {
        let remedy = "name the report.json that lab run wrote";
        ReportError(format!("{name} is not a report of braidmq lab, but {what}: {remedy}"))
    };
    let beginning: Beginning = serde_json::from_slice(&text).map_err(|error| {
        not_report(if error.is_data() { "other JSON".into() } else { format!("no JSON ({error})") })
    })?;
    match beginning.schema {
        None => Err(not_report("JSON without a schema".into())),
        Some(found) if found != SCHEMA => Err(ReportError(format!(
            "{name} has the schema {found:?}, this braidmq reads {SCHEMA:?}: use the braidmq that wrote it, or run the \
             scenario again"
        ))),
        Some(_) => {
            serde_json::from_slice(&text).map_err(|error| ReportError(format!("{name} is damaged: {error}")))
        }
    }
}
