use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use braid_transport::{
    ClientTls, ConnectError, ConnectOptions, ConnectTimes, Link, Target, connect_timed, mem, sim,
};
use tokio::sync::OnceCell;
use tokio::time::{Instant, timeout};

use crate::emqtt::Counter;

/// Time limit of an attempt until there is a link. TCP would try for two minutes.
const PATIENCE: Duration = Duration::from_secs(15);
/// Head start over an alternative, that of a client of `auto://` which knows nothing of the network.
const HEAD_START: Duration = Duration::from_millis(250);

/// Transport and address of the server.
#[derive(Debug)]
pub struct Dialer {
    route: Route,
}

#[derive(Debug)]
enum Route {
    Network { places: Vec<Place>, tls: ClientTls, options: Box<ConnectOptions>, addresses: Vec<IpAddr> },
    Memory(mem::Connector),
    Simulation(Box<sim::Connector>),
}

/// Targets of the clients.
#[derive(Debug)]
struct Place {
    target: Target,
    /// Target that a link is tried to as well, if the first one does not answer soon.
    alternative: Option<Target>,
    /// Addresses of their host: looked up by the first client, for all clients.
    addresses: OnceCell<Vec<SocketAddr>>,
}

/// Reason for a missing link.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// No host.
    #[error("no host: give one with -h")]
    NoHost,
    /// Error of the transport.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The server in this process has ended.
    #[error(transparent)]
    Memory(#[from] io::Error),
    /// No answer in time.
    #[error("no answer within {} s", PATIENCE.as_secs())]
    Timeout,
}

impl Dialer {
    /// Connects over the network: client 1 to the first target from the first of the local `addresses`, the other
    /// clients in turn; without any, from that of `options`. `options` have the congestion controls of both TCP
    /// and QUIC. A host's name is looked up once for all clients.
    ///
    /// # Errors
    /// No target, an unknown congestion control of TCP, or an unusable certificate file.
    pub fn new(
        targets: Vec<Target>,
        tls: ClientTls,
        options: ConnectOptions,
        addresses: Vec<IpAddr>,
    ) -> Result<Self, DialError> {
        if targets.is_empty() {
            return Err(DialError::NoHost);
        }
        if targets.iter().any(|target| target.transport.is_over_tcp()) {
            options.tcp.check()?;
        }
        if targets.iter().any(|target| target.transport.is_encrypted()) {
            tls.check().map_err(ConnectError::from)?;
        }
        let place = |target| Place { target, alternative: None, addresses: OnceCell::new() };
        let places = targets.into_iter().map(place).collect();
        Ok(Self { route: Route::Network { places, tls, options: Box::new(options), addresses } })
    }

    /// Lets each client take this target if the first one of its own does not answer within 250 ms and this one answers
    /// sooner, or alone: a transport beside another, of the same host.
    #[must_use]
    pub fn with_alternative(mut self, alternative: &Target) -> Self {
        if let Route::Network { places, .. } = &mut self.route {
            places.iter_mut().for_each(|place| place.alternative = Some(alternative.clone()));
        }
        self
    }

    /// Whether clients choose between two targets.
    pub(crate) fn has_alternative(&self) -> bool {
        matches!(&self.route, Route::Network { places, .. } if places.iter().any(|place| place.alternative.is_some()))
    }

    /// Whether a client connects over QUIC alone.
    pub(crate) fn is_quic(&self, client: u64) -> bool {
        match &self.route {
            Route::Network { places, .. } => nth(places, client)
                .is_some_and(|place| place.alternative.is_none() && place.target.transport.is_quic()),
            Route::Memory(_) => false,
            Route::Simulation(_) => true,
        }
    }

    /// Local address of a client, one of several.
    pub(crate) fn local(&self, client: u64) -> Option<IpAddr> {
        match &self.route {
            Route::Network { addresses, .. } => nth(addresses, client).copied(),
            Route::Memory(_) | Route::Simulation(_) => None,
        }
    }

    /// TLS with sessions of one client alone, for [`Dialer::dial_resuming`]; `None` where nothing is encrypted.
    pub(crate) fn own_sessions(&self) -> Option<ClientTls> {
        match &self.route {
            Route::Network { places, tls, .. } => {
                let is_encrypted = places.iter().any(|place| place.target.transport.is_encrypted());
                is_encrypted.then(|| tls.with_own_sessions())
            }
            Route::Memory(_) | Route::Simulation(_) => None,
        }
    }

