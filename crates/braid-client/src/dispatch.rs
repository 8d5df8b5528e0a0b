//! Between requests and packets: what is sent for a request, and whom an answer is for.

use std::sync::Arc;
use std::time::Instant;

use braid_proto::connection::{Client as Protocol, Connected, Sent, Unsendable};
use braid_proto::error::Violation;
use braid_proto::message::Delivery;
use braid_proto::reason::ReasonCode;
use tracing::{debug, warn};

use crate::driver::Driver;
use crate::error::Error;
use crate::events::ConnectionEvent;
use crate::request::{Control, Request, Waiter, answer};

pub(crate) fn handle_connected(
    protocol: &mut Protocol,
    driver: &mut Driver,
    connected: Connected,
    now: Instant,
) {
    let Connected { session_present, properties, lost } = connected;
    debug!(session_present, "received CONNACK");
    if let Some(id) = &properties.assigned_client_id {
        driver.handle_assigned_client_id(id);
    }
    driver.handle_connected();
    if !session_present {
        driver.ledger.handle_lost(lost);
        for subscribe in driver.ledger.resubscribe() {
            send_control(protocol, driver, Control::Resubscribe(subscribe), now);
        }
    }
    driver.events.push(ConnectionEvent::Connected { session_present, server: Arc::new(properties) });
}

/// Sends a message, or gives the request back if it must wait.
pub(crate) fn publish(
    protocol: &mut Protocol,
    driver: &mut Driver,
    delivery: Delivery,
    waiter: Option<Waiter<ReasonCode>>,
    written: u64,
    now: Instant,
) -> Option<Request> {
    let topic = delivery.message.topic.clone();
    let error = match protocol.publish(delivery, now) {
        Ok(Sent::Out(Some(id))) => {
            debug!(%id, %topic, "sending PUBLISH");
            driver.ledger.note_publish(id, waiter);
            return None;
        }
        Ok(Sent::Out(None)) => {
            debug!(%topic, "sending PUBLISH");
            if let Some(waiter) = waiter {
                driver.ledger.note_unwritten(written + protocol.outbox().len() as u64, waiter);
            }
            return None;
        }
        Ok(Sent::Expired) => Error::Expired,
        Ok(Sent::TooLarge) => Error::Unsendable(Unsendable::TooLarge),
        Ok(Sent::Blocked(delivery)) => return Some(Request::Publish { delivery: *delivery, waiter }),
        Err(unsendable) => Error::Unsendable(unsendable),
    };
    match waiter {
        Some(waiter) => answer(waiter, Err(error)),
        None => warn!(%error, "a message was not sent"),
    }
    None
}

pub(crate) fn send_control(protocol: &mut Protocol, driver: &mut Driver, control: Control, now: Instant) {
    let sent = match &control {
        Control::Subscribe { subscribe, .. } | Control::Resubscribe(subscribe) => {
            debug!(filters = ?subscribe.entries.len(), "sending SUBSCRIBE");
            protocol.subscribe(subscribe.entries.clone(), subscribe.id, subscribe.user.clone(), now)
        }
        Control::Unsubscribe { filters, user, .. } => {
            debug!(?filters, "sending UNSUBSCRIBE");
            protocol.unsubscribe(filters.clone(), user.clone(), now)
        }
    };
    match sent {
        Ok(id) => driver.ledger.note_control(id, control),
        Err(unsendable) => control.fail(Error::Unsendable(unsendable)),
    }
}

pub(crate) fn handle_suback(driver: &mut Driver, control: Control, codes: Vec<ReasonCode>) {
    match control {
        Control::Subscribe { subscribe, waiter } => {
            driver.ledger.keep(&subscribe, &codes);
            let result = if codes.iter().all(|code| code.is_error()) {
                Err(Error::SubscribeRefused { codes: codes.into() })
            } else if codes.len() == subscribe.entries.len() {
                Ok(codes)
            } else {
                Err(Error::Violation(Violation::Truncated))
            };
            answer(waiter, result);
        }
        Control::Resubscribe(subscribe) => {
            driver.ledger.keep(&subscribe, &codes);
            for (entry, reason) in subscribe.entries.into_iter().zip(codes) {
                if let (Ok(filter), true) = (entry.filter, reason.is_error()) {
                    warn!(%filter, %reason, "the server does not grant the subscription again");
                    driver.events.push(ConnectionEvent::SubscriptionLost { filter, reason });
                }
            }
        }
        Control::Unsubscribe { waiter, .. } => answer(waiter, Err(Error::ConnectionLost)),
    }
}

pub(crate) fn handle_unsuback(driver: &mut Driver, control: Control, mut codes: Vec<ReasonCode>) {
    let Control::Unsubscribe { filters, waiter, .. } = control else { return };
    driver.ledger.forget(&filters);
    if codes.is_empty() {
        codes = vec![ReasonCode::Success; filters.len()]; // MQTT 3 tells no codes.
    }
    answer(waiter, Ok(codes));
}
