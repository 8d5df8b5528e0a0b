//! Transfer of a large message over one connection after another: its progress, and when to give up.

use std::io::IsTerminal;
use std::time::Duration;

use braid_client::{Client, ConnectionEvent, Error, Events};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until};

use crate::client::Failure;
use crate::output::replace_line;

/// Duration from which on progress is shown.
const PROGRESS_AFTER: Duration = Duration::from_secs(2);
const PROGRESS_EVERY: Duration = Duration::from_millis(200);
/// New connections in a row on which a message began again, after which it is given up.
const MOST_RESTARTS: u32 = 3;

/// Transfer of a message until it is acknowledged. Progress is on a line of the terminal, which is cleared at the end.
pub(super) struct Transfer {
    /// Bytes of the payload.
    size: usize,
    /// Bytes of it that have left, or that the server has, when they were last shown.
    sent: usize,
    shows_progress: bool,
    is_shown: bool,
    link: LinkState,
    /// Time without a connection after which it ends; `None`: the client gives up by itself.
    patience: Option<Duration>,
    /// New connections since the message went on last, on which it began again.
    restarts: u32,
}

/// State of the connection.
enum LinkState {
    Connected,
    /// The connection was lost, at this time and for this reason.
    Lost {
        at: Instant,
        error: Error,
    },
}

impl Transfer {
    /// `patience`: time for which new connections are waited for.
    pub(super) fn new(size: usize, quiet: bool, patience: Option<Duration>) -> Self {
        Self {
            size,
            sent: 0,
            shows_progress: !quiet && std::io::stderr().is_terminal(),
            is_shown: false,
            link: LinkState::Connected,
            patience,
            restarts: 0,
        }
    }

    /// Whether there is anything to show, or to decide.
    pub(super) fn is_followed(&self) -> bool {
        self.shows_progress || self.patience.is_some()
    }

    /// Follows the transfer until it is dropped. Returns the failure when it is not worth going on.
    pub(super) async fn follow(&mut self, client: &Client) -> Failure {
        let mut events = client.events();
        let mut ticks = interval_at(Instant::now() + PROGRESS_AFTER, PROGRESS_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        // Told to those that come later, too: the connection on which the message was sent first.
        let mut is_first = true;
        loop {
            let limit = self.limit();
            tokio::select! {
                event = next(&mut events) => {
                    if let Some(failure) = self.handle(event, is_first) {
                        return failure;
                    }
                    is_first = false;
                }
                _ = ticks.tick(), if self.shows_progress => self.show(client),
                () = sleep_until(limit.unwrap_or_else(Instant::now)), if limit.is_some() => {
                    return self.gone();
                }
            }
        }
    }

    fn handle(&mut self, event: ConnectionEvent, is_first: bool) -> Option<Failure> {
        match event {
            ConnectionEvent::Connected { .. } => {
                self.link = LinkState::Connected;
                self.restarts += u32::from(!is_first);
            }
            ConnectionEvent::Continued { offset: 1.., .. } => self.restarts = 0,
            ConnectionEvent::Disconnected { error, retry_in: Some(_) }
                if matches!(self.link, LinkState::Connected) =>
            {
                if self.restarts >= MOST_RESTARTS {
                    return Some(self.restarted_too_often(&error));
                }
                self.link = LinkState::Lost { at: Instant::now(), error };
            }
            _ => {}
        }
        None
    }

    /// Time at which a connection is not waited for any longer.
    fn limit(&self) -> Option<Instant> {
        let LinkState::Lost { at, .. } = &self.link else { return None };
        self.patience.map(|patience| *at + patience)
    }

    fn gone(&self) -> Failure {
        let LinkState::Lost { error, .. } = &self.link else { return Failure::lost("Error: no connection.") };
        let patience = self.patience.unwrap_or_default().as_secs();
        Failure::lost(format!("Error: {error}; there is no new connection within {patience} s."))
    }

    fn restarted_too_often(&self, error: &Error) -> Failure {
        Failure::lost(format!(
            "Error: {error}; the server kept nothing of the message, {} times in a row.",
            self.restarts + 1
        ))
    }

    fn show(&mut self, client: &Client) {
        let state = match &self.link {
            LinkState::Connected => {
                // After a part that the server has, only the rest is unwritten.
                self.sent = self.size.saturating_sub(client.unwritten());
                ""
            }
            LinkState::Lost { .. } => ", not connected",
        };
        let percent = self.sent * 100 / self.size.max(1);
        self.is_shown = true;
        let (sent, size) = (mb(self.sent), mb(self.size));
        replace_line(&format!("{sent:.1} of {size:.1} MB ({percent} %){state} "));
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if self.is_shown {
            replace_line("");
        }
    }
}

/// The next event. Never ready after the last one: the client has failed, and says so itself.
async fn next(events: &mut Events) -> ConnectionEvent {
    match events.recv().await {
        Some(event) => event,
        None => std::future::pending().await,
    }
}

#[expect(clippy::cast_precision_loss, reason = "the result is rounded to a tenth")]
fn mb(bytes: usize) -> f64 {
    bytes as f64 / 1e6
}
