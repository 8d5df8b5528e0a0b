//! The oracle of `cargo xtask torture`: clients in a process of their own that know what a broker has acknowledged, and
//! see what it delivers, while the chore kills, stops and starves that broker.
//!
//! It is told on standard input what to do, a line each: `up` and `down` say whether the broker listens; `load` is
//! answered with `loaded` once something was acknowledged; `more` begins another load and is not answered; after `rest`
//! nobody sends anything new; `check` waits until all has come and is answered with a line of JSON, as is `check all`, for
//! which everybody comes back and every Will is waited for.

mod churner;
mod crowd;
mod house;
mod large;
mod ledger;
mod line;
mod payload;
mod publisher;
mod retained;
mod subscriber;
mod terms;
mod will;

use std::error::Error;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use braid_proto::packet::ProtocolVersion;
use clap::Parser;
use serde::Serialize;
use tokio::io::{AsyncBufReadExt, BufReader, stdin};
use tokio::sync::mpsc;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{Instant, sleep_until, timeout};

use churner::Churner;
use house::{House, Way};
use large::Large;
use ledger::Counts;
use line::Line;
use publisher::Publisher;
use retained::Keeper;
use subscriber::{Subscriber, Wants};
use terms::{Cap, Overflow};
use will::Testator;

#[derive(Parser)]
struct Cli {
    /// The port of `mqtt` on 127.0.0.1.
    #[arg(long)]
    mqtt: Option<u16>,
    /// The port of `mqtts`.
    #[arg(long)]
    mqtts: Option<u16>,
    /// The port of `quic`.
    #[arg(long)]
    quic: Option<u16>,
    /// The certificate to believe.
    #[arg(long)]
    ca: PathBuf,
    /// For everything that is drawn.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Seconds without any progress after which what is missing is lost.
    #[arg(long, default_value_t = 30)]
    patience: u64,
    /// Milliseconds after which a publisher fills its window again; 0: as soon as there is room in it.
    #[arg(long, default_value_t = 0)]
    pace: u64,
    /// Loads after which a reader who is away comes back at the latest.
    #[arg(long, default_value_t = u64::MAX)]
    most_away: u64,
    /// Others come and go all the time, of whom nothing is known.
    #[arg(long)]
    crowd: bool,
    /// What gives way in a queue of the broker that is full. Nobody is there then whose messages may not be missing.
    #[arg(long, requires = "queued_messages")]
    queue_overflow: Option<Overflow>,
    /// Messages that a queue may hold.
    #[arg(long)]
    queued_messages: Option<u64>,
}

impl Cli {
    fn cap(&self) -> Option<Cap> {
        let (overflow, messages) = self.queue_overflow.zip(self.queued_messages)?;
        Some(Cap { overflow, messages, inflight: INFLIGHT.into() })
    }
}

/// Messages on their way to a reader whose queue holds little.
const INFLIGHT: u16 = 10;

#[derive(Serialize)]
struct Report {
    counts: Counts,
    /// Of all kinds.
    faults: u64,
    /// The first faults in words.
    told: Vec<String>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let cli = Cli::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, run(&cli))
}

async fn run(cli: &Cli) -> Result<(), Box<dyn Error>> {
    let house = House::new(cli.seed, Duration::from_millis(cli.pace), cli.most_away);
    let mut ways = Vec::new();
    for (scheme, port) in [("mqtt", cli.mqtt), ("mqtts", cli.mqtts), ("quic", cli.quic)] {
        let Some(port) = port else { continue };
        ways.push(Way::new(scheme, port, cli.ca.clone()).ok_or("no such scheme")?);
    }
    let (ready, mut subscribed) = mpsc::channel(1);
    for way in &ways {
        match cli.cap() {
            None => populate(&house, way, &ready),
            Some(cap) => populate_capped(&house, way, cap, &ready),
        }
        // What a crowd is watched for is whether anything grows: what lives shortly or is large would hide that.
        if cli.cap().is_none() && !cli.crowd {
            populate_more(&house, way, &ready);
        }
    }
    drop(ready);
    if cli.crowd {
        ways.iter().for_each(|way| crowd::gather(&house, way));
    }
    let patience = Duration::from_secs(cli.patience);
    let mut is_ready = false;
    let mut commands = BufReader::new(stdin()).lines();
    while let Some(command) = commands.next_line().await? {
        match command.as_str() {
            "up" => house.broker.send_modify(|broker| broker.is_up = true),
            "down" => house.broker.send_modify(|broker| {
                broker.is_up = false;
                broker.ends += 1;
            }),
            "load" => {
                if !is_ready {
                    // Nobody sends to it: it ends when the last subscriber has all that it asked for.
                    subscribed.recv().await;
                    is_ready = true;
                }
                let loaded = timeout(patience, load(&house)).await;
                println!("{}", if loaded.is_ok() { "loaded" } else { "nothing is acknowledged" });
            }
            "more" => begin_load(&house),
            "rest" => house.rest(false),
            "check" | "check all" => {
                let everybody = command.ends_with("all");
                settle(&house, everybody, patience).await;
                let way = &ways[house.draw(ways.len())];
                while !retained::look(&house, way).await {}
                let ledger = house.books();
                let counts = ledger.counts.clone();
                let report = Report { faults: counts.faults.sum(), counts, told: ledger.told().to_vec() };
                println!("{}", serde_json::to_string(&report)?);
            }
            _ => return Err(format!("no such command: {command}").into()),
        }
    }
    // The tasks would go on.
    std::process::exit(0);
}

