//! Progress of a store that is read or written.

use std::sync::Arc;

use braid_auth::identity::Identity;
use braid_auth::publisher::Publisher;
use braid_store::{Options, Progress, Stage};

use super::thousands;
use crate::progress::ProgressLine;

/// Options of a store that shows its progress.
pub(crate) fn options_with(line: &Arc<ProgressLine>) -> Options {
    let line = Arc::clone(line);
    let mut options = Options::default();
    options.progress = Arc::new(move |progress| line.show(|| text(progress)));
    // With another text no broker would start.
    options.check_identity = |text| Identity::decode(text).map(drop).map_err(|error| error.to_string());
    options.check_publisher =
        |text| Publisher::decode(text.into()).map(drop).map_err(|error| error.to_string());
    options
}

fn text(progress: Progress) -> String {
    let Progress { stage, done, of } = progress;
    let [now, all] = [done.min(of), of].map(thousands);
    match stage {
        Stage::Checking => format!("verifying every page: {now} %"),
        Stage::Compacting => "giving free space back".into(),
        Stage::Replaying => format!("reading the journal: {now} of {all} groups"),
        Stage::Loading | Stage::Recovering | Stage::Reading => format!("reading: {now} of {all} rows"),
        Stage::Importing => format!("importing: {} records", thousands(done)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_names_the_stage_and_its_units() {
        let progress = |stage, done, of| text(Progress { stage, done, of });
        assert_eq!(progress(Stage::Checking, 42, 100), "verifying every page: 42 %");
        assert_eq!(progress(Stage::Reading, 65_536, 1_000_000), "reading: 65,536 of 1,000,000 rows");
        assert_eq!(progress(Stage::Importing, 65_536, 0), "importing: 65,536 records");
    }
}
