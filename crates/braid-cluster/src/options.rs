//! Options of a node.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::Risk;
use crate::layout::Dimensions;
use crate::name::Name;

/// Options of a node of a cluster.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// Servers of NATS, such as `tls://nats-1.example:4222`. Others of their cluster are found by themselves.
    pub servers: Vec<String>,
    /// Name of the cluster: clusters in one account have different ones.
    pub cluster: Name,
    /// Name of this node.
    pub node: Name,
    /// Instance of this node, for a start after a crash: the one that its data directory has.
    pub instance: String,
    /// Login at the servers.
    pub login: Login,
    /// Authorities that sign the certificates of the servers; empty: those of the system.
    pub ca_files: Vec<PathBuf>,
    /// Certificate and key of this node, for servers that ask for it.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// Monitoring ports of the servers.
    pub monitors: Vec<String>,
    /// Risks that are accepted.
    pub accepted: Vec<Risk>,
    /// Numbers that the streams are made with.
    pub dimensions: Dimensions,
    /// Address of this node for clients that another one tells to go there, `HOST[:PORT]`; empty if it has none.
    pub address: String,
    /// Largest packet of the broker, in bytes.
    ///
    /// 0: as large as NATS takes.
    pub largest_packet: usize,
    /// Intervals of the maintenance.
    pub upkeep: Upkeep,
}

/// Intervals and sizes by which one node takes care of the streams. The default suits all but tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upkeep {
    /// Time between two cuts of the log.
    pub trim: Duration,
    /// Bytes of the log of a shard from which on sessions that no node has are moved forward in it.
    pub behind: u64,
    /// Messages of the log after which a node writes the record of a session that it has again.
    pub record_after: u64,
    /// Time after the end of its connection from which on a session is moved forward.
    pub rest: Duration,
    /// Time after which the copy of a message that removed what was retained is removed too.
    pub removals: Duration,
}

impl Default for Upkeep {
    fn default() -> Self {
        Self {
            trim: Duration::from_secs(30),
            behind: 64 << 20,
            record_after: 10_000,
            rest: Duration::from_secs(60),
            removals: Duration::from_secs(300),
        }
    }
}

/// Login at the servers of NATS.
#[derive(Clone, Default)]
pub enum Login {
    /// None, or that of the certificate.
    #[default]
    None,
    /// User and password.
    Password {
        /// User.
        user: String,
        /// Password.
        password: String,
    },
    /// File with a JWT and its key, as `nsc` writes it.
    Credentials(PathBuf),
}

/// Hides the password.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Password { user, .. } => write!(f, "Password({user:?}, hidden)"),
            Self::Credentials(file) => write!(f, "Credentials({file:?})"),
        }
    }
}
