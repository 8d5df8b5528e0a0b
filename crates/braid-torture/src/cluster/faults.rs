//! Faults: each leaves all processes running and all links whole.

use std::time::{Duration, Instant};

use braid_torture::history::{Event, Phase, Writer};
use rustix::process::Signal;

use super::clients::Clients;
use super::kind::Kind;
use super::network::{Filters, Member, NODES};
use super::testbed::Testbed;
use crate::plan::name;

/// Shortest duration of a fault.
const SHORTEST: Duration = Duration::from_secs(1);
/// Share of packets that a slow link loses.
const LOSS: f64 = 0.05;
/// Longest time between the deaths of processes that are all killed.
const APART: Duration = Duration::from_millis(300);
/// Most bytes that are left on a full disk.
const ROOM: u64 = 1 << 20;

/// Jumps of a wall clock, seconds: sessions of the load that are kept expire in an hour, others in some seconds.
const JUMPS: [i64; 4] = [-7_200, -20, 20, 7_200];

/// Injects faults into a testbed.
pub(crate) struct Injector<'a> {
    pub(crate) testbed: &'a mut Testbed,
    pub(crate) clients: Option<&'a Clients>,
    pub(crate) history: &'a mut Writer,
    pub(crate) random: &'a mut fastrand::Rng,
    /// Longest duration of a fault.
    pub(crate) longest: Duration,
}

