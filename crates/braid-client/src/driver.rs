//! Driver: the task that owns a client, runs its connections one after the other, and pauses between them.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_proto::connection::Client as Protocol;
use braid_proto::reason::ReasonCode;
use braid_proto::session::{Session, SessionExpiry};
use braid_transport::Link;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{debug, info};

use crate::auto::Replacement;
use crate::connection::{Connection, End};
use crate::error::Error;
use crate::events::ConnectionEvent;
use crate::scram::Exchange;
use crate::state::{ClientState, now};

/// Time for which the CONNECT of a link that was left may still arrive: TCP goes on for minutes where nothing answers,
/// and such a link was left because another one answers.
const LATE_CONNECT: Duration = Duration::from_secs(60);

/// End of a connection that leaves the driver something to do.
enum Outcome {
    /// The application closed the client.
    Closed,
    /// Another link or server takes its place.
    Replaced,
    /// The server refers to another one, which is not gone to now.
    Referred(Error),
}

/// Owner of the client state, with one connection at a time.
pub(crate) struct Driver {
    state: ClientState,
    ended: watch::Sender<Option<Result<(), Error>>>,
    /// Session State between connections; `None` before the first one, unless the server may resume a session.
    session: Option<Session>,
    /// Number of connections so far. Acknowledgements name theirs: those of an older one are ignored.
    connections: u64,
    /// Link on which the next connection begins, in place of one that is dialled.
    next: Option<Link>,
    /// Time at which a link was left that had not brought CONNACK: the server may get its CONNECT later, and take it
    /// for another client.
    left_unanswered: Option<Instant>,
    /// Whether subscriptions may be restored before CONNACK. False after a connection that ended without an answer to
    /// an early SUBSCRIBE.
    resubscribes_early: bool,
}

impl Driver {
    pub(crate) fn new(state: ClientState, ended: watch::Sender<Option<Result<(), Error>>>) -> Self {
        Self {
            state,
            ended,
            session: None,
            connections: 0,
            next: None,
            left_unanswered: None,
            resubscribes_early: true,
        }
    }

    pub(crate) async fn run(mut self) {
        let connect = &self.state.settings.connect;
        if !connect.clean_start {
            // An empty session is one too: the server may resume the one that it has kept. [MQTT-3.2.2-4]
            self.session = Some(Session::new(connect.client_id.clone(), SessionExpiry::NEVER));
        }
        let result = loop {
            let is_moving = self.next.is_some();
            let (error, has_alternative) = match self.serve_once().await {
                Ok(Outcome::Closed) => break Ok(()),
                Ok(Outcome::Replaced) => {
                    self.state.handle_connection_end();
                    continue;
                }
                // The server of the URL may take the client.
                Ok(Outcome::Referred(error)) => (error, true),
                Err(error) => {
                    let is_own_connect = self.is_taken_over_by_itself(&error);
                    let auto = self.state.settings.route.auto();
                    // The server of the link which was left for this one may, too.
                    let has_other_link = auto.is_some_and(|auto| auto.handle_failure(&error, is_moving));
                    (error, is_own_connect || has_other_link)
                }
            };
            info!("no connection: {error}");
            self.state.handle_connection_end();
            let Some(pause) = self.state.retry_in(&error, has_alternative) else { break Err(error) };
            let event = ConnectionEvent::Disconnected { error: error.clone(), retry_in: Some(pause) };
            self.state.channels.events.push(event);
            tokio::select! {
                () = sleep(pause) => {}
                () = poll_fn(|cx| self.state.channels.received.poll_closing(cx)) => break Err(error),
            }
        };
        if let Some(auto) = self.state.settings.route.auto() {
            auto.end();
        }
        self.state.fail(result.as_ref().err().cloned().unwrap_or(Error::Closed));
        self.ended.send_replace(Some(result));
    }

    /// Whether the server has ended the connection for a CONNECT of this client, on a link that it has left; once for
    /// each such link.
    fn is_taken_over_by_itself(&mut self, error: &Error) -> bool {
        let is_taken_over = matches!(error, Error::Disconnected { reason: ReasonCode::SessionTakenOver, .. });
        is_taken_over && self.left_unanswered.take().is_some_and(|at| now().duration_since(at) < LATE_CONNECT)
    }

    /// Runs one connection from its link to its end, again without early data if the server rejects that.
    async fn serve_once(&mut self) -> Result<Outcome, Error> {
        let mut end = self.serve_link(true).await?;
        if end.is_early_rejected && end.replacement.is_none() {
            debug!("the server rejected the early data: connecting again without");
            self.state.handle_connection_end();
            end = self.serve_link(false).await?; // [BQ-62]
        }
        if let Some(Replacement { link, reason, is_established, .. }) = end.replacement {
            if !is_established {
                self.left_unanswered = Some(now());
            }
            let to = link.peer().transport;
            info!("moving to {to}: {reason}");
            self.state.channels.events.push(ConnectionEvent::Moving { to, reason: reason.into() });
            self.next = Some(link);
            return Ok(Outcome::Replaced);
        }
        let Err(error) = end.result else { return Ok(Outcome::Closed) };
        match self.state.follow(&error, end.server_reference.as_deref()) {
            Some(true) => Ok(Outcome::Replaced),
            Some(false) => Ok(Outcome::Referred(error)),
            None => Err(error),
        }
    }

    /// Runs one connection on one link. `may_be_early`: whether the link may carry early data, if the application asked
    /// for that.
    async fn serve_link(&mut self, may_be_early: bool) -> Result<End, Error> {
        let state = &mut self.state;
        let link = match self.next.take() {
            Some(link) => link,
            None => tokio::select! {
                link = state.settings.dial(may_be_early) => link?,
                () = poll_fn(|cx| state.channels.received.poll_closing(cx)) => return Err(Error::Closed),
            },
        };
        if let Some(auto) = state.settings.route.auto() {
            auto.begin(&link);
        }
        let mut connect = state.settings.connect.clone();
        let begun = state.settings.scram.as_ref().map(Exchange::begin).transpose()?;
        let exchange = begun.map(|(exchange, data)| {
            connect.properties.authentication_data = Some(data);
            exchange
        });
        debug!(client_id = %connect.client_id, over = %link.peer().transport, "sending CONNECT");
        let protocol =
            Protocol::new(Arc::clone(&state.settings.protocol), connect, self.session.take(), now());
        self.connections += 1;
        state.lanes.begin(link.is_multi());
        // A client that authenticates sends nothing else before CONNACK. [MQTT-3.1.2-30]
        let is_early = link.is_early()
            && state.settings.scram.is_none()
            && std::mem::replace(&mut self.resubscribes_early, true);
        if is_early {
            state.resubscribe_early();
        }
        let mut connection = Connection::new(link, protocol, self.connections, exchange);
        state.channels.requests.set_connected(true);
        let mut end = poll_fn(|cx| connection.poll(state, cx)).await;
        state.channels.requests.set_connected(false);
        // A server that ends the connection because of an early SUBSCRIBE gets it after CONNACK the next time.
        self.resubscribes_early = !is_early || end.is_early_rejected || !state.inflight.is_resubscribing();
        self.session = end.session.take();
        Ok(end)
    }
}
