//! Exposure of the systemd unit, as `systemd-analyze security` rates it.

use std::path::Path;
use std::process::Command;

use super::output;

/// Exposure of the unit, from 0 (confined) to 10. Needs no running systemd.
///
/// # Errors
/// `systemd-analyze` failed, or has no figure.
pub(super) fn exposure(root: &Path) -> Result<f64, String> {
    let unit = root.join("packaging/braidmq.service");
    let report =
        output(Command::new("systemd-analyze").args(["security", "--offline=true", "--no-pager"]).arg(unit))?;
    parse(&report).ok_or_else(|| format!("systemd-analyze gave no exposure level: {report}"))
}

/// Parses the figure of `→ Overall exposure level for braidmq.service: 1.1 OK`.
fn parse(report: &str) -> Option<f64> {
    let (_, figure) = report.split_once("Overall exposure level for ")?.1.split_once(": ")?;
    figure.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree;

    /// Most exposure of the unit.
    const BOUND: f64 = 1.5;

    #[test]
    fn the_unit_is_confined() {
        let exposure = exposure(&tree::root()).unwrap();
        assert!(exposure <= BOUND, "exposure {exposure}; `systemd-analyze security` says what is open");
    }

    #[test]
    fn the_unit_has_known_keys_and_values_only() {
        let unit = tree::root().join("packaging/braidmq.service");
        let output = Command::new("systemd-analyze").args(["security", "--offline=true"]).arg(unit).output();
        let warnings = String::from_utf8(output.unwrap().stderr).unwrap();
        assert!(!warnings.contains("ignoring"), "{warnings}");
    }

    #[test]
    fn the_unit_restarts_the_broker_unless_its_user_must_act() {
        let root = tree::root();
        let unit = std::fs::read_to_string(root.join("packaging/braidmq.service")).unwrap();
        let serve = std::fs::read_to_string(root.join("crates/braidmq/src/serve/mod.rs")).unwrap();
        let constant = serve.split_once("const REFUSED: u8 = ").expect("the exit code").1;
        let code = constant.split_once(';').expect("its value").0;
        for line in [format!("RestartPreventExitStatus={code}"), "Restart=on-failure".to_owned()] {
            assert!(unit.lines().any(|found| found == line), "{line} is missing");
        }
    }

    #[test]
    fn a_report_without_a_figure_has_no_exposure() {
        assert_eq!(parse("\n→ Overall exposure level for a.service: 1.1 OK :-)\n"), Some(1.1));
        assert_eq!(parse("Failed to load a.service"), None);
        assert_eq!(parse("→ Overall exposure level for a.service: OK"), None);
    }
}