impl Injector<'_> {
    /// Injects one fault, and ends it.
    ///
    /// # Errors
    /// The fault cannot be injected, or a process does not start again.
    pub(crate) fn inject(&mut self, kind: Kind) -> Result<(), String> {
        match kind {
            Kind::KillBroker => {
                let node = self.draw_broker();
                self.kill(kind, &[Member::Broker(node)])
            }
            Kind::StopBroker => {
                let broker = Member::Broker(self.draw_broker());
                self.stop(kind, broker)
            }
            Kind::EndBroker => {
                let node = self.draw_broker();
                self.during(kind, &[Member::Broker(node)], |this| {
                    this.testbed.terminate(node)?;
                    this.hold();
                    this.testbed.restart()
                })
            }
            Kind::KillLeader | Kind::KillFollower => {
                let server = self.draw_server(kind == Kind::KillLeader);
                self.kill(kind, &[server])
            }
            Kind::StopLeader | Kind::StopFollower => {
                let server = self.draw_server(kind == Kind::StopLeader);
                self.stop(kind, server)
            }
            Kind::RestartAll => {
                let mut members = self.testbed.members();
                self.random.shuffle(&mut members);
                self.kill(kind, &members)
            }
            Kind::Full => self.fill(kind),
            Kind::JumpClock => {
                let (node, seconds) = (self.draw_broker(), JUMPS[self.random.usize(..JUMPS.len())]);
                self.during(kind, &[Member::Broker(node)], |this| {
                    for ahead in [seconds, -seconds] {
                        this.testbed.set_clock(node, ahead)?;
                        this.hold();
                    }
                    this.testbed.set_clock(node, 0)
                })
            }
            Kind::Mixed => {
                let kinds = Kind::to_mix(self.testbed.parts);
                let draw = |random: &mut fastrand::Rng| kinds[random.usize(..kinds.len())];
                (0..self.random.usize(2..=4)).try_for_each(|_| {
                    let kind = draw(self.random);
                    self.inject(kind)
                })
            }
            Kind::Slow => {
                let node = self.random.usize(..NODES.len());
                let members = self.of_node(node);
                self.during(kind, &members, |this| {
                    let link = members[this.random.usize(..members.len())];
                    this.testbed.network.slow_down(link)?;
                    let loss = members.iter().map(|member| (*member, LOSS)).collect();
                    this.filter(Filters { loss, ..Filters::default() })
                })
            }
            Kind::CutNode
            | Kind::Split
            | Kind::OneWay
            | Kind::CutBroker
            | Kind::CutClients
            | Kind::Shatter => {
                let (on, filters) = self.draw_filters(kind);
                self.during(kind, &on, |this| this.filter(filters))
            }
        }
    }

    // -- Faults ------------------------------------------------------------------------------------

    /// Runs a fault between its two lines in the history.
    fn during(
        &mut self,
        kind: Kind,
        on: &[Member],
        fault: impl FnOnce(&mut Self) -> Result<(), String>,
    ) -> Result<(), String> {
        let on: Vec<_> = on.iter().map(ToString::to_string).collect();
        let (on, name) = (on.join(" "), name(&kind));
        let event = |phase| Event::Fault { name: (&*name).into(), on: (&*on).into(), phase };
        self.history.write(event(Phase::Begin))?;
        fault(self).map_err(|reason| format!("{name} on {on}: {reason}"))?;
        self.history.write(event(Phase::End))
    }

    fn kill(&mut self, kind: Kind, members: &[Member]) -> Result<(), String> {
        self.during(kind, members, |this| {
            if let [one] = members {
                this.kill_one(*one)?;
            } else {
                // Clients have nowhere to go: that is no failover.
                for member in members {
                    this.testbed.kill(*member);
                    this.pause(APART);
                }
            }
            this.hold();
            this.testbed.restart()
        })
    }

    fn kill_one(&mut self, member: Member) -> Result<(), String> {
        if let (Member::Broker(node), Some(clients)) = (member, self.clients) {
            clients.tally()?.node_was_killed(node, Instant::now());
        }
        self.testbed.kill(member);
        Ok(())
    }

    /// Stops a process for a while; a broker is now and then killed before it continues.
    fn stop(&mut self, kind: Kind, member: Member) -> Result<(), String> {
        self.during(kind, &[member], |this| {
            this.testbed.signal(member, Signal::STOP);
            this.hold();
            if matches!(member, Member::Broker(_)) && this.random.u32(..4) == 0 {
                this.kill_one(member)?;
                return this.testbed.restart();
            }
            this.testbed.signal(member, Signal::CONT);
            Ok(())
        })
    }

    /// Filters packets for a while.
    fn filter(&mut self, filters: Filters) -> Result<(), String> {
        let is_cut = !filters.cuts.is_empty();
        self.testbed.network.filter(filters)?;
        self.hold();
        match self.testbed.network.heal()? {
            // Servers, brokers and clients tell each other at least once in a second that they live.
            0 if is_cut => Err("no packet was dropped".to_owned()),
            _ => Ok(()),
        }
    }

    fn fill(&mut self, kind: Kind) -> Result<(), String> {
        let Some((node, _)) = &self.testbed.disk else { return Err("no server has a small disk".to_owned()) };
        let server = Member::Server(*node);
        self.during(kind, &[server], |this| {
            // No byte is left in half of the rounds.
            let left = if this.random.bool() { 0 } else { this.random.u64(..ROOM) };
            let disk = |this: &Self| this.testbed.disk.as_ref().map(|(_, disk)| disk.fill(left));
            disk(this).transpose()?;
            this.hold();
            this.testbed.disk.as_ref().map(|(_, disk)| disk.clear()).transpose()?;
            // The server has given its JetStream up until it starts again, which is left to its operator.
            println!(
                "torture-cluster: there is room again, and {server} starts again, as an operator does it"
            );
            this.kill_one(server)?;
            this.testbed.restart()
        })
    }

    // -- Choices -----------------------------------------------------------------------------------

    /// Sleeps for a random time between the shortest and the longest duration of a fault.
    fn hold(&mut self) {
        let span = self.longest.saturating_sub(SHORTEST);
        std::thread::sleep(SHORTEST.min(self.longest) + span.mul_f64(self.random.f64()));
    }

    fn pause(&mut self, end: Duration) {
        std::thread::sleep(end.mul_f64(self.random.f64()));
    }

    fn draw_broker(&mut self) -> usize {
        let brokers = self.testbed.addresses().len();
        self.random.usize(..brokers)
    }

    fn draw_server(&mut self, leads: bool) -> Member {
        // Servers that have just lost their leader have none, in a mixed round.
        let leader = self.testbed.leader().unwrap_or_else(|| self.random.usize(..NODES.len()));
        let others: Vec<_> = (0..NODES.len()).filter(|node| *node != leader).collect();
        Member::Server(if leads { leader } else { others[self.random.usize(..others.len())] })
    }

    /// Server and broker of a node.
    fn of_node(&self, node: usize) -> Vec<Member> {
        let of_node = |member: &Member| [Member::Server(node), Member::Broker(node)].contains(member);
        self.testbed.members().into_iter().filter(of_node).collect()
    }

    /// Members that are cut off, and the filters that do it.
    fn draw_filters(&mut self, kind: Kind) -> (Vec<Member>, Filters) {
        let members = self.testbed.members();
        let servers: Vec<_> =
            members.iter().copied().filter(|member| matches!(member, Member::Server(_))).collect();
        match kind {
            Kind::Shatter => (servers.clone(), Filters::between(&servers, &servers)),
            Kind::CutBroker => {
                let broker = [Member::Broker(self.draw_broker())];
                (broker.into(), Filters::between(&broker, &servers))
            }
            Kind::CutClients => {
                let broker = [Member::Broker(self.draw_broker())];
                (broker.into(), Filters::between(&broker, &[Member::Clients]))
            }
            _ => {
                let some = match kind {
                    Kind::Split => group(&members, self.random),
                    _ => {
                        let node = self.random.usize(..NODES.len());
                        self.of_node(node)
                    }
                };
                let others: Vec<_> = members.into_iter().filter(|member| !some.contains(member)).collect();
                let filters = match (kind, self.random.bool()) {
                    (Kind::OneWay, true) => Filters::from_to(&some, &others),
                    (Kind::OneWay, false) => Filters::from_to(&others, &some),
                    _ => Filters::between(&some, &others),
                };
                (some, filters)
            }
        }
    }
}

/// Random members, at least one and not all.
fn group(members: &[Member], random: &mut fastrand::Rng) -> Vec<Member> {
    let mut members = members.to_vec();
    random.shuffle(&mut members);
    members.truncate(random.usize(1..members.len().max(2)));
    members
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_neither_empty_nor_everything() {
        let members: Vec<_> = (0..3).flat_map(|node| [Member::Server(node), Member::Broker(node)]).collect();
        let mut random = fastrand::Rng::with_seed(1);
        let sizes: std::collections::BTreeSet<_> =
            (0..200).map(|_| group(&members, &mut random).len()).collect();
        assert_eq!(sizes, (1..6).collect());
    }
}
