//! Progress of a question on standard error.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use braid_cluster::import::ImportStage;
use braid_cluster::status::Stage;
use tokio::time::interval;

use crate::progress::ProgressLine;
use crate::store::thousands;

/// Interval in which the time for output is looked at.
const TICK: Duration = Duration::from_millis(100);

/// Step of a command.
#[derive(Clone, Copy)]
pub(super) enum Step {
    Status(Stage),
    Import(ImportStage),
}

/// Waits for `work`, and says what it does from the third second on. `work` gets the function that takes its steps.
pub(super) async fn with_progress<T, F: Future<Output = T>>(
    work: impl FnOnce(&'static (dyn Fn(Step) + Sync)) -> F,
) -> T {
    /// Step of the work.
    static STAGE: Mutex<Step> = Mutex::new(Step::Status(Stage::Connecting));
    let line = ProgressLine::new(false);
    let mut ticks = interval(TICK);
    // A poisoned lock is safe to use: a step is written whole.
    let work = work(&|stage| *STAGE.lock().unwrap_or_else(PoisonError::into_inner) = stage);
    tokio::pin!(work);
    let done = loop {
        tokio::select! {
            done = &mut work => break done,
            _ = ticks.tick() => line.show(|| match *STAGE.lock().unwrap_or_else(PoisonError::into_inner) {
                Step::Status(stage) => text(stage),
                Step::Import(stage) => import_text(stage),
            }),
        }
    };
    line.finish();
    done
}

fn text(stage: Stage) -> String {
    match stage {
        Stage::Connecting => "connecting to NATS".to_owned(),
        Stage::Servers => "asking the monitoring ports".to_owned(),
        Stage::Streams => "asking the leaders of the streams".to_owned(),
        Stage::Nodes => "reading the nodes".to_owned(),
        Stage::Sessions(done, of) => {
            format!("reading sessions: {} of {}", thousands(done), thousands(of.max(done)))
        }
    }
}

fn import_text(stage: ImportStage) -> String {
    let (what, done, of) = match stage {
        ImportStage::Connecting => return "connecting to NATS".to_owned(),
        ImportStage::Looking(done, of) => ("looking for sessions of the same clients", done, of),
        ImportStage::Messages(done, of) => ("appending messages of queues", done, of),
        ImportStage::Retained(done, of) => ("appending retained messages", done, of),
        ImportStage::Sessions(done, of) => ("writing sessions", done, of),
    };
    format!("{what}: {} of {}", thousands(done), thousands(of))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_have_texts() {
        assert_eq!(text(Stage::Sessions(1234, 5678)), "reading sessions: 1,234 of 5,678");
        assert_eq!(text(Stage::Sessions(3, 2)), "reading sessions: 3 of 3", "one came meanwhile");
        let text = import_text(ImportStage::Messages(64, 1000));
        assert_eq!(text, "appending messages of queues: 64 of 1,000");
    }
}
