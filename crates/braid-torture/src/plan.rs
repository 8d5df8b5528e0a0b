//! Kinds of faults, and the plan of a run: kinds with their rounds.

use std::str::FromStr;

use braid_torture::free_port;
use clap::ValueEnum;

/// Fault that is injected into the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// SIGKILL, now and then a second one during the start.
    Kill,
    /// SIGSTOP for some seconds, then SIGCONT or SIGKILL.
    Stop,
    /// Full disk.
    Full,
    /// Failing device: `dying` on the command line and in reports.
    #[value(name = "dying")]
    #[serde(rename = "dying")]
    FailingDevice,
}

/// Overflow policy of the broker's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Overflow {
    /// Drops the new message.
    DropNewest,
    /// Drops the oldest message.
    DropOldest,
    /// Drops the new message and disconnects the client.
    Disconnect,
}

/// Transport between clients and broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Transport {
    /// TCP.
    Mqtt,
    /// TLS.
    Mqtts,
    /// QUIC, several streams for each connection.
    Quic,
}

/// A kind, the policy of bounded queues if they are bounded, and the number of rounds: `kill:20`,
/// `kill+drop-oldest:5`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) kind: Kind,
    pub(crate) queue: Option<Overflow>,
    pub(crate) rounds: Option<u32>,
}

/// Name of a value on the command line.
pub(crate) fn name<T: ValueEnum>(value: &T) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Splits `NAME` or `NAME:ROUNDS`.
pub(crate) fn split_rounds(text: &str) -> Result<(&str, Option<u32>), String> {
    let (name, rounds) = text.split_once(':').map_or((text, None), |(name, rounds)| (name, Some(rounds)));
    let rounds = rounds.map(|rounds| rounds.parse().ok().filter(|rounds| *rounds > 0).ok_or(rounds));
    let rounds = rounds.transpose().map_err(|given| format!("{given:?} is not a number of rounds"))?;
    Ok((name, rounds))
}

impl Transport {
    pub(crate) const ALL: [Self; 3] = [Self::Mqtt, Self::Mqtts, Self::Quic];

    /// Scheme of the broker's URL.
    pub(crate) fn scheme(self) -> &'static str {
        match self {
            Self::Mqtt => "mqtt",
            Self::Mqtts => "mqtts",
            Self::Quic => "quic",
        }
    }

    /// Option of `braidmq serve`.
    pub(crate) fn listener(self) -> &'static str {
        match self {
            Self::Mqtt => "--tcp",
            Self::Mqtts => "--tls",
            Self::Quic => "--quic",
        }
    }

    /// A free port of loopback for each of `transports`.
    pub(crate) fn free_ports(transports: &[Self]) -> Result<Vec<(Self, u16)>, String> {
        let port = |transport: &Self| free_port(*transport == Self::Quic).map(|port| (*transport, port));
        transports.iter().map(port).collect()
    }

    /// Options of `braidmq serve` for listeners on these ports.
    pub(crate) fn listeners(ports: &[(Self, u16)]) -> Vec<(&'static str, u16)> {
        ports.iter().map(|(transport, port)| (transport.listener(), *port)).collect()
    }
}

impl Plan {
    pub(crate) fn name(&self) -> String {
        let kind = name(&self.kind);
        self.queue.map_or_else(|| kind.clone(), |overflow| format!("{kind}+{}", name(&overflow)))
    }
}

impl FromStr for Plan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, rounds) = split_rounds(text)?;
        let (name, queue) = name.split_once('+').map_or((name, None), |(name, queue)| (name, Some(queue)));
        let kind = Kind::from_str(name, false)
            .map_err(|_| format!("{name:?} is no kind: say kill, stop, full or dying"))?;
        let overflow = |name| {
            Overflow::from_str(name, false).map_err(|_| {
                format!("{name:?} is no overflow policy: say drop-newest, drop-oldest or disconnect")
            })
        };
        let queue = queue.map(overflow).transpose()?;
        Ok(Self { kind, queue, rounds })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_a_kind_with_an_optional_policy_and_number_of_rounds() {
        let plan = |kind, queue, rounds| Ok(Plan { kind, queue, rounds });
        assert_eq!("kill".parse(), plan(Kind::Kill, None, None));
        assert_eq!("full:3".parse(), plan(Kind::Full, None, Some(3)));
        assert_eq!("stop+drop-oldest:2".parse(), plan(Kind::Stop, Some(Overflow::DropOldest), Some(2)));
        for wrong in
            ["", "burn", "kill:", "kill:0", "kill:-1", "kill:2:3", "kill+", "kill+burn", "kill:2+disconnect"]
        {
            assert!(wrong.parse::<Plan>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_transport_has_its_listener() {
        let words = Transport::ALL.map(|transport| (transport.scheme(), transport.listener()));
        assert_eq!(words, [("mqtt", "--tcp"), ("mqtts", "--tls"), ("quic", "--quic")]);
    }
}
