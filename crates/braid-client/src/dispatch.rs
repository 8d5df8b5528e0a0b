//! Whom an answer of the server is for.

use std::sync::Arc;

use braid_proto::connection::{Connected, Unsendable};
use braid_proto::error::Violation;
use braid_proto::reason::ReasonCode;
use tracing::{debug, warn};

use crate::driver::Driver;
use crate::error::Error;
use crate::events::ConnectionEvent;
use crate::request::{Control, Request, Unsubscribe, answer};

/// The server accepted the connection. `is_multi`: the link can have data streams.
pub(crate) fn handle_connected(driver: &mut Driver, connected: Connected, is_multi: bool) {
    let Connected { session_present, properties, lost } = connected;
    debug!(session_present, "received CONNACK");
    if let Some(id) = &properties.assigned_client_id {
        driver.handle_assigned_client_id(id);
    }
    driver.handle_connected();
    driver.lanes.drop_restoring(); // Of what was to be early, that for which there was no stream.
    if !session_present {
        driver.ledger.handle_lost(lost, &mut driver.lanes);
        for subscribe in driver.ledger.resubscribe().into_iter().rev() {
            let stream = subscribe.logical();
            driver.lanes.push_front(stream, Request::Control(Control::Resubscribe(subscribe)));
        }
    } else if is_multi {
        driver.restore_streams(|_| true); // [BQ-42]
    }
    driver.events.push(ConnectionEvent::Connected { session_present, server: Arc::new(properties) });
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
            driver.ledger.drop_refused(&subscribe, &codes);
            for (entry, reason) in subscribe.entries.into_iter().zip(codes) {
                if let (Ok(filter), true) = (entry.filter, reason.is_error()) {
                    warn!(%filter, %reason, "the server does not grant the subscription again");
                    driver.events.push(ConnectionEvent::SubscriptionLost { filter, reason });
                }
            }
        }
        Control::Unsubscribe(Unsubscribe { waiter, .. }) => answer(waiter, Err(Error::ConnectionLost)),
    }
}

/// A SUBSCRIBE or UNSUBSCRIBE cannot be sent. Of several subscriptions to restore each has its own try: one that the
/// server has no room for any more does not take the others with it.
pub(crate) fn handle_unsendable(driver: &mut Driver, control: Control, unsendable: Unsendable) {
    let Control::Resubscribe(subscribe) = control else {
        return control.fail(Error::Unsendable(unsendable));
    };
    let (stream, is_alone) = (subscribe.logical(), subscribe.entries.len() == 1);
    if is_alone {
        let reason = reason_of(unsendable);
        return handle_suback(driver, Control::Resubscribe(subscribe), vec![reason]);
    }
    for one in subscribe.into_singles().rev() {
        driver.lanes.push_front(stream, Request::Control(Control::Resubscribe(one)));
    }
}

fn reason_of(unsendable: Unsendable) -> ReasonCode {
    match unsendable {
        Unsendable::TooLarge => ReasonCode::PacketTooLarge,
        Unsendable::NoPacketId => ReasonCode::PacketIdentifierInUse,
        Unsendable::WildcardsNotSupported => ReasonCode::WildcardSubscriptionsNotSupported,
        Unsendable::SubscriptionIdsNotSupported => ReasonCode::SubscriptionIdentifiersNotSupported,
        Unsendable::SharedNotSupported => ReasonCode::SharedSubscriptionsNotSupported,
        _ => ReasonCode::UnspecifiedError,
    }
}

pub(crate) fn handle_unsuback(driver: &mut Driver, control: Control, codes: Vec<ReasonCode>) {
    let Control::Unsubscribe(mut unsubscribe) = control else { return };
    let asked = unsubscribe.asked.min(unsubscribe.filters.len());
    let filters: Vec<_> = unsubscribe.filters.drain(..asked).collect();
    driver.ledger.forget(&filters);
    if codes.is_empty() {
        unsubscribe.codes.extend(filters.iter().map(|_| ReasonCode::Success)); // MQTT 3 tells no codes.
    } else {
        unsubscribe.codes.extend(codes);
    }
    if unsubscribe.filters.is_empty() {
        answer(unsubscribe.waiter, Ok(unsubscribe.codes));
    } else {
        // The rest is on other streams.
        driver.ledger.ask_again(Control::Unsubscribe(unsubscribe), &mut driver.lanes);
    }
}
