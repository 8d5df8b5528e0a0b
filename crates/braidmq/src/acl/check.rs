//! `braidmq acl check`.

use std::path::PathBuf;
use std::process::ExitCode;

use braid_access::AclFormat;

use super::list::{self, List};
use super::print;
use crate::printable::printable;

/// Check that a file is an access control list, and count its rules and groups
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// The file
    file: PathBuf,
    /// Format of the file
    #[arg(long, value_parser = list::formats(), default_value = "braidmq")]
    format: AclFormat,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, String> {
    let list = List::read(&args.file, args.format)?;
    let count = |number: usize, noun: &str| format!("{number} {noun}{}", if number == 1 { "" } else { "s" });
    let (rules, groups) = (count(list.acl.rules(), "rule"), count(list.acl.groups(), "group"));
    print(&format!("{}: {rules}, {groups}\n", printable(list.name())))?;
    Ok(ExitCode::SUCCESS)
}
