//! Events of the broker as they happen.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use braid_broker::view::{BrokerEvent, ClientName};
use braid_broker::{SecurityAction, SecurityEvent};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use utoipa::{IntoParams, ToSchema};

use super::autoquic::ChangeRow;
use super::caller::Admitted;
use super::extract::{Params, Refused};
use super::sse::{Source, event, respond};
use super::time::unix_now;
use super::{Api, address_text};
use crate::autoquic::{AutoQuic, Change};

/// Names of events.
const KINDS: [&str; 11] = [
    "connected",
    "disconnected",
    "refused",
    "banned",
    "moved",
    "subscribed",
    "unsubscribed",
    "expired",
    "decision",
    "listener",
    "lost",
];

/// Kinds of events.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct EventsParams {
    /// Names with commas between them; all by default.
    kinds: Option<String>,
}

/// Event; fields that it has not are left out.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(super) struct Event {
    at: f64,
    #[serde(flatten)]
    client: Subject,
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<String>,
    /// Action that was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    action: Option<&'static str>,
    /// Topic or filter of the action.
    #[serde(skip_serializing_if = "Option::is_none")]
    topic: Option<String>,
    /// Filters of subscriptions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    filters: Vec<String>,
    /// Address before a move, or protocol before a decision.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    /// Network of a client.
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<String>,
    /// Protocol that is offered from now on.
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<&'static str>,
    /// Name of a listener, or address of one of the HTTP front.
    #[serde(skip_serializing_if = "Option::is_none")]
    listener: Option<String>,
    /// Events that were lost because they came too fast.
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<u64>,
}

/// Client of an event.
#[derive(Debug, Default, Serialize, ToSchema)]
struct Subject {
    #[serde(skip_serializing_if = "Option::is_none")]
    client_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mountpoint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    transport: Option<String>,
}

impl From<&ClientName> for Subject {
    fn from(name: &ClientName) -> Self {
        Self {
            client_id: Some(name.client_id().to_owned()),
            mountpoint: name.mountpoint().map(str::to_owned),
            ..Self::default()
        }
    }
}

impl Event {
    fn now(client: Subject) -> Self {
        Self { at: unix_now(), client, ..Self::default() }
    }
}

fn of_broker(event: &BrokerEvent) -> (&'static str, Event) {
    let mut data = Event::now(event.client().map(Subject::from).unwrap_or_default());
    let kind = match event {
        BrokerEvent::Connected { user, connection, .. } => {
            data.client.user = user.as_deref().map(str::to_owned);
            data.client.address = connection.address.map(address_text);
            data.client.transport = Some(connection.transport.to_string());
            "connected"
        }
        BrokerEvent::Disconnected { cause, address, .. } => {
            data.cause = Some(cause.to_string());
            data.client.address = address.map(address_text);
            "disconnected"
        }
        BrokerEvent::Subscribed { filters, .. } => {
            data.filters = filters.iter().map(|(filter, _)| filter.as_str().to_owned()).collect();
            "subscribed"
        }
        BrokerEvent::Unsubscribed { filters, .. } => {
            data.filters = filters.iter().map(|filter| filter.as_str().to_owned()).collect();
            "unsubscribed"
        }
        BrokerEvent::Migrated { from, to, .. } => {
            data.from = from.map(address_text);
            data.client.address = Some(address_text(*to));
            "moved"
        }
        BrokerEvent::SessionExpired { .. } => "expired",
        BrokerEvent::ListenerRestarted { listener } => {
            let transport = listener.transport.to_string();
            data.listener = Some(listener.tag.as_deref().map_or_else(|| transport.clone(), str::to_owned));
            data.client.address = listener.address.map(address_text);
            data.client.transport = Some(transport);
            data.cause = Some("the endpoint was restarted after a failure".to_owned());
            "listener"
        }
    };
    (kind, data)
}

