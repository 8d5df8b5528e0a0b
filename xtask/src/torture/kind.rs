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

/// A kind, and how often if that is said: `kill:20`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) kind: Kind,
    pub(super) rounds: Option<u32>,
}

impl FromStr for Plan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, rounds) = text.split_once(':').map_or((text, None), |(name, rounds)| (name, Some(rounds)));
        let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name);
        let kind = kind.ok_or_else(|| format!("there is no {name:?}: say kill, stop, full or dying"))?;
        let rounds = rounds.map(|rounds| rounds.parse().ok().filter(|rounds| *rounds > 0).ok_or(rounds));
        let rounds = rounds.transpose().map_err(|given| format!("{given:?} is not a number of rounds"))?;
        Ok(Self { kind, rounds })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_a_kind_and_perhaps_a_number_of_rounds() {
        assert_eq!("kill".parse(), Ok(Plan { kind: Kind::Kill, rounds: None }));
        assert_eq!("full:3".parse(), Ok(Plan { kind: Kind::Full, rounds: Some(3) }));
        for wrong in ["", "burn", "kill:", "kill:0", "kill:-1", "kill:2:3"] {
            assert!(wrong.parse::<Plan>().is_err(), "{wrong}");
        }
    }
}
