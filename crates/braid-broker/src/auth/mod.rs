//! Identity and permission: the authenticator and the authorizer, and the one place that asks them.
//!
//! [`Access`] is the broker's; [`ClientAccess`] is one connection's, with its identity and a cache of answers. The
//! rules for the broker's own topics below `$SYS/` are asked here as well.

mod access;
mod answers;
pub(crate) mod audit;
mod authenticate;
mod authorize;
mod expiry;
mod publisher;

pub(crate) use access::{Access, ClientAccess, is_broker_topic};
pub(crate) use audit::shortened;
pub use audit::{SecurityAction, SecurityEvent};
pub use authenticate::{
    Anonymous, Authenticate, Authentication, Challenge, Credential, Credentials, Exchange, Grant, Outcome,
    Refusal,
};
pub use authorize::{Action, Authorize, PermitAll};
pub use expiry::Expiry;
pub(crate) use expiry::ExpiryTimer;
pub(crate) use publisher::Permitted;
