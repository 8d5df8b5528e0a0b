//! Enhanced authentication by SCRAM-SHA-256 (RFC 5802, RFC 7677): the server never gets the password, and has to prove
//! that it knows the credentials.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use braid_auth::scram::{Nonce, ScramClient, ScramClientFinal, ScramError};
use braid_proto::connection::ServerProof;
use bytes::Bytes;
use tokio::task::{JoinHandle, spawn_blocking};

use crate::error::{Error, OptionsError};

/// Authentication Method of the exchange.
pub(crate) use braid_auth::scram::MECHANISM;

/// User name and password.
pub(crate) struct ScramCredentials {
    user: Box<str>,
    password: Bytes,
}

impl fmt::Debug for ScramCredentials {
    /// Shows the user name only.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScramCredentials").field("user", &self.user).finish_non_exhaustive()
    }
}

impl ScramCredentials {
    /// Checks a user name, as far as that is possible without a server.
    ///
    /// # Errors
    /// SASLprep prohibits the user name, or it is too long.
    pub(crate) fn new(user: Box<str>, password: Bytes) -> Result<Self, OptionsError> {
        let unused = Nonce::new([0; Nonce::RANDOM_BYTES]);
        ScramClient::start(&user, &password, unused)
            .map_err(|error| OptionsError::ScramUser { reason: error.to_string() })?;
        Ok(Self { user, password })
    }
}

/// Exchange of one authentication.
pub(crate) struct Exchange(Step);

enum Step {
    /// The server has the first message.
    Started(ScramClient),
    /// A thread computes the answer to the challenge: the server says for how long, half a second at most.
    Computing(JoinHandle<Result<(Vec<u8>, ScramClientFinal), ScramError>>),
    /// The server has the last message.
    Answered,
}

impl Exchange {
    /// Begins an exchange; the first message is for CONNECT, or AUTH.
    ///
    /// # Errors
    /// The system gives no random numbers.
    pub(crate) fn begin(credentials: &ScramCredentials) -> Result<(Self, Bytes), Error> {
        let mut random = [0; Nonce::RANDOM_BYTES];
        getrandom::fill(&mut random).map_err(|error| failed(&error))?;
        let ScramCredentials { user, password } = credentials;
        let started = ScramClient::start(user, password, Nonce::new(random));
        let (message, client) = started.map_err(|error| failed(&error))?;
        Ok((Self(Step::Started(client)), message.into()))
    }

    /// Takes the challenge of the server. False: there was one before.
    pub(crate) fn handle_challenge(&mut self, data: Bytes) -> bool {
        match std::mem::replace(&mut self.0, Step::Answered) {
            Step::Started(client) => {
                self.0 = Step::Computing(spawn_blocking(move || client.handle_first(&data)));
                true
            }
            Step::Computing(_) | Step::Answered => false,
        }
    }

    /// Ready with the last message and the check of the server, once they are computed. Pending without a challenge.
    ///
    /// # Errors
    /// The challenge is malformed, or belongs to another exchange.
    pub(crate) fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Result<(Bytes, ServerProof), Error>> {
        let Step::Computing(computing) = &mut self.0 else { return Poll::Pending };
        let computed = ready!(Pin::new(computing).poll(cx));
        self.0 = Step::Answered;
        let answered = computed.map_err(|error| failed(&error))?.map_err(|error| failed(&error));
        Poll::Ready(answered.map(|(message, last)| {
            (message.into(), ServerProof::new(move |data| last.handle_final(data).is_ok()))
        }))
    }
}

fn failed(error: &dyn fmt::Display) -> Error {
    Error::Authentication { reason: error.to_string().into() }
}
