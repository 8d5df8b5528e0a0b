//! From TLS errors to what a user of a client can do about them.

use std::io;

use rustls::{CertificateError as Defect, Error};

use crate::error::ConnectError;

/// tokio-rustls hides TLS errors in I/O errors.
pub(crate) fn io_error(host: &str, error: &io::Error) -> ConnectError {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(tls) => tls_error(host, tls),
        None if error.kind() == io::ErrorKind::UnexpectedEof => ConnectError::Tls {
            host: host.to_owned(),
            reason: "the server closed the connection; is this its TLS port?".to_owned(),
        },
        None => ConnectError::Tls { host: host.to_owned(), reason: error.to_string() },
    }
}

pub(crate) fn tls_error(host: &str, error: &Error) -> ConnectError {
    let host = host.to_owned();
    match error {
        Error::InvalidCertificate(defect) => certificate_defect(host, defect),
        Error::InvalidMessage(_) => ConnectError::Tls {
            host,
            reason: "the answer is not TLS; is this the port of a plain listener?".to_owned(),
        },
        error => ConnectError::Tls { host, reason: error.to_string() },
    }
}

fn certificate_defect(host: String, defect: &Defect) -> ConnectError {
    match defect {
        Defect::UnknownIssuer | Defect::BadSignature => ConnectError::NotTrusted { host },
        Defect::NotValidForName => {
            ConnectError::WrongName { host, reason: "the certificate does not name it".to_owned() }
        }
        Defect::NotValidForNameContext { presented, .. } => ConnectError::WrongName {
            host,
            reason: if presented.is_empty() { "it names nobody".to_owned() } else { presented.join(", ") },
        },
        Defect::Expired | Defect::ExpiredContext { .. } => {
            ConnectError::Expired { host, reason: "it has expired" }
        }
        Defect::NotValidYet | Defect::NotValidYetContext { .. } => {
            ConnectError::Expired { host, reason: "it begins later" }
        }
        defect => ConnectError::Tls { host, reason: format!("certificate: {defect}") },
    }
}
