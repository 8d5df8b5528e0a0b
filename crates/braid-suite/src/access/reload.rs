//! Reload of many users and rules: its duration, and the latency of well-behaved clients meanwhile.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use braid_bench::pairs::{Drive, Pair, PairLoad, Window};
use braid_bench::{Connection, Dialer, Failure};
use braid_measure::Spread;
use braid_proto::packet::{Connect, ProtocolVersion, QoS};
use braid_proto::stream::StreamKey;
use braid_proto::topic::TopicFilter;
use braid_transport::{ClientTls, ClientTlsOptions, ConnectOptions, Target, Transport};
use bytes::Bytes;
use rustix::process::Signal;
use serde::Serialize;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::time::{sleep, sleep_until};

use super::{files, line, verdict};
use crate::brokers::{Broker, Running};

/// Number of users, and of rules.
const USERS: u32 = 10_000;
/// Users that each reload removes, and as many that it adds.
const CHANGED: u32 = 100;
/// Connected clients beside the measured pair, each with its user.
pub(super) const CLIENTS: u32 = 1000;
/// Subscriptions of each.
const SUBSCRIPTIONS: u32 = 5;
/// Messages per second of the measured pair.
const RATE: f64 = 200.0;
/// Length of a measured period; in those with a reload it begins a tenth later.
const PERIOD: Duration = Duration::from_secs(2);
const SETTLE: Duration = Duration::from_millis(300);
/// Time between two looks at the log.
const LOOK: Duration = Duration::from_millis(1);
/// Time limit of a reload.
const LIMIT: Duration = Duration::from_secs(30);
/// Upper bound of the duration of a reload, milliseconds.
const DURATION_BOUND: f64 = 1000.0;
/// Upper bound of a pause, milliseconds.
const PAUSE_BOUND: f64 = 10.0;
/// Line of the log at the end of a reload.
const DONE: &str = "certificates and log level reloaded";

/// Measurements of one period.
#[derive(Clone, Copy, Debug, Serialize)]
struct Period {
    /// Greatest latency from PUBLISH to arrival, milliseconds.
    greatest: f64,
    p99: f64,
    /// Greatest delay of the publisher itself, milliseconds.
    lateness: f64,
}

/// Measurements of all reloads.
#[derive(Serialize)]
pub(super) struct ReloadReport {
    /// Without a reload.
    quiet: Vec<Period>,
    /// With a reload.
    reloading: Vec<Period>,
    /// From SIGHUP to the end of the reload, milliseconds.
    durations: Vec<f64>,
    /// Size of the password file, bytes.
    password_bytes: usize,
}

/// Measures some reloads.
///
/// # Errors
/// The broker does not start, refuses a reload, or does not put it in force.
pub(super) fn measure(broker: &Broker, reloads: u32) -> Result<ReloadReport, String> {
    let home = TempDir::new().map_err(|error| format!("no directory for files: {error}"))?;
    let (acl, passwords) = (home.path().join("acl"), home.path().join("users"));
    let files = AccessFiles { acl, passwords, connecting: reloads * CHANGED + CLIENTS };
    let password_bytes = files.write(0)?;
    let configuration = files::configuration(&files.acl, Some(&files.passwords))?.display().to_string();
    let running = broker.variant("rules", &["--config", &configuration]).start()?;
    let dialer = dialer(&running)?;
    let runtime = Runtime::new().map_err(|error| format!("no runtime: {error}"))?;
    runtime.block_on(async {
        let mut clients = Vec::new();
        // The lowest numbers are removed by reloads.
        for number in reloads * CHANGED..files.connecting {
            clients.push(client(&dialer, number).await?);
        }
        let mut report =
            ReloadReport { quiet: Vec::new(), reloading: Vec::new(), durations: Vec::new(), password_bytes };
        for generation in 1..=reloads {
            let (quiet, ()) = period(&dialer, async { Ok(()) }).await?;
            files.write(generation)?;
            let (reloading, took) = period(&dialer, reload(&running)).await?;
            let millis = took.as_secs_f64() * 1e3;
            eprintln!(
                "# reload {generation}: {millis:.0} ms, greatest latency {:.1} > {:.1} ms",
                quiet.greatest, reloading.greatest
            );
            report.quiet.push(quiet);
            report.reloading.push(reloading);
            report.durations.push(millis);
            in_force(&dialer, generation).await?;
        }
        drop(clients);
        Ok(report)
    })
}

