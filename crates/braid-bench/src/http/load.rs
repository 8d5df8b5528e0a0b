use std::net::SocketAddr;
use std::time::Duration;

use braid_transport::{ClientTls, ConnectOptions};

use super::body::Expectation;
use super::request::Request;

/// Most requests in flight over all clients: each costs memory before the first response.
const MOST_IN_FLIGHT: u64 = 1_000_000;

/// Load on a server, with the vocabulary of h2load.
#[derive(Clone, Debug)]
pub struct HttpLoad {
    /// Way to the server.
    pub route: Route,
    /// Request of all clients.
    pub request: Request,
    /// Number of clients, with a connection each (`-c`).
    pub clients: u32,
    /// Number of threads (`-t`).
    pub threads: u32,
    /// Most requests in flight on a connection (`-m`): streams, or pipelined requests of HTTP/1.1.
    pub concurrent: u32,
    /// End of the run.
    pub extent: Extent,
    /// Pace of new connections; `None`: all at once.
    pub rate: Option<ConnectionRate>,
    /// Time limits of a connection.
    pub timeouts: Timeouts,
    /// Right body of successful responses.
    pub expectation: Expectation,
    /// TLS of HTTP/3, offering `h3`, for a load over TCP that obeys `Alt-Svc`.
    pub alternative: Option<ClientTls>,
}

/// Way to the server.
#[derive(Clone, Debug)]
pub struct Route {
    /// Addresses of the server; a client tries one after the other.
    pub addresses: Vec<SocketAddr>,
    /// Versions of HTTP to offer in TLS, the preferred one first; a single one without TLS, and for QUIC.
    pub protocols: Vec<Protocol>,
    /// TLS, whose options offer the same versions; `None`: plain TCP.
    pub tls: Option<ClientTls>,
    /// Options of TCP and QUIC.
    pub options: ConnectOptions,
}

/// Version of HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2; without TLS by prior knowledge, not by an upgrade from HTTP/1.1.
    Http2,
    /// HTTP/3.
    Http3,
}

/// End of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Number of requests over all clients (`-n`).
    Requests(u64),
    /// Time, after one in which nothing is counted (`-D`, `--warm-up-time`).
    Duration {
        /// Duration of the measurement.
        main: Duration,
        /// Time before it.
        warm_up: Duration,
    },
}

/// Pace of new connections (`-r`, `--rate-period`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionRate {
    /// Connections in each period, over all threads.
    pub connections: u32,
    /// The period.
    pub period: Duration,
}

/// Time limits of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// From its begin (`-T`).
    pub active: Option<Duration>,
    /// From the last received or sent byte (`-N`).
    pub inactive: Option<Duration>,
}

