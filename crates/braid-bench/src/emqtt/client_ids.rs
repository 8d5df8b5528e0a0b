use crate::summary::Role;

/// Scheme of the Client Identifiers.
#[derive(Debug, Clone)]
pub struct ClientIds {
    /// Role of the clients.
    pub role: Role,
    /// `--prefix`; an empty one is none.
    pub prefix: Option<String>,
    /// `--shortids`.
    pub short: bool,
    /// The address of `--ifaddr`, else the machine's name.
    pub host: String,
}

impl ClientIds {
    /// The Client Identifier of client `number` (1 is the first, plus `--startnumber`).
    ///
    /// `random` is a number from 1, new for each client; it is seen only when there is neither a prefix nor
    /// `--shortids`: with them the identifiers of a run are those of the run before, so sessions continue.
    #[must_use]
    pub fn client_id(&self, number: u64, random: u32) -> String {
        let Self { role, short, host, .. } = self;
        match (short, self.prefix.as_deref().filter(|prefix| !prefix.is_empty())) {
            (false, None) => format!("{host}_bench_{role}_{random}_{number}"),
            (false, Some(prefix)) => format!("{prefix}_bench_{role}_{number}"),
            (true, prefix) => format!("{}{number}", prefix.unwrap_or_default()),
        }
    }
}