/// Files that the reloads change.
struct AccessFiles {
    acl: PathBuf,
    passwords: PathBuf,
    /// Users below this number connect, as those that are added do.
    connecting: u32,
}

impl AccessFiles {
    /// Writes both; each generation has some users and rules that the former has not. Returns the size of the users'.
    fn write(&self, generation: u32) -> Result<usize, String> {
        let first = generation * CHANGED;
        let users = files::users(first..USERS + first, self.connecting, USERS - 1);
        replace(&self.passwords, &users)?;
        replace(&self.acl, &files::rules(first, USERS))?;
        Ok(users.len())
    }
}

/// Replaces a file in one step, as an editor does.
fn replace(path: &Path, text: &str) -> Result<(), String> {
    let new = path.with_extension("new");
    files::write(&new, text)?;
    fs::rename(&new, path).map_err(|error| format!("cannot replace {}: {error}", path.display()))
}

fn dialer(running: &Running) -> Result<Dialer, String> {
    let target = Target {
        transport: Transport::Tcp,
        host: running.address.ip().to_string(),
        port: running.address.port(),
        path: String::new(),
    };
    let tls = ClientTls::new(ClientTlsOptions::default());
    let dialer = Dialer::new(vec![target], tls, ConnectOptions::default(), Vec::new());
    dialer.map_err(|error| error.to_string())
}

/// Connects as a user.
async fn connect(dialer: &Dialer, client_id: &str, user: u32) -> Result<Connection, String> {
    let (link, _) = dialer.dial(1).await.map_err(|error| error.to_string())?;
    let mut connect = Connect::new(ProtocolVersion::V5, client_id);
    connect.keep_alive = u16::MAX; // No PINGREQ within a run.
    connect.user_name = Some(files::user(user).into());
    connect.password = Some(Bytes::from_static(files::PASSWORD));
    let established = Connection::establish(link, connect).await;
    established.map_err(|error| format!("{client_id}: {error}"))
}

/// Connected client with subscriptions, which a reload checks.
async fn client(dialer: &Dialer, number: u32) -> Result<Connection, String> {
    let failed = |error: Failure| format!("client {number}: {error}");
    let mut connection = connect(dialer, &format!("idle-{number}"), number).await?;
    for topic in 0..SUBSCRIPTIONS {
        let filter = TopicFilter::parse(&format!("bench/idle/{number}/{topic}"));
        let filter = filter.map_err(|error| error.to_string())?;
        connection.subscribe(StreamKey::CONTROL, filter, QoS::AtMostOnce).map_err(failed)?;
        connection.next().await.map_err(failed)?;
    }
    Ok(connection)
}

/// Runs a pair for a period, and something beside it.
async fn period<T>(
    dialer: &Dialer,
    beside: impl Future<Output = Result<T, String>>,
) -> Result<(Period, T), String> {
    let failed = |error: Failure| format!("the pair: {error}");
    let user = USERS - 1;
    let publisher = connect(dialer, "publisher", user).await?;
    let subscriber = connect(dialer, "subscriber", user).await?;
    let load = PairLoad { streams: 1, qos: QoS::AtLeastOnce, size: 64, drive: Drive::Paced(RATE) };
    let pair = Pair::set_up(publisher, subscriber, 0, load).await.map_err(failed)?;
    let window = Window::from_now(SETTLE, PERIOD);
    let running = tokio::spawn(pair.run(window));
    sleep_until(window.from + PERIOD / 10).await;
    let done = beside.await?;
    let measured = running.await.map_err(|error| error.to_string())?.map_err(failed)?;
    let arrived = measured.latencies.arrived() as f64;
    // The last ones may be on their way, or late by a pause of 50 ms.
    if arrived < RATE * PERIOD.as_secs_f64() - 10.0 {
        return Err(format!("the pair: {arrived} messages arrived in {PERIOD:?}"));
    }
    let of = |quantile| measured.latencies.quantile(quantile).unwrap_or(f64::INFINITY);
    let lateness = measured.lateness.quantile(1.0).unwrap_or(f64::INFINITY);
    Ok((Period { greatest: of(1.0), p99: of(0.99), lateness }, done))
}