/// Contradiction in a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// A count of zero.
    #[error("{0} is at least 1")]
    Zero(&'static str),
    /// A client without a request.
    #[error("-n {requests}, -c {clients}: give at least one request for each client")]
    FewRequests {
        /// `-n`.
        requests: u64,
        /// `-c`.
        clients: u32,
    },
    /// A thread without a client.
    #[error("-c {clients}, -t {threads}: give at least one client for each thread")]
    FewClients {
        /// `-c`.
        clients: u32,
        /// `-t`.
        threads: u32,
    },
    /// More threads than connections in a period.
    #[error("-r {rate}, -t {threads}: give at least one connection of each period to each thread")]
    FewConnections {
        /// `-r`.
        rate: u32,
        /// `-t`.
        threads: u32,
    },
    /// Versions of HTTP that the way to the server does not have.
    #[error("{0}")]
    Protocols(&'static str),
    /// Both paces.
    #[error("-r goes with -n, not with -D: the clients of -D start at once")]
    RateAndDuration,
    /// More memory than this program takes for requests in flight.
    #[error("-c {clients} times -m {concurrent}: at most {MOST_IN_FLIGHT} requests can be in flight")]
    TooMany {
        /// `-c`.
        clients: u32,
        /// `-m`.
        concurrent: u32,
    },
}

impl HttpLoad {
    /// Checks that the counts go together.
    ///
    /// # Errors
    /// The first contradiction.
    pub fn check(&self) -> Result<(), LoadError> {
        let (clients, threads, concurrent) = (self.clients, self.threads, self.concurrent);
        let counts = [("-c", clients), ("-t", threads), ("-m", concurrent)];
        if let Some((name, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
            return Err(LoadError::Zero(name));
        }
        self.route.check()?;
        if self.alternative.is_some() {
            if self.route.protocols == [Protocol::Http3] {
                return Err(LoadError::Protocols("--alt-svc begins on TCP: leave out --h3"));
            }
            if self.route.tls.is_none() {
                return Err(LoadError::Protocols(
                    "Alt-Svc is obeyed over TLS only: write https:// for http://",
                ));
            }
        }
        match self.extent {
            Extent::Requests(0) => return Err(LoadError::Zero("-n")),
            Extent::Requests(requests) if requests < u64::from(clients) => {
                return Err(LoadError::FewRequests { requests, clients });
            }
            Extent::Requests(_) => {}
            Extent::Duration { .. } if self.rate.is_some() => return Err(LoadError::RateAndDuration),
            Extent::Duration { main, .. } if main.is_zero() => return Err(LoadError::Zero("-D")),
            Extent::Duration { .. } => {}
        }
        if clients < threads {
            return Err(LoadError::FewClients { clients, threads });
        }
        match self.rate {
            Some(rate) if rate.period.is_zero() => return Err(LoadError::Zero("--rate-period")),
            Some(rate) if rate.connections < threads => {
                return Err(LoadError::FewConnections { rate: rate.connections, threads });
            }
            _ => {}
        }
        if u64::from(clients) * u64::from(concurrent) > MOST_IN_FLIGHT {
            return Err(LoadError::TooMany { clients, concurrent });
        }
        Ok(())
    }

    /// Most requests in flight on a connection. A request with a body is sent alone on HTTP/1.1, as by h2load: a
    /// server that answers early and closes would make it unclear which requests it took.
    pub(super) fn depth(&self, protocol: Protocol) -> usize {
        let is_alone = protocol == Protocol::Http1 && !self.request.body().is_empty();
        if is_alone { 1 } else { self.concurrent as usize }
    }
}

impl Route {
    /// Plain TCP.
    #[must_use]
    pub fn plain(address: SocketAddr, protocol: Protocol) -> Self {
        let options = ConnectOptions::default();
        Self { addresses: vec![address], protocols: vec![protocol], tls: None, options }
    }

    fn check(&self) -> Result<(), LoadError> {
        match (&*self.protocols, &self.tls) {
            ([], _) => Err(LoadError::Protocols("give at least one version of HTTP")),
            ([Protocol::Http3], Some(_)) => Ok(()),
            ([Protocol::Http3], None) => {
                Err(LoadError::Protocols("HTTP/3 is always encrypted: write https:// for http://"))
            }
            (protocols, _) if protocols.contains(&Protocol::Http3) => {
                Err(LoadError::Protocols("HTTP/3 is on UDP, the others on TCP: offer h3 alone"))
            }
            ([_, _, ..], None) => Err(LoadError::Protocols(
                "without TLS no version is agreed upon: give one, or write https://",
            )),
            _ => Ok(()),
        }
    }

    /// Name of a version as in h2load's output: that of ALPN, or of prior knowledge.
    pub(super) fn name(&self, protocol: Protocol) -> &'static str {
        if self.tls.is_none() && protocol == Protocol::Http2 { "h2c" } else { protocol.alpn() }
    }

    /// Version of a connection over TCP, by what TLS agreed on. Without an agreement it is HTTP/1.1, if that is
    /// offered.
    pub(super) fn agreed(&self, alpn: Option<&str>) -> Option<Protocol> {
        if self.tls.is_none() {
            return self.protocols.first().copied();
        }
        let alpn = alpn.unwrap_or(Protocol::Http1.alpn());
        self.protocols.iter().copied().find(|protocol| protocol.alpn() == alpn)
    }
}

impl Protocol {
    /// Name in TLS (ALPN).
    #[must_use]
    pub fn alpn(self) -> &'static str {
        match self {
            Self::Http1 => "http/1.1",
            Self::Http2 => "h2",
            Self::Http3 => "h3",
        }
    }
}

