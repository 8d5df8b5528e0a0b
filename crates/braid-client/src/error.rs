//! Errors of the client. The text of each is one line that says what to change.

use std::sync::Arc;

use braid_proto::connection::{Cause, SendError};
use braid_proto::error::Violation;
use braid_proto::packet::{PacketType, ProtocolVersion};
use braid_proto::reason::ReasonCode;
use braid_proto::topic::TopicError;
use braid_transport::ConnectError;
use thiserror::Error;

/// Failure of an operation of the client.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The options contradict each other, or the URL is invalid.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// A topic or filter against MQTT 4.7.
    #[error(transparent)]
    Topic(#[from] TopicError),
    /// The server cannot be reached.
    #[error(transparent)]
    Connect(Arc<ConnectError>),
    /// No link was established in time.
    #[error("no connection within {seconds} s: check host and port")]
    ConnectTimeout {
        /// The limit, in seconds.
        seconds: u64,
    },
    /// Neither QUIC nor TLS reaches the server.
    #[error("neither QUIC nor TLS connects; QUIC: {quic}; TLS: {tls}")]
    NoTransport {
        /// The failure of QUIC.
        quic: Box<Error>,
        /// The failure of TLS.
        tls: Box<Error>,
    },
    /// The server refused the CONNECT.
    #[error("the server refuses the connection: {}{}", advice(*reason), reason_string(text.as_deref()))]
    Refused {
        /// Reason Code of the server.
        reason: ReasonCode,
        /// Reason String of the server.
        text: Option<Arc<str>>,
    },
    /// The server ended the connection with DISCONNECT.
    #[error("the server closed the connection: {}{}", advice(*reason), reason_string(text.as_deref()))]
    Disconnected {
        /// Reason Code of the server.
        reason: ReasonCode,
        /// Reason String of the server.
        text: Option<Arc<str>>,
    },
    /// The server broke the specification, or did not answer in time.
    #[error("connection lost: {0}")]
    Violation(Violation),
    /// The server answered SUBSCRIBE or UNSUBSCRIBE with another number of codes than filters, or one with the answer
    /// to the other. [MQTT-3.8.4-5]
    #[error("connection lost: {answer} of the server does not have one code for each filter")]
    WrongAnswer {
        /// SUBACK or UNSUBACK.
        answer: PacketType,
    },
    /// The link ended without DISCONNECT.
    #[error("connection lost: the link was closed without DISCONNECT")]
    ConnectionLost,
    /// The server refused the message.
    #[error("the server did not take the message: {0}")]
    PublishRefused(ReasonCode),
    /// The server granted none of the filters.
    #[error("the server granted no subscription: {}", list(codes))]
    SubscribeRefused {
        /// One code per filter, in the order of the filters.
        codes: Arc<[ReasonCode]>,
    },
    /// CONNACK says that the server does not support the request.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The message's Message Expiry Interval passed before it could be sent.
    #[error("the message expired before all of it was sent: allow more time, or send less at once")]
    Expired,
    /// The server ended the data stream of a QoS 0 message before the message was written.
    #[error("the server ended the stream of the message{}: publish it again, or with QoS 1", code_text(*code))]
    StreamEnded {
        /// Error code of the stream; below 0x100 an MQTT Reason Code. `None`: the server sent none.
        code: Option<u64>,
    },
    /// The authentication of the Authentication Method failed on this side.
    #[error("the authentication failed: {reason}")]
    Authentication {
        /// The cause.
        reason: Arc<str>,
    },
    /// A re-authentication without an Authentication Method.
    #[error("the client has no authentication method: build it with scram")]
    NoAuthenticationMethod,
    /// The connection cannot move to another port.
    #[error("the connection cannot move: {reason}")]
    Rebind {
        /// The cause.
        reason: Arc<str>,
    },
    /// `try_publish` found the queue full.
    #[error("the queue is full: wait, or use publish, which waits for room")]
    QueueFull,
    /// The client was closed by `disconnect`, or by an error that ended it.
    #[error("the client is closed")]
    Closed,
}

