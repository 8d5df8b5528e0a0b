//! HTTP front of the broker, from its configuration.

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use braid_access::AccessControl;
use braid_broker::{Authenticate, Handle};
use braid_http::{
    Api, ApiOptions, AutoQuic, Control, EventStreamLimits, FrontCounters, HealthState, MqttRoute, Roles,
    Server, ServerOptions, Services, router,
};
use braid_transport::http::WebSocketUpgrades;
use braid_transport::{CertificateError, CertificateFiles, ServerTls, ServerTlsOptions};

use super::StartError;
use super::bind::{Certificate, additional, min_version};
use crate::client::key_log;
use crate::config::Config;

/// Running front; without an address there is none.
pub(super) struct Front {
    server: Option<Server>,
    tls: Option<ServerTls>,
    api: Option<Api>,
}

impl Front {
    /// `certificate`: that of `[tls]`.
    pub(super) fn start(
        config: &Config,
        certificate: Option<&Certificate>,
        health: &HealthState,
        mqtt: Option<WebSocketUpgrades>,
        access: &AccessControl,
        control: Arc<dyn Control>,
    ) -> Result<Self, StartError> {
        let front = &config.http;
        if front.listen.is_empty() {
            return Ok(Self { server: None, tls: None, api: None });
        }
        let own = front.certificate.clone().zip(front.key.clone());
        let files = match own {
            Some((certificate, key)) => Some(CertificateFiles { certificate, key }),
            None => certificate.map(|certificate| certificate.tls.files().clone()),
        };
        let tls = files.filter(|_| front.tls).map(|files| tls(config, files)).transpose()?;
        let limits = front.limits(config.drain_secs);
        let mut options = ServerOptions::new(front.listen.clone());
        options.http3 = front.http3 && tls.is_some();
        let autoquic = options.http3.then(|| autoquic(config));
        let counters = options.counters.clone();
        let api_options = api_options(config, access, control, autoquic.clone());
        let api = Api::new(ApiOptions { front: counters.clone(), ..api_options });
        let (health, mqtt) = (health.clone(), mqtt.map(MqttRoute));
        let services = Services { health, api: Some(api.clone()), mqtt, counters };
        let router = router(services, &front.routes()?, &limits)?;
        if let Some(autoquic) = autoquic {
            options.upgrade = Arc::new(autoquic);
        }
        options.threads = front.limits.threads;
        (options.hosts, options.cross_origin) = (front.hosts.clone(), front.cross_origin());
        (options.limits, options.tls) = (limits, tls.clone());
        Ok(Self { server: Some(Server::start(&options, router)?), tls, api: Some(api) })
    }

    /// Lets the API answer from this broker.
    pub(super) fn serving(&self, handle: &Handle) {
        if let Some(api) = &self.api {
            api.serving(handle.clone());
        }
    }

    /// Lets go of the broker.
    pub(super) async fn ended(&self) {
        if let Some(api) = &self.api {
            api.ended().await;
        }
    }

    /// Forgets logins, after users or keys were read again.
    pub(super) fn forget_logins(&self) {
        self.api.iter().for_each(Api::forget_logins);
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

fn autoquic(config: &Config) -> AutoQuic {
    let autoquic = &config.http.autoquic;
    AutoQuic::new(autoquic.mode, autoquic.port.map(NonZeroU16::get), fastrand::u64(..))
}

fn api_options(
    config: &Config,
    access: &AccessControl,
    control: Arc<dyn Control>,
    autoquic: Option<AutoQuic>,
) -> ApiOptions {
    let authenticate = (!config.authenticator.is_empty())
        .then(|| -> Arc<dyn Authenticate> { Arc::new(access.authenticator()) });
    let front = &config.http;
    ApiOptions {
        control,
        authenticate,
        roles: Roles { operators: front.operators.clone(), viewers: front.viewers.clone() },
        requests_per_sec: front.api.requests_per_sec,
        event_streams: EventStreamLimits {
            total: front.api.event_streams,
            per_client: front.api.event_streams_per_client,
        },
        autoquic,
        front: FrontCounters::default(),
        memory_low_bytes: config.limits.memory_low as u64,
        memory_high_bytes: config.limits.memory_high as u64,
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
