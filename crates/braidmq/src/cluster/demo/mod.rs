//! `braidmq cluster demo`: a cluster on one machine, whose processes may be killed while messages flow.

mod ledger;
mod load;
mod member;
mod page;
mod ports;
mod program;
mod screen;
mod setup;
mod watch;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{MissedTickBehavior, interval};

use self::load::Load;
use self::member::{Change, Kind, Member};
use self::page::Page;
use self::screen::{Key, Output};
use self::setup::{Home, Testbed};
use self::watch::Watch;
use crate::output;

/// Exit code when an acknowledged message was lost, or none was acknowledged.
const LOST: u8 = 1;

/// Time between two looks at the processes.
const LOOK: Duration = Duration::from_millis(100);

/// Time for the last messages at the end: longer than a broker tries to append a message.
const LAST: Duration = Duration::from_secs(30);

/// Time for a client to disconnect, and for processes to end.
const PATIENCE: Duration = Duration::from_secs(5);

/// Start a cluster on this machine, with messages that flow while its processes are killed
///
/// Starts three NATS servers, three brokers, and a balancer in front of them; a publisher of numbered messages with QoS
/// 1 and a subscriber with a persistent session are its clients. In a terminal it shows all of them, twice a second.
/// Kill any broker or NATS server: the clients go on at other nodes, and the process starts again. It needs
/// nats-server.
#[derive(clap::Args, Debug)]
#[command(after_help = HELP)]
pub(super) struct DemoArgs {
    /// Program of the NATS servers [default: nats-server of PATH, or else ./.peers/bin/nats-server]
    #[arg(long, value_name = "PATH")]
    nats_server: Option<PathBuf>,
    /// Keep logs and messages in this directory, which is new or empty [default: a temporary one, removed at the end]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Port of the balancer on 127.0.0.1; 0: any [default: 1883, or the next free one]
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Messages a second
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rate: u32,
    /// Seconds after which a process that died starts again
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    restart_after: u64,
    /// End after so many seconds of messages, for scripts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=86400))]
    seconds: Option<u64>,
}

const HELP: &str = "\
Keys: 1 2 3 kill -9 a broker, a b c a NATS server, q or Ctrl-C ends everything. Without a terminal: kill -9 PID.

Examples:
  braidmq cluster demo
  braidmq cluster demo --seconds 60 --port 0 > demo.log
  braidmq sub -p 1883 -q 1 -t 'demo/#'     a client of your own, beside it

Exit codes:
  0  nothing that was acknowledged was lost
  1  an acknowledged message was not delivered, or none was acknowledged
  2  it could not start: nats-server is missing or too old, a port is taken, a process does not come up";

pub(super) fn run(args: &DemoArgs) -> Result<ExitCode, String> {
    let program = program::find(args.nats_server.as_deref())?;
    let home = Home::new(args.dir.as_deref())?;
    let runtime = tokio::runtime::Runtime::new();
    let runtime = runtime.map_err(|error| format!("the system refuses an event queue: {error}"))?;
    let outcome = runtime.block_on(async {
        let mut signals = Signals::new()?;
        let started = tokio::select! {
            testbed = Testbed::start(&program, home.path(), args.port) => testbed?,
            () = signals.next() => return Ok(None),
        };
        Demo::run(args, started, &mut signals).await.map(Some)
    });
    match outcome? {
        // Its start was cut short.
        None | Some(true) => Ok(ExitCode::SUCCESS),
        Some(false) => {
            home.keep();
            Ok(ExitCode::from(LOST))
        }
    }
}

/// Prints a text on standard output.
fn say(text: &str) -> Result<(), String> {
    output::print(text).map_err(|error| format!("cannot write standard output: {error}"))
}

/// Signals that end the demo.
struct Signals([Signal; 3]);

impl Signals {
    fn new() -> Result<Self, String> {
        let of = |kind| signal(kind).map_err(|error| format!("the system refuses to tell signals: {error}"));
        Ok(Self([of(SignalKind::interrupt())?, of(SignalKind::terminate())?, of(SignalKind::hangup())?]))
    }

