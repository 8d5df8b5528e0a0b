//! Everything that can go wrong, each with one line that says what to change.

use std::sync::Arc;

use braid_proto::connection::{Cause, Unsendable};
use braid_proto::error::Violation;
use braid_proto::reason::ReasonCode;
use braid_proto::topic::TopicError;
use braid_transport::ConnectError;
use thiserror::Error;

/// Why an operation of the client failed.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The options contradict each other or the URL is none.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// A topic or filter against MQTT 4.7.
    #[error(transparent)]
    Topic(#[from] TopicError),
    /// The server cannot be reached.
    #[error(transparent)]
    Connect(Arc<ConnectError>),
    /// The server could be reached, but not in time.
    #[error("no connection within {seconds} s: check host and port, or allow more time")]
    ConnectTimeout {
        /// The limit that was set.
        seconds: u64,
    },
    /// The server refused the CONNECT.
    #[error("the server refuses the connection: {}{}", advice(*reason), said(text.as_deref()))]
    Refused {
        /// Why.
        reason: ReasonCode,
        /// What the server adds for people.
        text: Option<Arc<str>>,
    },
    /// The server ended the connection and said why.
    #[error("the server closed the connection: {}{}", advice(*reason), said(text.as_deref()))]
    Disconnected {
        /// Why.
        reason: ReasonCode,
        /// What the server adds for people.
        text: Option<Arc<str>>,
    },
    /// The server broke the specification, or did not answer in time.
    #[error("connection lost: {0}")]
    Violation(Violation),
    /// The link ended without a word.
    #[error("connection lost: the link was closed without DISCONNECT")]
    ConnectionLost,
    /// The server did not take the message.
    #[error("the server did not take the message: {0}")]
    PublishRefused(ReasonCode),
    /// The server granted none of the filters.
    #[error("the server granted no subscription: {}", list(codes))]
    SubscribeRefused {
        /// One per filter, in their order.
        codes: Arc<[ReasonCode]>,
    },
    /// The server said in CONNACK that it cannot do this.
    #[error(transparent)]
    Unsendable(#[from] Unsendable),
    /// The message's Message Expiry Interval passed before it could be sent.
    #[error("the message expired before all of it was sent: allow more time, or send less at once")]
    Expired,
    /// The server ended the data stream of a QoS 0 message before the message was written.
    #[error("the server ended the stream of the message{}: publish it again, or with QoS 1", why(*code))]
    StreamEnded {
        /// The server's code of the stream; below 0x100 it is an MQTT Reason Code. `None`: it gave none.
        code: Option<u64>,
    },
    /// The connection cannot move to another port.
    #[error("the connection cannot move: {reason}")]
    Rebind {
        /// Why not.
        reason: Arc<str>,
    },
    /// `try_publish` found the queue full.
    #[error("the queue is full: wait, or use publish, which waits for room")]
    QueueFull,
    /// The client was closed by `disconnect`, or by an error that ended it.
    #[error("the client is closed")]
    Closed,
}

/// Why a client cannot even be built.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// No URL at all.
    #[error("{url:?} is no URL: write it as mqtt://host:1883 ({reason})")]
    Url {
        /// What was given.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A scheme that names no transport.
    #[error("unknown scheme {scheme:?}: use mqtt, mqtts, ws, wss or quic")]
    Scheme {
        /// What was given.
        scheme: String,
    },
    /// A URL without a host.
    #[error("the URL {url:?} names no host: write it as mqtt://host:1883")]
    Host {
        /// What was given.
        url: String,
    },
    /// An option that only QUIC has.
    #[error("{option} needs QUIC: connect to quic://host, or leave it out")]
    NeedsQuic {
        /// What was asked for.
        option: &'static str,
    },
    /// A link rate of nothing.
    #[error("a link rate of 0 bytes per second sends nothing: give that of the uplink, or leave it out")]
    LinkRate,
    /// A gate that keeps nothing for what is urgent, or too much.
    #[error("a gate keeps 1 to 3 packets for what is urgent, not {0}")]
    GateReserve(u8),
    /// A path where the transport has none.
    #[error("{scheme} URLs have no path, so {path:?} means nothing here: leave it out")]
    Path {
        /// The scheme.
        scheme: &'static str,
        /// What was given.
        path: String,
    },
    /// MQTT 3.1 demands 1 to 23 characters, and MQTT 3.1.1 needs an identifier for a session.
    #[error("MQTT {version} needs a client identifier here: give one, or use clean start")]
    ClientId {
        /// The protocol version.
        version: &'static str,
    },
    /// MQTT 3 has no password without a user name. [MQTT3-3.1.2-22]
    #[error("a password without a user name is only possible with MQTT 5: give a user name")]
    PasswordWithoutUserName,
}

impl Error {
    /// Whether the same attempt can succeed later without anybody changing something.
    pub fn is_transient(&self) -> bool {
        use ReasonCode as R;
        match self {
            Self::Connect(error) => is_transient(error),
            Self::Refused { reason, .. } | Self::Disconnected { reason, .. } => !matches!(
                reason,
                R::UnsupportedProtocolVersion
                    | R::ClientIdentifierNotValid
                    | R::BadUserNameOrPassword
                    | R::NotAuthorized
                    | R::Banned
                    | R::BadAuthenticationMethod
                    | R::TopicNameInvalid
                    | R::PacketTooLarge
                    | R::PayloadFormatInvalid
                    | R::RetainNotSupported
                    | R::QosNotSupported
                    | R::UseAnotherServer
                    | R::ServerMoved
                    // Two clients with one identifier would take the session from each other for ever.
                    | R::SessionTakenOver
            ),
            Self::ConnectTimeout { .. } | Self::Violation(_) | Self::ConnectionLost => true,
            _ => false,
        }
    }

    pub(crate) fn from_cause(cause: Cause) -> Self {
        match cause {
            Cause::Disconnected(reason) => Self::Disconnected { reason, text: None },
            Cause::Refused(reason) => Self::Refused { reason, text: None },
            Cause::Violation(violation) => Self::Violation(violation),
            Cause::Closed(_) => Self::Closed,
            Cause::Lost => Self::ConnectionLost,
        }
    }
}

fn is_transient(error: &ConnectError) -> bool {
    !matches!(
        error,
        ConnectError::NotTrusted { .. }
            | ConnectError::WrongName { .. }
            | ConnectError::ServerName { .. }
            | ConnectError::Certificate(_)
    )
}

fn advice(reason: ReasonCode) -> String {
    let advice = match reason {
        ReasonCode::UnsupportedProtocolVersion => ": choose another protocol version",
        ReasonCode::ClientIdentifierNotValid => ": choose another client identifier",
        ReasonCode::BadUserNameOrPassword => ": check both",
        ReasonCode::NotAuthorized => ": check user name, password and the server's access rules",
        ReasonCode::SessionTakenOver => ": another client connected with the same client identifier",
        _ => "",
    };
    format!("{reason}{advice}")
}

fn why(code: Option<u64>) -> String {
    let Some(code) = code else { return String::new() };
    match u8::try_from(code).ok().and_then(ReasonCode::from_u8) {
        Some(reason) => format!(" ({reason})"),
        None => format!(" (code {code:#x})"),
    }
}

fn said(text: Option<&str>) -> String {
    text.map(|text| format!(" (the server says: {text})")).unwrap_or_default()
}

fn list(codes: &[ReasonCode]) -> String {
    codes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
