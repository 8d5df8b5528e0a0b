//! `braidmq store import`.

use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use braid_store::{Existing, OfflineStore};

use super::progress::options_with;
use super::{Failure, Location, print, thousands};
use crate::progress::ProgressLine;

/// Import an export as the store, entirely or not at all
///
/// The new store is written beside the existing one and replaces it when it is complete; if anything fails, nothing
/// is changed. Clients continue from the time of the export.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    location: Location,
    /// Read from this file [default: standard input]
    file: Option<PathBuf>,
    /// Replace an existing store, even a damaged one
    #[arg(long)]
    replace: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let file = args.file.as_deref().filter(|file| file.as_os_str() != "-");
    let (name, mut from) = open(file)?;
    let existing = if args.replace { Existing::Replace } else { Existing::Keep };
    let progress = Arc::new(ProgressLine::new(false));
    let directory = &args.location.data_dir;
    let imported = OfflineStore::restore(directory, existing, from.as_mut(), options_with(&progress));
    progress.finish();
    let records = imported.map_err(|error| Failure::of_import(error, &name))?;
    print(&format!("{} records are in the store of {}\n", thousands(records), directory.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Name and reader of the input.
pub(crate) fn open(file: Option<&Path>) -> Result<(String, Box<dyn Read>), Failure> {
    let Some(file) = file else {
        let stdin = io::stdin();
        if stdin.is_terminal() {
            let terminal =
                "no file is named and standard input is a terminal: name the file that was exported";
            return Err(Failure::refused(terminal));
        }
        return Ok(("standard input".into(), Box::new(stdin.lock())));
    };
    let name = file.display().to_string();
    let opened = File::open(file).and_then(|opened| {
        if opened.metadata()?.is_dir() { Err(ErrorKind::IsADirectory.into()) } else { Ok(opened) }
    });
    match opened {
        Ok(file) => Ok((name, Box::new(file))),
        Err(error) => Err(Failure::refused(format!("cannot open {name}: {error}"))),
    }
}
