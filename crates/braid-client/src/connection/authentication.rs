//! Enhanced authentication of a connection, and re-authentication at the request of the application.

use std::task::{Context, Poll, ready};

use braid_proto::connection::{Client as Protocol, SendError};
use braid_proto::packet::Auth;
use braid_proto::reason::ReasonCode;
use tracing::debug;

use crate::error::Error;
use crate::scram::{Exchange, ScramCredentials};
use crate::send_queue::{Waiter, answer};

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

    /// Begins a re-authentication, or lets the caller wait for the one that is going on.
    pub(super) fn begin_again(
        &mut self,
        protocol: &mut Protocol,
        credentials: Option<&ScramCredentials>,
        waiter: Waiter<()>,
    ) {
        let begun = match credentials {
            None => Err(Error::NoAuthenticationMethod),
            Some(_) if !protocol.is_established() => Err(Error::Send(SendError::NotConnected)),
            Some(_) if self.exchange.is_some() => Ok(()),
            Some(credentials) => self.send_first(protocol, credentials),
        };
        match begun {
            Ok(()) => self.waiters.push(waiter),
            Err(error) => answer(waiter, Err(error)),
        }
    }

    fn send_first(&mut self, protocol: &mut Protocol, credentials: &ScramCredentials) -> Result<(), Error> {
        let (exchange, data) = Exchange::begin(credentials)?;
        if !protocol.reauthenticate(data) {
            return Err(Error::Send(SendError::TooLarge));
        }
        debug!("sending AUTH: re-authenticate");
        self.exchange = Some(exchange);
        Ok(())
    }

    /// Handles an AUTH of the server.
    ///
    /// # Errors
    /// A second challenge of one exchange.
    pub(super) fn handle_auth(&mut self, auth: Auth) -> Result<(), Error> {
        debug!(reason = %auth.reason, "received AUTH");
        if auth.reason == ReasonCode::Success {
            self.end(&Ok(()));
            return Ok(());
        }
        let data = auth.authentication_data.unwrap_or_default();
        if self.exchange.as_mut().is_some_and(|exchange| exchange.handle_challenge(data)) {
            return Ok(());
        }
        Err(Error::Authentication { reason: "the server asks more than SCRAM-SHA-256 does".into() })
    }

    /// Ready when the challenge of the server was answered.
    ///
    /// # Errors
    /// The challenge is malformed, or belongs to another exchange.
    pub(super) fn poll(&mut self, protocol: &mut Protocol, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let Some(exchange) = &mut self.exchange else { return Poll::Pending };
        let answered = ready!(exchange.poll_answer(cx));
        Poll::Ready(answered.map(|(data, proof)| protocol.answer_challenge(data, proof)))
    }

    /// Ends the exchange and answers the callers that wait for it.
    pub(super) fn end(&mut self, result: &Result<(), Error>) {
        self.exchange = None;
        self.waiters.drain(..).for_each(|waiter| answer(waiter, result.clone()));
    }
}
