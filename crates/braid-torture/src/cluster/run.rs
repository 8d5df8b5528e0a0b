//! Rounds on one cluster, from its start to the check of its history.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use braid_torture::history::{Event, Writer, check};

use super::clients::{Clients, Phase, RoundCounts, Tally};
use super::faults::Injector;
use super::kind::{Kind, Parts};
use super::report::Record;
use super::testbed::{Programs, Testbed};
use crate::plan::name;

/// Time limit for the clients' first connections and subscriptions.
const GATHER: Duration = Duration::from_secs(60);
/// Time limit after a fault until everything is as before.
const RECOVERY: Duration = Duration::from_secs(120);
/// Time without any progress after which missing deliveries are lost.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time limit for all missing deliveries together.
const SETTLE: Duration = Duration::from_secs(300);
/// Time for deliveries that must not come, and for retained messages, which the checker expects within a second.
const GRACE: Duration = Duration::from_secs(2);
/// Load between two faults.
const QUIET: Duration = Duration::from_secs(1);
/// Time between two looks at the clients, and between two lines of progress.
const LOOK: Duration = Duration::from_millis(100);
const OFTEN: Duration = Duration::from_secs(5);

/// A cluster to run rounds on.
pub(crate) struct Cluster<'a> {
    pub(crate) parts: Parts,
    pub(crate) programs: &'a Programs,
    /// Folder for its files.
    pub(crate) home: &'a Path,
    /// Longest duration of a fault.
    pub(crate) longest: Duration,
}

/// A running cluster.
struct Running {
    testbed: Testbed,
    clients: Option<Clients>,
    history: Writer,
    longest: Duration,
}

impl Cluster<'_> {
    /// Runs a round for each of `kinds`, waits for all deliveries, and checks the history.
    ///
    /// # Errors
    /// The cluster does not start, or a process fails.
    pub(crate) fn run(
        &self,
        kinds: &[Kind],
        random: &mut fastrand::Rng,
        record: &mut Record,
    ) -> Result<(), String> {
        std::fs::create_dir_all(self.home).map_err(|error| format!("{}: {error}", self.home.display()))?;
        let mut running = self.start(random)?;
        // After a failed round, the history may say why.
        let failed = running.run_rounds(kinds, random, record).err();
        record.wrong.extend(failed);
        record.wrong.extend(running.settle().err());
        if let Some(clients) = running.clients.take() {
            record.wrong.append(&mut clients.tally()?.faults);
        }
        // The histories are complete with this line.
        running.history.write(Event::End {})?;
        record.wrong.extend(running.testbed.end().err());
        let report = check(self.home)?;
        println!("{report}");
        record.histories.push(report);
        Ok(())
    }

    fn start(&self, random: &mut fastrand::Rng) -> Result<Running, String> {
        let began = Instant::now();
        let small = random.usize(..super::network::NODES.len());
        let testbed = Testbed::start(self.parts, self.programs, self.home, small)?;
        let history = Writer::create(self.home, "faults")?;
        let clients = match self.parts {
            Parts::Servers => None,
            Parts::Cluster | Parts::Broker => {
                Some(Clients::start(testbed.addresses(), self.home, random.u64(..))?)
            }
        };
        let running = Running { testbed, clients, history, longest: self.longest };
        running.wait("the start", GATHER, |tally| tally.is_ready())?;
        running.tell(Phase::Load);
        println!("torture-cluster: started in {:.1} s", began.elapsed().as_secs_f64());
        Ok(running)
    }
}

impl Running {
    fn tell(&self, phase: Phase) {
        if let Some(clients) = &self.clients {
            clients.tell(phase);
        }
    }

    fn run_rounds(
        &mut self,
        kinds: &[Kind],
        random: &mut fastrand::Rng,
        record: &mut Record,
    ) -> Result<(), String> {
        for (index, kind) in kinds.iter().enumerate() {
            sleep(QUIET);
            let (began, round) = (Instant::now(), index + 1);
            println!("torture-cluster: round {round} of {}, {}", kinds.len(), name(kind));
            let failed = |reason| format!("round {round}, {}: {reason}", name(kind));
            let counts = self.round(*kind, random).map_err(failed)?;
            record.kinds.entry(*kind).or_default().note(&counts, began.elapsed());
            println!("torture-cluster: round {round} of {}: {}", kinds.len(), told(&counts, began.elapsed()));
        }
        Ok(())
    }

