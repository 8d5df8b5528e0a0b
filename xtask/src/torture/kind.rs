//! What can happen to the broker.

use std::str::FromStr;

/// What happens to the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    /// SIGKILL, now and then a second one while it starts.
    Kill,
    /// SIGSTOP for some seconds, and SIGCONT or SIGKILL.
    Stop,
    /// No space is left on its disk.
    Full,
    /// Its device fails.
    Dying,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Kill, Self::Stop, Self::Full, Self::Dying];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Stop => "stop",
            Self::Full => "full",
            Self::Dying => "dying",
        }
    }
}

/// What gives way when a queue is full, as the broker calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Overflow {
    DropNewest,
    DropOldest,
    Disconnect,
}

impl Overflow {
    const ALL: [Self; 3] = [Self::DropNewest, Self::DropOldest, Self::Disconnect];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::DropNewest => "drop-newest",
            Self::DropOldest => "drop-oldest",
            Self::Disconnect => "disconnect",
        }
    }
}

/// A kind, with queues that hold little if that is said, and how often: `kill:20`, `kill+drop-oldest:5`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) kind: Kind,
    pub(super) queue: Option<Overflow>,
    pub(super) rounds: Option<u32>,
}

impl Plan {
    pub(super) fn name(&self) -> String {
        match self.queue {
            None => self.kind.name().to_owned(),
            Some(overflow) => format!("{}+{}", self.kind.name(), overflow.name()),
        }
    }
}

impl FromStr for Plan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, rounds) = text.split_once(':').map_or((text, None), |(name, rounds)| (name, Some(rounds)));
        let (name, queue) = name.split_once('+').map_or((name, None), |(name, queue)| (name, Some(queue)));
        let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name);
        let kind = kind.ok_or_else(|| format!("there is no {name:?}: say kill, stop, full or dying"))?;
        let find = |name| Overflow::ALL.into_iter().find(|overflow| overflow.name() == name).ok_or(name);
        let queue = queue.map(find).transpose();
        let queue = queue.map_err(|given| {
            format!("no queue does {given:?}: say drop-newest, drop-oldest or disconnect")
        })?;
        let rounds = rounds.map(|rounds| rounds.parse().ok().filter(|rounds| *rounds > 0).ok_or(rounds));
        let rounds = rounds.transpose().map_err(|given| format!("{given:?} is not a number of rounds"))?;
        Ok(Self { kind, queue, rounds })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_a_kind_and_perhaps_a_queue_and_a_number_of_rounds() {
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
}
