//! Case `sessions`: memory of durable offline sessions.

use std::path::Path;
use std::time::Instant;

use braid_measure::Spread;
use braid_measure::process::Resident;
use serde::Serialize;

use crate::brokers::Broker;
use crate::idle::settled;
use crate::load::session::leave_session;

/// Measurements of one broker.
#[derive(Serialize)]
pub(crate) struct Row {
    pub(crate) broker: String,
    pub(crate) sessions: u32,
    pub(crate) rounds: Vec<SessionsRound>,
}

/// Measurements of one round.
#[derive(Clone, Copy, Serialize)]
pub(crate) struct SessionsRound {
    pub(crate) before: Resident,
    pub(crate) after: Resident,
    /// Growth of the anonymous memory.
    pub(crate) anonymous_per_session: f64,
    /// Sessions opened, subscribed and left per second, one client after the other.
    pub(crate) rate: f64,
}

/// Measures every broker, in turns.
///
/// # Errors
/// A broker does not start or refuses a client.
pub(crate) fn run(
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
    /// Spread of a quantity over the rounds.
    pub(crate) fn spread(&self, of: fn(&SessionsRound) -> f64) -> Option<Spread> {
        Spread::of(self.rounds.iter().map(of))
    }
}

fn once(directory: &Path, broker: &Broker, sessions: u32) -> Result<SessionsRound, String> {
    let running = broker.start_in(directory)?;
    let resident = || {
        settled(running.pid())?;
        Resident::of(running.pid()).map_err(|error| format!("the broker has ended: {error}"))
    };
    let before = resident()?;
    let began = Instant::now();
    for session in 0..sessions {
        let (client, filter) = (format!("device-{session:06}"), format!("devices/{session:06}/commands"));
        leave_session(running.address, &client, &filter)
            .map_err(|reason| format!("after {session} sessions: {reason}"))?;
    }
    let rate = f64::from(sessions) / began.elapsed().as_secs_f64();
    let after = resident()?;
    let grown = after.anonymous.saturating_sub(before.anonymous) as f64;
    Ok(SessionsRound { before, after, anonymous_per_session: grown / f64::from(sessions), rate })
}
