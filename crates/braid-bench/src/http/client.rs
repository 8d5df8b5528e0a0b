use std::rc::Rc;
use std::time::Duration;
use std::{future::pending, pin::pin};

use braid_transport::http::{Http3Connection, HttpStream, TcpProbe, connect_http, connect_http3};
use braid_transport::{ClientTls, ConnectOptions};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep, sleep_until};

use super::account::Account;
use super::alt_svc::AltSvcCache;
use super::failure::{Ended, Failure};
use super::link::Link;
use super::load::{Protocol, Timeouts};
use super::{h1, h2, h3};

/// Connections in a row that may end without a response before a client that obeys `Alt-Svc` gives up.
const MOST_FAILURES: u32 = 4;

/// Pause before TCP is tried again, while QUIC still serves.
const TCP_PAUSE: Duration = Duration::from_secs(1);

/// Longest time to connect over QUIC where TCP works.
const QUIC_LIMIT: Duration = Duration::from_secs(5);

/// Bounds of the round-trip time that QUIC assumes from that of TCP.
const RTT_BOUNDS: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(333)];

/// Connection that is ready for requests.
enum Connected {
    Tcp(HttpStream, Protocol),
    Quic(Http3Connection),
}

/// Runs a client to the end of its requests.
pub(super) async fn run(account: Rc<Account>) {
    let mut client = Client { account, failures: Failures::default(), draining: JoinSet::new() };
    let outcome = client.serve_all().await;
    let Client { account, .. } = client;
    if let Err(failure) = outcome {
        let is_timeout = matches!(failure, Failure::Inactive(_) | Failure::Active(_));
        account.abandon(is_timeout, failure.to_string());
    }
    account.end();
}

/// Client, with one connection for its requests, and older ones on which responses are missing.
struct Client {
    account: Rc<Account>,
    failures: Failures,
    draining: JoinSet<Drained>,
}

/// End of a connection on which no more requests were begun.
type Drained = (Rc<Link>, Result<Ended, Failure>);

impl Client {
    /// Serves the requests on one connection after the other, until all are done.
    async fn serve_all(&mut self) -> Result<(), Failure> {
        // Connection that was made while the one before it still served.
        let mut next = None;
        loop {
            if next.is_none() {
                self.account.begin_connection();
            }
            next = self.serve(next).await?;
            while next.is_none() && self.account.is_exhausted() {
                match self.draining.join_next().await {
                    Some(drained) => self.drained(drained)?,
                    None => return Ok(()),
                }
            }
        }
    }

    /// Serves requests on one connection: `ready`, or a new one. While it does, the other protocol is connected as soon
    /// as `Alt-Svc` asks for it, and returned for the requests that are not begun.
    async fn serve(&mut self, ready: Option<Connected>) -> Result<Option<Connected>, Failure> {
        let begun = Instant::now();
        let account = Rc::clone(&self.account);
        let connected = match ready {
            Some(connected) => connected,
            None => {
                let connected = tokio::select! {
                    biased;
                    connected = connect(&account) => connected,
                    failure = expiry(&account, None, begun) => return Err(failure),
                };
                match connected {
                    Ok(connected) => connected,
                    Err(failure) => return self.admit(failure).map(|()| None),
                }
            }
        };
        let (is_quic, probe) = match &connected {
            Connected::Quic(_) => (true, None),
            Connected::Tcp(stream, _) => (false, Some(stream.probe.clone())),
        };
        let link = Rc::new(Link::new(Rc::clone(&account), is_quic));
        let mut serving = Box::pin(exchange(Rc::clone(&link), connected, begun));
        let mut other = pin!(other(&account, is_quic, probe));
        loop {
            tokio::select! {
                biased;
                ended = &mut serving => return self.settle(&link, ended).map(|()| None),
                Some(drained) = self.draining.join_next() => self.drained(drained)?,
                other = &mut other => {
                    link.begin_moving();
                    self.draining.spawn_local(async move { (link, serving.await) });
                    return Ok(Some(other));
                }
            }
        }
    }

    fn drained(&mut self, drained: Result<Drained, JoinError>) -> Result<(), Failure> {
        // An error: the task panicked.
        let Ok((link, ended)) = drained else { return Err(Failure::Closed) };
        self.settle(&link, ended)
    }

    /// Decides on the requests in flight when a connection has ended. A failure ends the client.
    fn settle(&mut self, link: &Link, ended: Result<Ended, Failure>) -> Result<(), Failure> {
        let alt_svc = self.account.worker().alt_svc();
        match ended {
            Ok(Ended::Complete) => {}
            Ok(Ended::Closing) | Err(Failure::Going) if alt_svc.is_some() => link.repeat_in_flight(),
            Ok(Ended::Closing) => link.abandon_in_flight(),
            Err(failure) => {
                if let Some((cache, _)) = alt_svc.filter(|_| link.is_quic()) {
                    cache.quic_failed(Instant::now());
                }
                self.admit(failure)?;
                link.repeat_in_flight();
            }
        }
        Ok(())
    }

    /// Admits the failure of a connection, if its requests may go over another one.
    fn admit(&mut self, failure: Failure) -> Result<(), Failure> {
        let is_admitted =
            may_repeat(&self.account, &failure) && self.failures.admit(self.account.completed());
        if is_admitted { Ok(()) } else { Err(failure) }
    }
}

/// Failures of connections without a response between them.
#[derive(Default)]
struct Failures {
    count: u32,
    completed: u64,
}

