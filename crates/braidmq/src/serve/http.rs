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
    /// Server of the routes, and of the API unless that has addresses of its own.
    routes: Option<Server>,
    /// Server of the API at addresses of its own.
    own: Option<Server>,
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
        if !front.is_on() {
            return Ok(Self { routes: None, own: None, tls: None, api: None });
        }
        let own = front.certificate.clone().zip(front.key.clone());
        let files = match own {
            Some((certificate, key)) => Some(CertificateFiles { certificate, key }),
            None => certificate.map(|certificate| certificate.tls.files().clone()),
        };
        let tls = files.filter(|_| front.tls).map(|files| tls(config, files)).transpose()?;
        let has_http3 = front.http3 && tls.is_some();
        let autoquic = has_http3.then(|| autoquic(config));
        let counters = FrontCounters::default();
        let api = Api::new(api_options(config, access, control, autoquic.clone(), counters.clone()));
        let limits = front.limits(config.drain_secs);
        let options = |listen: &[SocketAddr], autoquic: Option<AutoQuic>| {
            let mut options = ServerOptions::new(listen.to_vec());
            (options.http3, options.threads) = (has_http3, front.limits.threads);
            (options.limits, options.tls) = (limits.clone(), tls.clone());
            options.qlog_dir.clone_from(&config.quic.qlog_dir);
            (options.hosts, options.counters) = (front.hosts.clone(), counters.clone());
            if let Some(autoquic) = autoquic {
                options.upgrade = Arc::new(autoquic);
            }
            options
        };
        let mqtt = mqtt.map(MqttRoute);
        let services =
            |api| Services { health: health.clone(), api, mqtt: mqtt.clone(), counters: counters.clone() };
        let has_own = !front.api.listen.is_empty();
        let mut routes = None;
        if !front.listen.is_empty() {
            let shared = (!has_own).then(|| api.clone());
            let router = router(services(shared), &front.routes()?, &limits)?;
            routes = Some(Server::start(&options(&front.listen, autoquic.clone()), router)?);
        }
        let mut own = None;
        if has_own {
            // The port of the key is that of the routes.
            let autoquic = autoquic.filter(|_| front.autoquic.port.is_none());
            let router = router(services(Some(api.clone())), &[], &limits)?;
            own = Some(Server::start(&options(&front.api.listen, autoquic), router)?);
        }
        if front.routes_share_origin() {
            tracing::warn!(
                "the pages of http.route share the origin of the API and could act as its user: give the API addresses of \
                 its own by http.api.listen"
            );
        }
        Ok(Self { routes, own, tls, api: Some(api) })
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

    /// Addresses of the routes, and of the API if it has addresses of its own.
    pub(super) fn addresses(&self) -> [&[SocketAddr]; 2] {
        [&self.routes, &self.own].map(|server| server.as_ref().map_or(&[][..], Server::addresses))
    }

    /// Reads the certificate again, and changes nothing. To call what is returned puts it in force.
    pub(super) fn begin_reload(&self) -> Result<impl FnOnce(), CertificateError> {
        let read = self.tls.as_ref().map(ServerTls::begin_reload).transpose()?;
        Ok(|| read.into_iter().for_each(|put_in_force| put_in_force()))
    }

    /// Ends gracefully. Blocks.
    pub(super) fn stop(self) {
        std::thread::scope(|scope| {
            for server in [self.routes, self.own].into_iter().flatten() {
                scope.spawn(|| server.stop());
            }
        });
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
    counters: FrontCounters,
) -> ApiOptions {
    let authenticate = (!config.authenticator.is_empty())
        .then(|| -> Arc<dyn Authenticate> { Arc::new(access.authenticator()) });
    let front = &config.http;
    let refuses_anonymous = match (front.api.anonymous, front.routes_share_origin()) {
        (false, _) => Some("http.api.anonymous is false"),
        (true, true) => Some(
            "the pages of http.route share the origin of the API (http.api.listen gives it addresses of its own)",
        ),
        (true, false) => None,
    };
    ApiOptions {
        refuses_anonymous,
        control,
        authenticate,
        roles: Roles { operators: front.operators.clone(), viewers: front.viewers.clone() },
        requests_per_sec: front.api.requests_per_sec,
        event_streams: EventStreamLimits {
            total: front.api.event_streams,
            per_client: front.api.event_streams_per_client,
        },
        autoquic,
        front: counters,
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
