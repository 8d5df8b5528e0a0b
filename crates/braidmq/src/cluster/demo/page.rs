//! Text of the demo: tables, lines and the summary.

use std::time::{Duration, Instant};

use braid_cluster::status::ClusterStatus;

use super::ledger::Counts;
use super::member::{Kind, Member, ProcessStatus};
use super::watch::Facts;
use crate::cluster::page::Align::{Left, Right};
use crate::cluster::page::{seconds, table};
use crate::printable::printable;
use crate::store::thousands;

/// Age from which on the state of the cluster is shown with its age.
const OLD: Duration = Duration::from_secs(5);

/// Everything that a page shows.
pub(super) struct Page<'a> {
    pub(super) members: &'a [Member],
    pub(super) facts: &'a Facts,
    pub(super) counts: Counts,
    pub(super) now: Instant,
    /// Time since the demo was ready.
    pub(super) elapsed: Duration,
}

impl Page<'_> {
    /// Lines for a terminal. `events`: the last ones, oldest first.
    pub(super) fn screen(&self, url: &str, pause: Duration, events: &[String]) -> Vec<String> {
        let mut out =
            format!("BraidMQ cluster demo, {:.0} s: clients connect to {url}\n", self.elapsed.as_secs_f64());
        self.brokers(&mut out);
        self.servers(&mut out);
        out += &format!("\n{}\n{}\n", counts_line(&self.counts), waits_line(&self.counts));
        if let Some(age) = self.age().filter(|age| *age >= OLD) {
            out += &format!(
                "the state of leases, sessions and leaders is {:.0} s old: NATS does not answer\n",
                age.as_secs_f64()
            );
        }
        out += &format!(
            "\nkeys: 1 2 3 kill -9 a broker, a b c a NATS server; or `kill -9 PID` elsewhere. It starts again after {:.0} s.\n\
             q or Ctrl-C ends the demo.\n\n",
            pause.as_secs_f64()
        );
        out.lines().map(str::to_owned).chain(events.iter().cloned()).collect()
    }

    fn brokers(&self, out: &mut String) {
        let status = self.status();
        let rows = self.of(Kind::Broker).map(|member| {
            let name = &member.name;
            let node =
                status.and_then(|status| status.nodes.as_ref().ok()?.iter().find(|node| node.name == *name));
            let none = || "-".to_owned();
            let lease = node.map_or_else(none, |node| format!("{} ago", seconds(node.renewed)));
            let log =
                node.and_then(|node| node.record.positions.first()).map_or_else(none, |at| thousands(*at));
            let counts = status.and_then(|status| status.sessions.as_ref().ok());
            let sessions =
                counts.map_or_else(none, |counts| thousands(counts.by_node.get(name).copied().unwrap_or(0)));
            let connections = self.facts.answers.get(name).filter(|_| member.is_running());
            let connections = connections.map_or_else(none, |count| thousands(*count));
            [name.clone(), member.pid().to_string(), self.state(member), lease, sessions, connections, log]
        });
        let columns = [
            ("broker", Left),
            ("pid", Right),
            ("state", Left),
            ("lease renewed", Right),
            ("sessions", Right),
            ("connections", Right),
            ("log read to", Right),
        ];
        table(out, columns, rows.collect());
    }

    fn servers(&self, out: &mut String) {
        let rows = self.of(Kind::Server).map(|member| {
            let leads =
                self.status().map_or_else(String::new, |status| leads(status, &member.name).join(", "));
            [member.name.clone(), member.pid().to_string(), self.state(member), leads]
        });
        let columns = [("NATS", Left), ("pid", Right), ("state", Left), ("leads", Left)];
        table(out, columns, rows.collect());
    }

    /// One line without a terminal.
    pub(super) fn line(&self) -> String {
        let states = self.of(Kind::Broker).map(|member| match self.facts.answers.get(&member.name) {
            Some(connections) if member.is_running() => format!("{} {connections}", member.name),
            _ => format!("{} {}", member.name, self.state(member)),
        });
        let states: Vec<_> = states.collect();
        let down = self
            .of(Kind::Server)
            .map(|member| (member, self.state(member)))
            .filter(|(_, state)| state != "up");
        let down: String = down.map(|(member, state)| format!("; {} {state}", member.name)).collect();
        format!("{}; connections: {}{down}", counts_line(&self.counts), states.join(", "))
    }

    fn of(&self, kind: Kind) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(move |member| member.kind == kind)
    }

    fn status(&self) -> Option<&ClusterStatus> {
        self.facts.status.as_ref().map(|(status, _)| &**status)
    }

    fn age(&self) -> Option<Duration> {
        self.facts.status.as_ref().map(|(_, at)| self.now.saturating_duration_since(*at))
    }

    fn state(&self, member: &Member) -> String {
        state_text(member.status(self.now), self.facts.answers.contains_key(&member.name))
    }
}

fn state_text(status: ProcessStatus, answers: bool) -> String {
    match status {
        ProcessStatus::Running { .. } if answers => "up".to_owned(),
        ProcessStatus::Running { .. } => "no answer".to_owned(),
        ProcessStatus::Down { left, .. } => format!("dead, starts in {:.0} s", left.as_secs_f64().ceil()),
    }
}

/// Streams that a server leads, without the name of the cluster.
fn leads(status: &ClusterStatus, server: &str) -> Vec<String> {
    let prefix = format!("{}-", status.cluster);
    let led = status
        .streams
        .iter()
        .filter(|stream| stream.state.as_ref().is_ok_and(|state| state.leader.as_deref() == Some(server)));
    led.map(|stream| stream.name.strip_prefix(&prefix).unwrap_or(&stream.name).to_owned()).collect()
}

fn counts_line(counts: &Counts) -> String {
    let Counts { published, acknowledged, refused, delivered, duplicates, out_of_order, lost, .. } = *counts;
    let [published, acknowledged, delivered] = [published, acknowledged, delivered].map(thousands);
    let refused = if refused == 0 { String::new() } else { format!(", refused {}", thousands(refused)) };
    format!(
        "published {published}, acknowledged {acknowledged}{refused}, delivered {delivered}, lost {}, duplicates {}, out of order {}",
        thousands(lost),
        thousands(duplicates),
        thousands(out_of_order)
    )
}

fn waits_line(counts: &Counts) -> String {
    format!(
        "longest gap between deliveries {}, longest wait for an acknowledgement {}",
        seconds(counts.longest_gap),
        seconds(counts.longest_acknowledgement)
    )
}

/// The last lines.
pub(super) fn summary(members: &[Member], counts: &Counts, ran: Duration) -> String {
    let ended = members.iter().filter(|member| member.ends > 0);
    let ended: Vec<_> = ended.map(|member| format!("{} ({})", member.name, times(member.ends))).collect();
    let ended = if ended.is_empty() { "none".to_owned() } else { ended.join(", ") };
    let verdict = match counts.lost {
        _ if counts.acknowledged == 0 => "nothing was acknowledged".to_owned(),
        0 => "nothing that was acknowledged was lost".to_owned(),
        lost => format!("{} acknowledged messages were LOST", thousands(lost)),
    };
    format!(
        "\nran {:.0} s; processes that died: {ended}\n{}\n{}\n{verdict}\n",
        ran.as_secs_f64(),
        counts_line(counts),
        waits_line(counts)
    )
}

fn times(count: u32) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}

/// An event with its time.
pub(super) fn event(at: Duration, text: &str) -> String {
    format!("{:7.1} s  {}", at.as_secs_f64(), printable(text))
}
