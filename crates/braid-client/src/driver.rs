//! The task that owns a client: it connects, runs the connection, and connects again.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::Context;
use std::time::Instant;

use braid_proto::connection::Client as Protocol;
use braid_proto::message::Delivery;
use braid_proto::packet::{ClientId, PacketId};
use braid_proto::session::{Session, SessionExpiry};
use braid_proto::stream::LogicalStream;
use tokio::sync::{oneshot, watch};
use tokio::time::sleep;
use tracing::debug;

use crate::connection::{Connection, End};
use crate::error::Error;
use crate::events::{ConnectionEvent, EventLog};
use crate::inbox::Inbox;
use crate::lanes::Lanes;
use crate::ledger::Ledger;
use crate::queue::{Room, SendQueue};
use crate::reconnect::Backoff;
use crate::request::{Control, Request};
use crate::settings::Settings;

pub(crate) struct Driver {
    pub(crate) settings: Settings,
    pub(crate) requests: Arc<SendQueue>,
    /// What came from there and waits.
    pub(crate) lanes: Lanes,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) events: Arc<EventLog>,
    pub(crate) ended: watch::Sender<Option<Result<(), Error>>>,
    /// Bytes that wait for the link.
    pub(crate) unwritten: Arc<AtomicUsize>,
    /// Who waits for the first connection and will not have a second attempt.
    pub(crate) first: Option<oneshot::Sender<Result<(), Error>>>,
    pub(crate) ledger: Ledger,
    pub(crate) backoff: Backoff,
    /// The Session State between connections.
    pub(crate) session: Option<Session>,
    /// Counts the connections, so that acknowledgements of an older one are told apart.
    pub(crate) connections: u64,
    /// Subscriptions may be restored before CONNACK: the last connection that tried got an answer.
    pub(crate) restores_early: bool,
}

impl Driver {
    pub(crate) async fn run(mut self) {
        if !self.settings.connect.clean_start {
            // Empty, but it is one: the server may go on with what it has kept. [MQTT-3.2.2-4]
            self.session = Some(Session::new(self.settings.connect.client_id.clone(), SessionExpiry::NEVER));
        }
        let result = loop {
            let error = match self.serve_once().await {
                Ok(()) => break Ok(()),
                Err(error) => error,
            };
            debug!(%error, "no connection");
            self.ledger.handle_connection_end(&mut self.lanes);
            if self.first.is_some() || self.inbox.is_closing() || !error.is_transient() {
                break Err(error);
            }
            let Some(pause) = self.backoff.pause(fastrand::f64()) else { break Err(error) };
            self.events.push(ConnectionEvent::Disconnected { error: error.clone(), retry_in: Some(pause) });
            tokio::select! {
                () = sleep(pause) => {}
                () = poll_fn(|cx| self.inbox.poll_closing(cx)) => break Err(error),
            }
        };
        self.end(result);
    }

    fn end(mut self, result: Result<(), Error>) {
        let error = result.as_ref().err().cloned().unwrap_or(Error::Closed);
        self.ledger.fail(&error);
        for request in self.lanes.drain().chain(self.requests.close()) {
            request.fail(error.clone());
        }
        if let Some(first) = self.first.take() {
            let _ = first.send(Err(error.clone()));
        }
        self.events.push(ConnectionEvent::Disconnected { error, retry_in: None });
        self.inbox.end();
        self.ended.send_replace(Some(result));
    }

    /// One connection from its beginning to its end. `Ok`: it was ended from this side.
    async fn serve_once(&mut self) -> Result<(), Error> {
        let end = self.serve_link(true).await?;
        if !end.is_early_rejected {
            return end.result;
        }
        debug!("the server did not take the early data: connecting again without");
        self.ledger.handle_connection_end(&mut self.lanes);
        self.serve_link(false).await?.result // [BQ-62]
    }

