//! Facts about a client that its authenticator has verified.

/// Facts about an authenticated client: of a token, of a certificate, or of the answer of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// User name; `None` leaves the one of CONNECT.
    pub user: Option<Box<str>>,
    /// Client Identifier that the client has to use; `None` leaves the choice to the client.
    pub client_id: Option<Box<str>>,
    /// Groups of the user, beside those that the access control list names.
    pub groups: Vec<Box<str>>,
    /// Rules of this client, in the format of [`acl`](crate::acl), accepted by its parser. They are asked before the
    /// rules of the broker. `None` for none.
    pub rules: Option<Box<str>>,
    /// Mountpoint of the client, instead of that of its listener; checked when the client is accepted.
    pub mountpoint: Option<Box<str>>,
    /// Seconds since the Unix epoch at which the connection is closed.
    pub expires_at: Option<u64>,
}