    async fn next(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

/// A running demo.
struct Demo {
    testbed: Testbed,
    load: Load,
    watch: Watch,
    output: Output,
    notes: UnboundedReceiver<String>,
    began: Instant,
    pause: Duration,
}

/// Reason for which the demo goes on to its end.
enum End {
    /// Its time is over: the last messages may come.
    Time,
    /// A signal or a key.
    Asked,
}

impl Demo {
    /// Runs to the end: true if nothing was lost.
    async fn run(args: &DemoArgs, testbed: Testbed, signals: &mut Signals) -> Result<bool, String> {
        let (sender, notes) = unbounded_channel();
        let watch = Watch::start(testbed.options()?, testbed.asked())?;
        let load = Load::start(&testbed.url(), args.rate, &sender).await?;
        let pause = Duration::from_secs(args.restart_after);
        let began = Instant::now();
        say(&testbed.usage(pause))?;
        let output = Output::open();
        let mut demo = Self { testbed, load, watch, output, notes, began, pause };
        let end = demo.go_on(args.seconds.map(Duration::from_secs), signals).await?;
        demo.load.pause();
        if matches!(end, End::Time) {
            demo.settle(signals).await?;
        }
        let counts = match end {
            End::Time => demo.load.ledger().final_counts(),
            End::Asked => demo.load.ledger().counts(),
        };
        let Self { testbed, load, output, .. } = demo;
        output.close(&page::summary(&testbed.members, &counts, began.elapsed()))?;
        load.end(PATIENCE).await;
        testbed.end(PATIENCE).await;
        Ok(counts.lost == 0 && counts.acknowledged > 0)
    }

    /// Runs until the time is over, or the user ends it.
    async fn go_on(&mut self, limit: Option<Duration>, signals: &mut Signals) -> Result<End, String> {
        let mut ticks = interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => self.look()?,
                key = self.output.key() => match key {
                    Key::Quit => return Ok(End::Asked),
                    Key::Other(key) => self.kill(key),
                },
                () = signals.next() => return Ok(End::Asked),
            }
            if limit.is_some_and(|limit| self.began.elapsed() >= limit) {
                return Ok(End::Time);
            }
        }
    }

    /// Waits for the last acknowledgements and deliveries.
    async fn settle(&mut self, signals: &mut Signals) -> Result<(), String> {
        let give_up = Instant::now() + LAST;
        let mut ticks = interval(LOOK);
        while !self.load.ledger().is_settled() && Instant::now() < give_up {
            tokio::select! {
                _ = ticks.tick() => self.look()?,
                () = signals.next() => return Ok(()),
            }
        }
        Ok(())
    }

    /// Takes note of what happened, and draws.
    fn look(&mut self) -> Result<(), String> {
        let now = Instant::now();
        let elapsed = now.saturating_duration_since(self.began);
        for member in &mut self.testbed.members {
            let Some(change) = member.tick(now, self.pause) else { continue };
            let text = change_text(member, &change, self.pause);
            self.output.tell(page::event(elapsed, &text))?;
        }
        while let Ok(note) = self.notes.try_recv() {
            self.output.tell(page::event(elapsed, &note))?;
        }
        let (facts, counts) = (self.watch.facts(), self.load.ledger().counts());
        let page = Page { members: &self.testbed.members, facts: &facts, counts, now, elapsed };
        self.output.show(&page, &self.testbed.url(), self.pause)
    }

    /// Kills the process of a key, if it has one. The next look tells its end.
    fn kill(&mut self, key: u8) {
        let (kind, place) = match key {
            b'1'..=b'3' => (Kind::Broker, key - b'1'),
            b'a'..=b'c' => (Kind::Server, key - b'a'),
            _ => return,
        };
        let mut of_kind = self.testbed.members.iter_mut().filter(|member| member.kind == kind);
        if let Some(member) = of_kind.nth(place.into()) {
            // One that is dead stays so.
            member.kill();
        }
    }
}

fn change_text(member: &Member, change: &Change, pause: Duration) -> String {
    let (kind, name, pid) = (member.kind.text(), &member.name, member.pid());
    let again = format!("it starts again in {:.0} s", pause.as_secs_f64());
    match change {
        Change::Ended(reason) if reason.contains("signal") => {
            format!("{kind} {name} (pid {pid}) {reason}; {again}")
        }
        Change::Ended(reason) => {
            format!("{kind} {name} (pid {pid}) {reason}: {}; {again}", member.last_words())
        }
        Change::Started => format!("{kind} {name} started again, pid {pid}"),
        Change::Failed(reason) => format!("{kind} {name} does not start: {reason}; {again}"),
    }
}