    /// `may_be_early`: the link may be used before its handshake is done, if the application wants that.
    async fn serve_link(&mut self, may_be_early: bool) -> Result<End, Error> {
        let link = tokio::select! {
            link = self.settings.dial(may_be_early) => link?,
            () = poll_fn(|cx| self.inbox.poll_closing(cx)) => return Err(Error::Closed),
        };
        let now = now();
        let connect = self.settings.connect.clone();
        debug!(client_id = %connect.client_id, "sending CONNECT");
        let session = self.session.take();
        let protocol = Protocol::new(Arc::clone(&self.settings.protocol), connect, session, now);
        self.connections += 1;
        self.lanes.begin(link.is_multi());
        let is_early = link.is_early() && std::mem::replace(&mut self.restores_early, true);
        if is_early {
            self.restore_early();
        }
        let mut connection = Connection::new(link, protocol, self.connections);
        self.requests.set_connected(true);
        let mut end = poll_fn(|cx| connection.poll(self, cx)).await;
        self.requests.set_connected(false);
        // A server that ends the connection for what was early gets it later the next time.
        self.restores_early = !is_early || end.is_early_rejected || !self.ledger.is_restoring();
        self.session = end.session.take();
        Ok(end)
    }

    // -- Requests ----------------------------------------------------------------------------------

    /// Moves what the application asked for since the last time to its lanes.
    pub(crate) fn take_requests(&mut self, cx: &mut Context<'_>) {
        for (request, room) in self.requests.take(cx) {
            self.line_up(request, Some(room));
        }
    }

    /// Takes no more requests.
    pub(crate) fn close_requests(&mut self) {
        for request in self.requests.close() {
            self.line_up(request, None);
        }
    }

    fn line_up(&mut self, request: Request, room: Option<Room>) {
        let stream = match &request {
            Request::Publish { stream, .. } | Request::Resend { stream, .. } => *stream,
            Request::Control(control) => self.ledger.lane_of(control),
        };
        self.lanes.push_back(stream, request, room);
    }

    /// Puts what must be sent again before everything that waits in its lane. [BQ-21], [MQTT-4.6.0-1]
    pub(crate) fn line_up_resends(&mut self, resends: Vec<(PacketId, Delivery)>) {
        for (id, delivery) in resends.into_iter().rev() {
            let stream = self.ledger.begin_again(id);
            self.lanes.push_front(stream, Request::Resend { id, delivery, stream });
        }
    }

    /// Binds subscriptions to their streams again, those whose stream has ended.
    pub(crate) fn restore_streams(&mut self, has_ended: impl Fn(LogicalStream) -> bool) {
        for subscribe in self.ledger.rebind(has_ended).into_iter().rev() {
            let stream = subscribe.logical();
            self.lanes.push_front(stream, Request::Control(Control::Resubscribe(subscribe)));
        }
    }

    /// Restores subscriptions before the server has answered CONNECT, so that messages come a round trip sooner: those
    /// that it has to be asked for in any case, whether it goes on with the session or not. [BQ-61]
    fn restore_early(&mut self) {
        let connect = &self.settings.connect;
        let ends_with_connection = match connect.version.is_v5() {
            true => connect.properties.session_expiry.unwrap_or(0) == 0,
            false => connect.clean_start,
        };
        for subscribe in self.ledger.resubscribe_early(!ends_with_connection).into_iter().rev() {
            let stream = subscribe.logical();
            self.lanes.push_front(stream, Request::Control(Control::Resubscribe(subscribe)));
        }
    }

    // -- Connections -------------------------------------------------------------------------------

    /// The server accepted the connection.
    pub(crate) fn handle_connected(&mut self) {
        self.backoff.reset();
        let connect = &mut self.settings.connect;
        // Only the first connection starts anew. MQTT 3 has one flag for that and for the session's end, so
        // there it stays as it is.
        if connect.version.is_v5() {
            connect.clean_start = false;
        }
        if let Some(first) = self.first.take() {
            let _ = first.send(Ok(()));
        }
    }

    /// The server chose our Client Identifier: the session has it from now on. [MQTT-3.2.2-16]
    pub(crate) fn handle_assigned_client_id(&mut self, id: &ClientId) {
        self.settings.connect.client_id = id.clone();
    }
}

/// tokio's clock, which tests can hold.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
