//! `braidmq store import`.

use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use braid_store::{Existing, OfflineStore, TransferError};

use super::watch::Watch;
use super::{Failure, Place, print, thousands};

/// Make a store of what was exported: all of it, or nothing
///
/// It is written beside the store that is there and takes its place when it is whole; if anything fails, nothing
/// is changed. Clients go on where they were when it was exported.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    place: Place,
    /// Read from this file [default: standard input]
    file: Option<PathBuf>,
    /// Replace what is stored there already, also when it is damaged
    #[arg(long)]
    replace: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let file = args.file.as_deref().filter(|file| file.as_os_str() != "-");
    let (name, mut from) = open(file)?;
    let existing = if args.replace { Existing::Replace } else { Existing::Keep };
    let watch = Watch::new(false);
    let directory = &args.place.data_dir;
    let imported = import(directory, existing, from.as_mut(), &watch);
    watch.finish();
    let records = imported.map_err(|error| Failure::of_import(error, &name))?;
    print(&format!("{} records are in the store of {}\n", thousands(records), directory.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn import(
    directory: &Path,
    existing: Existing,
    from: &mut dyn Read,
    watch: &Arc<Watch>,
) -> Result<u64, TransferError> {
    OfflineStore::restore(directory, existing, from, watch.options())
}

/// What is read, and its name.
fn open(file: Option<&Path>) -> Result<(String, Box<dyn Read>), Failure> {
    let Some(file) = file else {
        let stdin = io::stdin();
        if stdin.is_terminal() {
            return Err(Failure::Terminal);
        }
        return Ok(("standard input".into(), Box::new(stdin.lock())));
    };
    let name = file.display().to_string();
    let opened = File::open(file).and_then(|opened| {
        if opened.metadata()?.is_dir() { Err(ErrorKind::IsADirectory.into()) } else { Ok(opened) }
    });
    match opened {
        Ok(file) => Ok((name, Box::new(file))),
        Err(error) => Err(Failure::Open { what: name, reason: error.to_string() }),
    }
}
