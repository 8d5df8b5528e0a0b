//! Enhanced authentication of a connection, and re-authentication at the request of the application.

use std::task::{Context, Poll};

use braid_proto::connection::SendError;
use braid_proto::packet::Auth;
use braid_proto::reason::ReasonCode;
use tracing::debug;

use super::Connection;
use crate::error::Error;
use crate::scram::Exchange;
use crate::send_queue::{Waiter, answer};
use crate::state::ClientState;

/// Exchange of a connection, and the callers that wait for it.
#[derive(Default)]
pub(super) struct Authentication {
    /// `None`: none is going on.
    exchange: Option<Exchange>,
    waiters: Vec<Waiter<()>>,
}

impl Authentication {
    /// Exchange that CONNECT begins, if there is one.
    pub(super) fn begun(exchange: Option<Exchange>) -> Self {
        Self { exchange, waiters: Vec::new() }
    }

    /// Ends the exchange and answers those that wait for it.
    pub(super) fn end(&mut self, result: &Result<(), Error>) {
        self.exchange = None;
        self.waiters.drain(..).for_each(|waiter| answer(waiter, result.clone()));
    }
}

impl Connection {
    /// Begins a re-authentication, or lets the caller wait for the one that is going on.
    pub(super) fn reauthenticate(&mut self, state: &ClientState, waiter: Waiter<()>) {
        let Some(credentials) = &state.settings.scram else {
            return answer(waiter, Err(Error::NoAuthenticationMethod));
        };
        if !self.protocol.is_established() {
            return answer(waiter, Err(Error::Send(SendError::NotConnected)));
        }
        if self.authentication.exchange.is_none() {
            match Exchange::begin(credentials) {
                Ok((exchange, data)) => {
                    debug!("sending AUTH: re-authenticate");
                    if !self.protocol.reauthenticate(data) {
                        return answer(waiter, Err(Error::Send(SendError::TooLarge)));
                    }
                    self.authentication.exchange = Some(exchange);
                }
                Err(error) => return answer(waiter, Err(error)),
            }
        }
        self.authentication.waiters.push(waiter);
    }

    /// Handles an AUTH of the server.
    pub(super) fn handle_auth(&mut self, auth: Auth) {
        debug!(reason = %auth.reason, "received AUTH");
        if auth.reason == ReasonCode::Success {
            return self.authentication.end(&Ok(()));
        }
        let data = auth.authentication_data.unwrap_or_default();
        let is_expected =
            self.authentication.exchange.as_mut().is_some_and(|exchange| exchange.handle_challenge(data));
        if !is_expected {
            let reason = "the server asks more than SCRAM-SHA-256 does".into();
            self.end_if_violated(Err(Error::Authentication { reason }));
        }
    }

    /// Answers the challenge of the server once the answer is computed. True: it was.
    pub(super) fn poll_exchange(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(exchange) = &mut self.authentication.exchange else { return false };
        let Poll::Ready(answered) = exchange.poll_answer(cx) else { return false };
        match answered {
            Ok((data, proof)) => self.protocol.answer_challenge(data, proof),
            Err(error) => self.end_if_violated(Err(error)),
        }
        true
    }
}
