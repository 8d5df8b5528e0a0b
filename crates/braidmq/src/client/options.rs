//! Options of a connection, named as those of `mosquitto_pub` and `mosquitto_sub`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::Duration;

use braid_client::{
    Builder, CertificateFiles, Client, ClientTlsOptions, Priority, ProtocolVersion, Publication, QoS,
    Reconnect, is_auto, without_credentials,
};
use braid_transport::Transport;
use clap::builder::PossibleValuesParser;

use super::foreign::ForeignOptions;
use super::quic::QuicOptions;
use super::{Failure, Properties, key_log};
use crate::secret::{Secret, VARIABLE, first_line};

const CONNECTION: &str = "Connection";
const SESSION: &str = "Session";
const WILL: &str = "Will";
const TLS: &str = "TLS";
const OUTPUT: &str = "Diagnostics";

/// The options of a connection, named as those of `mosquitto_pub` and `mosquitto_sub`.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct ClientOptions {
    /// The server's name or address.
    #[arg(short = 'h', long, value_name = "HOST", default_value = "localhost", help_heading = CONNECTION)]
    pub(crate) host: String,
    /// The server's port: 1883, or 8883 with TLS.
    #[arg(short, long, value_name = "PORT", help_heading = CONNECTION)]
    pub(crate) port: Option<u16>,
    /// Host, port, transport and more at once, in place of -h and -p:
    /// {mqtt,mqtts,quic,auto}://[USER[:PASSWORD]@]HOST[:PORT][/TOPIC] or {ws,wss}://HOST[:PORT][/PATH].
    ///
    /// Ports are 1883 (mqtt), 8883 (mqtts), 14567 (quic), 8083 (ws) and 8084 (wss) unless given; the path of
    /// WebSocket is /mqtt. quic is MQTT over QUIC: always encrypted. auto is QUIC where it works and TLS where it
    /// must be, and moves from one to the other without a gap; its ports are 14567 and 8883, or PORT for both, or
    /// auto://HOST?quic=PORT&tls=PORT.
    #[arg(
        short = 'L',
        long,
        value_name = "URL",
        conflicts_with_all = ["port", "host"],
        verbatim_doc_comment,
        help_heading = CONNECTION
    )]
    pub(crate) url: Option<Secret>,
    /// The user name.
    #[arg(short, long, value_name = "NAME", help_heading = CONNECTION)]
    pub(crate) username: Option<String>,
    /// The password. Others on this machine can see it in the list of processes: the environment variable
    /// BRAIDMQ_PASSWORD, which counts if neither this nor the URL has one, or --password-stdin are better places.
    #[arg(short = 'P', long = "pw", value_name = "PASSWORD", help_heading = CONNECTION)]
    pub(crate) password: Option<Secret>,
    /// Read the password from the first line of standard input.
    #[arg(long, help_heading = CONNECTION)]
    pub(crate) password_stdin: bool,
    /// Authenticate by this method: SCRAM-SHA-256 (MQTT 5). The server never gets the password and has to prove that it
    /// knows it. Needs user name and password.
    #[arg(
        long,
        value_name = "METHOD",
        value_parser = PossibleValuesParser::new(["SCRAM-SHA-256"]),
        ignore_case = true,
        help_heading = CONNECTION
    )]
    pub(crate) auth_method: Option<String>,
    /// Version of MQTT: mqttv31, mqttv311 or mqttv5 (or 31, 311, 5). mqttv311 by default, or mqttv5 if an
    /// option needs it (such as -x, -D, --auth-method) or the URL is auto://.
    #[arg(short = 'V', long, value_name = "VERSION", value_parser = parse_version, help_heading = CONNECTION)]
    pub(crate) protocol_version: Option<ProtocolVersion>,
    /// Keep Alive: the most seconds without a packet, 0 to 65535.
    #[arg(short, long, value_name = "SECONDS", default_value_t = 60, help_heading = CONNECTION)]
    pub(crate) keepalive: u16,
    #[command(flatten)]
    pub(crate) foreign: ForeignOptions,

    /// The Client Identifier. By default a random one.
    #[arg(short, long, value_name = "ID", conflicts_with = "id_prefix", help_heading = SESSION)]
    pub(crate) id: Option<String>,
    /// Make the Client Identifier of this and the process id.
    #[arg(short = 'I', long, value_name = "PREFIX", help_heading = SESSION)]
    pub(crate) id_prefix: Option<String>,
    /// Keep the session after the connection, and resume that of the last run. Needs -i.
    #[arg(short = 'c', long, help_heading = SESSION)]
    pub(crate) disable_clean_session: bool,
    /// Session Expiry Interval in seconds (MQTT 5); -1 is without end. 0 by default, with -c -1.
    #[arg(
        short = 'x',
        long,
        value_name = "SECONDS",
        value_parser = parse_expiry,
        allow_hyphen_values = true,
        help_heading = SESSION
    )]
    pub(crate) session_expiry_interval: Option<u32>,
    /// The most unacknowledged messages of QoS 1 and 2.
    #[arg(short = 'M', long, value_name = "COUNT", default_value_t = 20, help_heading = SESSION)]
    pub(crate) max_inflight: u16,
    /// Set a property (MQTT 5): the packet, the property's name, its value; for user-property name and
    /// value.
    ///
    /// May be repeated. Packets are connect, publish, subscribe and will. Example:
    ///   -D publish content-type text/plain -D publish user-property unit C
    #[arg(
        short = 'D',
        long = "property",
        value_names = ["PACKET", "NAME", "VALUE"],
        num_args = 3..=4,
        allow_hyphen_values = false,
        verbatim_doc_comment,
        help_heading = SESSION
    )]
    pub(crate) property: Vec<String>,

    /// The topic of the Will, which the server publishes if the connection is lost.
    #[arg(long, value_name = "TOPIC", help_heading = WILL)]
    pub(crate) will_topic: Option<String>,
    /// The payload of the Will; empty by default.
    #[arg(long, value_name = "PAYLOAD", requires = "will_topic", help_heading = WILL)]
    pub(crate) will_payload: Option<String>,
    /// The QoS of the Will.
    #[arg(
        long,
        value_name = "QOS",
        value_parser = parse_qos,
        default_value = "0",
        requires = "will_topic",
        help_heading = WILL
    )]
    pub(crate) will_qos: QoS,
    /// Make the Will a retained message.
    #[arg(long, requires = "will_topic", help_heading = WILL)]
    pub(crate) will_retain: bool,

    /// A PEM file with the CAs to trust, in place of the system's. Turns TLS on.
    #[arg(long, value_name = "FILE", help_heading = TLS)]
    pub(crate) cafile: Vec<PathBuf>,
    /// The client's certificate (PEM). Turns TLS on.
    #[arg(long, value_name = "FILE", requires = "key", help_heading = TLS)]
    pub(crate) cert: Option<PathBuf>,
    /// The key of the client's certificate (PEM, not encrypted).
    #[arg(long, value_name = "FILE", requires = "cert", help_heading = TLS)]
    pub(crate) key: Option<PathBuf>,
    /// Trust the system's CAs. Turns TLS on.
    #[arg(long, help_heading = TLS)]
    pub(crate) tls_use_os_certs: bool,
    /// The application protocol to ask for (ALPN).
    #[arg(long, value_name = "PROTOCOL", help_heading = TLS)]
    pub(crate) tls_alpn: Option<String>,
    /// Do not check the name in the server's certificate: with --cafile its signature still is. Without it any
    /// certificate will do: for tests only, because anyone on the path can then read and change all data. Turns TLS on.
    #[arg(long, conflicts_with = "tls_use_os_certs", help_heading = TLS)]
    pub(crate) insecure: bool,

    #[command(flatten)]
    pub(crate) quic: QuicOptions,

    /// Keep in this file where QUIC works and how far the server is, so that the next run starts right. For auto://
    /// URLs.
    #[arg(long, value_name = "FILE", help_heading = CONNECTION)]
    pub(crate) state_file: Option<PathBuf>,
    /// Log on standard error how the client is connected, and why it changes that.
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) events: bool,
    /// Log sent and received packets on standard error.
    #[arg(short, long, help_heading = OUTPUT)]
    pub(crate) debug: bool,
    /// Print no errors.
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) quiet: bool,
    /// Print this help.
    #[arg(long, action = clap::ArgAction::Help, help_heading = OUTPUT)]
    pub(crate) help: Option<bool>,
}