/// Everybody who uses one way to the broker.
fn populate(house: &Rc<House>, way: &Rc<Way>, ready: &mpsc::Sender<()>) {
    use ProtocolVersion::{V5, V311};
    let line = |name: &str, version| Line::new(house, way, name, version);
    let old = if way.is_quic() { V5 } else { V311 };
    for (name, version, wants) in [
        ("present", V5, Wants::lanes(false, false)),
        ("turns", V5, Wants::lanes(true, true)),
        ("turns-3", old, Wants::lanes(true, false)),
    ] {
        spawn_local(Subscriber::new(line(name, version), name, wants).run(ready.clone()));
    }
    for (name, version) in [("a", V5), ("b", old)] {
        spawn_local(Publisher::new(line(&format!("publisher-{name}"), version), name).run());
    }
    spawn_local(Keeper::new(line("keeper", V5)).run());
    spawn_local(Churner::new(line("churner", V5)).run());
    for delay in [0, 1, will::NEVER] {
        spawn_local(Testator::new(line(&format!("will-{delay}"), V5), delay).run());
    }
}

/// Beside them messages that expire, and large ones.
fn populate_more(house: &Rc<House>, way: &Rc<Way>, ready: &mpsc::Sender<()>) {
    use ProtocolVersion::{V5, V311};
    let line = |name: &str, version| Line::new(house, way, name, version);
    let old = if way.is_quic() { V5 } else { V311 };
    let large = format!("l/{}/#", way.scheme);
    for (name, version, wants) in [
        ("late", V5, Wants::one("x/#".to_owned(), true)),
        ("large", V5, Wants::one(large.clone(), false)),
        ("large-turns", old, Wants::one(large, true)),
    ] {
        spawn_local(Subscriber::new(line(name, version), name, wants).run(ready.clone()));
    }
    spawn_local(Publisher::expiring(line("publisher-x", V5)).run());
    spawn_local(Large::new(line("publisher-l", V5)).run());
}

/// The same where queues hold little: nobody whose messages may not be missing leaves.
fn populate_capped(house: &Rc<House>, way: &Rc<Way>, cap: Cap, ready: &mpsc::Sender<()>) {
    let line = |name: &str| Line::new(house, way, name, ProtocolVersion::V5);
    for (name, in_turns) in [("present", false), ("turns", true), ("turns-too", true)] {
        let mut line = line(name);
        line.set_receive_maximum(INFLIGHT);
        let wants = Wants::one(format!("q/{}/#", way.scheme), in_turns);
        spawn_local(Subscriber::new(line, name, wants).run(ready.clone()));
    }
    spawn_local(Publisher::capped(line("publisher"), cap).run());
    spawn_local(Keeper::new(line("keeper")).run());
    spawn_local(Churner::new(line("churner")).run());
}

/// Lets everybody send until something is acknowledged.
async fn load(house: &House) {
    let acknowledged = || {
        let books = house.books();
        books.counts.puback + books.counts.pubcomp
    };
    let before = acknowledged();
    begin_load(house);
    loop {
        let changed = house.changed.notified();
        if acknowledged() > before {
            return;
        }
        changed.await;
    }
}

/// Everybody sends, and readers make up their minds anew.
fn begin_load(house: &House) {
    house.phase.send_modify(|phase| {
        phase.round += 1;
        (phase.is_loading, phase.everybody) = (true, false);
    });
}

/// Waits until all has come or nothing comes any more.
async fn settle(house: &House, everybody: bool, patience: Duration) {
    house.rest(everybody);
    let mut deadline = Instant::now() + patience;
    let mut before = house.books().counts.progress();
    loop {
        let changed = house.changed.notified();
        if house.books().is_settled(everybody) {
            return;
        }
        tokio::select! {
            () = changed => {
                let counts = house.books().counts.progress();
                if counts != before {
                    (deadline, before) = (Instant::now() + patience, counts);
                }
            }
            () = sleep_until(deadline) => return house.ledger().write_off(everybody),
        }
    }
}
