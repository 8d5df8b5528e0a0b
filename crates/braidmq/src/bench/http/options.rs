//! Options of `braidmq bench http`, named as in h2load.

use std::path::PathBuf;
use std::time::Duration;

use braid_bench::http::{
    ConnectionRate, Expectation, Extent, HttpLoad, Protocol, Request, RequestError, Route, Timeouts,
};
use braid_transport::quic::{Congestion, QuicOptions};
use braid_transport::{ClientTls, ClientTlsOptions, ConnectOptions, TcpOptions};
use bytes::Bytes;

use crate::bench::failure::Failure;
use crate::bench::options::{OptionsError, duration};
use crate::client::{key_log, parse_congestion};

const EXAMPLES: &str = "\
Examples:
  braidmq bench http -n 10000 -c 100 -t 2 -m 100 --h1 http://192.0.2.1/index.html
  braidmq bench http -D 30s --warm-up-time 5s -c 10 -m 10 http://192.0.2.1/ --json run.json
  braidmq bench http -n 1000 --h3 --expect-bytes 612 https://192.0.2.1/

Exit codes:
  0  there were responses
  1  there was none
  2  wrong options, a server without an address, or a file that cannot be read or written";

/// Put load on an HTTP server and measure it, with the options and the output of h2load.
///
/// Each client has one connection and sends the next request as soon as a response leaves room for it (closed loop).
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(in crate::bench) struct HttpOptions {
    /// URL that all requests are for.
    url: String,
    /// Requests over all clients. Ignored with --duration.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1)]
    requests: u64,
    /// Clients, with a connection each.
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    clients: u32,
    /// Threads, among which the clients are divided.
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
    /// Requests in flight on a connection: streams, or pipelined requests of HTTP/1.1 (one with --data).
    #[arg(short, long, value_name = "N", default_value_t = 1)]
    max_concurrent_streams: u32,
    /// Duration of the measurement, such as 30s, instead of a number of requests.
    #[arg(short = 'D', long, value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,
    /// Time before the measurement in which nothing is counted.
    #[arg(long, value_name = "TIME", value_parser = duration, requires = "duration")]
    warm_up_time: Option<Duration>,
    /// Connections to begin in each period; without it, all begin at once.
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
    /// Period of --rate.
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1s", requires = "rate")]
    rate_period: Duration,
    /// Longest time from the begin of a connection to its last response.
    #[arg(short = 'T', long, value_name = "TIME", value_parser = duration)]
    connection_active_timeout: Option<Duration>,
    /// Longest time without a byte on a connection, either way.
    #[arg(short = 'N', long, value_name = "TIME", value_parser = duration)]
    connection_inactivity_timeout: Option<Duration>,
    /// HTTP/1.1.
    #[arg(long, group = "protocol")]
    h1: bool,
    /// HTTP/2 alone. It is the default of http://, without an upgrade (prior knowledge).
    #[arg(long, group = "protocol")]
    h2: bool,
    /// HTTP/3, over QUIC. The URL is one of https.
    #[arg(long, group = "protocol")]
    h3: bool,
    /// Versions to offer on https://, the preferred one first: h2 and http/1.1, or h3. h2,http/1.1 by default.
    #[arg(long, visible_alias = "npn-list", value_name = "NAME,...", value_delimiter = ',', value_parser = alpn, group = "protocol")]
    alpn_list: Vec<Protocol>,
    /// Version on http://: h2c or http/1.1.
    #[arg(short = 'p', long, value_name = "NAME", value_parser = no_tls_proto, conflicts_with_all = ["h1", "h2", "h3"])]
    no_tls_proto: Option<Protocol>,
    /// A PEM file with the CAs to trust. Without it the server's certificate is not checked.
    #[arg(long, visible_aliases = ["cacertfile", "cafile"], value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Do not check the server's certificate, which is the default here.
    #[arg(long, conflicts_with = "ca")]
    insecure: bool,
    /// Congestion control of TCP, by the system's name: cubic, bbr, reno. The server's choice matters more.
    #[arg(long, value_name = "NAME")]
    tcp_cc: Option<String>,
    /// Congestion control of QUIC: bbr3, cubic or newreno.
    #[arg(long, value_name = "NAME", value_parser = parse_congestion)]
    quic_cc: Option<Congestion>,
    /// Write a qlog of each QUIC connection into this directory, for qvis.
    #[arg(long, value_name = "DIR")]
    pub(super) qlog_dir: Option<PathBuf>,
    /// Obey Alt-Svc: begin over TCP, go to HTTP/3 when it is advertised, and back on `clear` or when QUIC fails.
    #[arg(long, conflicts_with = "h3")]
    alt_svc: bool,
    /// A header to add. It replaces user-agent, host, :method and :authority. Can be repeated.
    #[arg(short = 'H', long, value_name = "NAME: VALUE")]
    header: Vec<String>,
    /// POST the content of this file.
    #[arg(short, long, value_name = "FILE")]
    pub(super) data: Option<PathBuf>,
    /// Connect to this host, and port, instead of those of the URL.
    #[arg(long, value_name = "HOST[:PORT]", value_parser = connect_to)]
    connect_to: Option<(String, Option<u16>)>,
    /// Count successful responses whose body has another length as wrong.
    #[arg(long, value_name = "N")]
    expect_bytes: Option<u64>,
    /// Count successful responses whose body has another SHA-256 digest as wrong.
    #[arg(long, value_name = "DIGEST", value_parser = Expectation::digest)]
    expect_sha256: Option<[u8; 32]>,
    /// Write the results to this file.
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

impl HttpOptions {
    /// The load, without addresses.
    pub(super) fn load(&self, body: Option<Bytes>) -> Result<HttpLoad, Failure> {
        let request = self.request(body).map_err(|error| OptionsError::new(error.to_string()))?;
        let load = HttpLoad {
            route: self.route(request.is_https())?,
            request,
            clients: self.clients,
            threads: self.threads,
            concurrent: self.max_concurrent_streams,
            extent: match self.duration {
                Some(main) => Extent::Duration { main, warm_up: self.warm_up_time.unwrap_or_default() },
                None => Extent::Requests(self.requests),
            },
            rate: self.rate.map(|connections| ConnectionRate { connections, period: self.rate_period }),
            timeouts: Timeouts {
                active: self.connection_active_timeout,
                inactive: self.connection_inactivity_timeout,
            },
            expectation: Expectation { bytes: self.expect_bytes, sha256: self.expect_sha256 },
            alternative: self.alt_svc.then(|| self.tls(&[Protocol::Http3])),
        };
        load.check()?;
        Ok(load)
    }

    /// Host and port to connect to.
    pub(super) fn target(&self, request: &Request) -> (String, u16) {
        let (host, port) = self.connect_to.clone().unwrap_or_else(|| (request.host().to_owned(), None));
        (host, port.unwrap_or(request.port()))
    }

    fn request(&self, body: Option<Bytes>) -> Result<Request, RequestError> {
        let request = Request::get(&self.url)?;
        let request = self.header.iter().try_fold(request, |request, line| request.header(line))?;
        Ok(match body {
            Some(body) => request.post(body),
            None => request,
        })
    }

    /// The way to the server, without addresses.
    fn route(&self, is_https: bool) -> Result<Route, Failure> {
        let protocols = self.protocols(is_https);
        let is_quic = protocols == [Protocol::Http3];
        let refuse = |text: &str| Err(Failure::Options(OptionsError::new(text)));
        match (&self.ca, is_https) {
            (Some(_), false) => return refuse("--ca is for TLS: write https:// for http://"),
            (None, false) if self.insecure => {
                return refuse("--insecure is for TLS: write https:// for http://, or leave it out");
            }
            _ => {}
        }
        if is_quic && self.tcp_cc.is_some() {
            return refuse("--tcp-cc is for TCP: use --quic-cc, or another version than HTTP/3");
        }
        if !is_quic && !self.alt_svc && self.quic_cc.is_some() {
            return refuse("--quic-cc is for QUIC: use --tcp-cc, --alt-svc or --h3");
        }
        if !is_quic && !self.alt_svc && self.qlog_dir.is_some() {
            return refuse("--qlog-dir is for QUIC: use --h3 or --alt-svc");
        }
        let tls = is_https.then(|| self.tls(&protocols));
        if let Some(tls) = &tls {
            tls.check()?;
        }
        let tcp = TcpOptions { congestion: self.tcp_cc.as_deref().map(Box::from) };
        tcp.check().map_err(|error| OptionsError::new(error.to_string()))?;
        let default = QuicOptions::http3_client();
        let congestion = self.quic_cc.unwrap_or(default.congestion);
        let quic = QuicOptions { congestion, qlog_dir: self.qlog_dir.clone(), ..default };
        let options = ConnectOptions { quic, tcp, ..ConnectOptions::default() };
        Ok(Route { addresses: Vec::new(), protocols, tls, options })
    }

    fn tls(&self, protocols: &[Protocol]) -> ClientTls {
        ClientTls::new(ClientTlsOptions {
            ca_files: self.ca.iter().cloned().collect(),
            insecure: self.ca.is_none(),
            alpn: protocols.iter().map(|protocol| protocol.alpn().to_owned()).collect(),
            key_log: key_log(),
            ..ClientTlsOptions::default()
        })
    }

    fn protocols(&self, is_https: bool) -> Vec<Protocol> {
        let of_tls = if self.alpn_list.is_empty() {
            vec![Protocol::Http2, Protocol::Http1]
        } else {
            self.alpn_list.clone()
        };
        match self {
            Self { h1: true, .. } => vec![Protocol::Http1],
            Self { h2: true, .. } => vec![Protocol::Http2],
            Self { h3: true, .. } => vec![Protocol::Http3],
            // As in h2load, --alpn-list is for TLS; h3 alone says that QUIC is meant.
            _ if is_https || self.alpn_list == [Protocol::Http3] => of_tls,
            _ => vec![self.no_tls_proto.unwrap_or(Protocol::Http2)],
        }
    }
}

fn alpn(name: &str) -> Result<Protocol, String> {
    let all = [Protocol::Http1, Protocol::Http2, Protocol::Http3];
    let found = all.into_iter().find(|protocol| protocol.alpn() == name);
    found.ok_or_else(|| "write h2, http/1.1 or h3, or several with commas".to_owned())
}

fn no_tls_proto(name: &str) -> Result<Protocol, String> {
    match name {
        "h2c" => Ok(Protocol::Http2),
        "http/1.1" => Ok(Protocol::Http1),
        _ => Err("write h2c or http/1.1".to_owned()),
    }
}

/// `host`, `host:port`, `[::1]` or `[::1]:port`.
fn connect_to(text: &str) -> Result<(String, Option<u16>), String> {
    let wrong = || "write a host, or HOST:PORT, such as 192.0.2.1:8080 or [::1]:8080".to_owned();
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !text.ends_with(']') => (host, Some(port.parse().map_err(|_| wrong())?)),
        _ => (text, None),
    };
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_wrong = host.is_empty() || (bare.is_none() && host.contains([':', '[', ']']));
    if is_wrong { Err(wrong()) } else { Ok((bare.unwrap_or(host).to_owned(), port)) }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: HttpOptions,
    }

    fn options(line: &str) -> Result<HttpOptions, String> {
        let words = ["http"].into_iter().chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.options).map_err(|error| error.to_string())
    }

    fn load(line: &str) -> HttpLoad {
        options(line).unwrap().load(None).unwrap()
    }

    /// Error for a wrong line.
    fn error(line: &str) -> String {
        let load = |options: HttpOptions| options.load(None).map_err(|failure| failure.to_string());
        options(line).and_then(load).map(|_| ()).unwrap_err()
    }

    #[test]
    fn the_line_of_the_article_is_a_load() {
        let found = load("-t 10 -c 100 -n 10000 -m 100 --h1 http://192.0.2.1/");
        assert_eq!((found.threads, found.clients, found.concurrent), (10, 100, 100));
        assert_eq!((found.extent, found.route.protocols), (Extent::Requests(10_000), vec![Protocol::Http1]));
        let found = load("-D 30 --warm-up-time 500ms http://a/ -T 1m -N 2 --expect-bytes 612");
        let (main, warm_up) = (Duration::from_secs(30), Duration::from_millis(500));
        assert_eq!(found.extent, Extent::Duration { main, warm_up });
        let (active, inactive) = (Some(Duration::from_secs(60)), Some(Duration::from_secs(2)));
        assert_eq!(found.timeouts, Timeouts { active, inactive });
        assert_eq!(found.expectation.bytes, Some(612));
        let rated = load("-n 9 -c 9 -r 3 --rate-period 100ms http://a/");
        assert_eq!(rated.rate, Some(ConnectionRate { connections: 3, period: Duration::from_millis(100) }));
    }

    #[test]
    fn versions_are_those_of_the_options_and_the_scheme() {
        use Protocol::{Http1, Http2, Http3};
        for (line, expected) in [
            ("http://a/", vec![Http2]),
            ("https://a/", vec![Http2, Http1]),
            ("-p http/1.1 http://a/", vec![Http1]),
            ("-p http/1.1 https://a/", vec![Http2, Http1]),
            ("--alpn-list http/1.1,h2 https://a/", vec![Http1, Http2]),
            ("--alpn-list http/1.1 http://a/", vec![Http2]),
            ("--npn-list h3 https://a/", vec![Http3]),
            ("--h1 https://a/", vec![Http1]),
            ("--h2 https://a/", vec![Http2]),
            ("--h3 https://a/ --quic-cc cubic", vec![Http3]),
        ] {
            let route = load(line).route;
            assert_eq!((route.protocols, route.tls.is_some()), (expected, line.contains("https")), "{line}");
        }
    }

    #[test]
    fn the_target_is_that_of_the_url_or_another() {
        let target = |line| {
            let options = options(line).unwrap();
            options.target(&options.request(None).unwrap())
        };
        let is = |host: &str, port| (host.to_owned(), port);
        assert_eq!(target("http://a:81/"), is("a", 81));
        assert_eq!(target("http://[::1]/"), is("::1", 80));
        assert_eq!(target("http://a:81/ --connect-to b"), is("b", 81));
        assert_eq!(target("http://a:81/ --connect-to [::2]"), is("::2", 81));
        assert_eq!(target("http://a:81/ --connect-to [::2]:82"), is("::2", 82));
        for wrong in ["", "b:", "b:x", "::1", "[::1", ":80"] {
            assert!(connect_to(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn wrong_options_say_what_to_change() {
        let cases = [
            ("", "<URL>"),
            ("a", "is no URL"),
            ("ftp://a/", "ftp: the scheme is http or https"),
            ("http://a/ -n 0", "-n is at least 1"),
            ("http://a/ -n 3 -c 4", "give at least one request for each client"),
            ("http://a/ -n 4 -c 4 -t 5", "give at least one client for each thread"),
            ("http://a/ -c 0", "-c"),
            ("http://a/ -m 0", "-m is at least 1"),
            ("http://a/ -D 0", "above 0"),
            ("http://a/ -D 1 -r 1", "-r goes with -n"),
            ("http://a/ --warm-up-time 1", "--duration"),
            ("http://a/ --h1 --h2", "cannot be used with"),
            ("http://a/ -p h2", "h2c"),
            ("http://a/ -p h2c --h1", "cannot be used with"),
            ("http://a/ --h3", "HTTP/3 is always encrypted"),
            ("http://a/ --alpn-list h3", "HTTP/3 is always encrypted"),
            ("https://a/ --alpn-list h3,h2", "offer h3 alone"),
            ("https://a/ --alpn-list spdy", "h2, http/1.1 or h3"),
            ("http://a/ --ca x", "--ca is for TLS"),
            ("http://a/ --insecure", "--insecure is for TLS"),
            ("https://a/ --ca /none.pem", "/none.pem"),
            ("https://a/ --insecure --ca /none.pem", "cannot be used with"),
            ("https://a/ --h3 --tcp-cc cubic", "--tcp-cc is for TCP"),
            ("https://a/ --quic-cc cubic", "--quic-cc is for QUIC"),
            ("https://a/ --alt-svc --h3", "cannot be used with"),
            ("https://a/ --alt-svc --alpn-list h3", "--alt-svc begins on TCP"),
            ("http://a/ --alt-svc", "Alt-Svc is obeyed over TLS only"),
            ("http://a/ --tcp-cc none-such", "none-such"),
            ("http://a/ -H name", "write NAME: VALUE"),
            ("http://a/ --expect-sha256 abc", "64 hexadecimal digits"),
        ];
        for (line, expected) in cases {
            let error = error(line);
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
