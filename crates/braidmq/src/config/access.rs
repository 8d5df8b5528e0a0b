//! Keys of authentication and permissions: `[[authenticator]]` and `[acl]`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use braid_access::http::Endpoint;
use braid_access::{AclFormat, CertificateName};
use serde::{Deserialize, Serialize, Serializer};

use super::{Config, ConfigError};

/// Authenticator of clients. They are asked in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum AuthenticatorConfig {
    /// Users of a password file, by password or SCRAM-SHA-256.
    Password(PasswordConfig),
    /// JSON Web Tokens in the password.
    Jwt(Box<JwtConfig>),
    /// Client certificates.
    X509(X509Config),
    /// Service over HTTP.
    Http(Box<HttpConfig>),
}

/// Password file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PasswordConfig {
    /// The file, as `braidmq passwd` or mosquitto_passwd writes it.
    pub(crate) file: PathBuf,
}

/// Source of keys, and demands on tokens. One of the four sources is needed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct JwtConfig {
    /// File with the secret of HS256.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) secret_file: Option<PathBuf>,
    /// PEM file with a public key or certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) public_key_file: Option<PathBuf>,
    /// File with a JSON Web Key Set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) jwks_file: Option<PathBuf>,
    /// URL of a JSON Web Key Set.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "optional_without_secrets")]
    pub(crate) jwks_url: Option<String>,
    /// PEM file with the authorities of that URL; those of the system by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) jwks_ca: Option<PathBuf>,
    /// Seconds between two fetches of that URL.
    pub(crate) refresh_secs: u64,
    /// Age in seconds above which keys of that URL are not used.
    pub(crate) max_stale_secs: u64,
    /// Value of `iss`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) issuer: Option<Box<str>>,
    /// Names of the broker, one of which `aud` has to contain; with none, tokens with `aud` are refused.
    pub(crate) audience: Vec<Box<str>>,
    /// Tolerance of times, in seconds.
    pub(crate) leeway_secs: u64,
    /// Whether tokens need `exp`.
    pub(crate) require_expiry: bool,
    /// Other claims that tokens need.
    pub(crate) required: Vec<Box<str>>,
    /// Claims that need a certain value: a text, `%u` or `%c`.
    pub(crate) checks: BTreeMap<Box<str>, String>,
    /// Claim of the user name; empty for that of CONNECT.
    pub(crate) user_claim: Box<str>,
    /// Claim of the Client Identifier; empty for none.
    pub(crate) client_id_claim: Box<str>,
    /// Claim of the groups; empty for none.
    pub(crate) groups_claim: Box<str>,
    /// Claim of the rules; empty for none.
    pub(crate) permissions_claim: Box<str>,
    /// Claim of the mountpoint; empty for none.
    pub(crate) mountpoint_claim: Box<str>,
}

impl Default for JwtConfig {
    fn default() -> Self {
        Self {
            secret_file: None,
            public_key_file: None,
            jwks_file: None,
            jwks_url: None,
            jwks_ca: None,
            refresh_secs: 600,
            max_stale_secs: 86_400,
            issuer: None,
            audience: Vec::new(),
            leeway_secs: 30,
            require_expiry: true,
            required: Vec::new(),
            checks: BTreeMap::new(),
            user_claim: "sub".into(),
            client_id_claim: "".into(),
            groups_claim: "groups".into(),
            permissions_claim: "acl".into(),
            mountpoint_claim: "".into(),
        }
    }
}

/// Parts of a client certificate that are names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct X509Config {
    /// User name.
    #[serde(default = "common_name")]
    pub(crate) user: CertificateName,
    /// Client Identifier, instead of that of CONNECT.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) client_id: Option<CertificateName>,
}

const fn common_name() -> CertificateName {
    CertificateName::CommonName
}

/// Service over HTTP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HttpConfig {
    /// Address of the service.
    #[serde(serialize_with = "without_secrets")]
    pub(crate) url: String,
    /// Milliseconds for an answer.
    #[serde(default = "timeout_ms")]
    pub(crate) timeout_ms: u64,
    /// Seconds for which an answer is used again; 0 for none.
    #[serde(default)]
    pub(crate) cache_secs: u64,
    /// Answers that are cached.
    #[serde(default = "cache_entries")]
    pub(crate) cache_entries: usize,
    /// Headers of the request, whose values are the content of these files.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) header_files: BTreeMap<String, PathBuf>,
    /// Headers of the request, whose values are in these environment variables.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) header_env: BTreeMap<String, String>,
    /// PEM file with the authorities of the service; those of the system by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ca: Option<PathBuf>,
    /// Whether `http:` may leave this machine: passwords cross the network in the clear.
    #[serde(default)]
    pub(crate) allow_plain_http: bool,
}

/// Writes a URL without its query, which may have a key, and one that is not valid as the reason.
fn without_secrets<S: Serializer>(url: &str, serializer: S) -> Result<S::Ok, S::Error> {
    let query = if url.contains('?') { "?hidden" } else { "" };
    match Endpoint::parse(url, true) {
        Ok(endpoint) => serializer.collect_str(&format_args!("{endpoint}{query}")),
        Err(error) => serializer.collect_str(&format_args!("hidden: {error}")),
    }
}

fn optional_without_secrets<S: Serializer>(url: &Option<String>, serializer: S) -> Result<S::Ok, S::Error> {
    match url {
        Some(url) => without_secrets(url, serializer),
        None => serializer.serialize_none(),
    }
}

const fn timeout_ms() -> u64 {
    5000
}

const fn cache_entries() -> usize {
    1000
}

/// Access control list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AclConfig {
    /// File with the rules.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) file: Option<PathBuf>,
    /// Its format.
    pub(crate) format: AclFormat,
    /// Without a file: whether authenticated clients of other hosts may do everything.
    pub(crate) permit_all: bool,
}

/// Bans of an operator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct BansConfig {
    /// File with the clients, users and networks that are refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) file: Option<PathBuf>,
}

impl Config {
    /// Checks what clients of other hosts may do: nothing by omission.
    pub(super) fn check_access(&self) -> Result<(), ConfigError> {
        let acl = &self.acl;
        if acl.file.is_some() && acl.permit_all {
            return Err(super::check::refused(
                "acl.permit_all",
                "acl.file has rules; remove one of both".to_owned(),
            ));
        }
        let of_listeners = self.addresses().map(|(_, address)| address);
        let mut all = of_listeners.chain(self.http.mqtt_addresses());
        if let Some(address) = all.find(|address| !address.ip().to_canonical().is_loopback())
            && !self.authenticator.is_empty()
            && acl.file.is_none()
            && !acl.permit_all
        {
            let problem = format!(
                "there are no rules, and clients of other hosts reach {address}; name a file, or set \
                 acl.permit_all=true to let authenticated clients do everything"
            );
            return Err(super::check::refused("acl.file", problem));
        }
        Ok(())
    }
}
