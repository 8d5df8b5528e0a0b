//! File with what is known of networks, for the next run of a program.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use braid_select::{Key, Remembered};
use serde::{Deserialize, Serialize};
use tracing::warn;

/// Version of the format.
const VERSION: u32 = 1;
/// Age from which on knowledge is not used any more.
const MAX_AGE: Duration = Duration::from_secs(24 * 3600);
/// Seconds by which the latest event of a network has to move before it is written anew: a small part of [`MAX_AGE`].
const SEEN_STEP: u64 = 3600;
/// Most bytes that are read.
const MAX_SIZE: u64 = 1 << 20;

/// File of one client, or of several that do not run at the same time.
#[derive(Debug)]
pub(super) struct StateFile {
    path: PathBuf,
    /// Networks that were written last, without small changes.
    written: Vec<Essence>,
}

/// Network without what small changes of the time and of the round trip have changed.
#[derive(Clone, Debug, PartialEq)]
struct Essence {
    key: Key,
    failures: u32,
    /// Hour of the latest event.
    hour: u64,
    /// Binary logarithm of the round trip in microseconds.
    rtt: Option<u32>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Content {
    version: u32,
    /// Seconds since 1970.
    saved: u64,
    networks: Vec<NetworkState>,
}

#[derive(Debug, Serialize, Deserialize)]
struct NetworkState {
    /// Address in the network, such as `192.0.2.0`.
    network: IpAddr,
    server: String,
    /// Seconds since 1970 of the latest event.
    seen: u64,
    /// Failures of QUIC since it worked last.
    quic_failures: u32,
    /// Seconds from `saved` until QUIC may be tried again.
    quic_retry_in: u64,
    /// Microseconds.
    rtt: Option<u64>,
}

impl StateFile {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, written: Vec::new() }
    }

    /// Reads what is known; nothing if there is no file, or if it cannot be used, which the log says.
    pub(super) fn read(&self) -> Vec<Remembered> {
        match read(&self.path) {
            Ok(content) => content.into_remembered(since_1970()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => {
                warn!("{} is not used, and will be written anew: {error}", self.path.display());
                Vec::new()
            }
        }
    }

    /// Replaces the file, if more has changed than the time and a small part of the round trips.
    pub(super) fn write_changes(&mut self, known: impl Iterator<Item = Remembered>) {
        let (known, now): (Vec<_>, _) = (known.collect(), since_1970());
        if known.iter().map(|known| Essence::of(known, now)).ne(self.written.iter().cloned()) {
            self.write(known.into_iter());
        }
    }

    /// Replaces the file.
    pub(super) fn write(&mut self, known: impl Iterator<Item = Remembered>) {
        let (known, saved): (Vec<_>, _) = (known.collect(), since_1970());
        self.written = known.iter().map(|known| Essence::of(known, saved)).collect();
        let networks = known.into_iter().map(|known| NetworkState::new(known, saved)).collect();
        let content = Content { version: VERSION, saved, networks };
        if let Err(error) = replace(&self.path, &content) {
            warn!("{} cannot be written: {error}", self.path.display());
        }
    }
}

impl Essence {
    /// `now`: seconds since 1970.
    fn of(known: &Remembered, now: u64) -> Self {
        let Remembered { key, failures, age, srtt, .. } = known;
        let hour = now.saturating_sub(age.as_secs()) / SEEN_STEP;
        let rtt = srtt.and_then(|srtt| srtt.as_micros().checked_ilog2());
        Self { key: key.clone(), failures: *failures, hour, rtt }
    }
}

impl Content {
    /// `now`: seconds since 1970. A clock that was set back leaves waits as they were saved.
    fn into_remembered(self, now: u64) -> Vec<Remembered> {
        let elapsed = Duration::from_secs(now.saturating_sub(self.saved));
        let remembered = |state: NetworkState| Remembered {
            key: Key::new(state.network, Arc::from(state.server)),
            failures: state.quic_failures,
            retry_in: Duration::from_secs(state.quic_retry_in).saturating_sub(elapsed),
            age: Duration::from_secs(now.saturating_sub(state.seen)),
            srtt: state.rtt.map(Duration::from_micros),
        };
        self.networks.into_iter().map(remembered).filter(|known| known.age <= MAX_AGE).collect()
    }
}

impl NetworkState {
    /// `now`: seconds since 1970.
    fn new(Remembered { key, failures, retry_in, age, srtt }: Remembered, now: u64) -> Self {
        Self {
            network: key.network.address(),
            server: key.origin.to_string(),
            seen: now.saturating_sub(age.as_secs()),
            quic_failures: failures,
            quic_retry_in: retry_in.as_secs(),
            rtt: srtt.and_then(|srtt| u64::try_from(srtt.as_micros()).ok()),
        }
    }
}