/// Invalid options of a client.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// The text is no URL.
    #[error("{url:?} is no URL: write it as mqtt://host:1883 ({reason})")]
    Url {
        /// The text.
        url: String,
        /// The fault of the text.
        reason: String,
    },
    /// A scheme that names no transport.
    #[error("unknown scheme {scheme:?}: use auto, mqtt, mqtts, ws, wss or quic")]
    Scheme {
        /// The scheme.
        scheme: String,
    },
    /// A parameter that a URL of the scheme `auto` does not have.
    #[error(
        "{parameter:?} is no port of this URL: write auto://host, auto://host:443 or auto://host?quic=14567&tls=8883"
    )]
    AutoPort {
        /// The parameter.
        parameter: String,
    },
    /// A move to another transport where it is given.
    #[error("only a client of an auto:// URL can move to another transport: build it with one")]
    NotAuto,
    /// A state file where the transport is given.
    #[error("a state file is for auto:// URLs, which choose the transport: leave it out")]
    StateFile,
    /// A URL without a host.
    #[error("the URL {url:?} names no host: write it as mqtt://host:1883")]
    Host {
        /// The text.
        url: String,
    },
    /// An option that only QUIC has.
    #[error("{option} needs QUIC: connect to quic://host, or leave it out")]
    NeedsQuic {
        /// The option.
        option: &'static str,
    },
    /// One path, where several are meant.
    #[error("{0:?} is the only path: give two or more, or leave it out")]
    OnePath(String),
    /// A path that is given twice.
    #[error("the path {0:?} is given twice: each is another interface")]
    SamePath(String),
    /// Paths of a client that may move to TLS.
    #[error("several paths need quic://host: auto:// may move to TLS, which has one")]
    PathsOfAuto,
    /// No such interface or address.
    #[error("{0}")]
    NoPath(String),
    /// A link rate of 0.
    #[error("a link rate of 0 bytes per second sends nothing: give that of the uplink, or leave it out")]
    LinkRate,
    /// A number of reserved packets outside of the range.
    #[error("the gate can reserve 1 to 3 packets for urgent messages, not {0}")]
    GateReserve(u8),
    /// A path where the transport has none.
    #[error("{scheme} URLs have no path, so {path:?} means nothing here: leave it out")]
    Path {
        /// The scheme.
        scheme: &'static str,
        /// The path.
        path: String,
    },
    /// MQTT 3.1 demands 1 to 23 characters, and MQTT 3.1.1 needs an identifier for a session.
    #[error("MQTT {version} needs a client identifier here: give one, or use clean start")]
    ClientId {
        /// Protocol version.
        version: ProtocolVersion,
    },
    /// MQTT 3 has no password without a user name. [MQTT3-3.1.2-22]
    #[error("a password without a user name is only possible with MQTT 5: give a user name")]
    PasswordWithoutUserName,
    /// SCRAM-SHA-256 with another version than MQTT 5, or without user name or password.
    #[error("SCRAM-SHA-256 needs {0}")]
    Scram(&'static str),
    /// A user name that SCRAM-SHA-256 cannot send.
    #[error("SCRAM-SHA-256 cannot be used with this user name: {reason}")]
    ScramUser {
        /// The cause.
        reason: String,
    },
}

impl Error {
    /// Whether the same attempt can succeed later with unchanged options and server configuration.
    pub fn is_transient(&self) -> bool {
        use ReasonCode as R;
        match self {
            Self::Connect(error) => is_transient(error),
            // A certificate that is not trusted may be that of a portal, for as long as it answers for the server.
            Self::NoTransport { quic, tls } => quic.is_transient() || tls.is_transient(),
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
                    // Two clients with one identifier would take over the session from each other forever.
                    | R::SessionTakenOver
            ),
            // Like a certificate that is not trusted.
            Self::Violation(Violation::ServerNotAuthenticated) => false,
            Self::ConnectTimeout { .. }
            | Self::Violation(_)
            | Self::WrongAnswer { .. }
            | Self::ConnectionLost => true,
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

fn code_text(code: Option<u64>) -> String {
    let Some(code) = code else { return String::new() };
    match u8::try_from(code).ok().and_then(ReasonCode::from_u8) {
        Some(reason) => format!(" ({reason})"),
        None => format!(" (code {code:#x})"),
    }
}

fn reason_string(text: Option<&str>) -> String {
    text.map(|text| format!(" (the server says: {text})")).unwrap_or_default()
}

fn list(codes: &[ReasonCode]) -> String {
    codes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