/// Lets the broker reload, and waits for the line of its log. Returns the time that it took.
async fn reload(running: &Running) -> Result<Duration, String> {
    let read = || fs::read_to_string(running.log()).map_err(|error| format!("no log: {error}"));
    let seen = read()?.len();
    let began = Instant::now();
    running.signal(Signal::HUP)?;
    loop {
        let text = read()?;
        let fresh = text.get(seen..).unwrap_or_default();
        if fresh.contains(DONE) {
            return Ok(began.elapsed());
        }
        if fresh.contains("nothing reloaded") || began.elapsed() > LIMIT {
            return Err(format!("the broker did not reload; its log: {fresh}"));
        }
        sleep(LOOK).await;
    }
}

/// Checks that the latest users connect and the removed ones do not.
async fn in_force(dialer: &Dialer, generation: u32) -> Result<(), String> {
    let added = USERS + generation * CHANGED - 1;
    connect(dialer, "added", added).await?;
    match connect(dialer, "removed", generation * CHANGED - 1).await {
        Err(_) => Ok(()),
        Ok(_) => Err("a user that was removed still connects".to_owned()),
    }
}

impl ReloadReport {
    fn greatest(periods: &[Period]) -> f64 {
        periods.iter().map(|period| period.greatest).fold(f64::NAN, f64::max)
    }

    /// True if every reload was short, and no message was late in one of them.
    pub(super) fn is_good(&self) -> bool {
        let slowest = self.durations.iter().copied().fold(f64::NAN, f64::max);
        slowest < DURATION_BOUND && Self::greatest(&self.reloading) <= PAUSE_BOUND
    }

    pub(super) fn markdown(&self) -> String {
        let titles = ["", "greatest latency, ms", "p99, ms", "greatest delay of the publisher, ms"];
        let mut text = format!(
            "## Reload of {USERS} users and {USERS} rules\n\n\
             A password file of {:.1} MB and a list; {CLIENTS} clients are connected, each with a user of its own and \
             {SUBSCRIPTIONS} subscriptions, which a reload checks. Each of {} reloads removes {CHANGED} users with their \
             rules and adds {CHANGED}; afterwards a user that was added connects, and one that was removed does not. \
             Beside them a pair of clients with {RATE} messages a second, QoS 1 over TCP, from PUBLISH to arrival, in \
             periods of {} s with a reload and without one in turn: medians of the periods, with the least and the \
             greatest. Bounds: a reload takes less than {DURATION_BOUND} ms, and no message of the pair more than \
             {PAUSE_BOUND} ms.\n\n",
            self.password_bytes as f64 / 1e6,
            self.durations.len(),
            PERIOD.as_secs(),
        );
        text.push_str(&line(&titles.map(str::to_owned)));
        text.push_str(&line(&titles.map(|_| "---".to_owned())));
        for (name, periods) in [("quiet", &self.quiet), ("reload", &self.reloading)] {
            let show = |of: fn(&Period) -> f64| {
                Spread::of(periods.iter().map(of)).map_or_else(String::new, |spread| spread.show(2))
            };
            let [greatest, p99, lateness] =
                [show(|one| one.greatest), show(|one| one.p99), show(|one| one.lateness)];
            text.push_str(&line(&[name.to_owned(), greatest, p99, lateness]));
        }
        let durations = Spread::of(self.durations.iter().copied());
        let durations = durations.map_or_else(String::new, |spread| spread.show(0));
        text + &format!(
            "\nDuration, from SIGHUP to the line of the log: {durations} ms; {}.\n",
            verdict(self.is_good())
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_reload_and_a_late_message_fail() {
        let period = |greatest| Period { greatest, p99: 1.0, lateness: 0.1 };
        let report = |duration, greatest| ReloadReport {
            quiet: vec![period(99.0)],
            reloading: vec![period(1.0), period(greatest)],
            durations: vec![duration, 10.0],
            password_bytes: 1,
        };
        assert!(report(999.0, 10.0).is_good());
        assert!(!report(1000.0, 10.0).is_good());
        assert!(!report(999.0, 10.1).is_good());
        let nothing = ReloadReport { reloading: Vec::new(), ..report(1.0, 1.0) };
        assert!(!nothing.is_good(), "nothing was measured");
    }
}
