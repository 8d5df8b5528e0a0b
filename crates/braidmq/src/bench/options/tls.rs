//! Options: TLS.

use std::path::PathBuf;

use braid_client::{CertificateFiles, ClientTlsOptions};
use braid_transport::Transport;
use clap::Args;

use super::words::tls_version;
use super::{OptionsError, TLS};
use crate::client::key_log;

/// Verification of the server, and identity of the client, for TLS and QUIC.
#[derive(Debug, Clone, Args)]
pub(in crate::bench) struct TlsOptions {
    /// A PEM file with the CAs to trust. Without it and --tls-use-os-certs the server's certificate is not checked.
    #[arg(long, visible_alias = "cafile", value_name = "FILE", help_heading = TLS)]
    cacertfile: Option<PathBuf>,
    /// The client's certificate (PEM).
    #[arg(long, visible_alias = "cert", value_name = "FILE", help_heading = TLS)]
    certfile: Option<PathBuf>,
    /// The key of the client's certificate (PEM, not encrypted).
    #[arg(long, visible_alias = "key", value_name = "FILE", help_heading = TLS)]
    keyfile: Option<PathBuf>,
    /// Trust the system's CAs.
    #[arg(long, help_heading = TLS)]
    tls_use_os_certs: bool,
    /// Do not check the server's certificate: for tests only, because anyone on the path can then read and change all
    /// data.
    #[arg(long, conflicts_with = "tls_use_os_certs", help_heading = TLS)]
    insecure: bool,
    /// TLS without -S: tlsv1.3.
    #[arg(long, value_name = "VERSION", value_parser = tls_version, help_heading = TLS)]
    ssl_version: Option<()>,
}

impl TlsOptions {
    /// True if an option requests TLS without `-S`.
    pub(super) fn is_wanted(&self) -> bool {
        self.ssl_version.is_some()
    }

    pub(super) fn check(&self, transport: Transport) -> Result<(), OptionsError> {
        if self.certfile.is_some() != self.keyfile.is_some() {
            return Err(OptionsError::new(
                "a certificate needs its key: give --certfile and --keyfile together",
            ));
        }
        let given = [
            ("--cacertfile", self.cacertfile.is_some()),
            ("--certfile", self.certfile.is_some()),
            ("--tls-use-os-certs", self.tls_use_os_certs),
            ("--insecure", self.insecure),
        ];
        match given.iter().find(|(_, is_given)| *is_given) {
            Some((name, _)) if !transport.is_encrypted() => {
                Err(OptionsError::new(format!("{name} needs TLS: add -S or --quic, or leave it out")))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn notes(&self, transport: Transport) -> Vec<String> {
        let mut notes = Vec::new();
        if transport.is_encrypted() && !self.insecure && self.is_insecure() {
            notes.push(
                "the server's certificate is not checked: give --cacertfile FILE or --tls-use-os-certs, or \
                 --insecure if that is meant"
                    .to_owned(),
            );
        }
        if self.ssl_version.is_some() && !transport.is_quic() {
            notes.push("--ssl-version is not forced: a server without TLS 1.3 gets TLS 1.2".to_owned());
        }
        notes
    }

    fn is_insecure(&self) -> bool {
        // As emqtt_bench does: its scripts name no CA.
        self.insecure || (self.cacertfile.is_none() && !self.tls_use_os_certs)
    }

    /// Options of the transport.
    pub(in crate::bench) fn client(&self) -> ClientTlsOptions {
        let identity = self.certfile.clone().zip(self.keyfile.clone());
        ClientTlsOptions {
            ca_files: self.cacertfile.iter().cloned().collect(),
            identity: identity.map(|(certificate, key)| CertificateFiles { certificate, key }),
            insecure: self.is_insecure(),
            server_name: None,
            alpn: Vec::new(),
            key_log: key_log(),
        }
    }
}
