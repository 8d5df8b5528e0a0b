//! Part `fail-over`: kill -9 of a broker with sessions, and of the leader of the messages.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::Setup;
use super::clients::{AGAIN, Back, SteadyPublisher, come_back, in_threads, publish_each};
use super::progress::Progress;
use super::report::{Bar, Row};
use super::testbed::{MESSAGES, NODES, Testbed};
use crate::load::session::{resume, subscribe};

/// Name of the part.
pub(super) const PART: &str = "fail-over";
/// Sessions at the broker that is killed, and messages queued for each.
const SESSIONS: usize = 100;
const QUEUED: usize = 10;
/// Bars of the issue, in seconds: of a broker beside the pause of the clients, and of the leader.
const BROKER: f64 = 5.0;
const LEADER: f64 = 10.0;
/// Time limit for clients to be back.
const BACK: Duration = Duration::from_secs(60);
/// Publishers of each node while the leader is killed, and time of load before and after.
const STEADY: usize = 2;
const BEFORE: Duration = Duration::from_secs(2);
const AFTER: Duration = Duration::from_secs(15);

/// Seconds from the kill.
struct FailOver {
    connected: f64,
    complete: f64,
}

/// Kills a broker, then the leader, in each round.
pub(super) fn run(setup: &Setup<'_>, rows: &mut Vec<Row>) -> Result<(), String> {
    let testbed = setup.start()?;
    brokers(setup, &testbed, rows)
        .and_then(|()| leaders(setup, &testbed, rows))
        .map_err(|reason| testbed.explain(&reason))
}

// -- Brokers ---------------------------------------------------------------------------------------

fn brokers(setup: &Setup<'_>, testbed: &Testbed<'_>, rows: &mut Vec<Row>) -> Result<(), String> {
    let sessions = if setup.is_quick { 10 } else { SESSIONS };
    let mut results = Vec::new();
    for round in 0..setup.faults() {
        let result = kill_broker(testbed, round, sessions)?;
        setup.note(
            PART,
            round,
            &format!("clients back after {:.2} s, complete after {:.2} s", result.connected, result.complete),
        );
        results.push(result);
        testbed.restart_broker(round % NODES)?;
    }
    let what = |done: &str| {
        (
            format!(
                "kill -9 of a broker with {sessions} sessions of {QUEUED} queued messages: until the last client {done}"
            ),
            "s",
        )
    };
    let connected = results.iter().map(|result| result.connected);
    setup.push(rows, Row::alone(PART, what("is back"), connected, Bar::None));
    let complete = results.iter().map(|result| result.complete);
    let bar = Bar::AtMost(BROKER + AGAIN.as_secs_f64());
    setup.push(rows, Row::alone(PART, what("has its queue"), complete, bar));
    Ok(())
}

fn kill_broker(testbed: &Testbed<'_>, victim: usize, sessions: usize) -> Result<FailOver, String> {
    let name = |number| format!("bench-{victim}-{number}");
    let topic = |number| format!("fail-over/{victim}/{number}");
    // Connected clients that acknowledge nothing.
    let connect = |number| {
        let (mut socket, _) = resume(testbed.mqtt(victim), &name(number))?;
        subscribe(&mut socket, &topic(number), 1)?;
        Ok(socket)
    };
    let mut progress = Progress::new("sessions for a fail-over");
    let sockets = in_threads(8, sessions, &mut progress, connect)?;
    let topics = (0..sessions * QUEUED).map(|message| topic(message / QUEUED));
    publish_each(testbed.mqtt(victim + 1), topics, 64, &mut progress)?;
    testbed.kill_broker(victim);
    let killed = Instant::now();
    let give_up = killed + BACK;
    drop(sockets);
    let back =
        in_threads(sessions, sessions, &mut Progress::new("clients of the killed broker"), |number| {
            thread::sleep(AGAIN);
            let first = u32::try_from(number * QUEUED).map_err(|error| error.to_string())?;
            let queue = first..first + u32::try_from(QUEUED).map_err(|error| error.to_string())?;
            come_back(testbed.mqtt(victim + 1 + number % 2), &name(number), queue, give_up)
        })?;
    let last = |of: fn(&Back) -> Instant| {
        let times = back.iter().map(|back| of(back).saturating_duration_since(killed));
        times.max().unwrap_or_default().as_secs_f64()
    };
    Ok(FailOver { connected: last(|back| back.connected), complete: last(|back| back.complete) })
}

// -- Leader of the messages ------------------------------------------------------------------------

fn leaders(setup: &Setup<'_>, testbed: &Testbed<'_>, rows: &mut Vec<Row>) -> Result<(), String> {
    let mut pauses = Vec::new();
    for round in 0..setup.faults() {
        let (pause, leader) = kill_leader(testbed)?;
        setup.note(PART, round, &format!("no PUBACK for {:.2} s after kill -9 of the leader", pause));
        pauses.push(pause);
        testbed.restart_server(leader)?;
    }
    let publishers = STEADY * NODES;
    let what = format!(
        "kill -9 of the NATS leader of the messages: longest time without PUBACK of any of {publishers} publishers"
    );
    setup.push(rows, Row::alone(PART, (what, "s"), pauses, Bar::AtMost(LEADER)));
    Ok(())
}

/// Longest pause of a publisher in seconds, and the node of the leader that was killed.
fn kill_leader(testbed: &Testbed<'_>) -> Result<(f64, usize), String> {
    let leader = testbed.leader(MESSAGES).ok_or_else(|| format!("the stream {MESSAGES} has no leader"))?;
    let publishers: Vec<_> = (0..STEADY * NODES).map(|_| SteadyPublisher::default()).collect();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let running: Vec<_> = publishers
            .iter()
            .enumerate()
            .map(|(number, publisher)| {
                let (address, stop) = (testbed.mqtt(number), &stop);
                scope.spawn(move || publisher.run(address, &format!("steady-{number}"), stop))
            })
            .collect();
        let acknowledged =
            || publishers.iter().map(|publisher| publisher.acknowledged.load(Ordering::Relaxed)).sum::<u64>();
        let mut progress = Progress::new("kill -9 of the leader");
        thread::sleep(BEFORE);
        let before = acknowledged();
        testbed.kill_server(leader);
        let killed = Instant::now();
        while killed.elapsed() < AFTER {
            thread::sleep(Duration::from_millis(50));
            progress.show(|| format!("{} messages acknowledged after the kill", acknowledged() - before));
        }
        stop.store(true, Ordering::Relaxed);
        let mut longest = Duration::ZERO;
        for running in running {
            longest = longest.max(running.join().map_err(|_| "the thread of a publisher died".to_owned())?);
        }
        if publishers.iter().any(|publisher| publisher.acknowledged.load(Ordering::Relaxed) == 0) {
            return Err("a publisher got no PUBACK at all".to_owned());
        }
        Ok((longest.as_secs_f64(), leader))
    })
}
