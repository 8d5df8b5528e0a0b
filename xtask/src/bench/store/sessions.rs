//! Memory of durable sessions whose clients are away.

use std::path::Path;
use std::time::Instant;

use serde::Serialize;

use crate::bench::brokers::Broker;
use crate::bench::idle::settled;
use crate::bench::load::leave_session;
use crate::bench::spread::Spread;
use crate::bench::usage::Resident;

/// The sessions of one broker.
#[derive(Serialize)]
pub(super) struct Row {
    pub(super) broker: String,
    pub(super) sessions: u32,
    pub(super) rounds: Vec<Left>,
}

/// One round.
#[derive(Clone, Copy, Serialize)]
pub(super) struct Left {
    pub(super) before: Resident,
    pub(super) after: Resident,
    /// Growth of the anonymous memory.
    pub(super) anonymous_per_session: f64,
    /// Sessions opened, subscribed and left per second, one client after the other.
    pub(super) rate: f64,
}

/// Measures every broker, in turns.
///
/// # Errors
/// A broker that does not start or refuses a client.
pub(super) fn run(
    directory: &Path,
    brokers: &[Broker],
    rounds: u32,
    sessions: u32,
) -> Result<Vec<Row>, String> {
    let row = |broker: &Broker| Row { broker: broker.label.clone(), sessions, rounds: Vec::new() };
    let mut rows: Vec<_> = brokers.iter().map(row).collect();
    for _ in 0..rounds {
        for (broker, row) in brokers.iter().zip(&mut rows) {
            let left =
                once(directory, broker, sessions).map_err(|reason| format!("{}: {reason}", broker.label))?;
            eprintln!("# sessions {}: {:.0} B each", broker.label, left.anonymous_per_session);
            row.rounds.push(left);
        }
    }
    Ok(rows)
}

impl Row {
    /// What `of` says, over the rounds.
    pub(super) fn spread(&self, of: fn(&Left) -> f64) -> Option<Spread> {
        Spread::of(&self.rounds.iter().map(of).collect::<Vec<_>>())
    }
}

fn once(directory: &Path, broker: &Broker, sessions: u32) -> Result<Left, String> {
    let running = broker.start_in(directory)?;
    settled(running.pid())?;
    let before = Resident::of(running.pid())?;
    let began = Instant::now();
    for session in 0..sessions {
        let (client, filter) = (format!("device-{session:06}"), format!("devices/{session:06}/commands"));
        leave_session(running.address, &client, &filter)
            .map_err(|reason| format!("after {session} sessions: {reason}"))?;
    }
    let rate = f64::from(sessions) / began.elapsed().as_secs_f64();
    settled(running.pid())?;
    let after = Resident::of(running.pid())?;
    let grown = after.anonymous.saturating_sub(before.anonymous) as f64;
    Ok(Left { before, after, anonymous_per_session: grown / f64::from(sessions), rate })
}
