//! Server side of TLS: configurations from files, replaced as a whole on reload.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::server::Acceptor;
use rustls::{ServerConfig, SupportedProtocolVersion};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{LazyConfigAcceptor, TlsAcceptor};

use super::client_auth::{ClientVerifier, client_verifier};
use super::keylog::KeyFile;
use super::resolver::CertificateResolver;
use super::tickets::Tickets;
use super::{ALPN_HTTP, ALPN_MQTT, ALPN_TLS, provider};
use crate::certificate::CertificateFiles;
use crate::error::{CertificateError, HandshakeError};
use crate::transport::Transport;

/// Tickets that a server remembers for resumption, about 500 bytes each. A connection gets two, and all clients of a
/// fleet come back at once after a cut.
const SESSIONS: usize = 32_768;

/// Authentication of clients by certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ClientAuth {
    /// No request for a certificate.
    #[default]
    None,
    /// Request; a client that sends a certificate must have it signed by this CA.
    Optional {
        /// PEM file with the authorities.
        ca: PathBuf,
    },
    /// Without a certificate signed by this CA there is no connection.
    Required {
        /// PEM file with the authorities.
        ca: PathBuf,
    },
}

/// Lowest version of TLS over TCP. QUIC always has 1.3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsVersion {
    /// TLS 1.2 or 1.3.
    #[default]
    V1_2,
    /// TLS 1.3 only.
    V1_3,
}

static TLS13_ONLY: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13];

impl TlsVersion {
    fn and_above(self) -> &'static [&'static SupportedProtocolVersion] {
        match self {
            Self::V1_2 => rustls::ALL_VERSIONS,
            Self::V1_3 => TLS13_ONLY,
        }
    }
}

impl FromStr for TlsVersion {
    type Err = String;

    /// Parses `1.2` or `1.3`.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "1.2" => Ok(Self::V1_2),
            "1.3" => Ok(Self::V1_3),
            _ => Err(format!("{text:?} is no TLS version that is spoken here: use 1.2 or 1.3")),
        }
    }
}

/// Certificates of a server, and its demands on clients.
#[derive(Clone, Debug)]
pub struct ServerTlsOptions {
    /// The server's certificate for clients that ask for no name, or for one that no other certificate has.
    pub files: CertificateFiles,
    /// Certificates for the DNS names of their Subject Alternative Names, which clients ask for by SNI. Names match in
    /// full, or with `*` for the first label. A full match precedes a wildcard, then the first certificate is used.
    pub additional: Vec<CertificateFiles>,
    /// Authentication of clients.
    pub client_auth: ClientAuth,
    /// Files with revocation lists (PEM or DER) for client certificates. If there is any, each certificate of a
    /// client's chain must be covered by a list of its issuer that has not expired; otherwise the client is refused.
    pub crl: Vec<PathBuf>,
    /// Lowest version of TLS over TCP.
    pub min_version: TlsVersion,
    /// Application protocols (ALPN) on TLS and QUIC listeners, the preferred one first. A client that offers others
    /// only is refused; on TLS it may offer none.
    ///
    /// An empty list is `mqtt` on TLS, where a client that offers others only is not refused, and on QUIC
    /// [`QuicOptions::alpn`](crate::quic::QuicOptions::alpn). Secure WebSocket is `http/1.1` in any case.
    pub alpn: Vec<String>,
    /// File to append the secrets of all sessions to, in the format of `SSLKEYLOGFILE`. A reader of it can decrypt all
    /// traffic. If it cannot be written, the log says so, and connections work.
    pub key_log: Option<PathBuf>,
}

impl ServerTlsOptions {
    /// Options with one certificate for all clients, which are asked for none.
    #[must_use]
    pub fn new(files: CertificateFiles) -> Self {
        Self {
            files,
            additional: Vec::new(),
            client_auth: ClientAuth::None,
            crl: Vec::new(),
            min_version: TlsVersion::default(),
            alpn: Vec::new(),
            key_log: None,
        }
    }
}

/// TLS of a server. Clones share one configuration, so one [`reload`](Self::reload) reaches every listener that was
/// bound with a clone.
#[derive(Clone, Debug)]
pub struct ServerTls {
    shared: Arc<Shared>,
}

struct Shared {
    options: ServerTlsOptions,
    key_log: Option<Arc<KeyFile>>,
    /// A std lock: it is held for a pointer's copy, never across an await.
    current: RwLock<Configs>,
}

