use std::io;
use std::time::Duration;

use braid_transport::ConnectError;

use super::response::ResponseError;

/// Regular end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// All requests have a response, or another connection takes the rest.
    Complete,
    /// The server said that it closes: another connection is to take the rest.
    Closing,
}

/// Failure that ends a client.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("{0}")]
    Connect(#[from] ConnectError),
    #[error("the server chose none of the offered versions of HTTP: change --alpn-list")]
    Version,
    #[error("the server closed the connection before all responses")]
    Closed,
    #[error("the server takes no more requests on the connection (GOAWAY)")]
    Going,
    #[error("the connection was lost: {0}")]
    Lost(io::Error),
    #[error("{0}")]
    Response(ResponseError),
    #[error("HTTP/2: {0}")]
    Http2(#[from] ::h2::Error),
    #[error("HTTP/3: {0}")]
    Http3(String),
    #[error("the request is not possible: {0}")]
    Request(http::Error),
    #[error("no byte was received or sent for {} s", .0.as_secs_f64())]
    Inactive(Duration),
    #[error("the connection was open for {} s", .0.as_secs_f64())]
    Active(Duration),
}

impl From<::h3::error::ConnectionError> for Failure {
    fn from(error: ::h3::error::ConnectionError) -> Self {
        Self::Http3(error.to_string())
    }
}
