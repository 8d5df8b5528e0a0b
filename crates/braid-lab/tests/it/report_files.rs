//! Files of reports.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

use braid_lab::report::{Series, SeriesKind, load, write};

use crate::report_fixture::{run, small, urgent_behind_large};

fn error(dir: &Path, content: &str) -> String {
    let path = dir.join("report.json");
    fs::write(&path, content).unwrap();
    let error = load(&path).unwrap_err().to_string();
    assert!(!error.contains('\n'), "{error}");
    error.strip_prefix(path.to_str().unwrap()).map_or(error.clone(), str::to_owned)
}

#[test]
fn a_written_report_can_be_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("new/one");
    let report = urgent_behind_large();
    let written = write(&report, &dir).unwrap();
    assert!(load(&written.json).unwrap() == report, "something changed on the way");
    assert_eq!(written.plots.len(), 9, "four of each network, and the overview");
    for path in written.plots.iter().chain([&written.html, &written.table]) {
        assert!(fs::metadata(path).unwrap().len() > 100, "{}", path.display());
    }
    let mut names: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["plots", "report.html", "report.json", "table.txt"], "no part is left over");
    let first = fs::read(&written.json).unwrap();
    write(&report, &dir).unwrap();
    assert_eq!(fs::read(&written.json).unwrap(), first, "the order is stable");
}

#[test]
fn a_report_without_newer_fields_can_be_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(&urgent_behind_large(), folder.path()).unwrap().json;
    let mut value: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    for later in ["duration", "quick", "replaced"] {
        assert!(value.as_object_mut().unwrap().remove(later).is_some(), "{later}");
    }
    fs::write(&path, value.to_string()).unwrap();
    let read = load(&path).unwrap();
    assert!(read.duration == 0.0 && !read.quick && read.replaced.is_empty());
}

#[test]
fn charts_of_removed_profiles_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let mut report = urgent_behind_large();
    let other = Series { kind: SeriesKind::Other, unit: "MB".into(), ..report.runs[1].series[0].clone() };
    report.runs[1].series.push(other);
    let first = write(&report, folder.path()).unwrap().plots;
    assert_eq!(first.len(), 10, "one of every kind and the overview");
    let plots = folder.path().join("plots");
    let foreign = ["notes.svg", "rate.svg", "rate-lan.png", "rate-LAN.svg", "ratelan.svg", "overview-2.svg"];
    for name in foreign {
        fs::write(plots.join(name), "mine").unwrap();
    }
    fs::create_dir(plots.join("rate-folder.svg")).unwrap();

    report.profiles.remove(0);
    let second = write(&report, folder.path()).unwrap().plots;
    let names = |paths: &[PathBuf]| -> BTreeSet<OsString> {
        paths.iter().filter_map(|path| path.file_name()).map(OsString::from).collect()
    };
    let there = || -> BTreeSet<OsString> {
        fs::read_dir(&plots).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    };
    let mut expected = names(&second);
    expected.extend(foreign.into_iter().chain(["rate-folder.svg"]).map(OsString::from));
    assert_eq!(there(), expected);
    assert!(!expected.contains(OsStr::new("rate-lan.svg")));

    report.runs.clear();
    assert_eq!(write(&report, folder.path()).unwrap().plots, Vec::<PathBuf>::new());
    expected.retain(|name| !names(&second).contains(name));
    assert_eq!(there(), expected, "of every kind");
}

#[test]
fn numbers_outside_json_do_not_spoil_the_report() {
    let folder = tempfile::tempdir().unwrap();
    let mut report = urgent_behind_large();
    report.runs.truncate(1);
    report.machine.load[1] = f64::NAN;
    report.duration = f64::NAN;
    report.checks[0].measured = Some(f64::INFINITY);
    let bad = &mut report.runs[0];
    bad.metrics.insert("latency_p50".into(), f64::NAN);
    bad.series[0].values[3] = f64::NEG_INFINITY;
    bad.cdfs[0].points[0].0 = f64::NAN;
    bad.links[0].up.cpu_us_per_packet = f64::NAN;
    bad.seconds = f64::NAN;
    let read = load(&write(&report, folder.path()).unwrap().json).unwrap();
    assert_eq!((read.machine.load[1], read.duration, read.checks[0].measured), (0.0, 0.0, None));
    assert!(
        !read.runs[0].metrics.contains_key("latency_p50") && read.runs[0].metrics.contains_key("latency_p99")
    );
    assert_eq!((read.runs[0].series[0].values[3], read.runs[0].cdfs[0].points.len()), (0.0, 199));
    assert_eq!((read.runs[0].seconds, read.runs[0].links[0].up.cpu_us_per_packet), (0.0, 0.0));
}

#[test]
fn errors_name_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("none.json");
    let text = load(&missing).unwrap_err().to_string();
    assert!(text.starts_with(&format!("cannot read {}: ", missing.display())), "{text}");

    let no_json = error(folder.path(), "title = 'x'");
    assert!(no_json.starts_with(" is not a report of braidmq lab, but no JSON ("), "{no_json}");
    assert!(no_json.ends_with("): name the report.json that lab run wrote"), "{no_json}");
    for content in ["{}", "{\"schema\": null}"] {
        let text = " is not a report of braidmq lab, but JSON without a schema: name the report.json that lab run wrote";
        assert_eq!(error(folder.path(), content), text);
    }
    assert!(error(folder.path(), "{\"schema\": 7}").contains("other JSON"));
    assert_eq!(
        error(folder.path(), "{\"schema\": \"braidmq-bench/1\"}"),
        " has the schema \"braidmq-bench/1\", this braidmq reads \"braidmq-lab/1\": use the braidmq that wrote it, or run the \
         scenario again"
    );
    let damaged = error(folder.path(), "{\"schema\": \"braidmq-lab/1\"}");
    assert!(damaged.starts_with(" is damaged: missing field `scenario`"), "{damaged}");
}

#[test]
fn a_failed_write_names_the_path_and_keeps_what_was_there() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "x").unwrap();
    let text = write(&small(&[1.0], &[]), &file).unwrap_err().to_string();
    assert!(text.starts_with(&format!("cannot write {}: ", file.join("plots").display())), "{text}");

    // A directory in place of the file fails at the last step.
    let page = folder.path().join("report.html");
    fs::create_dir(&page).unwrap();
    let text = write(&small(&[1.0], &[]), folder.path()).unwrap_err().to_string();
    assert!(text.starts_with(&format!("cannot write {}: ", page.display())), "{text}");
    assert!(!folder.path().join("report.html.part").exists());
    assert!(load(&folder.path().join("report.json")).is_ok(), "the numbers were saved first");
}

#[test]
fn names_of_profiles_cannot_leave_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let mut report = small(&[1.0], &[]);
    let series = urgent_behind_large().runs[0].series[0].clone();
    assert_eq!(series.kind, SeriesKind::Rate);
    let names = ["../../x", "../..-x"];
    report.profiles = names.map(crate::report_fixture::profile).to_vec();
    report.runs = names.iter().map(|name| run("tcp", name, 1, "rate", 1.0)).collect();
    report.runs.iter_mut().for_each(|run| run.series = vec![series.clone()]);
    let written = write(&report, folder.path()).unwrap();
    let plots = folder.path().join("plots");
    let names = ["overview.svg", "rate-------x.svg", "rate-------x-2.svg"];
    assert_eq!(written.plots, names.map(|name| plots.join(name)));
}
