//! Case `sessions`: memory of durable offline sessions.

use std::path::Path;
use std::time::Instant;

use braid_measure::process::Resident;
use serde::Serialize;

use super::{Amount, Row, Setup};
use crate::brokers::Broker;
use crate::idle::settled;
use crate::load::session::leave_session;
use crate::system::of_broker;

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
pub(crate) fn run(setup: &Setup<'_>) -> Result<Vec<Row<SessionsRound>>, String> {
    let sessions = setup.args.sessions;
    let once = |broker: &Broker| once(&setup.directory, broker, sessions);
    let line = |left: &SessionsRound| format!("{:.0} B each", left.anonymous_per_session);
    setup.rounds("sessions", Amount::Sessions(sessions), || Ok(()), once, line)
}

fn once(directory: &Path, broker: &Broker, sessions: u32) -> Result<SessionsRound, String> {
    let running = broker.start_in(directory)?;
    let resident = || {
        settled(running.pid())?;
        of_broker(Resident::of(running.pid()))
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
