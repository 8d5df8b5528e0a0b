//! State of a client across its connections: queues, lanes, unanswered requests and subscriptions.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Context;
use std::time::Instant;

use braid_proto::connection::{Connected, Continued, SendError};
use braid_proto::message::Delivery;
use braid_proto::packet::{PacketId, PacketType};
use braid_proto::reason::ReasonCode;
use braid_proto::session::SessionExpiry;
use braid_proto::stream::LogicalStream;
use braid_transport::Transport;
use braid_transport::quic::{PathChange, PathNotice};
use tokio::sync::oneshot;
use tracing::{debug, info, warn};

use crate::datagrams::DatagramCounters;
use crate::error::Error;
use crate::events::{ConnectionEvent, EventLog};
use crate::inflight::InflightTracker;
use crate::lanes::LaneScheduler;
use crate::receive_queue::ReceiveQueue;
use crate::reconnect::Backoff;
use crate::send_queue::{Control, Request, Room, SendQueue, answer};
use crate::settings::Settings;
use crate::subscribe::Subscribe;

/// Queues between the application and the driver.
#[derive(Debug)]
pub(crate) struct Channels {
    pub(crate) requests: SendQueue,
    pub(crate) received: ReceiveQueue,
    pub(crate) events: EventLog,
    /// Bytes that the protocol has encoded and the link has not taken, for [`Client::unwritten`](crate::Client).
    pub(crate) unwritten: AtomicUsize,
    pub(crate) datagrams: DatagramCounters,
}

/// State of one client across its connections. The driver owns it and lends it to the current connection.
pub(crate) struct ClientState {
    pub(crate) settings: Settings,
    pub(crate) channels: Arc<Channels>,
    pub(crate) lanes: LaneScheduler,
    pub(crate) inflight: InflightTracker,
    backoff: Backoff,
    /// Caller of [`Builder::connect`](crate::Builder::connect) that waits for the outcome of the only attempt.
    first: Option<oneshot::Sender<Result<(), Error>>>,
}

impl ClientState {
    /// State before the first connection. `first` gets the outcome of the first attempt.
    pub(crate) fn new(
        settings: Settings,
        channels: Arc<Channels>,
        first: Option<oneshot::Sender<Result<(), Error>>>,
    ) -> Self {
        let backoff = Backoff::new(settings.reconnect);
        let (lanes, inflight) = (LaneScheduler::default(), InflightTracker::default());
        Self { settings, channels, lanes, inflight, backoff, first }
    }

    pub(crate) fn set_unwritten(&self, bytes: usize) {
        self.channels.unwritten.store(bytes, Ordering::Relaxed);
    }

    // -- Requests ----------------------------------------------------------------------------------

    /// Moves new requests of the application to their lanes.
    pub(crate) fn take_requests(&mut self, cx: &mut Context<'_>) {
        for (request, room) in self.channels.requests.take(cx) {
            self.enqueue(request, Some(room));
        }
    }

    /// Refuses further requests. Those that were made before move to their lanes.
    pub(crate) fn close_requests(&mut self) {
        for request in self.channels.requests.close() {
            self.enqueue(request, None);
        }
    }

    fn enqueue(&mut self, request: Request, room: Option<Room>) {
        let stream = match &request {
            Request::Publish { stream, .. } | Request::Resend { stream, .. } => *stream,
            Request::Control(control) => self.inflight.stream_for(control),
        };
        self.lanes.push_back(stream, request, room);
    }

    /// Puts retransmissions at the front of their lanes, in their order. [BQ-21], [MQTT-4.6.0-1]
    pub(crate) fn enqueue_resends(&mut self, resends: Vec<(PacketId, Delivery)>) {
        for (id, delivery) in resends.into_iter().rev() {
            let stream = self.inflight.begin_resend(id);
            self.lanes.push_front(stream, Request::Resend { id, delivery, stream });
        }
    }

    fn enqueue_resubscribes(&mut self, subscribes: Vec<Subscribe>) {
        for subscribe in subscribes.into_iter().rev() {
            let stream = subscribe.logical();
            self.lanes.push_front(stream, Request::Control(Control::Resubscribe(subscribe)));
        }
    }

    /// Subscribes again on each logical stream for which `has_ended` is true, so that its subscriptions return to it.
    pub(crate) fn rebind_subscriptions(&mut self, has_ended: impl Fn(LogicalStream) -> bool) {
        let subscribes = self.inflight.rebind(has_ended);
        self.enqueue_resubscribes(subscribes);
    }