/// Connection as the options describe it.
pub(crate) struct Connection {
    pub(crate) builder: Builder,
    pub(crate) properties: Properties,
    pub(crate) version: ProtocolVersion,
    /// The topic in the URL.
    pub(crate) topic: Option<String>,
}

impl ClientOptions {
    /// Checks the options, reads the password from standard input if requested, and builds the client. `needs_v5`: a
    /// further option that MQTT 3 does not support.
    pub(crate) fn connection(&self, needs_v5: Option<&str>) -> Result<Connection, Failure> {
        self.foreign.refuse()?;
        let properties = Properties::parse(&self.property)?;
        let needs_v5 = match (&self.session_expiry_interval, self.property.first(), &self.auth_method) {
            (Some(_), _, _) => Some("-x"),
            (_, Some(_), _) => Some("-D"),
            (_, _, Some(_)) => Some("--auth-method"),
            _ => needs_v5,
        };
        // A session of MQTT 3 either does not move, or outlives the client.
        let prefers_v5 = needs_v5.is_some() || self.is_auto();
        let default = if prefers_v5 { ProtocolVersion::V5 } else { ProtocolVersion::V311 };
        let version = self.protocol_version.unwrap_or(default);
        if let (Some(option), false) = (needs_v5, version.is_v5()) {
            let what = format!("Error: {option} needs MQTT 5: use -V mqttv5, or leave -V out.");
            return Err(Failure::usage(what));
        }
        let (url, topic) = self.url()?;
        self.check_tls(&url)?;
        if let Some(option) = self.quic.first() {
            self.needs_quic(option)?;
        }
        let mut builder = Client::builder(&url)
            .version(version)
            .keep_alive(Duration::from_secs(self.keepalive.into()))
            .maximum_inflight(self.max_inflight)
            .reconnect(Reconnect::default())
            .tls(self.tls());
        if let Some(file) = &self.state_file {
            if !self.is_auto() {
                return Err(Failure::usage(
                    "Error: --state-file needs a URL that leaves the transport open: use --url auto://HOST, or leave it out.",
                ));
            }
            builder = builder.state_file(file);
        }
        builder = self.quic.apply(builder)?;
        builder = self.identify(builder)?;
        builder = self.session(builder, version, &properties)?;
        builder = self.will(builder, &properties)?;
        Ok(Connection { builder: properties.connect(builder)?, properties, version, topic })
    }

