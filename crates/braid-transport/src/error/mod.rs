//! Everything that can go wrong before a link exists, each with one line that says what to change.

mod bind;
mod certificate;
mod connect;
mod handshake;

pub use bind::BindError;
pub use certificate::CertificateError;
pub use connect::ConnectError;
pub use handshake::HandshakeError;
