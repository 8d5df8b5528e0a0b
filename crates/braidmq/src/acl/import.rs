//! `braidmq acl import`.

use std::path::PathBuf;
use std::process::ExitCode;

use braid_auth::mosquitto;

use super::{list, print};

/// Convert mosquitto's acl_file, and print the rules to standard output
///
/// The rules are in the order in which mosquitto asks them, each below the number of its line.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// The acl_file of mosquitto
    file: PathBuf,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, String> {
    let text = list::read(&args.file)?;
    let imported = mosquitto::import(&text, &args.file.display().to_string());
    print(&imported.map_err(|error| error.to_string())?)?;
    Ok(ExitCode::SUCCESS)
}