    /// Whether the session can outlive a connection.
    pub(crate) fn may_keep_session(&self) -> bool {
        let is_v5 = self.protocol_version.is_none_or(ProtocolVersion::is_v5);
        is_v5 && self.session_expiry_interval != Some(0)
    }

    /// Lets the session outlive a connection for a time, unless an option says for how long. It ends with the client.
    pub(crate) fn keep_session(
        &self,
        builder: Builder,
        properties: &Properties,
        interval: Duration,
    ) -> Builder {
        let asked = self.session_expiry_interval.or(properties.session_expiry);
        if asked.is_some() || self.disable_clean_session {
            return builder;
        }
        builder.session_expiry(interval.max(Duration::from_secs(1))).end_session(true)
    }

    /// The URL for the client, without the topic that it may name.
    fn url(&self) -> Result<(String, Option<String>), Failure> {
        let Some(url) = &self.url else {
            let scheme = if self.wants_tls().is_some() || self.port == Some(8883) { "mqtts" } else { "mqtt" };
            let host = if self.host.contains(':') && !self.host.starts_with('[') {
                format!("[{}]", self.host)
            } else {
                self.host.clone()
            };
            let port = self.port.map(|port| format!(":{port}")).unwrap_or_default();
            return Ok((format!("{scheme}://{host}{port}"), None));
        };
        let Some((scheme, rest)) = url.split_once("://") else {
            let url = without_credentials(url);
            return Err(Failure::usage(format!("Error: {url} is no URL: write it as mqtt://HOST[:PORT].")));
        };
        let has_path = Transport::from_scheme(scheme).is_some_and(Transport::is_websocket);
        match rest.split_once('/') {
            Some((authority, topic)) if !has_path => {
                let topic = Some(topic.to_owned()).filter(|topic| !topic.is_empty());
                Ok((format!("{scheme}://{authority}"), topic))
            }
            _ => Ok((url.to_string(), None)),
        }
    }