/// Share of thread `index` in `total` things, as even as possible, the first threads getting one more.
pub(super) fn share(total: u64, threads: u32, index: u32) -> u64 {
    let (threads, index) = (u64::from(threads), u64::from(index));
    total / threads + u64::from(index < total % threads)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(clients: u32, threads: u32, concurrent: u32, extent: Extent) -> HttpLoad {
        let request = Request::get("http://localhost/").expect("a URL");
        let route = Route::plain(([127, 0, 0, 1], 1).into(), Protocol::Http1);
        let (timeouts, expectation) = (Timeouts::default(), Expectation::default());
        HttpLoad {
            route,
            request,
            clients,
            threads,
            concurrent,
            extent,
            rate: None,
            timeouts,
            expectation,
            alternative: None,
        }
    }

    #[test]
    fn contradictions_are_told() {
        let n = Extent::Requests;
        let of = |load: HttpLoad| load.check().map_err(|error| error.to_string()).unwrap_err();
        assert_eq!(load(2, 2, 1, n(2)).check(), Ok(()));
        assert_eq!(of(load(0, 1, 1, n(1))), "-c is at least 1");
        assert_eq!(of(load(1, 0, 1, n(1))), "-t is at least 1");
        assert_eq!(of(load(1, 1, 0, n(1))), "-m is at least 1");
        assert_eq!(of(load(1, 1, 1, n(0))), "-n is at least 1");
        assert_eq!(of(load(2, 1, 1, n(1))), "-n 1, -c 2: give at least one request for each client");
        assert_eq!(of(load(2, 3, 1, n(9))), "-c 2, -t 3: give at least one client for each thread");
        assert!(of(load(1001, 1, 1000, n(9999))).starts_with("-c 1001 times -m 1000: at most 1000000 "));
        let (main, warm_up) = (Duration::from_secs(1), Duration::ZERO);
        let zero = Extent::Duration { main: Duration::ZERO, warm_up };
        assert_eq!(of(load(1, 1, 1, zero)), "-D is at least 1");
        let rated = |extent, connections, period| {
            let rate = Some(ConnectionRate { connections, period });
            HttpLoad { rate, ..load(4, 2, 1, extent) }
        };
        assert_eq!(rated(n(4), 2, main).check(), Ok(()));
        assert!(of(rated(Extent::Duration { main, warm_up }, 2, main)).starts_with("-r goes with -n"));
        assert!(of(rated(n(4), 1, main)).starts_with("-r 1, -t 2: "));
        assert_eq!(of(rated(n(4), 2, Duration::ZERO)), "--rate-period is at least 1");
    }

    #[test]
    fn versions_fit_the_way() {
        use Protocol::{Http1, Http2, Http3};
        let of = |protocols: &[Protocol], tls: bool| {
            let plain = Route::plain(([127, 0, 0, 1], 1).into(), Http1);
            Route { protocols: protocols.to_vec(), tls: tls.then(ClientTls::default), ..plain }
        };
        for (protocols, plain, tls) in [
            (&[][..], false, false),
            (&[Http1], true, true),
            (&[Http2], true, true),
            (&[Http2, Http1], false, true),
            (&[Http3], false, true),
            (&[Http3, Http2], false, false),
        ] {
            let found = (of(protocols, false).check().is_ok(), of(protocols, true).check().is_ok());
            assert_eq!(found, (plain, tls), "{protocols:?}");
        }
        let both = of(&[Http2, Http1], true);
        let agreed = [Some("h2"), Some("http/1.1"), None, Some("h3")].map(|alpn| both.agreed(alpn));
        assert_eq!(agreed, [Some(Http2), Some(Http1), Some(Http1), None]);
        assert_eq!([of(&[Http2], true).agreed(None), of(&[Http2], false).agreed(None)], [None, Some(Http2)]);
        assert_eq!(
            [both.name(Http2), of(&[Http2], false).name(Http2), both.name(Http1)],
            ["h2", "h2c", "http/1.1"]
        );
    }

    #[test]
    fn shares_are_even_and_whole() {
        assert_eq!([0, 1, 2].map(|index| share(11, 3, index)), [4, 4, 3]);
        assert_eq!([0, 1].map(|index| share(1, 2, index)), [1, 0]);
    }
}
