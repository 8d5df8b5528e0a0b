//! Several paths of one connection (draft-ietf-quic-multipath): options, changes that are reported, and the watchdog.
//!
//! A client has a socket for each of its interfaces, and opens a path from each once the server has issued connection
//! IDs for it. The QUIC library sends data on the path of the lowest number that has the status "available", until its
//! congestion window is full, and then on the next one. It does not leave a path that has gone silent: that is the part
//! of the [`watchdog`].

mod local_path;
mod report;
pub(super) mod watchdog;

pub use self::local_path::LocalPath;
pub use self::report::{PathReport, PathRole, PathState};

/// Paths that a server permits at a time: two interfaces, and one each that takes the place of a path that is closing.
pub(super) const SERVER_PATHS: u32 = 4;

/// Options of one end about several paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Multipath {
    /// Paths that a server permits to each connection at a time; with less than 2 it does not know the extension.
    pub permitted: u32,
    /// Interfaces of a client, the preferred one first. With less than two there is one path, chosen by the system.
    pub locals: Vec<LocalPath>,
    /// Use of the paths by a client.
    pub mode: PathMode,
}

impl Multipath {
    /// Tests whether a client opens several paths.
    pub(super) fn is_wanted(&self) -> bool {
        self.locals.len() > 1
    }

    /// Largest number of paths for the library; 0: the extension is off.
    pub(super) fn library_paths(&self) -> u32 {
        let own = u32::try_from(2 * self.locals.len()).unwrap_or(u32::MAX);
        let paths = if self.is_wanted() { own } else { self.permitted };
        if paths > 1 { paths } else { 0 }
    }
}

/// Use of the paths of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathMode {
    /// The first of the list that answers carries everything; the others are kept ready.
    #[default]
    Standby,
    /// All that answer carry data: a packet leaves on the first whose congestion window has room.
    Both,
}

impl PathMode {
    /// The mode of this name: `standby` or `both`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "standby" => Some(Self::Standby),
            "both" => Some(Self::Both),
            _ => None,
        }
    }
}

/// Change of one path of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathNotice {
    /// Index in [`Multipath::locals`].
    pub local: usize,
    /// The change.
    pub change: PathChange,
}

/// Change of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathChange {
    /// The server answers on it.
    Opened,
    /// The server does not answer on it: its data has moved to another path. The path is opened again later.
    Silent,
    /// The server knows no paths beyond the first one. Reported once for each other interface.
    Unsupported,
}