    /// Subscribes again before CONNACK, so that messages arrive a round trip sooner. Subscriptions that the server
    /// keeps if it resumes the session are left out. [BQ-61]
    pub(crate) fn resubscribe_early(&mut self) {
        let may_be_kept = SessionExpiry::requested_by(&self.settings.connect).outlives_connection();
        let subscribes = self.inflight.resubscribe_early(may_be_kept);
        self.enqueue_resubscribes(subscribes);
    }

    /// Reports a change of one of several paths.
    pub(crate) fn handle_path(&self, notice: PathNotice) {
        let Some(path) = self.settings.paths.get(notice.local) else { return };
        match notice.change {
            PathChange::Opened => info!("path {path}: the server answers"),
            PathChange::Silent => info!("path {path}: no answer; its data goes on elsewhere"),
            PathChange::Unsupported => info!("path {path}: not used, since the server knows one path only"),
        }
        self.channels.events.push(ConnectionEvent::Path { path: Arc::clone(path), change: notice.change });
    }

    // -- Answers of the server ---------------------------------------------------------------------

    /// Handles CONNACK with Success. `is_multi`: the link can have data streams.
    pub(crate) fn handle_connected(&mut self, connected: Connected, transport: Transport, is_multi: bool) {
        let Connected { session_present, properties, lost } = connected;
        debug!(session_present, "received CONNACK");
        let session = if session_present { "the session goes on" } else { "a new session" };
        info!("connected over {transport}: {session}");
        self.backoff.reset();
        let connect = &mut self.settings.connect;
        if let Some(id) = &properties.assigned_client_id {
            connect.client_id = id.clone(); // [MQTT-3.2.2-16]
        }
        // Only the first connection starts a new session. MQTT 3 has one flag for the beginning and the end of a
        // session, which therefore stays as it is.
        if connect.version.is_v5() {
            connect.clean_start = false;
        }
        if let Some(first) = self.first.take() {
            let _ = first.send(Ok(()));
        }
        if let Some(auto) = self.settings.route.auto() {
            auto.handle_connected(&properties);
        }
        // Early SUBSCRIBEs that were not sent are made anew below.
        self.lanes.drop_resubscribes();
        if !session_present {
            self.inflight.handle_session_lost(lost, &mut self.lanes);
            let subscribes = self.inflight.resubscribe();
            self.enqueue_resubscribes(subscribes);
        } else if is_multi {
            self.rebind_subscriptions(|_| true); // [BQ-42]
        }
        self.channels.events.push(ConnectionEvent::Connected {
            transport,
            session_present,
            server: Arc::new(properties),
        });
    }

    /// Tells that a large message goes on, or begins again.
    pub(crate) fn handle_continued(&self, continued: Continued) {
        let Continued { topic, offset, size } = continued;
        match offset {
            0 => info!("the server lacks its part of the message to {topic}, which begins again"),
            _ => info!("the message to {topic} goes on at byte {offset} of {size}"),
        }
        self.channels.events.push(ConnectionEvent::Continued { topic, offset, size });
    }

    /// Handles the SUBACK for `id`: one code per filter.
    ///
    /// # Errors
    /// Another number of codes. The request has failed; one that restores subscriptions is made anew with the next
    /// connection.
    pub(crate) fn handle_suback(&mut self, id: PacketId, codes: Vec<ReasonCode>) -> Result<(), Error> {
        let Some(control) = self.inflight.take_control(id) else { return Ok(()) };
        match control {
            Control::Subscribe { subscribe, waiter } if codes.len() == subscribe.entries.len() => {
                self.inflight.add_subscriptions(&subscribe, &codes);
                let is_refused = codes.iter().all(|code| code.is_error());
                let refusal = || Error::SubscribeRefused { codes: codes.as_slice().into() };
                let result = if is_refused { Err(refusal()) } else { Ok(codes) };
                answer(waiter, result);
            }
            Control::Resubscribe(subscribe) if codes.len() == subscribe.entries.len() => {
                self.handle_restored(subscribe, codes);
            }
            other => return Err(fail_unanswered(other, PacketType::Suback)),
        }
        Ok(())
    }

    fn handle_restored(&mut self, subscribe: Subscribe, codes: Vec<ReasonCode>) {
        self.inflight.remove_refused(&subscribe, &codes);
        for (entry, reason) in subscribe.entries.into_iter().zip(codes) {
            if let (Ok(filter), true) = (entry.filter, reason.is_error()) {
                warn!(%filter, %reason, "the server refused to restore a subscription");
                self.channels.events.push(ConnectionEvent::SubscriptionLost { filter, reason });
            }
        }
    }

