//! Options of mosquitto_pub and mosquitto_sub that are not supported: refused with what to do instead.

use super::Failure;

/// Options of mosquitto_pub and mosquitto_sub that are not supported, and one without effect.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct ForeignOptions {
    /// Accepted: TCP_NODELAY is always set.
    #[arg(long, hide = true)]
    nodelay: bool,
    #[arg(short = 'S', hide = true)]
    srv: bool,
    #[arg(short = 'A', num_args = 0..=1, hide = true)]
    bind: Option<Option<String>>,
    #[arg(long, num_args = 0..=1, hide = true)]
    capath: Option<Option<String>>,
    #[arg(long, num_args = 0..=1, hide = true)]
    ciphers: Option<Option<String>>,
    #[arg(long, num_args = 0..=1, hide = true)]
    tls_version: Option<Option<String>>,
    #[arg(long, num_args = 0..=1, hide = true)]
    tls_engine: Option<Option<String>>,
    #[arg(long, num_args = 0..=1, hide = true)]
    keyform: Option<Option<String>>,
    #[arg(long, num_args = 0..=1, hide = true)]
    tls_keylog: Option<Option<String>>,
    #[arg(long, num_args = 0..=1, hide = true)]
    psk: Option<Option<String>>,
    #[arg(long, num_args = 0..=1, hide = true)]
    psk_identity: Option<Option<String>>,
    #[arg(long, num_args = 0..=1, hide = true)]
    proxy: Option<Option<String>>,
    #[arg(long, num_args = 0..=1, hide = true)]
    unix: Option<Option<String>>,
    #[arg(long, hide = true)]
    ws: bool,
}

impl ForeignOptions {
    /// Refuses the first option that is not supported.
    pub(super) fn refuse(&self) -> Result<(), Failure> {
        const ALGORITHMS: &str = "cannot be chosen: TLS agrees on the best that both ends have; leave it out";
        const PSK: &str = "is not supported: use certificates, or a user name and a password";
        let given = [
            ("-S", self.srv, "is not supported: SRV records are not read; give --host and --port"),
            (
                "-A",
                self.bind.is_some(),
                "is not supported: the system chooses the address; --path does over QUIC",
            ),
            (
                "--capath",
                self.capath.is_some(),
                "is not supported: give --cafile for each file, or --tls-use-os-certs",
            ),
            ("--ciphers", self.ciphers.is_some(), ALGORITHMS),
            ("--tls-version", self.tls_version.is_some(), ALGORITHMS),
            ("--tls-engine", self.tls_engine.is_some(), "is not supported: give --key with a PEM file"),
            ("--keyform", self.keyform.is_some(), "is not supported: give --key with a PEM file"),
            (
                "--tls-keylog",
                self.tls_keylog.is_some(),
                "is not supported: set the environment variable SSLKEYLOGFILE",
            ),
            ("--psk", self.psk.is_some(), PSK),
            ("--psk-identity", self.psk_identity.is_some(), PSK),
            ("--proxy", self.proxy.is_some(), "is not supported: connect without it"),
            ("--unix", self.unix.is_some(), "is not supported: give --host and --port"),
            ("--ws", self.ws, "is not supported: use --url ws://HOST or wss://HOST"),
        ];
        match given.iter().find(|(_, is_given, _)| *is_given) {
            Some((name, _, remedy)) => Err(Failure::usage(format!("Error: {name} {remedy}."))),
            None => Ok(()),
        }
    }
}