/// Without the configurations, which hold keys and sessions.
impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("options", &self.options).finish_non_exhaustive()
    }
}

/// One rustls configuration per application protocol. rustls refuses a client that offers other
/// protocols than ours; on TCP we would rather ignore them, so the choice is made per client.
#[derive(Clone)]
struct Configs {
    any: Arc<ServerConfig>,
    mqtt: Arc<ServerConfig>,
    http: Arc<ServerConfig>,
    /// HTTP/1.1 and 2.
    web: Arc<ServerConfig>,
    quic: Arc<ServerConfig>,
    /// `None` where no certificate is asked for.
    client_verifier: Option<ClientVerifier>,
}

impl ServerTls {
    /// Reads the files; sessions' secrets are not logged.
    ///
    /// # Errors
    /// A file cannot be read or used; the message names it.
    pub fn load(files: CertificateFiles, client_auth: ClientAuth) -> Result<Self, CertificateError> {
        Self::new(ServerTlsOptions { client_auth, ..ServerTlsOptions::new(files) })
    }

    /// Reads the files.
    ///
    /// # Errors
    /// A certificate, key, CA or revocation list cannot be read or used; the message names the file. Revocation lists
    /// are of no use without client certificates, and an application protocol has 1 to 255 bytes.
    pub fn new(options: ServerTlsOptions) -> Result<Self, CertificateError> {
        let key_log = options.key_log.as_deref().map(|path| Arc::new(KeyFile::open(path)));
        let current = RwLock::new(Configs::load(&options, key_log.as_ref())?);
        Ok(Self { shared: Arc::new(Shared { options, key_log, current }) })
    }

    /// Reads the same files again, all of them: certificates, keys, CA and revocation lists. Handshakes that begin from
    /// now on see the new ones. Connections that exist stay, and
    /// [`PeerCertificate::is_refused`](crate::PeerCertificate::is_refused) tells which would not be accepted any more.
    /// Session tickets of before are void, with their early data: a client that has been revoked does not resume.
    ///
    /// # Errors
    /// A file cannot be read or used; the configuration in use stays.
    pub fn reload(&self) -> Result<(), CertificateError> {
        self.begin_reload().map(|put_in_force| put_in_force())
    }