    /// Link for a client, counted from 1, with the durations of its parts.
    ///
    /// # Errors
    /// No link within 15 seconds.
    pub async fn dial(&self, client: u64) -> Result<(Link, ConnectTimes), DialError> {
        self.dial_resuming(client, None, None).await
    }

    /// Link as from [`Dialer::dial`]. `own`: sessions of the client, from [`Dialer::own_sessions`]. `early` as in
    /// [`Dialer::attempt`].
    pub(crate) async fn dial_resuming(
        &self,
        client: u64,
        own: Option<&ClientTls>,
        early: Option<bool>,
    ) -> Result<(Link, ConnectTimes), DialError> {
        timeout(PATIENCE, self.connect(client, own, early)).await.unwrap_or(Err(DialError::Timeout))
    }

    /// Link without a time limit. `early` tells whether it may be used before the end of the handshake (0-RTT), where
    /// that is possible; `None` leaves it to the options.
    pub(crate) async fn attempt(
        &self,
        client: u64,
        early: Option<bool>,
    ) -> Result<(Link, ConnectTimes), DialError> {
        self.connect(client, None, early).await
    }

    async fn connect(
        &self,
        client: u64,
        own: Option<&ClientTls>,
        early: Option<bool>,
    ) -> Result<(Link, ConnectTimes), DialError> {
        match &self.route {
            Route::Network { places, tls, options, addresses } => {
                let tls = own.unwrap_or(tls);
                let Place { target, alternative, addresses: known } =
                    nth(places, client).ok_or(DialError::NoHost)?;
                let known = known.get_or_try_init(|| target.resolve()).await?;
                let mut options = ConnectOptions::clone(options);
                options.local = nth(addresses, client).copied().or(options.local);
                options.quic.zero_rtt = early.unwrap_or(options.quic.zero_rtt);
                let first = connect_timed(target, known, tls, &options);
                let Some(alternative) = alternative else { return Ok(first.await?) };
                let mut other = known.clone();
                other.iter_mut().for_each(|address| address.set_port(alternative.port));
                Ok(race(first, connect_timed(alternative, &other, tls, &options)).await?)
            }
            Route::Memory(connector) => Ok((connector.connect().await?, ConnectTimes::default())),
            Route::Simulation(connector) => {
                let start = Instant::now();
                let link = match early {
                    Some(early) => connector.clone().zero_rtt(early).connect().await?,
                    None => connector.connect().await?,
                };
                Ok((link, ConnectTimes { tcp: None, secured: Some(start.elapsed()) }))
            }
        }
    }
}

/// Connects to a server in this process.
impl From<mem::Connector> for Dialer {
    fn from(connector: mem::Connector) -> Self {
        Self { route: Route::Memory(connector) }
    }
}

/// Connects over a simulated network.
impl From<sim::Connector> for Dialer {
    fn from(connector: sim::Connector) -> Self {
        Self { route: Route::Simulation(Box::new(connector)) }
    }
}

impl DialError {
    /// Additional counter of a failure of QUIC.
    pub(crate) fn quic_counter(&self) -> Option<Counter> {
        match self {
            Self::Timeout => Some(Counter::ConnectionTimeout),
            Self::Connect(ConnectError::Unreachable { kind, .. }) => Some(match kind {
                io::ErrorKind::TimedOut => Counter::ConnectionTimeout,
                io::ErrorKind::ConnectionRefused => Counter::ConnectionRefused,
                _ => Counter::Unreachable,
            }),
            Self::Connect(ConnectError::Resolve { .. }) => Some(Counter::Unreachable),
            Self::Connect(_) => Some(Counter::ConnectionRefused),
            Self::NoHost | Self::Memory(_) => None,
        }
    }
}

/// The first success of two attempts, of which the second begins when the first has failed, or not ended soon. If both
/// fail, the error of the one that ended last.
async fn race<T, E>(
    first: impl Future<Output = Result<T, E>>,
    second: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    tokio::pin!(first, second);
    match timeout(HEAD_START, &mut first).await {
        Ok(Ok(found)) => return Ok(found),
        Ok(Err(_)) => return second.await,
        Err(_) => {}
    }
    tokio::select! {
        outcome = &mut first => match outcome {
            Ok(found) => Ok(found),
            Err(_) => second.await,
        },
        outcome = &mut second => match outcome {
            Ok(found) => Ok(found),
            Err(_) => first.await,
        },
    }
}