impl Failures {
    /// Counts a failure after so many responses; false if there are too many.
    fn admit(&mut self, completed: u64) -> bool {
        self.count = if completed > self.completed { 1 } else { self.count + 1 };
        self.completed = completed;
        self.count <= MOST_FAILURES
    }
}

/// Whether the requests of a lost connection go over another one: a client that obeys `Alt-Svc` does as browsers do.
fn may_repeat(account: &Account, failure: &Failure) -> bool {
    let is_of_the_path = matches!(
        failure,
        Failure::Connect(_)
            | Failure::Closed
            | Failure::Going
            | Failure::Lost(_)
            | Failure::Http2(_)
            | Failure::Http3(_)
    );
    account.worker().alt_svc().is_some() && account.worker().load().request.is_safe() && is_of_the_path
}

/// Connects over QUIC if that is advertised and works, otherwise over TCP.
async fn connect(account: &Account) -> Result<Connected, Failure> {
    let load = account.worker().load();
    if let ([Protocol::Http3], Some(tls)) = (&*load.route.protocols, &load.route.tls) {
        let route = &load.route;
        let connection = connect_http3(load.request.host(), &route.addresses, tls, &route.options).await?;
        return Ok(Connected::Quic(connection));
    }
    if let Some((cache, tls)) = account.worker().alt_svc()
        && let Some(port) = cache.quic(Instant::now())
        && let Some(connection) = over_quic(account, (cache, tls), port, None).await
    {
        return Ok(Connected::Quic(connection));
    }
    over_tcp(account).await
}

async fn over_tcp(account: &Account) -> Result<Connected, Failure> {
    let load = account.worker().load();
    let (route, host) = (&load.route, load.request.host());
    let stream = connect_http(host, &route.addresses, route.tls.as_ref(), &route.options).await?;
    // Not HTTP/3, which is not on TCP.
    let agreed = route.agreed(stream.peer.alpn.as_deref()).filter(|agreed| *agreed != Protocol::Http3);
    Ok(Connected::Tcp(stream, agreed.ok_or(Failure::Version)?))
}

/// Connects to the alternative, and notes whether QUIC works. `tcp`: path that is known from TCP.
async fn over_quic(
    account: &Account,
    (cache, tls): (&AltSvcCache, &ClientTls),
    port: u16,
    tcp: Option<&TcpProbe>,
) -> Option<Http3Connection> {
    let load = account.worker().load();
    let mut options: ConnectOptions = load.route.options.clone();
    if let Some(path) = tcp.and_then(|probe| probe.sample().ok()).filter(|path| !path.srtt.is_zero()) {
        let [least, most] = RTT_BOUNDS;
        options.quic.initial_rtt = path.srtt.clamp(least, most);
    }
    options.quic.handshake_limit = options.quic.handshake_limit.min(QUIC_LIMIT);
    let mut addresses = load.route.addresses.clone();
    addresses.iter_mut().for_each(|address| address.set_port(port));
    match connect_http3(load.request.host(), &addresses, tls, &options).await {
        Ok(connection) => {
            cache.quic_worked(Instant::now());
            Some(connection)
        }
        Err(_) => {
            cache.quic_failed(Instant::now());
            account.worker().tally().counts.quic_failures += 1;
            None
        }
    }
}

/// Exchanges requests on a connection within its time limits.
async fn exchange(link: Rc<Link>, connected: Connected, begun: Instant) -> Result<Ended, Failure> {
    let (worker, load) = (link.worker(), link.worker().load());
    let exchanging = async {
        match connected {
            Connected::Quic(connection) => {
                worker.agreed(Protocol::Http3);
                h3::run(connection, &link, load.depth(Protocol::Http3)).await
            }
            Connected::Tcp(stream, protocol) => {
                worker.agreed(protocol);
                match protocol {
                    Protocol::Http1 => h1::run(stream.io, &link, load.depth(protocol)).await,
                    _ => h2::run(stream.io, &link, load.depth(protocol)).await,
                }
            }
        }
    };
    tokio::select! {
        biased;
        ended = exchanging => ended,
        failure = expiry(link.account(), Some(&link), begun) => Err(failure),
    }
}

/// Waits until `Alt-Svc` asks for the other protocol, and connects it.
async fn other(account: &Account, is_quic: bool, probe: Option<TcpProbe>) -> Connected {
    let Some((cache, tls)) = account.worker().alt_svc() else { return pending().await };
    let mut changes = cache.changes();
    loop {
        let now = Instant::now();
        match (is_quic, cache.quic(now)) {
            (false, Some(port)) => {
                if let Some(connection) = over_quic(account, (cache, tls), port, probe.as_ref()).await {
                    return Connected::Quic(connection);
                }
            }
            (true, None) if !cache.is_advertised(now) => match over_tcp(account).await {
                Ok(connected) => return connected,
                Err(_) => sleep(TCP_PAUSE).await,
            },
            // The cache lives as long as the worker.
            _ => drop(changes.changed().await),
        }
    }
}

/// Waits for a time limit of a connection: `link`, or one that is being made.
async fn expiry(account: &Account, link: Option<&Link>, begun: Instant) -> Failure {
    let Timeouts { active, inactive } = account.worker().load().timeouts;
    loop {
        let (now, idle_since) = (Instant::now(), link.map_or(begun, Link::active_at));
        let ends = [
            active.map(|limit| (begun + limit, Failure::Active(limit))),
            inactive.map(|limit| (idle_since + limit, Failure::Inactive(limit))),
        ];
        let Some((end, failure)) = ends.into_iter().flatten().min_by_key(|(end, _)| *end) else {
            return pending().await;
        };
        if end <= now {
            return failure;
        }
        sleep_until(end).await;
    }
}