    /// Refuses options of QUIC with another transport.
    pub(crate) fn needs_quic(&self, option: &str) -> Result<(), Failure> {
        let is_quic = self.scheme().and_then(Transport::from_scheme).is_some_and(Transport::is_quic);
        if is_quic || self.is_auto() {
            return Ok(());
        }
        Err(Failure::usage(format!(
            "Error: {option} needs QUIC: connect with --url quic://HOST, or leave it out."
        )))
    }

    fn scheme(&self) -> Option<&str> {
        self.url.as_deref().and_then(|url| url.split_once("://")).map(|(scheme, _)| scheme)
    }

    /// Whether the client chooses the transport.
    fn is_auto(&self) -> bool {
        self.scheme().is_some_and(is_auto)
    }

    /// The first option that turns TLS on.
    fn wants_tls(&self) -> Option<&'static str> {
        let given = [
            ("--cafile", !self.cafile.is_empty()),
            ("--cert", self.cert.is_some()),
            ("--insecure", self.insecure),
            ("--tls-use-os-certs", self.tls_use_os_certs),
        ];
        given.into_iter().find(|(_, is_given)| *is_given).map(|(name, _)| name)
    }

    /// Refuses options of TLS with a URL of a transport that is not encrypted.
    fn check_tls(&self, url: &str) -> Result<(), Failure> {
        let option = self.wants_tls().or(self.tls_alpn.as_ref().map(|_| "--tls-alpn"));
        let transport = url.split_once("://").and_then(|(scheme, _)| Transport::from_scheme(scheme));
        match (option, transport) {
            (Some(option), Some(transport)) if !transport.is_encrypted() => {
                let encrypted = if transport.is_websocket() { "wss" } else { "mqtts" };
                Err(Failure::usage(format!(
                    "Error: {option} needs TLS: connect with --url {encrypted}://HOST, or leave it out."
                )))
            }
            _ => Ok(()),
        }
    }

    fn tls(&self) -> ClientTlsOptions {
        let identity = self.cert.clone().zip(self.key.clone());
        ClientTlsOptions {
            ca_files: self.cafile.clone(),
            identity: identity.map(|(certificate, key)| CertificateFiles { certificate, key }),
            insecure: self.insecure,
            server_name: None,
            alpn: self.tls_alpn.iter().cloned().collect(),
            key_log: key_log(),
        }
    }

    fn identify(&self, mut builder: Builder) -> Result<Builder, Failure> {
        if let Some(username) = &self.username {
            builder = builder.user_name(username);
        }
        if self.password_stdin {
            let line = first_line(std::io::stdin().lock(), usize::from(u16::MAX))
                .map_err(|error| Failure::usage(format!("Error: cannot read the password: {error}.")))?;
            builder = builder.password(line);
        } else if let Some(password) = self.password_of(std::env::var_os(VARIABLE)) {
            builder = builder.password(password);
        }
        Ok(if self.auth_method.is_some() { builder.scram() } else { builder })
    }

    /// The password of -P, or of the environment variable if the URL has none.
    fn password_of(&self, variable: Option<OsString>) -> Option<Vec<u8>> {
        let authority = self.url.as_deref().and_then(|url| url.split_once("://")?.1.split('/').next());
        let user = authority.and_then(|authority| authority.rsplit_once('@')).map(|(user, _)| user);
        let url_has_one = user.is_some_and(|user| user.contains(':'));
        let given = self.password.as_ref().map(|password| password.as_bytes().to_owned());
        given.or_else(|| variable.filter(|_| !url_has_one).map(OsStringExt::into_vec))
    }

    fn session(
        &self,
        mut builder: Builder,
        version: ProtocolVersion,
        properties: &Properties,
    ) -> Result<Builder, Failure> {
        match (&self.id, &self.id_prefix) {
            (Some(id), _) => builder = builder.client_id(id),
            (None, Some(prefix)) => {
                builder = builder.client_id(&format!("{prefix}{}", std::process::id()));
            }
            (None, None) if self.disable_clean_session => {
                return Err(Failure::usage(
                    "Error: -c keeps the session of a client identifier: give one with -i.",
                ));
            }
            (None, None) => {}
        }
        builder = builder.clean_start(!self.disable_clean_session);
        let default = if self.disable_clean_session { u32::MAX } else { 0 };
        let expiry = self.session_expiry_interval.or(properties.session_expiry).unwrap_or(default);
        if version.is_v5() && expiry > 0 {
            builder = builder.session_expiry(Duration::from_secs(expiry.into()));
        }
        Ok(builder)
    }

    fn will(&self, builder: Builder, properties: &Properties) -> Result<Builder, Failure> {
        let Some(topic) = &self.will_topic else {
            return if properties.has_will() {
                Err(Failure::usage("Error: properties of a will need one: give --will-topic."))
            } else {
                Ok(builder)
            };
        };
        let payload = self.will_payload.clone().unwrap_or_default();
        let will = Publication::to(topic, payload)
            .map_err(|error| {
                Failure::usage(format!("Error: the will's topic {topic:?} is no good: {error}."))
            })?
            .qos(self.will_qos)
            .retain(self.will_retain)
            .properties(properties.will.clone());
        Ok(builder.will(will, Duration::from_secs(properties.will_delay.into())))
    }
}

