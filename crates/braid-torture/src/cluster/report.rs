//! Findings of all kinds: lines of progress, and the JSON.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::path::Path;
use std::time::Duration;

use braid_measure::machine::{Machine, load_average};
use braid_torture::{history, version};
use serde_json::{Value, json};

use super::clients::RoundCounts;
use super::kind::{Kind, Parts};
use super::testbed::Programs;
use crate::plan::name;
use crate::report::{Spread, write_json};

/// Findings of one kind.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) rounds: u32,
    acknowledged: u64,
    delivered: u64,
    refused: u64,
    /// Longest time of each round without an acknowledgement.
    gaps: Vec<Duration>,
    /// Longest failover of each round with one.
    failovers: Vec<Duration>,
    /// Duration of each round with its recovery.
    took: Vec<Duration>,
}

/// Findings of a run.
pub(crate) struct Record {
    machine: Machine,
    version: String,
    server_version: String,
    is_release: bool,
    parts: Parts,
    seed: u64,
    pub(crate) kinds: BTreeMap<Kind, Findings>,
    /// Clusters that were checked.
    pub(crate) clusters: u32,
    /// Checks of the histories.
    pub(crate) histories: Vec<history::Report>,
    /// Faults that are no violations in a history.
    pub(crate) wrong: Vec<String>,
}

impl Findings {
    pub(crate) fn note(&mut self, counts: &RoundCounts, took: Duration) {
        self.rounds += 1;
        self.acknowledged += counts.acknowledged;
        self.delivered += counts.delivered;
        self.refused += counts.refused;
        self.gaps.push(counts.longest_gap);
        self.failovers.extend(counts.failovers.iter().max());
        self.took.push(took);
    }

    fn written(&self) -> Value {
        json!({
            "rounds": self.rounds,
            "acknowledged": self.acknowledged,
            "delivered": self.delivered,
            "refused": self.refused,
            "unavailable_ms": Spread::of(&self.gaps),
            "failover_ms": Spread::of(&self.failovers),
            "round_ms": Spread::of(&self.took),
        })
    }
}

impl Record {
    pub(crate) fn begin(programs: &Programs, parts: Parts, seed: u64) -> Self {
        let server_version = if parts == Parts::Broker { String::new() } else { version(&programs.server) };
        Self {
            machine: Machine::here(),
            version: version(&programs.broker),
            server_version,
            is_release: programs.broker.components().any(|part| part.as_os_str() == "release"),
            parts,
            seed,
            kinds: BTreeMap::new(),
            clusters: 0,
            histories: Vec::new(),
            wrong: Vec::new(),
        }
    }

    pub(crate) fn is_good(&self) -> bool {
        self.wrong.is_empty() && self.histories.iter().all(history::Report::is_good)
    }

    pub(crate) fn write(&self, file: &Path) -> Result<(), String> {
        let kinds: serde_json::Map<_, _> =
            self.kinds.iter().map(|(kind, findings)| (name(kind), findings.written())).collect();
        let written = json!({
            "machine": self.machine,
            "load_average_at_end": load_average(),
            "version": self.version,
            "nats_server": self.server_version,
            "profile": if self.is_release { "release" } else { "debug" },
            "parts": name(&self.parts),
            "seed": self.seed,
            "clusters": self.clusters,
            "kinds": kinds,
            "histories": self.histories,
            "told": self.wrong,
        });
        write_json(file, &written)
    }
}

impl Display for Record {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        for (kind, findings) in &self.kinds {
            let Findings { rounds, acknowledged, delivered, refused, .. } = findings;
            write!(out, "torture-cluster: {}, {rounds} rounds", name(kind))?;
            if *acknowledged == 0 {
                writeln!(out)?;
                continue;
            }
            write!(out, ", {acknowledged} messages acknowledged, {delivered} delivered")?;
            if *refused > 0 {
                write!(out, ", {refused} refused")?;
            }
            if let Some(Spread { median, most, .. }) = Spread::of(&findings.gaps) {
                write!(out, ", without acknowledgement {median:.0} ms, {most:.0} ms at most")?;
            }
            if let Some(Spread { median, most, .. }) = Spread::of(&findings.failovers) {
                write!(out, ", failover {median:.0} ms, {most:.0} ms at most")?;
            }
            writeln!(out)?;
        }
        for line in &self.wrong {
            writeln!(out, "torture-cluster: {line}")?;
        }
        let verdict = if self.is_good() { "no fault found" } else { "FAULTS" };
        write!(out, "torture-cluster: {} clusters, {verdict}", self.clusters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_have_the_longest_failover_of_each_round() {
        let mut findings = Findings::default();
        let seconds = |seconds: &[u64]| seconds.iter().copied().map(Duration::from_secs).collect();
        for (gap, failovers) in [(1, seconds(&[3, 9, 4])), (2, seconds(&[])), (3, seconds(&[5]))] {
            let longest_gap = Duration::from_secs(gap);
            let counts = RoundCounts { acknowledged: 10, longest_gap, failovers, ..RoundCounts::default() };
            findings.note(&counts, Duration::from_secs(1));
        }
        let written = findings.written();
        assert_eq!((written["rounds"].as_u64(), written["acknowledged"].as_u64()), (Some(3), Some(30)));
        assert_eq!(written["unavailable_ms"]["median"], 2000.0);
        assert_eq!(
            (&written["failover_ms"]["least"], &written["failover_ms"]["most"]),
            (&json!(5000.0), &json!(9000.0))
        );
    }
}