fn of_security(event: &SecurityEvent) -> (&'static str, Event) {
    let name = event.client_id.as_ref().map(ClientName::from);
    let mut client = name.as_ref().map(Subject::from).unwrap_or_default();
    let user = event.identity.as_ref().and_then(|identity| identity.user()).or(event.claimed_user.as_deref());
    client.user = user.map(str::to_owned);
    client.address = event.address.map(address_text);
    let mut data = Event::now(client);
    data.action = Some(event.action.name());
    data.topic = event.action.topic().map(str::to_owned);
    data.cause = Some(match (&event.decision, event.cause.as_ref()) {
        (Some(decision), "") => match decision.line {
            Some(line) => format!("denied by the rule in line {line}"),
            None => "no rule permits it".to_owned(),
        },
        (_, cause) => cause.to_owned(),
    });
    data.lost = Some(event.suppressed).filter(|lost| *lost > 0);
    let kind = if event.action == SecurityAction::Banned { "banned" } else { "refused" };
    (kind, data)
}

fn of_autoquic(change: &Change) -> (&'static str, Event) {
    let ChangeRow { at, network, listener, from, to, text, .. } = change.into();
    let data = Event {
        at,
        network: Some(network),
        listener: Some(listener),
        from: Some(from.to_owned()),
        to: Some(to),
        cause: Some(text),
        ..Event::default()
    };
    ("decision", data)
}

/// Source of events.
struct Events {
    broker: Receiver<Arc<BrokerEvent>>,
    security: Receiver<Arc<SecurityEvent>>,
    autoquic: Option<Receiver<Arc<Change>>>,
    /// `None` for all.
    kinds: Option<BTreeSet<String>>,
}

impl Source for Events {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            let received = tokio::select! {
                event = self.broker.recv() => event.map(|event| of_broker(&event)),
                event = self.security.recv() => event.map(|event| of_security(&event)),
                change = next_change(self.autoquic.as_mut()) => change.map(|change| of_autoquic(&change)),
            };
            let (kind, data) = match received {
                Ok(received) => received,
                Err(RecvError::Lagged(lost)) => {
                    ("lost", Event { lost: Some(lost), ..Event::now(Subject::default()) })
                }
                Err(RecvError::Closed) => return None,
            };
            // A gap is told whatever was asked for.
            if kind == "lost" || self.kinds.as_ref().is_none_or(|kinds| kinds.contains(kind)) {
                return Some(event(kind, &data));
            }
        }
    }
}

/// Never resolves without a policy.
async fn next_change(changes: Option<&mut Receiver<Arc<Change>>>) -> Result<Arc<Change>, RecvError> {
    match changes {
        Some(changes) => changes.recv().await,
        None => std::future::pending().await,
    }
}

#[utoipa::path(
    get, path = "/api/v1/events", tag = "broker", params(EventsParams),
    description = "Sends events (server-sent events): connected, disconnected, refused, banned, moved, subscribed, \
                   unsubscribed, expired, listener, decision (of the automatic upgrade), and lost where the client was too slow: 4096 events wait for it, of refused and banned 1024, of decision 256. Earlier ones are not kept.",
    responses((status = 200, description = "Events", content_type = "text/event-stream", body = Event)),
)]
pub(super) async fn live(
    State(api): State<Api>,
    Extension(admitted): Extension<Admitted>,
    Params(params): Params<EventsParams>,
) -> Result<Response, Refused> {
    let kinds = params.kinds.as_deref().map(|text| {
        let kinds: BTreeSet<_> = text.split(',').map(str::to_owned).collect();
        match kinds.iter().find(|kind| !KINDS.contains(&kind.as_str())) {
            Some(unknown) => Err(Refused::bad(format!("kinds: {unknown:?} is none of {}", KINDS.join(", ")))),
            None => Ok(kinds),
        }
    });
    let kinds = kinds.transpose()?;
    let handle = api.handle()?;
    let autoquic = api.0.autoquic.as_ref().map(AutoQuic::subscribe);
    let (broker, security) = (handle.events(), handle.security_events());
    respond(&api, admitted, Events { broker, security, autoquic, kinds })
}