fn read(path: &Path) -> io::Result<Content> {
    if std::fs::metadata(path)?.len() > MAX_SIZE {
        return Err(io::Error::other("it is larger than any file of BraidMQ's: give another path"));
    }
    let text = std::fs::read(path)?;
    let version = serde_json::from_slice::<Version>(&text);
    match version {
        Ok(Version { version: VERSION }) => {}
        Ok(Version { version }) => {
            return Err(io::Error::other(format!("it has version {version}, this program writes {VERSION}")));
        }
        Err(error) => return Err(io::Error::other(format!("it is cut off, or no state file ({error})"))),
    }
    serde_json::from_slice(&text).map_err(|error| io::Error::other(format!("it is damaged ({error})")))
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

/// Writes a file beside `path` and renames it, so that no reader finds half of it.
fn replace(path: &Path, content: &Content) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}", std::process::id()));
    let mut text = serde_json::to_vec_pretty(content)?;
    text.push(b'\n');
    std::fs::write(&beside, text)?;
    // Without a flush to the disk: after a loss of power the file may be empty, and is not used then.
    std::fs::rename(&beside, path)
}

fn since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(failures: u32, retry_in: u64) -> Remembered {
        Remembered {
            key: Key::new(IpAddr::from([192, 0, 2, 0]), "broker.example".into()),
            failures,
            retry_in: Duration::from_secs(retry_in),
            age: Duration::from_secs(60),
            srtt: Some(Duration::from_micros(40_123)),
        }
    }

    #[test]
    fn a_file_brings_back_what_was_known() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut file = StateFile::new(dir.path().join("state.json"));
        assert_eq!(file.read(), []);
        file.write([known(2, 600)].into_iter());
        let read = file.read();
        assert_eq!((read.len(), &read[0].key, read[0].failures), (1, &known(2, 600).key, 2));
        assert!(read[0].retry_in > Duration::from_secs(590), "{:?}", read[0].retry_in);
        assert_eq!(read[0].srtt, known(0, 0).srtt);
        assert!(read[0].age >= known(0, 0).age);
    }

    #[test]
    fn a_round_trip_and_a_later_hour_are_written_and_small_changes_only_at_the_end() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut file = StateFile::new(dir.path().join("state.json"));
        let at = |age, rtt| Remembered {
            age: Duration::from_secs(age),
            srtt: (rtt > 0).then_some(Duration::from_micros(rtt)),
            ..known(0, 0)
        };
        let hours = |hours: u64| hours * SEEN_STEP;
        file.write(std::iter::once(at(hours(5), 0)));
        let mut next = |known: Remembered| {
            std::fs::remove_file(&file.path).expect("it was written");
            file.write_changes(std::iter::once(known));
            let is_written = file.path.exists();
            file.write(std::iter::once(at(hours(3), 40_000)));
            is_written
        };
        assert!(next(at(hours(5), 40_000)), "the first round trip");
        assert!(!next(at(hours(3), 40_100)), "nearly the same");
        assert!(next(at(hours(3), 20_000)), "half of the round trip");
        assert!(next(at(hours(1), 40_000)), "seen later");
        file.write(std::iter::once(at(hours(3), 41_000)));
        assert_eq!(file.read()[0].srtt, Some(Duration::from_micros(41_000)));
    }

    #[test]
    fn waits_go_on_by_the_clock_and_a_clock_that_was_set_changes_them_by_their_length_at_most() {
        let content =
            || Content { version: 1, saved: 1000, networks: vec![NetworkState::new(known(1, 300), 1000)] };
        for (now, retry_in) in [(1100, 200), (1400, 0), (10, 300), (0, 300)] {
            let read = content().into_remembered(now);
            assert_eq!(read[0].retry_in, Duration::from_secs(retry_in), "at {now}");
        }
        assert_eq!(content().into_remembered(1000 + 86_400 - 59), [], "older than a day");
    }

    #[test]
    fn a_file_that_cannot_be_used_is_an_error_that_says_why() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("state.json");
        let whole = {
            StateFile::new(path.clone()).write([known(2, 600)].into_iter());
            std::fs::read(&path).expect("it was written")
        };
        for (content, expected) in [
            (&whole[..whole.len() / 2], "cut off"),
            (b"", "cut off"),
            (b"{\"version\": 2, \"anything\": []}", "version 2"),
            (b"{\"version\": 1, \"saved\": 5, \"networks\": 7}", "damaged"),
        ] {
            std::fs::write(&path, content).expect("a file");
            let error = read(&path).expect_err("it is not usable").to_string();
            assert!(error.contains(expected), "{error}");
            assert_eq!(StateFile::new(path.clone()).read(), []);
        }
    }
}