/// Element of a list for a client, in turn; clients are counted from 1.
fn nth<T>(of: &[T], client: u64) -> Option<&T> {
    let at = client.saturating_sub(1).checked_rem(of.len() as u64)?;
    of.get(usize::try_from(at).ok()?)
}

#[cfg(test)]
mod tests {
    use braid_transport::Transport;

    use super::*;

    #[test]
    fn client_1_has_the_first_and_the_others_follow_in_turn() {
        let found = [1, 2, 3, 4].map(|client| nth(&["a", "b", "c"], client));
        assert_eq!(found, [Some(&"a"), Some(&"b"), Some(&"c"), Some(&"a")]);
        assert_eq!(nth::<u8>(&[], 1), None);
    }

    #[test]
    fn a_client_is_named_after_its_own_address() {
        let target = Target { transport: Transport::Tcp, host: "h".to_owned(), port: 1, path: String::new() };
        let addresses: Vec<IpAddr> = vec![[127, 0, 0, 2].into(), [127, 0, 0, 3].into()];
        let dialer = |addresses| {
            Dialer::new(vec![target.clone()], ClientTls::default(), ConnectOptions::default(), addresses)
        };
        let local = |addresses, client| dialer(addresses).expect("one target").local(client);
        assert_eq!(
            [1, 2, 3].map(|client| local(addresses.clone(), client)),
            [0, 1, 0].map(|at| Some(addresses[at]))
        );
        assert_eq!(local(Vec::new(), 1), None);
    }

    #[test]
    fn failures_of_quic_are_counted_by_kind() {
        let unreachable = |kind| {
            let (host, reason) = ("h".to_owned(), String::new());
            DialError::Connect(ConnectError::Unreachable { host, port: 1, kind, reason }).quic_counter()
        };
        assert_eq!(unreachable(io::ErrorKind::TimedOut), Some(Counter::ConnectionTimeout));
        assert_eq!(unreachable(io::ErrorKind::ConnectionRefused), Some(Counter::ConnectionRefused));
        assert_eq!(unreachable(io::ErrorKind::NetworkUnreachable), Some(Counter::Unreachable));
        assert_eq!(DialError::Timeout.quic_counter(), Some(Counter::ConnectionTimeout));
        assert_eq!(DialError::NoHost.quic_counter(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_answer_of_two_transports_is_taken_after_a_head_start() {
        let attempt = |name: &'static str, after: u64, works: bool| async move {
            tokio::time::sleep(Duration::from_millis(after)).await;
            if works { Ok(name) } else { Err(name) }
        };
        let [quic, tls] = ["quic", "tls"];
        for ((at, works), (other_at, other_works), expected, total) in [
            ((200, true), (1, true), Ok(quic), 200),
            ((400, true), (50, true), Ok(tls), 300),
            ((400, true), (300, true), Ok(quic), 400),
            ((20, false), (30, true), Ok(tls), 50),
            ((400, false), (500, true), Ok(tls), 750),
            ((900, true), (100, false), Ok(quic), 900),
            ((20, false), (30, false), Err(tls), 50),
        ] {
            let start = Instant::now();
            let outcome = race(attempt(quic, at, works), attempt(tls, other_at, other_works)).await;
            assert_eq!((outcome, start.elapsed().as_millis()), (expected, total));
        }
    }

    #[tokio::test]
    async fn a_name_is_looked_up_for_the_first_client_alone() {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        // RFC 6761, 6.4: this name has no address anywhere.
        let host = "host.invalid".to_owned();
        let target = Target { transport: Transport::Tcp, host, port: 1, path: String::new() };
        let (tls, options) = (ClientTls::default(), ConnectOptions::default());
        let dialer = Dialer::new(vec![target], tls, options, Vec::new()).expect("one target");
        let Route::Network { places, .. } = &dialer.route else { panic!("it is on the network") };
        let found = vec![listener.local_addr().expect("an address")];
        places[0].addresses.set(found).expect("no lookup before");
        dialer.dial(2).await.expect("the address that was found");
    }
}
