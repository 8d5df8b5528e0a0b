//! Kinds of faults of a cluster, and the plan of a run.

use std::str::FromStr;

use clap::ValueEnum;

use crate::plan::{name, split_rounds};

/// Fault that is injected into the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Kind {
    /// SIGKILL of a broker, which starts again up to 15 s later.
    KillBroker,
    /// SIGSTOP of a broker, then SIGCONT or SIGKILL.
    StopBroker,
    /// SIGTERM of a broker, which starts again when it has ended.
    EndBroker,
    /// SIGKILL of the server that leads the stream of messages.
    KillLeader,
    /// SIGKILL of another server.
    KillFollower,
    /// SIGSTOP of the leader, then SIGCONT.
    StopLeader,
    /// SIGSTOP of another server, then SIGCONT.
    StopFollower,
    /// A node, broker and server, is cut off from the other two, not from the clients.
    CutNode,
    /// Brokers and servers, in two random groups that do not reach each other.
    Split,
    /// Packets of a node do not reach the others, or theirs do not reach it.
    OneWay,
    /// A broker is cut off from all servers, not from the clients and other brokers.
    CutBroker,
    /// Clients do not reach a broker.
    CutClients,
    /// No server reaches another: no majority.
    Shatter,
    /// The links of a node are slow and lose packets.
    Slow,
    /// The disk of a server is full; the server starts again when there is room.
    Full,
    /// The wall clock of a broker jumps in both directions, one after the other, and back.
    JumpClock,
    /// SIGKILL of all brokers and servers, which start again.
    RestartAll,
    /// Two to four faults of other kinds, each before the cluster has recovered from the one before.
    Mixed,
}

/// Processes that a testbed has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Parts {
    /// Three servers of NATS and three brokers.
    Cluster,
    /// One broker without a cluster.
    Broker,
    /// Three servers of NATS, without clients.
    Servers,
}

impl Kind {
    /// Kinds of a mixed round in a testbed of these parts.
    pub(crate) fn to_mix(parts: Parts) -> Vec<Self> {
        let is_simple = |kind: &Self| *kind != Self::Mixed && kind.needs(parts).is_ok();
        Self::value_variants().iter().copied().filter(is_simple).collect()
    }

    /// Reason for which the fault cannot be injected into a testbed of these parts.
    pub(crate) fn needs(self, parts: Parts) -> Result<(), String> {
        let brokers =
            [Self::KillBroker, Self::StopBroker, Self::EndBroker, Self::CutClients, Self::RestartAll];
        let is_possible = match parts {
            _ if self == Self::Mixed => true,
            Parts::Cluster => true,
            Parts::Broker => brokers.contains(&self),
            Parts::Servers => {
                self == Self::RestartAll
                    || !(brokers.contains(&self) || [Self::CutBroker, Self::JumpClock].contains(&self))
            }
        };
        if is_possible {
            Ok(())
        } else {
            Err(format!("{} does not go with --only {}", name(&self), name(&parts)))
        }
    }
}

/// A kind and the number of its rounds: `kill-broker:20`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) kind: Kind,
    pub(crate) rounds: Option<u32>,
}

impl FromStr for Plan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, rounds) = split_rounds(text)?;
        let kinds = || Kind::value_variants().iter().map(name).collect::<Vec<_>>().join(", ");
        let kind =
            Kind::from_str(kind, false).map_err(|_| format!("{kind:?} is no kind: say {}", kinds()))?;
        Ok(Self { kind, rounds })
    }
}

#[cfg(test)]
mod tests {
    use braid_torture::history::delays_bytes;

    use super::*;

    #[test]
    fn a_plan_is_a_kind_and_perhaps_a_number() {
        assert_eq!("kill-broker:20".parse(), Ok(Plan { kind: Kind::KillBroker, rounds: Some(20) }));
        assert_eq!("one-way".parse(), Ok(Plan { kind: Kind::OneWay, rounds: None }));
        for wrong in ["", "kill", "kill-broker:", "kill-broker:0", "full:-1", "full:1:2", "full+disconnect:2"]
        {
            assert!(wrong.parse::<Plan>().is_err(), "{wrong}");
        }
        assert!("burn".parse::<Plan>().unwrap_err().contains("kill-broker, stop-broker"));
    }

    #[test]
    fn the_checker_of_histories_knows_which_kinds_delay_bytes() {
        // A mixed round has no fault of its own name.
        for kind in Kind::to_mix(Parts::Cluster) {
            let delays = match kind {
                Kind::CutNode
                | Kind::Split
                | Kind::OneWay
                | Kind::CutBroker
                | Kind::CutClients
                | Kind::Shatter
                | Kind::Slow => true,
                Kind::KillBroker
                | Kind::StopBroker
                | Kind::EndBroker
                | Kind::KillLeader
                | Kind::KillFollower
                | Kind::StopLeader
                | Kind::StopFollower
                | Kind::Full
                | Kind::JumpClock
                | Kind::RestartAll
                | Kind::Mixed => false,
            };
            assert_eq!(delays_bytes(&name(&kind)), delays, "{}", name(&kind));
        }
    }

    #[test]
    fn a_kind_goes_with_the_parts_that_it_disturbs() {
        for kind in Kind::value_variants() {
            assert!(kind.needs(Parts::Cluster).is_ok());
        }
        assert!(
            Kind::KillBroker.needs(Parts::Broker).is_ok() && Kind::KillBroker.needs(Parts::Servers).is_err()
        );
        assert!(
            Kind::StopLeader.needs(Parts::Broker).is_err() && Kind::StopLeader.needs(Parts::Servers).is_ok()
        );
        assert!(
            Kind::JumpClock.needs(Parts::Servers).is_err() && Kind::JumpClock.needs(Parts::Broker).is_err()
        );
        assert!(
            Kind::CutBroker.needs(Parts::Servers).is_err() && Kind::CutBroker.needs(Parts::Broker).is_err()
        );
        for parts in [Parts::Broker, Parts::Servers] {
            assert!([Kind::RestartAll, Kind::Mixed].iter().all(|kind| kind.needs(parts).is_ok()));
            let mix = Kind::to_mix(parts);
            assert!(mix.contains(&Kind::RestartAll) && !mix.contains(&Kind::Mixed));
        }
        assert_eq!(Kind::to_mix(Parts::Cluster).len() + 1, Kind::value_variants().len());
    }
}