    /// Handles the UNSUBACK for `id`. `codes` is empty before MQTT 5.
    ///
    /// # Errors
    /// As for [`ClientState::handle_suback`].
    pub(crate) fn handle_unsuback(&mut self, id: PacketId, codes: Vec<ReasonCode>) -> Result<(), Error> {
        let Some(control) = self.inflight.take_control(id) else { return Ok(()) };
        let mut unsubscribe = match control {
            Control::Unsubscribe(unsubscribe) => unsubscribe,
            other => return Err(fail_unanswered(other, PacketType::Unsuback)),
        };
        let asked = unsubscribe.asked.min(unsubscribe.filters.len());
        let is_v5 = self.settings.connect.version.is_v5();
        if codes.len() != if is_v5 { asked } else { 0 } {
            return Err(fail_unanswered(Control::Unsubscribe(unsubscribe), PacketType::Unsuback));
        }
        let filters: Vec<_> = unsubscribe.filters.drain(..asked).collect();
        self.inflight.remove_subscriptions(&filters);
        if is_v5 {
            unsubscribe.codes.extend(codes);
        } else {
            unsubscribe.codes.extend(filters.iter().map(|_| ReasonCode::Success));
        }
        if unsubscribe.filters.is_empty() {
            answer(unsubscribe.waiter, Ok(unsubscribe.codes));
        } else {
            // The remaining filters are subscribed on other streams.
            self.inflight.retry(Control::Unsubscribe(unsubscribe), &mut self.lanes);
        }
        Ok(())
    }

    /// Handles a SUBSCRIBE or UNSUBSCRIBE that the server cannot take. A SUBSCRIBE that restores several subscriptions
    /// is split into one for each, so that one filter does not take the others with it.
    pub(crate) fn handle_send_error(&mut self, control: Control, error: SendError) {
        let Control::Resubscribe(subscribe) = control else {
            return control.fail(Error::Send(error));
        };
        if subscribe.entries.len() == 1 {
            let reason = reason_of(error);
            return self.handle_restored(subscribe, vec![reason]);
        }
        self.enqueue_resubscribes(subscribe.into_singles().collect());
    }

    // -- Connections -------------------------------------------------------------------------------

    /// Handles the end of a connection: unanswered requests go to the front of their lanes.
    pub(crate) fn handle_connection_end(&mut self) {
        self.inflight.handle_connection_end(&mut self.lanes);
    }

    /// Follows a Server Reference that came with `error`. Returns whether the next attempt may begin at once; `None`:
    /// there was none, or it is not for this client.
    pub(crate) fn follow(&mut self, error: &Error, reference: Option<&str>) -> Option<bool> {
        let reason = match error {
            Error::Refused { reason, .. } | Error::Disconnected { reason, .. } => *reason,
            _ => return None,
        };
        let is_reference = matches!(reason, ReasonCode::UseAnotherServer | ReasonCode::ServerMoved);
        let auto = self.settings.route.auto().filter(|_| is_reference)?;
        Some(auto.follow(reason, reference?))
    }

    /// Pause before the next attempt after `error`; `None`: there is no further attempt. `has_alternative`: the next
    /// one goes elsewhere, so that even a refusal is not final.
    pub(crate) fn retry_in(&mut self, error: &Error, has_alternative: bool) -> Option<std::time::Duration> {
        let is_final = !error.is_transient() && !has_alternative;
        if self.first.is_some() || self.channels.received.is_closing() || is_final {
            return None;
        }
        self.backoff.pause(fastrand::f64())
    }

    /// Fails all requests with `error` and ends the streams of messages and events.
    pub(crate) fn fail(&mut self, error: Error) {
        self.inflight.fail(&error);
        for request in self.lanes.drain().chain(self.channels.requests.close()) {
            request.fail(error.clone());
        }
        if let Some(first) = self.first.take() {
            let _ = first.send(Err(error.clone()));
        }
        self.channels.events.push(ConnectionEvent::Disconnected { error, retry_in: None });
        self.channels.received.end();
    }
}

/// Fails a request that an acknowledgement of this type names and does not answer.
fn fail_unanswered(control: Control, answer: PacketType) -> Error {
    let error = Error::WrongAnswer { answer };
    control.fail(error.clone());
    error
}

fn reason_of(error: SendError) -> ReasonCode {
    match error {
        SendError::TooLarge => ReasonCode::PacketTooLarge,
        SendError::NoPacketId => ReasonCode::PacketIdentifierInUse,
        SendError::WildcardsNotSupported => ReasonCode::WildcardSubscriptionsNotSupported,
        SendError::SubscriptionIdsNotSupported => ReasonCode::SubscriptionIdentifiersNotSupported,
        SendError::SharedNotSupported => ReasonCode::SharedSubscriptionsNotSupported,
        _ => ReasonCode::UnspecifiedError,
    }
}

/// Current instant of tokio's clock, which tests can pause.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
