//! HTTP front of the broker, from its configuration.

use std::net::SocketAddr;

use braid_http::{HealthState, Server, ServerOptions, router};
use braid_transport::{CertificateError, CertificateFiles, ServerTls, ServerTlsOptions};

use super::StartError;
use super::bind::{Certificate, additional, min_version};
use crate::client::key_log;
use crate::config::Config;

/// Running front; without an address there is none.
pub(super) struct Front {
    server: Option<Server>,
    tls: Option<ServerTls>,
}

impl Front {
    /// `certificate`: that of `[tls]`.
    pub(super) fn start(
        config: &Config,
        certificate: Option<&Certificate>,
        health: &HealthState,
    ) -> Result<Self, StartError> {
        let front = &config.http;
        if front.listen.is_empty() {
            return Ok(Self { server: None, tls: None });
        }
        let own = front.certificate.clone().zip(front.key.clone());
        let files = match own {
            Some((certificate, key)) => Some(CertificateFiles { certificate, key }),
            None => certificate.map(|certificate| certificate.tls.files().clone()),
        };
        let tls = files.filter(|_| front.tls).map(|files| tls(config, files)).transpose()?;
        let limits = front.limits(config.drain_secs);
        let router = router(health.clone(), &front.routes()?, &limits)?;
        let mut options = ServerOptions::new(front.listen.clone());
        options.http3 = front.http3 && tls.is_some();
        options.threads = front.limits.threads;
        (options.hosts, options.cross_origin) = (front.hosts.clone(), front.cross_origin());
        (options.limits, options.tls) = (limits, tls.clone());
        Ok(Self { server: Some(Server::start(&options, router)?), tls })
    }

    pub(super) fn addresses(&self) -> &[SocketAddr] {
        self.server.as_ref().map_or(&[], Server::addresses)
    }

    /// Reads the certificate again, and changes nothing. To call what is returned puts it in force.
    pub(super) fn begin_reload(&self) -> Result<impl FnOnce(), CertificateError> {
        let read = self.tls.as_ref().map(ServerTls::begin_reload).transpose()?;
        Ok(|| read.into_iter().for_each(|put_in_force| put_in_force()))
    }

    /// Ends gracefully. Blocks.
    pub(super) fn stop(self) {
        if let Some(server) = self.server {
            server.stop();
        }
    }
}

/// Without client certificates: those of MQTT clients are not for browsers.
fn tls(config: &Config, files: CertificateFiles) -> Result<ServerTls, StartError> {
    let mut options = ServerTlsOptions::new(files);
    options.additional = additional(config);
    options.min_version = min_version(config);
    options.key_log = key_log();
    Ok(ServerTls::new(options)?)
}
