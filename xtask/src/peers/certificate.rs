//! Certificate for brokers that make none, or that need the same one.

use std::path::Path;
use std::process::Command;

/// Makes a certificate for this machine in `data_dir`.
pub(super) fn certificate(data_dir: &Path, home: &Path) -> Result<(), String> {
    let made = Command::new(home.join("venv/bin/python"))
        .arg("-B")
        .arg(home.with_file_name("peers").join("certificate.py"))
        .arg(data_dir)
        .status();
    if made.is_ok_and(|status| status.success()) {
        Ok(())
    } else {
        Err(format!("certificate.py did not make a certificate in {}", data_dir.display()))
    }
}
