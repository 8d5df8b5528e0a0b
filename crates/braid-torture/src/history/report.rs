//! Findings of a check: counters, and violations with their evidence.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use serde::Serialize;

use super::tables::Tables;

/// Violations of a kind that are described; all are counted.
const DESCRIBED: u64 = 20;
/// Faults that are named beside a violation.
const FAULTS: usize = 6;

/// Broken guarantee.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// An acknowledged message was not delivered.
    Lost,
    /// A message of QoS 2 was delivered in two exchanges.
    Duplicate,
    /// A message was delivered behind a later one of its publisher and topic.
    Order,
    /// A node delivered on a connection after another node had the session.
    TwoOwners,
    /// A persistent session was not present.
    SessionLost,
    /// Session Present after Clean Start.
    SessionKept,
    /// A retained message that a later acknowledged one replaces.
    RetainedStale,
    /// No retained message where one was acknowledged.
    RetainedMissing,
    /// Two subscribers saw different retained messages.
    RetainedDiffers,
    /// A Will that was due was not delivered.
    WillMissing,
    /// A Will was delivered although its client had disconnected.
    WillAfterDisconnect,
    /// A delivery that no PUBLISH or no subscription explains.
    Ghost,
}

impl Display for Kind {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Lost => "lost message",
            Self::Duplicate => "duplicate of QoS 2",
            Self::Order => "wrong order",
            Self::TwoOwners => "two owners of a session",
            Self::SessionLost => "lost session",
            Self::SessionKept => "session kept after Clean Start",
            Self::RetainedStale => "stale retained message",
            Self::RetainedMissing => "missing retained message",
            Self::RetainedDiffers => "different retained messages",
            Self::WillMissing => "missing Will",
            Self::WillAfterDisconnect => "Will after DISCONNECT",
            Self::Ghost => "ghost",
        })
    }
}

/// Counters of a history.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Lines of all files.
    pub events: u64,
    /// Messages, without Wills.
    pub published: u64,
    /// Messages with a successful PUBACK or PUBCOMP.
    pub acknowledged: u64,
    /// First deliveries of a message to a client and session.
    pub delivered: u64,
    /// Later deliveries that MQTT allows.
    pub repeated: u64,
    /// Deliveries of QoS 2 with DUP and another Packet Identifier than before, which are not taken for violations.
    pub renumbered: u64,
    /// CONNACKs of a session that had an open connection at another node.
    pub moved: u64,
    /// Pairs of an acknowledged message and a subscription or group that must get it.
    pub required: u64,
    /// Wills that were due.
    pub wills_due: u64,
    /// Topics that subscribers looked at after the last publication.
    pub retained_looks: u64,
    /// Faults of the harness.
    pub faults: u64,
    /// Subscriptions that promise nothing that can be checked: their client's file is incomplete, their session ended,
    /// or they are of QoS 0 or of a session with Clean Start.
    pub unchecked_subscriptions: u64,
    /// Files whose writer was killed.
    pub incomplete_files: u64,
}

/// Violation with its evidence.
#[derive(Clone, Debug, Serialize)]
pub struct Violation {
    /// Broken guarantee.
    pub kind: Kind,
    /// Statement of one line.
    pub text: String,
    /// Events that prove it and faults that were on, each with its time, in order.
    pub evidence: Vec<String>,
    #[serde(skip)]
    events: Vec<(u64, String)>,
}

impl Violation {
    /// Violation with the events that prove it, each with its time.
    pub(super) fn new(kind: Kind, text: String, events: Vec<(u64, String)>) -> Self {
        Self { kind, text, evidence: Vec::new(), events }
    }
}

/// Result of a check.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Counters of the history.
    pub counts: Counts,
    /// Number of violations of each kind that has any.
    pub violations: BTreeMap<Kind, u64>,
    /// The first violations of each kind.
    pub described: Vec<Violation>,
}

impl Report {
    /// Whether no guarantee is broken.
    pub fn is_good(&self) -> bool {
        self.violations.is_empty()
    }

    /// Counts a violation; `describe` is called for the first ones of its kind.
    pub(super) fn add(&mut self, kind: Kind, describe: impl FnOnce() -> (String, Vec<(u64, String)>)) {
        let count = self.violations.entry(kind).or_default();
        *count += 1;
        if *count <= DESCRIBED {
            let (text, events) = describe();
            self.described.push(Violation::new(kind, text, events));
        }
    }

    /// Puts the faults beside the events of each violation, and the times into words.
    pub(super) fn finish(&mut self, tables: &Tables) {
        self.counts.faults = tables.fault_count();
        for violation in &mut self.described {
            let mut events = std::mem::take(&mut violation.events);
            events.extend(nearest_faults(tables, &events));
            events.sort_by_key(|(t, _)| *t);
            violation.evidence =
                events.into_iter().map(|(t, text)| format!("{}  {text}", tables.seconds(t))).collect();
        }
        self.described.sort_by_key(|violation| violation.kind);
    }
}

/// Faults that were on during `events`, those nearest to one of them if there are many.
fn nearest_faults(tables: &Tables, events: &[(u64, String)]) -> Vec<(u64, String)> {
    let times = || events.iter().map(|(t, _)| *t);
    let Some((from, to)) = times().min().zip(times().max()) else { return Vec::new() };
    let mut faults = tables.faults_between(from, to);
    if faults.is_empty() {
        return vec![(to, "no fault was on".into())];
    }
    faults.sort_by_key(|(begin, _)| times().map(|t| t.abs_diff(*begin)).min());
    let more = faults.len().saturating_sub(FAULTS);
    faults.truncate(FAULTS);
    faults.extend((more > 0).then(|| (to, format!("{more} more faults were on in this time"))));
    faults
}

impl Display for Report {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        for violation in &self.described {
            writeln!(out, "{}: {}", violation.kind, violation.text)?;
            for line in &violation.evidence {
                writeln!(out, "    {line}")?;
            }
        }
        let Counts { events, published, acknowledged, delivered, repeated, renumbered, .. } = self.counts;
        let Counts { moved, required, wills_due, retained_looks, faults, .. } = self.counts;
        writeln!(
            out,
            "history: {events} events, {faults} faults, {moved} moves of a session between nodes\n\
             history: {published} messages published, {acknowledged} acknowledged, {delivered} delivered, \
             {repeated} repeated as allowed, {renumbered} of QoS 2 with another packet identifier\n\
             history: checked {required} required deliveries, {wills_due} Wills due, {retained_looks} retained messages seen"
        )?;
        let Counts { unchecked_subscriptions, incomplete_files, .. } = self.counts;
        writeln!(
            out,
            "history: {incomplete_files} incomplete files, {unchecked_subscriptions} subscriptions without a promise \
             that can be checked"
        )?;
        if self.is_good() {
            return write!(out, "history: no violations");
        }
        let kinds: Vec<_> = self.violations.iter().map(|(kind, count)| format!("{count} × {kind}")).collect();
        write!(out, "history: VIOLATIONS: {}", kinds.join(", "))
    }
}