fn parse_version(text: &str) -> Result<ProtocolVersion, String> {
    match text {
        "mqttv31" | "31" => Ok(ProtocolVersion::V31),
        "mqttv311" | "311" => Ok(ProtocolVersion::V311),
        "mqttv5" | "mqttv50" | "5" => Ok(ProtocolVersion::V5),
        _ => Err("use mqttv31, mqttv311 or mqttv5".to_owned()),
    }
}

/// Parses a QoS.
pub(crate) fn parse_qos(text: &str) -> Result<QoS, String> {
    match text {
        "0" => Ok(QoS::AtMostOnce),
        "1" => Ok(QoS::AtLeastOnce),
        "2" => Ok(QoS::ExactlyOnce),
        _ => Err("use 0, 1 or 2".to_owned()),
    }
}

/// Parses a priority.
pub(crate) fn parse_priority(text: &str) -> Result<Priority, String> {
    text.parse().map(Priority::new).map_err(|_| "use a number from 0 to 65535; 100 is ordinary".to_owned())
}

fn parse_expiry(text: &str) -> Result<u32, String> {
    match text {
        "-1" | "∞" => Ok(u32::MAX),
        _ => text.parse().map_err(|_| "use 0 to 4294967294 seconds, or -1 for ever".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    #[command(disable_help_flag = true, disable_version_flag = true)]
    struct Line {
        #[command(flatten)]
        options: ClientOptions,
    }

    fn options(line: &str) -> ClientOptions {
        let words = ["braidmq"].into_iter().chain(line.split_whitespace());
        Line::try_parse_from(words).unwrap().options
    }

    fn url(line: &str) -> (String, Option<String>) {
        options(line).url().unwrap()
    }

    #[test]
    fn host_and_port_make_a_url_and_tls_its_scheme() {
        assert_eq!(url("").0, "mqtt://localhost");
        assert_eq!(url("-h ::1 -p 99").0, "mqtt://[::1]:99");
        assert_eq!(url("-h h --cafile ca.pem").0, "mqtts://h");
        assert_eq!(url("-h h -p 8883").0, "mqtts://h:8883");
    }

    #[test]
    fn a_url_may_name_a_topic_except_where_it_has_a_path() {
        assert_eq!(url("-L mqtt://u:p@h:1/a/#"), ("mqtt://u:p@h:1".into(), Some("a/#".into())));
        assert_eq!(url("--url quic://h/t"), ("quic://h".into(), Some("t".into())));
        assert_eq!(url("-L mqtts://h/"), ("mqtts://h".into(), None));
        assert_eq!(url("-L wss://h/path"), ("wss://h/path".into(), None));
    }

    #[test]
    fn versions_have_the_names_of_mosquitto_and_properties_need_5() {
        let version = |line: &str| options(line).connection(None).map(|connection| connection.version).ok();
        assert_eq!(version(""), Some(ProtocolVersion::V311));
        assert_eq!(version("-V mqttv31"), Some(ProtocolVersion::V31));
        assert_eq!(version("-V 5"), Some(ProtocolVersion::V5));
        assert_eq!(version("-x 60"), Some(ProtocolVersion::V5));
        assert_eq!(version("-x -1 -D connect user-property a b"), Some(ProtocolVersion::V5));
        assert_eq!(version("-V 311 -x 60"), None);
    }

    #[test]
    fn contradictions_say_what_to_change() {
        let error = |line: &str| options(line).connection(None).err().map(|failure| failure.to_string());
        assert!(error("-c").is_some_and(|error| error.contains("-i")));
        assert!(error("-D will content-type x").is_some_and(|error| error.contains("--will-topic")));
        assert!(error("-S").is_some_and(|error| error.contains("--host and --port")));
        assert!(error("--tls-version tlsv1.2").is_some_and(|error| error.contains("leave it out")));
        assert!(error("--ws").is_some_and(|error| error.contains("--url ws://HOST")));
        assert!(error("-L localhost").is_some_and(|error| error.contains("mqtt://HOST")));
        assert!(error("-V 311 -x 60").is_some_and(|error| error.contains("-x needs MQTT 5")));
    }

    #[test]
    fn options_of_tls_are_refused_where_nothing_is_encrypted() {
        let error = |line: &str| options(line).connection(None).err().map(|failure| failure.to_string());
        for option in
            ["--cafile ca.pem", "--cert c --key k", "--insecure", "--tls-use-os-certs", "--tls-alpn x"]
        {
            for (plain, encrypted) in [("mqtt", "mqtts"), ("ws", "wss")] {
                let name = option.split(' ').next().unwrap();
                let expected = format!(
                    "Error: {name} needs TLS: connect with --url {encrypted}://HOST, or leave it out."
                );
                assert_eq!(error(&format!("-L {plain}://h {option}")).as_deref(), Some(&*expected));
                assert_eq!(error(&format!("-L {encrypted}://h {option}")), None);
            }
            assert_eq!(error(&format!("-L quic://h {option}")), None);
            assert_eq!(error(&format!("-L auto://h {option}")), None);
        }
        assert!(error("--tls-alpn x").is_some_and(|error| error.contains("mqtts://HOST")));
        assert_eq!(error("-p 8883 --tls-alpn x"), None);
    }

    #[test]
    fn a_password_in_the_url_counts_before_the_environment_and_an_option_before_both() {
        let password = |line: &str| {
            let password = options(line).password_of(Some("variable".into()))?;
            Some(String::from_utf8(password).unwrap())
        };
        assert_eq!(password("-u jane").as_deref(), Some("variable"));
        assert_eq!(password("-L mqtt://jane@h/a:b").as_deref(), Some("variable"));
        assert_eq!(password("-L mqtt://jane:secret@h/t"), None);
        assert_eq!(password("-L mqtt://jane:secret@h/t -P other").as_deref(), Some("other"));
    }

    #[test]
    fn options_of_quic_are_refused_on_other_transports() {
        let error = |line: &str| options(line).connection(None).err().map(|failure| failure.to_string());
        for option in
            ["--zero-rtt", "--quic-cc cubic", "--no-gate", "--link-rate 33000", "--path lo", "--qlog-dir ."]
        {
            let name = option.split(' ').next().unwrap();
            let expected =
                format!("Error: {name} needs QUIC: connect with --url quic://HOST, or leave it out.");
            assert_eq!(error(option).as_deref(), Some(&*expected));
            assert_eq!(error(&format!("-L mqtts://h {option}")).as_deref(), Some(&*expected));
            assert_eq!(error(&format!("-L quic://h {option}")), None);
        }
        assert!(Line::try_parse_from(["braidmq", "--quic-cc", "bbr2"]).is_err());
        assert!(Line::try_parse_from(["braidmq", "--link-rate", "0"]).is_err());
    }

    #[test]
    fn auto_urls_take_options_of_quic_and_a_state_file_and_mean_mqtt_5() {
        let version = |line: &str| options(line).connection(None).map(|connection| connection.version).ok();
        assert_eq!(version("-L auto://h --link-rate 33000 --state-file s.json"), Some(ProtocolVersion::V5));
        assert_eq!(version("-L auto://h -V 311"), Some(ProtocolVersion::V311));
        let error =
            options("-L quic://h --state-file s.json").connection(None).err().map(|error| error.to_string());
        assert!(error.is_some_and(|error| error.contains("auto://HOST")));
        assert_eq!(url("-L auto://h:443/t"), ("auto://h:443".into(), Some("t".into())));
        assert_eq!(url("-L auto://h?tls=1").0, "auto://h?tls=1");
    }

    #[test]
    fn priorities_are_numbers_up_to_65535() {
        assert_eq!(parse_priority("65535"), Ok(Priority::HIGHEST));
        assert!(parse_priority("65536").is_err_and(|error| error.contains("65535")));
    }
}
