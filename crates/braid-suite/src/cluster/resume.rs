//! Part `sessions`: persistent sessions that were made at one node and are resumed at another.

use std::time::{Duration, Instant};

use super::Setup;
use super::clients::{come_back, in_threads, publish_each};
use super::progress::Progress;
use super::report::{Bar, Row};
use super::testbed::Testbed;
use crate::load::session::leave_session;

/// Name of the part.
pub(super) const PART: &str = "sessions";
/// Bar of the issue, in seconds.
const RESUMED: f64 = 60.0;
/// Clients at a time.
const MAKING: usize = 32;
const RESUMING: usize = 64;
/// Unacknowledged messages of the publisher.
const WINDOW: usize = 512;
/// Time limit for all sessions to be resumed.
const LIMIT: Duration = Duration::from_secs(300);

/// Number of sessions.
pub(super) fn sessions(is_quick: bool) -> u32 {
    if is_quick { 200 } else { 10_000 }
}

/// Makes all sessions, queues a message for each, and resumes them.
pub(super) fn run(setup: &Setup<'_>, rows: &mut Vec<Row>) -> Result<(), String> {
    let testbed = setup.start()?;
    measure(setup, &testbed, rows).map_err(|reason| testbed.explain(&reason))
}

fn measure(setup: &Setup<'_>, testbed: &Testbed<'_>, rows: &mut Vec<Row>) -> Result<(), String> {
    let sessions = sessions(setup.is_quick);
    let (count, name) = (sessions as usize, |number| format!("bench-{number}"));
    let topic = |number| format!("resume/{number}");
    let began = Instant::now();
    in_threads(MAKING, count, &mut Progress::new("sessions made"), |number| {
        leave_session(testbed.mqtt(0), &name(number), &topic(number))
    })?;
    let made = began.elapsed().as_secs_f64();
    publish_each(testbed.mqtt(0), (0..count).map(topic), WINDOW, &mut Progress::new("messages queued"))?;
    let began = Instant::now();
    let back =
        in_threads(RESUMING, count, &mut Progress::new("sessions resumed at another node"), |number| {
            let place = u32::try_from(number).map_err(|error| error.to_string())?;
            come_back(testbed.mqtt(1), &name(number), place..place + 1, began + LIMIT)
        })?;
    let last = back.iter().map(|back| back.complete).max().unwrap_or(began);
    let failures: u64 = back.iter().map(|back| back.failures).sum();
    if failures > 0 {
        setup.note(PART, 0, &format!("{failures} connections failed and were repeated"));
    }
    let what = |done: &str| format!("{sessions} sessions of one subscription {done}");
    setup.push(
        rows,
        Row::alone(PART, (what("made at a node, one message each to be queued"), "s"), [made], Bar::None),
    );
    let resumed = [(last - began).as_secs_f64()];
    let what = (what("resumed at another node, with their messages"), "s");
    setup.push(rows, Row::alone(PART, what, resumed, Bar::AtMost(RESUMED)));
    let failed = (format!("connections that failed and were repeated, of {sessions}"), "connections");
    setup.push(rows, Row::alone(PART, failed, [failures as f64], Bar::None));
    Ok(())
}
