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

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(path) = self.path else {
            return f.write_str("not measured");
        };
        write!(f, "{path}, {} s ago", self.age.as_secs())?;
        if let Some(ratio) = self.completion_ratio {
            write!(f, "; completion {ratio:.2} of predicted")?;
        }
        if let Some((urgent, completion)) = self.correction {
            write!(f, "; urgent {urgent:.2} and completion {completion:.2} of those on the other path")?;
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
            write!(f, ", flaps {}", self.flaps)?;
        }
        if self.failures > 0 {
            write!(f, ", QUIC failures {}", self.failures)?;
        }
        if let Some(broken) = self.broken_for {
            write!(f, ", QUIC broken for {} s", broken.as_secs())?;
        }
        write!(f, "\n  TCP:  {}\n  QUIC: {}", self.tcp, self.quic)?;
        match self.costs {
            Some(Comparison { tcp, quic, .. }) => {
                write!(f, "\n  cost over TCP  {tcp}\n  cost over QUIC {quic}")
            }
            None => Ok(()),
        }
    }
}