    /// First half of [`reload`](Self::reload): reads the files, and changes nothing. Its second half is to call what is
    /// returned.
    ///
    /// # Errors
    /// A file cannot be read or used.
    pub fn begin_reload(&self) -> Result<impl FnOnce() + Send + 'static, CertificateError> {
        let shared = self.shared.clone();
        let configs = Configs::load(&shared.options, shared.key_log.as_ref())?;
        // Poisoning is harmless: the configurations are replaced as a whole.
        Ok(move || *shared.current.write().unwrap_or_else(PoisonError::into_inner) = configs)
    }

    /// Files of certificate and key.
    #[must_use]
    pub fn files(&self) -> &CertificateFiles {
        &self.shared.options.files
    }

    /// True if clients are asked for a certificate.
    pub(crate) fn asks_for_certificates(&self) -> bool {
        self.shared.options.client_auth != ClientAuth::None
    }

    /// Verifier of client certificates that is in force; `None` where none is asked for.
    pub(super) fn client_verifier(&self) -> Option<ClientVerifier> {
        self.current().client_verifier
    }

    /// Application protocols of the options, for messages; `None` if they name none.
    pub(crate) fn own_alpn(&self) -> Option<String> {
        let names = &self.shared.options.alpn;
        (!names.is_empty()).then(|| names.join(", "))
    }

    /// The configuration for QUIC: TLS 1.3, and nothing but MQTT or the application protocols of the options.
    pub(crate) fn quic(&self) -> Arc<ServerConfig> {
        self.current().quic
    }

    /// The server's side of a TLS handshake: names the application protocol if the client offers it, else none.
    pub(crate) async fn accept(
        &self,
        io: TcpStream,
        transport: Transport,
    ) -> Result<TlsStream<TcpStream>, HandshakeError> {
        let Configs { any, mqtt, http, .. } = self.current();
        let start =
            LazyConfigAcceptor::new(Acceptor::default(), io).await.map_err(|error| self.refused(error))?;
        let (alpn, named) = if transport.is_websocket() { (ALPN_HTTP, http) } else { (ALPN_MQTT, mqtt) };
        let offered = start.client_hello().alpn();
        let offers_it = offered.is_some_and(|mut offered| offered.any(|name| name == alpn.as_bytes()));
        let has_own_alpn = !self.shared.options.alpn.is_empty();
        let is_named = offers_it || (has_own_alpn && !transport.is_websocket());
        start.into_stream(if is_named { named } else { any }).await.map_err(|error| self.refused(error))
    }

    /// The server's side of a TLS handshake for HTTP/1.1 and 2.
    pub(crate) async fn accept_http<T: AsyncRead + AsyncWrite + Unpin>(
        &self,
        io: T,
    ) -> Result<TlsStream<T>, HandshakeError> {
        let acceptor = TlsAcceptor::from(self.current().web);
        acceptor.accept(io).await.map_err(|error| self.refused(error))
    }

    /// Error of a handshake: tokio-rustls wraps TLS errors in I/O errors.
    fn refused(&self, error: std::io::Error) -> HandshakeError {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            Some(tls) => HandshakeError::Tls(self.explain(tls)),
            None => HandshakeError::Io(error),
        }
    }

    /// Text of a TLS error, with the files to change where they are the cause.
    pub(crate) fn explain(&self, error: &rustls::Error) -> String {
        match error {
            rustls::Error::InvalidCertificate(
                rustls::CertificateError::ExpiredRevocationList
                | rustls::CertificateError::ExpiredRevocationListContext { .. },
            ) => format!("a revocation list has expired: get the current ones for {}", self.crl_files()),
            rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownRevocationStatus) => format!(
                "no revocation list of {} is of the issuer of each certificate in the client's chain",
                self.crl_files()
            ),
            error => error.to_string(),
        }
    }

    fn crl_files(&self) -> String {
        let files: Vec<_> = self.shared.options.crl.iter().map(|path| path.display().to_string()).collect();
        files.join(", ")
    }

    fn current(&self) -> Configs {
        // As in `reload`.
        self.shared.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Configs {
    fn load(options: &ServerTlsOptions, key_log: Option<&Arc<KeyFile>>) -> Result<Self, CertificateError> {
        let alpn = alpn(&options.alpn)?;
        let resolver = Arc::new(CertificateResolver::load(&options.files, &options.additional)?);
        let verifier = client_verifier(&options.client_auth, &options.crl)?;
        let config = |versions| -> Result<ServerConfig, CertificateError> {
            let builder = ServerConfig::builder_with_provider(provider())
                .with_protocol_versions(versions)
                .map_err(|error| CertificateError::config(&error))?;
            let builder = match &verifier {
                Some(client) => builder.with_client_cert_verifier(Arc::clone(&client.verifier)),
                None => builder.with_no_client_auth(),
            };
            let resolver = Arc::clone(&resolver);
            let mut config = builder.with_cert_resolver(resolver);
            // A new store each time: a session that began under another CA, or before the client was revoked, must not
            // be resumed.
            config.session_storage = Arc::new(Tickets::new(SESSIONS));
            if let Some(key_log) = key_log {
                config.key_log = Arc::<KeyFile>::clone(key_log);
            }
            Ok(config)
        };
        let base = config(options.min_version.and_above())?;
        let with_alpn = |names: Vec<Vec<u8>>| {
            let mut config = base.clone();
            config.alpn_protocols = names;
            Arc::new(config)
        };
        let mut quic = config(TLS13_ONLY)?;
        quic.alpn_protocols.clone_from(&alpn);
        Ok(Self {
            mqtt: with_alpn(alpn),
            http: with_alpn(vec![ALPN_HTTP.as_bytes().to_vec()]),
            web: with_alpn(ALPN_TLS.map(|name| name.as_bytes().to_vec()).to_vec()),
            any: Arc::new(base),
            quic: Arc::new(quic),
            client_verifier: verifier,
        })
    }
}

/// Application protocols of MQTT listeners, as TLS has them.
fn alpn(names: &[String]) -> Result<Vec<Vec<u8>>, CertificateError> {
    if names.is_empty() {
        return Ok(vec![ALPN_MQTT.as_bytes().to_vec()]);
    }
    if let Some(name) = names.iter().find(|name| !(1..=255).contains(&name.len())) {
        return Err(CertificateError(format!(
            "the application protocol {name:?} has {} bytes: give names of 1 to 255 bytes",
            name.len()
        )));
    }
    Ok(names.iter().map(|name| name.as_bytes().to_vec()).collect())
}
