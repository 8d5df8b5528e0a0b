//! Present state of one key in numbers.

use std::fmt;
use std::time::Duration;

use crate::cost::Path;
use crate::decision::Comparison;
use crate::entry::{Entry, Model};
use crate::estimate::RatioAverage;
use crate::key::Key;
use crate::protocol::{Mode, Protocol};

/// Measurements by one protocol.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Path; `None` with too few packets.
    pub path: Option<Path>,
    /// Time since the latest packets.
    pub age: Duration,
    /// Measured completion time, divided by the prediction on this path.
    pub completion_ratio: Option<f64>,
    /// Urgent latency and completion time, divided by those on the path as the other protocol measured it.
    pub correction: Option<(f64, f64)>,
}

/// Present state of one key. Displayed in several lines.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// Network and origin.
    pub key: Key,
    /// Way of deciding.
    pub mode: Mode,
    /// Protocol that is chosen.
    pub chosen: Protocol,
    /// Time since the latest change.
    pub changed: Option<Duration>,
    /// Time until costs may change the choice again.
    pub dwell: Option<Duration>,
    /// Changes to TCP, one less for each hour without one.
    pub flaps: u32,
    /// Failures of QUIC since it worked last.
    pub failures: u32,
    /// Time until QUIC may be tried again.
    pub broken_for: Option<Duration>,
    /// Measurements by TCP.
    pub tcp: Measured,
    /// Measurements by QUIC.
    pub quic: Measured,
    /// Costs of both; `None` while nothing is measured.
    pub costs: Option<Comparison>,
}

impl Explanation {
    pub(crate) fn of(
        now: Duration,
        key: &Key,
        mode: Mode,
        chosen: Protocol,
        entry: &Entry,
        model: &Model,
    ) -> Self {
        let measured = |of| {
            let measurement = entry.measurement(of);
            Measured {
                path: measurement.path.path(),
                age: now.saturating_sub(measurement.path.at),
                completion_ratio: measurement.completion.as_ref().map(RatioAverage::ratio),
                correction: measurement
                    .urgent_correction
                    .zip(measurement.completion_correction)
                    .map(|(urgent, completion)| (urgent.ratio(), completion.ratio())),
            }
        };
        Self {
            key: key.clone(),
            mode,
            chosen,
            changed: entry.switch.changed().map(|changed| now.saturating_sub(changed)),
            dwell: entry.switch.dwell(now),
            flaps: entry.switch.flaps(now),
            failures: entry.backoff.failures(),
            broken_for: entry.backoff.remaining(now),
            tcp: measured(Protocol::Tcp),
            quic: measured(Protocol::Quic),
            costs: entry.compare(now, model),
        }
    }
}

/// Ratio of two times in words, before "the time that ...".
struct Times(f64);

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ratio if ratio < 0.95 => write!(f, "{:.0} % of", ratio * 100.0),
            ratio if ratio <= 1.05 => f.write_str("about"),
            ratio => write!(f, "{ratio:.1} times"),
        }
    }
}

impl Measured {
    /// Writes the path, and how far predictions for it were wrong. `other`: the other protocol.
    fn describe(&self, f: &mut fmt::Formatter<'_>, other: Protocol) -> fmt::Result {
        let Some(path) = self.path else {
            return f.write_str("not measured");
        };
        write!(f, "{path}, {} s ago", self.age.as_secs())?;
        if let Some(ratio) = self.completion_ratio {
            write!(f, "\n        large responses took {} the predicted time", Times(ratio))?;
        }
        if let Some((urgent, completion)) = self.correction {
            let (urgent, completion) = (Times(urgent), Times(completion));
            write!(
                f,
                "\n        prediction for this path: small responses take {urgent}, a large one {completion} the time \
                 that they would on the path as {other} measured it"
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} (mode {})", self.key, self.chosen, self.mode)?;
        match self.changed {
            Some(changed) => write!(f, ", for {} s", changed.as_secs())?,
            None => f.write_str(", never changed")?,
        }
        if let Some(dwell) = self.dwell {
            write!(f, ", costs may change it in {} s", dwell.as_secs())?;
        }
        if self.flaps > 0 {
            write!(f, ", changed back to TCP {} times lately", self.flaps)?;
        }
        if self.failures > 0 {
            write!(f, ", QUIC has failed {} times since it worked", self.failures)?;
        }
        if let Some(broken) = self.broken_for {
            write!(f, ", QUIC is not tried again for {} s", broken.as_secs())?;
        }
        f.write_str("\n  TCP:  ")?;
        self.tcp.describe(f, Protocol::Quic)?;
        f.write_str("\n  QUIC: ")?;
        self.quic.describe(f, Protocol::Tcp)?;
        match self.costs {
            Some(Comparison { tcp, quic, .. }) => {
                write!(f, "\n  predicted over TCP:  {tcp}\n  predicted over QUIC: {quic}")
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_told_in_words() {
        for (ratio, expected) in
            [(66.29, "66.3 times"), (1.06, "1.1 times"), (1.04, "about"), (0.96, "about"), (0.8, "80 % of")]
        {
            assert_eq!(Times(ratio).to_string(), expected);
        }
    }

    #[test]
    fn measurements_are_told_in_words() {
        struct Told(Measured);
        impl fmt::Display for Told {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.describe(f, Protocol::Tcp)
            }
        }
        let path = Path { srtt: 0.05, rttvar: 0.005, min_rtt: 0.05, loss: 0.01, rate: None };
        let measured = Measured {
            path: Some(path),
            age: Duration::from_secs(3),
            completion_ratio: Some(66.29),
            correction: Some((8.58, 1.0)),
        };
        let expected = "RTT 50.0 ms (deviation 5.0 ms), loss 1.0 %, rate not limited, 3 s ago\n        large responses \
                        took 66.3 times the predicted time\n        prediction for this path: small responses take 8.6 \
                        times, a large one about the time that they would on the path as TCP measured it";
        assert_eq!(Told(measured).to_string(), expected);
        assert_eq!(Told(Measured { path: None, ..measured }).to_string(), "not measured");
    }
}
