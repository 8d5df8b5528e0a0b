//! `braidmq store export`.

use std::fs::{self, File};
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use braid_store::OfflineStore;
use tempfile::NamedTempFile;

use super::progress::options_with;
use super::{Failure, Location, print, thousands};
use crate::progress::ProgressLine;

/// Export everything as JSON Lines: a backup, or a transfer to another machine or version
///
/// One JSON object on each line. The last line has the number of lines, so that a truncated export is detected. Memory
/// does not grow with the store. The file gets its name when it is complete; until then an existing file of that name
/// stays.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    location: Location,
    /// Write into this file [default: standard output]
    file: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let file = args.file.as_deref().filter(|file| file.as_os_str() != "-");
    let progress = Arc::new(ProgressLine::new(file.is_none() && io::stdout().is_terminal()));
    let exported = export(&args.location.data_dir, file, &progress);
    progress.finish();
    let records = exported?;
    if let Some(file) = file {
        print(&format!("{} records are in {}\n", thousands(records), file.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn export(directory: &Path, file: Option<&Path>, progress: &Arc<ProgressLine>) -> Result<u64, Failure> {
    let store = OfflineStore::open(directory, options_with(progress))?;
    let Some(file) = file else {
        let exported = store.export(&mut io::stdout().lock());
        return exported.map_err(|error| Failure::of_export(error, "standard output"));
    };
    let name = file.display().to_string();
    let refused = |error: io::Error| Failure::refused(format!("cannot open {name}: {error}"));
    // Compares resolved paths, since a link is the same file.
    let same = |path: &Path| path.canonicalize().ok();
    let is_own = |name| same(file).is_some_and(|file| same(&directory.join(name)) == Some(file));
    if is_own("store.redb") || is_own("store.journal") {
        return Err(Failure::refused(format!("cannot open {name}: that is the store itself")));
    }
    if fs::metadata(file).is_ok_and(|there| !there.is_file()) {
        // A pipe or a device cannot be replaced.
        let mut file = File::options().write(true).open(file).map_err(refused)?;
        return store.export(&mut file).map_err(|error| Failure::of_export(error, &name));
    }
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::metadata(folder).map_err(refused)?;
    // Readable by the owner only, since it contains messages.
    let mut whole = NamedTempFile::new_in(folder).map_err(refused)?;
    let records = store.export(&mut whole).map_err(|error| Failure::of_export(error, &name))?;
    let failed = |error: io::Error| Failure::damaged(format!("cannot write {name}: {error}"));
    whole.as_file().sync_all().map_err(failed)?;
    whole.persist(file).map_err(|error| failed(error.error))?;
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)?;
    Ok(records)
}
