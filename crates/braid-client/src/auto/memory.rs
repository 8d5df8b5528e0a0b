//! Knowledge of the networks that this client has been in.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use braid_select::{
    Config, Decision, Failure, First, Key, Mode, Protocol, QuicMeter, QuicReading, Selector, TcpMeter,
    TcpReading,
};
use tokio::time::Instant;

use super::state_file::StateFile;

/// Most networks that are known. A device that moves through more forgets the oldest.
const NETWORKS: std::num::NonZeroUsize = std::num::NonZeroUsize::MIN.saturating_add(255);

/// Time of the selector at the start of the program, so that ages of an earlier run can be told.
const START: Duration = Duration::from_secs(24 * 3600);

/// Selector of the protocol, and the network that this machine is in.
pub(super) struct Memory {
    selector: Selector,
    /// Beginning of the selector's time.
    epoch: Instant,
    key: Key,
    /// Address of this machine towards the server.
    route: IpAddr,
    file: Option<StateFile>,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("key", &self.key).finish_non_exhaustive()
    }
}

impl Memory {
    /// `origin`: name of the server.
    pub(super) fn new(origin: Arc<str>, file: Option<PathBuf>) -> Self {
        let route = IpAddr::from(Ipv4Addr::LOCALHOST);
        let mut config = Config::new(Mode::Auto, Protocol::Quic, fastrand::u64(..));
        config.capacity = NETWORKS;
        let mut memory = Self {
            selector: Selector::new(&config),
            epoch: Instant::now(),
            key: Key::new(route, origin),
            route,
            file: file.map(StateFile::new),
        };
        if let Some(file) = &memory.file {
            // The latest used comes first in the file.
            for remembered in file.read().iter().rev() {
                memory.selector.restore(START, remembered);
            }
        }
        memory
    }

    /// Time of the selector.
    pub(super) fn now(&self) -> Duration {
        START + self.epoch.elapsed()
    }

    /// Enters the network of an address of this machine. True: it is another address than before.
    pub(super) fn enter(&mut self, route: Option<IpAddr>) -> bool {
        let Some(route) = route.filter(|route| *route != self.route) else { return false };
        self.route = route;
        self.key = self.key_of(route);
        true
    }

    /// Goes over to another server.
    pub(super) fn set_origin(&mut self, origin: Arc<str>) {
        self.key.origin = origin;
    }

    /// First protocol of a connection here.
    pub(super) fn first(&self) -> First {
        self.selector.first(self.now(), &self.key)
    }

    /// Protocol that measurements and failures choose here.
    pub(super) fn chosen(&self) -> Protocol {
        self.selector.chosen(self.now(), &self.key)
    }

    /// Round trip to the server from here, measured or of an earlier run.
    pub(super) fn round_trip(&self) -> Option<Duration> {
        self.selector.known(self.now(), &self.key)?.srtt
    }

    /// Key of the present network and server.
    pub(super) fn key(&self) -> &Key {
        &self.key
    }

    /// Key of the network of an address of this machine.
    pub(super) fn key_of(&self, route: IpAddr) -> Key {
        Key::new(route, Arc::clone(&self.key.origin))
    }

    /// Notes that QUIC works in the network of a key.
    pub(super) fn quic_works(&mut self, key: &Key) -> Option<Decision> {
        self.selector.quic_works(self.now(), key)
    }

    /// Notes that QUIC failed in the network of a key. Returns the time until it may be tried again.
    pub(super) fn quic_failed(&mut self, key: &Key) -> Duration {
        let now = self.now();
        self.selector.quic_failed(now, key, Failure::Handshake);
        self.save_changes();
        self.selector.known(now, key).map_or(Duration::ZERO, |known| known.retry_in)
    }

    /// Notes that QUIC has not answered here, for too short a time to say more.
    pub(super) fn quic_doubtful(&mut self) {
        self.selector.quic_doubtful(self.now(), &self.key);
    }

    /// Takes a reading of a connection over QUIC.
    pub(super) fn observe_quic(&mut self, meter: &mut QuicMeter, reading: &QuicReading) -> Option<Decision> {
        self.selector.observe_quic(self.now(), &self.key, meter, reading)
    }

    /// Takes a reading of a connection over TLS.
    pub(super) fn observe_tcp(&mut self, meter: &mut TcpMeter, reading: &TcpReading) -> Option<Decision> {
        self.selector.observe_tcp(self.now(), &self.key, meter, reading)
    }

    /// Writes the state file, if there is one, and if more than a little has changed.
    pub(super) fn save_changes(&mut self) {
        let now = self.now();
        if let Some(file) = &mut self.file {
            file.write_changes(self.selector.remember(now));
        }
    }

    /// Writes the state file, if there is one.
    pub(super) fn save(&mut self) {
        let now = self.now();
        if let Some(file) = &mut self.file {
            file.write(self.selector.remember(now));
        }
    }
}