    /// Injects one fault and waits until everything is as before.
    fn round(&mut self, kind: Kind, random: &mut fastrand::Rng) -> Result<RoundCounts, String> {
        if let Some(clients) = &self.clients {
            clients.tally()?.begin_round(Instant::now());
        }
        let Self { testbed, clients, history, longest } = self;
        let clients = clients.as_ref();
        Injector { testbed, clients, history, random, longest: *longest }.inject(kind)?;
        let healed = Instant::now();
        self.recover(healed)?;
        let Some(clients) = &self.clients else { return Ok(RoundCounts::default()) };
        Ok(clients.tally()?.round(true, Instant::now()))
    }

    /// Waits until all processes are well, all clients are connected, messages are acknowledged again, and those from
    /// before the end of the fault have arrived.
    fn recover(&mut self, healed: Instant) -> Result<(), String> {
        let mut next_line = healed + OFTEN;
        loop {
            let mut missing = self.testbed.unhealthy()?;
            if let Some(clients) = &self.clients {
                let tally = clients.tally()?;
                missing.extend(tally.absent());
                if tally.last_acknowledged() < healed {
                    missing.push("acknowledgements".to_owned());
                }
                missing.extend(tally.behind(healed).map(|group| format!("deliveries to {group}")));
            }
            if missing.is_empty() {
                return Ok(());
            }
            let (waited, missing) = (healed.elapsed(), missing.join(", "));
            if waited > RECOVERY {
                return Err(format!("not as before {RECOVERY:?} after the fault; missing: {missing}"));
            }
            if Instant::now() >= next_line {
                next_line += OFTEN;
                println!(
                    "torture-cluster: {:.0} s after the fault, missing: {missing}",
                    waited.as_secs_f64()
                );
            }
            sleep(LOOK);
        }
    }

    /// Waits for everything that was acknowledged, and reads what is retained.
    fn settle(&mut self) -> Result<(), String> {
        self.tell(Phase::Settle);
        let settled = self.wait("the last deliveries", PATIENCE, |tally| tally.is_settled());
        let Some(clients) = &self.clients else { return Ok(()) };
        clients.look()?;
        let looked = self.wait("a look at retained messages", PATIENCE, |tally| tally.is_ready());
        sleep(GRACE);
        settled.and(looked)
    }

    /// Waits until `is_done`, as long as there is progress at least once in `patience`, and not for ever.
    fn wait(&self, what: &str, patience: Duration, is_done: impl Fn(&Tally) -> bool) -> Result<(), String> {
        let Some(clients) = &self.clients else { return Ok(()) };
        let began = Instant::now();
        let (mut before, mut since, mut next_line) = (0, began, began + OFTEN);
        loop {
            let tally = clients.tally()?;
            if is_done(&tally) {
                return Ok(());
            }
            if tally.progress != before {
                (before, since) = (tally.progress, Instant::now());
            }
            let missing = format!(
                "{} deliveries, {} acknowledgements, clients {:?}",
                tally.missing(),
                tally.inflight,
                tally.absent()
            );
            drop(tally);
            if since.elapsed() > patience || began.elapsed() > SETTLE {
                let (seconds, still) = (began.elapsed().as_secs(), since.elapsed().as_secs());
                return Err(format!(
                    "{what} took {seconds} s, the last {still} s without progress; missing: {missing}"
                ));
            }
            if Instant::now() >= next_line {
                next_line += OFTEN;
                let seconds = began.elapsed().as_secs_f64();
                println!("torture-cluster: {what}, for {seconds:.0} s, missing: {missing}");
            }
            sleep(LOOK);
        }
    }
}

/// Counts of a round as text.
fn told(counts: &RoundCounts, took: Duration) -> String {
    let RoundCounts { acknowledged, delivered, longest_gap, .. } = counts;
    let mut text = format!("{:.1} s", took.as_secs_f64());
    if *acknowledged > 0 {
        let gap = longest_gap.as_millis();
        text += &format!(
            ", {acknowledged} acknowledged, {delivered} delivered, {gap} ms without acknowledgement"
        );
    }
    if let Some(longest) = counts.failovers.iter().max() {
        text += &format!(", failover {} ms", longest.as_millis());
    }
    text
}
